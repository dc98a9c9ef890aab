"""The `exlm` command, up to the point where it needs the library.

This module stands outside of the package, because importing `exlm` imports PyTorch and transformers, which takes
seconds: help, the version and mistyped commands are answered without them.

Exit status: 0 done, 2 the input cannot be used, 3 training stopped itself, 128 + n interrupted by signal n.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

# command -> (module, function, one line, positional arguments). The last of these may end in ? (it can be missing), in
# * (a list of all further words) or in + (a list of at least one).
COMMANDS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "prepare": ("exlm.data.prepare", "prepare", "tokenise files into a corpus for pre-training", ("inputs+",)),
    "pretrain": ("exlm.pretrain", "pretrain", "pre-train ExLM or a baseline on a corpus", ("config?",)),
    "finetune": (
        "exlm.tasks.finetune",
        "finetune",
        "fine-tune a model on labelled data and evaluate it",
        ("config?",),
    ),
    "predict": ("exlm.tasks.predict", "predict", "add a fine-tuned model's predictions to a table", ("model", "input")),
    "embed": ("exlm.tasks.predict", "embed", "write embeddings of the rows of a table", ("model", "input")),
    "fill": ("exlm.filling.fill", "fill", "fill masks jointly: n best, Viterbi or samples", ("model", "texts*")),
    "explore": (
        "exlm.filling.explore",
        "explore",
        "a page to look inside: states, transitions, best fillings",
        ("model", "text"),
    ),
    "analyze": (
        "exlm.paper.analyze",
        "analyze",
        "run an experiment of the paper: whatever is missing of it",
        ("experiment", "config"),
    ),
    "report": (
        "exlm.paper.report",
        "report",
        "tables and figures of the paper from runs, beside the paper's values",
        ("runs*",),
    ),
    "demo": ("exlm.demo", "demo", "the whole pipeline on data that ship with a package", ("config?",)),
}
HELP = ("-h", "--help")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments and arguments[0] == "--version":
        try:
            print(f"exlm {version('exlm')}")
        except PackageNotFoundError:
            print("exlm, from its source folder")
        return
    if not arguments or arguments[0] not in COMMANDS:
        _usage(arguments)
    name, *rest = arguments
    given, rest = _positional(name, rest)

    from exlm.cli import run

    run(name, given, rest)


def leave(status: int, message: str) -> NoReturn:
    """Ends the process with a message on standard error."""
    print(message, file=sys.stderr, flush=True)
    raise SystemExit(status)


def _positional(name: str, rest: list[str]) -> tuple[dict[str, str | list[str]], list[str]]:
    """The leading words by the arguments they are for, and all that follows them. A recipe becomes an option."""
    words = []
    while rest and not rest[0].startswith("-"):
        words.append(rest[0])
        rest = rest[1:]
    if rest and rest[0] in HELP:
        return {}, rest
    names = list(COMMANDS[name][3])
    kind = names[-1][-1]
    last = names.pop().rstrip(kind) if kind in "?*+" else None
    needed = [*names, last] if last and kind == "+" else names
    if len(words) < len(needed) or (last is None and len(words) > len(names)):
        wanted = " and ".join(word.upper() for word in needed) + (" alone" if len(words) > len(needed) else "")
        leave(2, f"exlm {name}: error: give {wanted} before the options (exlm {name} --help)")
    given: dict[str, str | list[str]] = dict(zip(names, words, strict=False))
    further = words[len(names) :]
    if last and kind in "*+":
        given[last] = further
    elif last and further:
        given[last], rest = further[0], [*further[1:], *rest]
    if recipe := given.pop("config", None):
        try:
            found = Path(str(recipe)).is_file()
        except OSError:  # a name too long for the file system
            found = False
        if not found:
            leave(2, f"exlm {name}: error: the recipe {recipe} does not exist; see the recipes folder for examples")
        rest = ["--config", str(recipe), *rest]
    return given, rest


def _usage(arguments: list[str]) -> NoReturn:
    lines = [f"  {name:10s} {summary}" for name, (_, _, summary, _) in COMMANDS.items()]
    text = "usage: exlm COMMAND ...\n\n" + "\n".join(lines) + "\n\nexlm COMMAND --help lists the options of a command"
    if arguments and arguments[0] in HELP:
        print(text)
        raise SystemExit(0)
    unknown = f"exlm: error: unknown command {arguments[0]!r}\n\n" if arguments else ""
    leave(2, unknown + text)


if __name__ == "__main__":
    main()
