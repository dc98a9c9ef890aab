"""Kills and signals at random moments: the same command, started again, ends as if nothing had
happened."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exlm.storage.files import write_yaml
from tests.soak import work
from tests.soak.work import Test, command, differences, finish, pretraining, reference

LONGEST = 300  # seconds to wait for anything
KILLS = int(os.environ.get("SOAK_KILLS", 120))  # of one run


def slow_saves(marker: str, first: int) -> None:
    """From the `first` save on, makes every save of a checkpoint last half a second, and then
    creates `marker`."""
    import exlm.train.checkpoint as checkpoint

    save_file, sync, saved = checkpoint.save_file, checkpoint.sync, []

    def slow_save_file(*arguments: Any) -> None:
        saved.append(None)
        if len(saved) > 2 * first:  # weights and moments
            Path(marker).touch()
        time.sleep(0.1)
        save_file(*arguments)

    def slow_sync(path: Path) -> None:
        time.sleep(0.1)
        sync(path)

    checkpoint.save_file, checkpoint.sync = slow_save_file, slow_sync  # type: ignore[assignment]


def _wait_for(path: Path, process: Any) -> None:
    end = time.monotonic() + LONGEST
    while not path.exists() and process.is_alive() and time.monotonic() < end:
        time.sleep(0.002)


def kill_pretraining(index: int, directory: Path) -> dict[str, Any]:
    """SIGKILL, in every third trial inside a save."""
    shared, draw = directory.parent.parent, random.Random(index)
    expected, seconds = reference(shared, "pretraining", lambda path: pretraining(shared, path))
    words, marker, inside = (
        pretraining(shared, directory / "run"),
        directory / "saving",
        index % 3 == 0,
    )
    if inside:
        process = command(words, directory / "1.txt", slow_saves, str(marker), draw.randrange(15))
        _wait_for(marker, process)
        time.sleep(draw.uniform(0, 0.5))
    else:
        process = command(words, directory / "1.txt")
        time.sleep(draw.uniform(0, 0.9 * seconds))
    process.kill()
    process.join()
    left = sorted(path.name for path in (directory / "run").glob("*checkpoint-*"))
    status = finish(words, directory / "2.txt")
    wrong = differences(directory / "run", expected)
    return {
        "passed": status == 0 and not wrong,
        "killed": process.exitcode == -signal.SIGKILL,
        "inside_a_save": inside,
        "checkpoints": left,
        "differences": wrong,
        "status": status,
    }


def kill_one_run_often(index: int, directory: Path) -> dict[str, Any]:
    """SIGKILL of the same run again and again; it never falls behind what it had saved."""
    shared, draw = directory.parent.parent, random.Random(index)
    changes = {"steps": 50 * KILLS, "save_every": 5, "eval_every": 1000, "log_every": 50}
    expected, _ = reference(
        shared, f"{KILLS}-kills", lambda path: pretraining(shared, path, **changes)
    )
    words, reached = pretraining(shared, directory / "run", **changes), list[str]()
    while len(reached) < KILLS:
        process = command(words, directory / "killed.txt")
        process.join(draw.uniform(0.5, 6))
        if not process.is_alive():
            break
        process.kill()
        process.join()
        reached.append(
            max((path.name for path in (directory / "run").glob("checkpoint-*")), default="")
        )
    status = finish(words, directory / "last.txt")
    wrong = differences(directory / "run", expected)
    return {
        "passed": status == 0 and not wrong and reached == sorted(reached),
        "kills": len(reached),
        "differences": wrong,
        "reached": reached[-1],
        "status": status,
    }


def signal_pretraining(index: int, directory: Path) -> dict[str, Any]:
    """SIGTERM or SIGINT, in every third trial twice, in every fourth inside a save."""
    shared, draw = directory.parent.parent, random.Random(1000 + index)
    expected, seconds = reference(shared, "pretraining", lambda path: pretraining(shared, path))
    words, marker = pretraining(shared, directory / "run"), directory / "saving"
    number = (signal.SIGTERM, signal.SIGINT)[index % 2]
    if index % 4 == 0:
        process = command(words, directory / "1.txt", slow_saves, str(marker), draw.randrange(15))
        _wait_for(marker, process)
    else:
        process = command(words, directory / "1.txt")
        time.sleep(draw.uniform(0.1, 0.9) * seconds)
    begin = time.monotonic()
    for _ in range(2 if index % 3 == 0 else 1):
        if process.is_alive() and process.pid:
            os.kill(process.pid, number)
            time.sleep(0.02)
    process.join(LONGEST)
    took, first = time.monotonic() - begin, process.exitcode
    status = finish(words, directory / "2.txt")
    wrong = differences(directory / "run", expected)
    allowed = {0, 128 + number, -number, 1}  # twice: Python's own end of an interrupted program
    return {
        "passed": status == 0 and not wrong and first in allowed and took < 20,
        "signal": number.name,
        "twice": index % 3 == 0,
        "status": [first, status],
        "seconds_to_end": took,
        "differences": wrong,
    }


def _killed_and_repeated(
    name: str, words: Callable[[Path, Path], list[str]], suffix: str = ""
) -> Callable[..., Any]:
    """A trial that kills a command twice at random moments and then lets it finish."""

    def trial(index: int, directory: Path) -> dict[str, Any]:
        shared, draw = directory.parent.parent, random.Random(f"{name}{index}")
        expected, seconds = reference(shared, f"{name}{suffix}", lambda path: words(shared, path))
        output = directory / expected.name
        half_written = []
        for number in (1, 2):
            process = command(words(shared, output), directory / f"{number}.txt")
            time.sleep(draw.uniform(0.05, 0.9) * seconds)
            process.kill()
            process.join()
            if (
                process.exitcode == -signal.SIGKILL
                and output.exists()
                and name in ("prepare", "predict", "embed")
            ):
                half_written += differences(output, expected)
        again = words(shared, output)
        if name == "prepare" and output.exists():  # it was finished before the kill
            again += ["--overwrite", "true"]
        status = finish(again, directory / "3.txt")
        wrong = differences(output, expected)
        return {
            "passed": status == 0 and not wrong and not half_written,
            "status": status,
            "differences": wrong,
            "half_written": half_written,
        }

    return trial


def _prepare(shared: Path, output: Path) -> list[str]:
    table = work.shared(shared, "many.csv", lambda path: work.molecules(path, 60_000))
    return ["prepare", str(table), "--workers", "2", "--output", str(output)]


def pretrained(shared: Path) -> Path:
    return reference(shared, "pretraining", lambda path: pretraining(shared, path))[0]


def _finetune(shared: Path, output: Path) -> list[str]:
    table = work.shared(shared, "molecules.csv", work.molecules)
    options = [
        "--task.dataset",
        str(table),
        "--seeds",
        "0,1",
        "--epochs",
        "4",
        "--batch_size",
        "16",
    ]
    return [
        "finetune",
        "molecules/finetune",
        "--model",
        str(pretrained(shared)),
        *options,
        "--output",
        str(output),
    ]


def finetuned(shared: Path) -> Path:
    return reference(shared, "finetune", lambda path: _finetune(shared, path))[0]


def _predict(shared: Path, output: Path) -> list[str]:
    # three parts
    table = work.shared(shared, "long.smi", lambda path: work.unlabelled(path, 25_000))
    return ["predict", str(finetuned(shared)), str(table), "--output", str(output)]


def _embed(shared: Path, output: Path) -> list[str]:
    table = work.shared(shared, "long.smi", lambda path: work.unlabelled(path, 25_000))
    return ["embed", str(pretrained(shared)), str(table), "--output", str(output)]


def _analyze(shared: Path, output: Path) -> list[str]:
    table = work.shared(shared, "molecules.csv", work.molecules)
    sizes = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    loop = ("steps", "log_every", "eval_every", "save_every")
    train = {"learning_rate": 1e-3, "epochs": 2, "batch_size": 16}
    recipe = {
        "data": {
            "corpus": str(work.corpus(shared)),
            "tokens_per_batch": 1500,
            "eval_sequences": 20,
        },
        "model": {name: work.TINY[name] for name in sizes},
        "train": {name: work.TINY[name] for name in loop} | {"optimizer": {"warmup_steps": 5}},
        "space": {"states": [2, 3], "sweep_mask_ratios": [0.15]},
        "tasks": {"energies": {"task": {"dataset": str(table)}, "train": train}},
        "seeds": [1],
    }
    work.shared(shared, "analysis.yaml", lambda path: write_yaml(path, recipe))
    return ["analyze", "sweep", str(shared / "analysis.yaml"), "--output", str(output)]


AGAIN = "the same command, started again, ends with the same bits"
TESTS = [
    Test(
        "kill pretrain", f"SIGKILL at any moment, also inside a save: {AGAIN}", 50, kill_pretraining
    ),
    Test(
        "one run killed often", f"SIGKILL of one run {KILLS} times: {AGAIN}", 1, kill_one_run_often
    ),
    Test(
        "signal pretrain",
        f"SIGTERM, SIGINT, twice, in a save: a clean end, and {AGAIN}",
        20,
        signal_pretraining,
    ),
    Test(
        "kill prepare",
        f"no half-written corpus is used; {AGAIN}",
        20,
        _killed_and_repeated("prepare", _prepare),
    ),
    Test(
        "kill finetune", f"SIGKILL twice: {AGAIN}", 20, _killed_and_repeated("finetune", _finetune)
    ),
    Test(
        "kill predict",
        f"SIGKILL twice: {AGAIN}",
        20,
        _killed_and_repeated("predict", _predict, ".csv"),
    ),
    Test(
        "kill embed",
        f"SIGKILL twice: {AGAIN}",
        20,
        _killed_and_repeated("embed", _embed, ".parquet"),
    ),
    Test("kill analyze", f"SIGKILL twice: {AGAIN}", 10, _killed_and_repeated("analyze", _analyze)),
]
