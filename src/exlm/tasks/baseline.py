"""The command `exlm baseline`: trains a baseline on a labelled table, once per seed."""

import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from exlm.data.open_files import plain_stem
from exlm.data.spelling import Spelling
from exlm.errors import InputError
from exlm.tasks.baselines import BASELINES
from exlm.tasks.baselines.fit_inputs import check_texts, protein_letters
from exlm.tasks.baselines.programs import environment
from exlm.tasks.baselines.saved import SavedBaseline
from exlm.tasks.config import TaskConfig
from exlm.tasks.encoders.saved_task import TextSettings
from exlm.tasks.grid import DEFAULT_SEEDS, Grid
from exlm.tasks.labels.label_types import LABEL_TYPES
from exlm.tasks.results import GridResults, SeedResult
from exlm.tasks.rows.hashes import split_hash
from exlm.tasks.rows.labelled_table import read_labelled_table
from exlm.tasks.rows.splits import RowSplit
from exlm.tasks.rows.task_files import resolve
from exlm.tasks.tables.seed_directory import write_results
from exlm.tasks.tables.table_config import infer_settings
from exlm.tasks.tables.table_task import TableTask, make_table_task
from exlm.tasks.task_kinds import TABLE_KIND, find_task_kind

OWN_PACKAGES = ("rdkit", "scikit-learn")  # of this environment, which make predictions


def baseline(
    name: str,
    dataset: str,
    output: str | None = None,
    task: TaskConfig = TaskConfig(""),
    seeds: list[int] | None = None,
    epochs: int | None = None,
) -> GridResults:
    """Trains a baseline once per seed, with the data, splits and metrics of `exlm finetune`.

    The files are the same, too, but for the model: a baseline keeps the rows that it learned from,
    and `exlm predict` and `exlm evaluate` fit it to them again. `exlm report` shows the results
    beside the models of the same data. If it is interrupted and run again, finished seeds are not
    repeated.

    Args:
        name: for molecules ecfp-rf, ecfp-knn, ecfp-lr (ECFP4 fingerprints with a random forest,
            nearest neighbours or logistic regression), chemprop (D-MPNN) or attentivefp (both get a
            Python environment at first use, which needs a network, in ~/.cache/exlm/baselines or
            the folder that the environment variable EXLM_BASELINES names); for text tfidf-lr
            (TF-IDF with logistic regression).
        dataset: the labelled data, as in `task.dataset` of `exlm finetune`.
        output: directory; runs/baselines/NAME/DATASET where absent.
        task: what else there is to say of the data; leave out `task.dataset`.
        seeds: seeds of the baseline and of random splits; 0, 1 and 2 where absent.
        epochs: the most epochs of chemprop (50 where absent) or attentivefp (100); lower it for
            large tables.

    Returns the content of `results.json`, as `exlm finetune` does."""
    if name not in BASELINES:
        raise InputError(f"there is no baseline {name!r}; use one of {', '.join(BASELINES)}")
    program_packages = BASELINES[name].packages
    if epochs is not None and (epochs < 1 or not program_packages):
        raise InputError(
            f"epochs is {epochs}; give at least 1, and only to chemprop or attentivefp"
        )
    if task.dataset not in ("", dataset):
        raise InputError(
            f"the data are {dataset} and, as task.dataset, {task.dataset}; leave out task.dataset"
        )
    resolved_task, _ = resolve(replace(task, dataset=dataset))
    baseline_task = read_baseline_task(name, resolved_task)
    if program_packages:
        environment(program_packages)  # installed before anything is written
    hyper: dict[str, Any] = {
        **BASELINES[name].hyper,
        "packages": program_packages or [f"{name}=={version(name)}" for name in OWN_PACKAGES],
    }
    if epochs is not None:
        hyper["epochs"] = epochs
    data_name = plain_stem(dataset).lower()
    directory = Path(output or f"runs/baselines/{name}/{data_name}")
    recipe = {"name": name, "dataset": dataset, "output": output, "task": task, "epochs": epochs}
    grid = Grid(
        directory=directory,
        task=baseline_task,
        train_seed=BaselineFitting(name, baseline_task).fit_seed,
        hyper_by_cell={"": hyper},
        seeds=DEFAULT_SEEDS if seeds is None else seeds,
        model_identity={"baseline": name},
        device="auto" if program_packages else "cpu",  # programs find a GPU themselves
    )
    return grid.run(recipe)


