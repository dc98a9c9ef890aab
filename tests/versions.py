"""Runs the tests of numbers, stored files, tables and models with the oldest and the newest
libraries that exlm accepts.

    python -m tests.versions [oldest] [newest] [--torch 2.13.0] [--work build/versions]

makes a virtual environment for each and prints a table. The oldest versions are those in
pyproject.toml. `--torch` takes one version of PyTorch in both, where others are not to be had
without gigabytes for a GPU. Environments stay in `--work` and are used again.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARIES = ("torch", "transformers", "pandas")
TESTS = (
    "tests/test_golden.py",
    "tests/test_stored.py",
    "tests/data",
    "tests/model",
    "tests/tasks/test_glue.py",
    "tests/tasks/test_robustness.py",
    "tests/tasks/test_table.py",
    "tests/train/test_pretrain.py",
)


def oldest(name: str) -> str:
    """The requirement of the oldest version that pyproject.toml accepts."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [version] = [entry.split(">=")[1] for entry in wanted if entry.startswith(f"{name}>=")]
    return f"{name}=={version}.*"


def environment(directory: Path, requirements: list[str]) -> Path:
    """The interpreter of a virtual environment with exlm and the `requirements`."""
    python = directory / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    install = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "-r", str(ROOT / "requirements.txt")], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
    subprocess.run([*install, "--upgrade", *requirements], check=True)
    return python


def versions(python: Path) -> list[str]:
    code = f"from importlib.metadata import version; print(*map(version, {LIBRARIES}))"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


def outcome(python: Path, log: Path) -> str:
    """What pytest counted, in its own words; everything else is in `log`."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    with log.open("w") as file:
        subprocess.run(
            [python, "-m", "pytest", *TESTS], cwd=ROOT, env=variables, stdout=file, stderr=file
        )
    return ", ".join(
        re.findall(r"\d+ (?:passed|failed|errors?|skipped)\b", log.read_text().splitlines()[-1])
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["oldest", "newest"])
    parser.add_argument("--torch", help="one version of PyTorch for both environments")
    parser.add_argument("--work", type=Path, default=Path("build/versions"))
    options = parser.parse_args()
    print(f"| environment | {' | '.join(LIBRARIES)} | tests |\n| --- | --- | --- | --- |")
    for name in options.names:
        chosen = [*map(oldest, LIBRARIES)] if name == "oldest" else [*LIBRARIES]
        if options.torch:
            chosen = [
                f"torch=={options.torch}",
                *(one for one in chosen if not one.startswith("torch")),
            ]
        directory = options.work.resolve() / name
        python = environment(directory, chosen)
        print(
            f"| {name} | {' | '.join(versions(python))} | "
            f"{outcome(python, directory / 'tests.txt')} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
