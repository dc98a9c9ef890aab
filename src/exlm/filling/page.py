"""A case of `exlm explore` as one HTML page that loads nothing: data as JSON and the scripts that draw it."""

import json
import re
from importlib import resources
from typing import Any

ROUND = 6  # significant digits of a probability


def page(case: dict[str, Any]) -> str:
    """The page. Whatever the case holds is inert: it stands in JSON in which no tag can begin or end."""
    parts = {"DRAW": _resource("draw.js"), "EVENTS": _resource("events.js"), "CASE": _embedded(case)}
    return re.sub(r"/\*(DRAW|EVENTS|CASE)\*/", lambda match: parts[match[1]], _resource("page.html"))


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _embedded(case: dict[str, Any]) -> str:
    text = json.dumps(_rounded(case), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # "<!--" and "</script>" would change how the rest of the page is read.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.{ROUND}g}") if isinstance(value, float) else value