def read_baseline_task(name: str, config: TaskConfig) -> TableTask:
    """The labelled table of a config, read for a baseline. InputError if it cannot learn from
    such a table."""
    is_table = find_task_kind(config.task_type) is TABLE_KIND
    if not is_table or (config.task_type and LABEL_TYPES[config.task_type].of_units):
        raise InputError(
            f"{config.task_type} has no baseline; use a table with labels for each row as a whole"
        )
    table = read_labelled_table(config)
    table_config = infer_settings(config, table, TextSettings())
    molecules = table_config.molecules
    if molecules != BASELINES[name].molecules:
        readers = [key for key, entry in BASELINES.items() if entry.molecules == molecules]
        raise InputError(
            f"{config.dataset} has {'molecules' if molecules else 'text'}, which {name} does "
            f"not read; use {', '.join(readers)}, or set task.molecules"
        )
    if molecules and table.pairs is not None:
        raise InputError(
            f"{name} reads one molecule of a row, and {config.dataset} has pairs; "
            "leave out task.pair_column for a baseline of the first"
        )
    if molecules and config.on_invalid == "keep":
        raise InputError(
            "a baseline cannot keep what RDKit cannot parse; set task.on_invalid to skip"
        )
    # A model of proteins has the same splits, as it reads and spells them the same.
    letters = None if molecules else protein_letters(table.texts)
    return make_table_task(
        table_config,
        check_texts(table, molecules, letters, config.on_invalid),
        rows_to_split=table.usable,
        spelling=Spelling(molecules, table_config.standardize, letters).as_compared,
    )


@dataclass(eq=False)
class BaselineFitting:
    """A baseline that is fitted to a labelled table."""

    name: str
    task: TableTask
    # predictions [rows, outputs] and the seconds that they took, by what decides them: the hash of
    # the split and, if the baseline is random, the seed
    fits: dict[tuple[str, int | None], tuple[np.ndarray, float]] = field(default_factory=dict)

    def fit_seed(self, run_dir: Path, hyper: dict[str, Any], seed: int) -> SeedResult:
        """Fits the baseline with one seed, and writes its predictions and what it learned from. A
        baseline that is not random is not fitted again to the split of another seed."""
        run_dir.mkdir(parents=True, exist_ok=True)
        split = self.task.split_of(seed)
        seed_baseline = self._baseline_of_seed(split, seed, hyper.get("epochs"))
        key = (split_hash(split), seed if BASELINES[self.name].is_random else None)
        if key not in self.fits:
            start = time.monotonic()
            predictions = seed_baseline.predict(self.task.table, run_dir / "program.log")
            self.fits[key] = (predictions, round(time.monotonic() - start, 3))
        predictions, seconds = self.fits[key]
        seed_baseline.write(run_dir)
        results = write_results(self.task, split, seed_baseline.task, predictions, run_dir)
        return {"seconds": seconds, **results}

    def _baseline_of_seed(self, split: RowSplit, seed: int, epochs: int | None) -> SavedBaseline:
        """The baseline of a seed, with the rows of train and valid: it is not shown others."""
        task = self.task
        table = task.table
        rows = np.sort(np.concatenate([split["train"], split["valid"]]))
        spelling = Spelling(task.config.molecules, task.config.standardize)
        texts = [spelling.as_read(table.texts[row]) for row in rows]
        pairs = None
        if table.pairs:
            pairs = [table.pairs[row] for row in rows]
        return SavedBaseline(
            name=self.name,
            task=task.task_to_save(split["train"]),
            metric=task.metric,
            seed=seed,
            epochs=epochs,
            texts=texts,
            pairs=pairs,
            labels=table.labels.values[rows],
            train=np.searchsorted(rows, split["train"]),
            valid=np.searchsorted(rows, split["valid"]),
        )
