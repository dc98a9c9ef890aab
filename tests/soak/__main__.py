"""Breaks things on purpose, many times, and counts how often every promise was kept.

    python -m tests.soak [NAME ...] [--share 0.1] [--results soak.jsonl] [--work DIRECTORY]
    python -m tests.soak --report soak.jsonl

Every trial writes a line of JSON; those that are there are not run again, so the command can be
stopped and started. NAME chooses the tests whose names begin with it; `--share` runs the first part
of each test's trials.
"""

import argparse
import json
import math
import shutil
import time
import traceback
from pathlib import Path

import pandas as pd

from exlm.storage.machine import machine
from tests.soak import TESTS
from tests.soak.work import Test


def run(tests: list[Test], share: float, results: Path, work: Path) -> bool:
    """Runs all trials that `results` lacks. True if all trials of the file passed."""
    done = {(record["test"], record["trial"]) for record in read(results)}
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        for test in tests:
            for index in range(math.ceil(share * test.trials)):
                if (test.name, index) not in done:
                    file.write(json.dumps(one(test, index, work)) + "\n")
                    file.flush()
    return all(record["passed"] for record in read(results))


def one(test: Test, index: int, work: Path) -> dict:
    """The record of one trial. Its directory stays where it is if the trial failed."""
    directory, begin = work / test.name.replace(" ", "-") / str(index), time.monotonic()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        found = test.trial(index, directory)
    except Exception:
        found = {"passed": False, "error": traceback.format_exc()[-2000:]}
    if found["passed"]:
        shutil.rmtree(directory)
    record = {
        "test": test.name,
        "trial": index,
        **found,
        "seconds": round(time.monotonic() - begin, 2),
    }
    print(
        f"{test.name} {index}: {'passed' if found['passed'] else 'FAILED'} ({record['seconds']} s)",
        flush=True,
    )
    return record | {"machine": machine()["processor"]}


def read(results: Path) -> list[dict]:
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def report(results: Path) -> str:
    """A table in Markdown: what is promised, and how often it was kept."""
    promises = {test.name: test.promise for test in TESTS}
    frame = pd.DataFrame(read(results))
    lines = ["| test | promise | kept | minutes |", "| --- | --- | --- | --- |"]
    for name, rows in frame.groupby("test", sort=False):
        count = rows.get("cases", pd.Series(1, rows.index)).fillna(1).astype(int)
        kept = f"{count[rows['passed']].sum():,} of {count.sum():,}"
        lines.append(
            f"| {name} | {promises.get(str(name), '')} | {kept} | {rows['seconds'].sum() / 60:.1f} "
            "|"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--results", type=Path, default=Path("build/soak.jsonl"))
    parser.add_argument("--work", type=Path, default=Path("build/soak"))
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.report:
        print(report(options.report))
        return
    chosen = [
        test for test in TESTS if not options.names or test.name.startswith(tuple(options.names))
    ]
    kept = run(chosen, options.share, options.results.resolve(), options.work.resolve())
    print(report(options.results))
    raise SystemExit(0 if kept else 1)


if __name__ == "__main__":
    main()
