"""Checks that every internal link, picture and frame of the built site leads to a file and an
anchor that exist.

Usage: python docs/check_links.py build/site
"""

import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup


@cache
def parsed(page: Path) -> BeautifulSoup:
    """The page as a tree."""
    return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names that a link to this page may end with."""
    return frozenset(str(tag["id"]) for tag in parsed(page).select("[id]"))


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere."""
    lines = []
    for page in sorted(site.rglob("*.html")):
        for tag in parsed(page).select("a[href], img[src], iframe[src], script[src], link[href]"):
            target = str(tag.get("href") or tag.get("src") or "")
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue  # to another site
            file = (page.parent / unquote(link.path)).resolve() if link.path else page
            fragment = unquote(link.fragment)
            if not file.exists() or (
                fragment and file.suffix == ".html" and fragment not in anchors(file)
            ):
                lines.append(f"{page.relative_to(site)}: {target}")
    return sorted(set(lines))


if __name__ == "__main__":
    found = broken(Path(sys.argv[1]))
    print("\n".join([*found, f"{len(found)} broken links"]))
    sys.exit(bool(found))
