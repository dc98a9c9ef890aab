"""Fine-tuning: a labelled table, a split, several seeds; selection on valid, report on test."""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import rdkit
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exlm.data.tokenization import load_tokenizer
from exlm.directory import fingerprint, load_model, plain, save_model, verify, write_json, write_yaml
from exlm.errors import InputError
from exlm.files import lock, sha256, write_text
from exlm.model.downstream import ExLMForSequenceClassification
from exlm.tasks.metrics import MAIN_METRIC, evaluate, summarise
from exlm.tasks.molnet import MOLECULENET, find_dataset
from exlm.tasks.splits import PARTS, Split, make_split, random_split, split_hash
from exlm.tasks.supervised import (
    RowBatches,
    Rows,
    Selector,
    predict_rows,
    prediction_columns,
    supervised_loss,
    tokenize_rows,
    with_columns,
)
from exlm.tasks.table import LabelledTable, TaskType, listed, load_table
from exlm.train import distributed
from exlm.train.loop import LoopConfig, fit
from exlm.train.optim import OptimizerConfig

PROBLEM_TYPE = {
    "binary": "multi_label_classification",
    "multilabel": "multi_label_classification",
    "multiclass": "single_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class TaskConfig:
    """The labelled data.

    Attributes:
        dataset: a MoleculeNet set (bace, bbbp, tox21, sider, muv, clintox, toxcast, esol, freesolv, lipophilicity)
            or a CSV, TSV, JSONL or Parquet file.
        text_column: column of the SMILES or text; found by its name where absent.
        label_columns: columns of the labels; every other numeric column where absent.
        task_type: binary, multiclass, multilabel (cells may be missing) or regression; inferred where absent.
        split: `scaffold`, `random`, `column:NAME` or `file:INDICES.json`; a missing valid part is drawn from train.
        molecules: the texts are SMILES: rows that RDKit cannot parse are invalid.
        on_invalid: invalid rows (not a molecule, tokens outside the vocabulary) are reported and left out (`skip`),
            reported and used all the same (`keep`; a scaffold split cannot), or stop the run (`error`). Rows without
            text or label and over-long ones are always left out.
        max_length: longest text in tokens.
        data_dir: where the MoleculeNet files are.
    """

    dataset: str
    text_column: str | None = None
    label_columns: list[str] | None = None
    task_type: TaskType | None = None
    split: str = "scaffold"
    molecules: bool = True
    on_invalid: Literal["error", "skip", "keep"] = "skip"
    max_length: int = 512
    data_dir: str | None = None


@dataclass(frozen=True)
class FinetuneConfig:
    """Hyper-parameters; for MoleculeNet sets those left out come from the paper's table.

    Attributes:
        epochs: passes over the training rows.
        batch_size: rows per update.
        learning_rate: peak learning rate.
        warmup_ratio: share of the updates spent warming up.
        dropout: of the encoder.
        pooler_dropout: of the classification head.
        pooling: what the classification head reads, the `first` state (paper) or the `mean` over tokens.
        patience: stop after this many epochs without a better valid score; 0 never stops early.
        weight_decay: decoupled weight decay.
        clip_norm: largest gradient norm, 0 for none.
        precision: auto, bf16 or fp32.
    """

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warmup_ratio: float | None = None
    dropout: float | None = None
    pooler_dropout: float | None = None
    pooling: Literal["first", "mean"] = "first"
    patience: int = 20
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    precision: Literal["auto", "bf16", "fp32"] = "auto"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise InputError(f"{name} is {value}; it must be positive")
        for name in ("warmup_ratio", "dropout", "pooler_dropout"):
            if (value := getattr(self, name)) is not None and not 0 <= value < 1:
                raise InputError(f"{name} is {value}; it must lie in [0, 1)")
        if self.patience < 0:
            raise InputError(f"patience is {self.patience}; it must be 0 (never stop early) or more")


DEFAULTS = {
    "epochs": 40,
    "batch_size": 64,
    "learning_rate": 1e-4,
    "warmup_ratio": 0.06,
    "dropout": 0.1,
    "pooler_dropout": 0.1,
}


def finetune(
    output: str,
    model: str,
    task: TaskConfig,
    train: FinetuneConfig = FinetuneConfig(),
    seeds: list[int] | None = None,
    from_scratch: bool = False,
) -> dict[str, Any]:
    """Fine-tunes a pre-trained model once per seed and reports mean and standard deviation.

    Args:
        output: directory; each seed's model goes to `seed-N`, with its predictions for every row.
        model: directory of the pre-trained model.
        task: the labelled data and their split.
        train: hyper-parameters.
        seeds: of the head, order, dropout and random splits; 0, 1 and 2 where absent.
        from_scratch: keep the architecture and tokenizer of `model` but start from random weights.

    Returns:
        The content of `results.json`: metrics of every seed, and (mean, standard deviation) over seeds.
    """
    seeds = [0, 1, 2] if seeds is None else seeds
    if not seeds:
        raise InputError("seeds is empty; give at least one")
    verify(model)
    task, hyper = resolve(task, train)
    tokenizer = load_tokenizer(model)
    table = load_table(task.dataset, task.text_column, task.label_columns, task.task_type)
    rows = tokenize_rows(table, tokenizer, task.max_length, task.molecules, task.on_invalid == "keep")
    _announce(task, rows)
    directory = Path(output)
    settings = plain({"model": model, "task": task, "train": hyper, "from_scratch": from_scratch})
    settings |= {"model_sha256": fingerprint(model), "dataset_sha256": sha256(Path(task.dataset))}
    with lock(directory):
        write_yaml(directory / "recipe.yaml", {"output": output, **settings, "seeds": seeds})
        write_text(directory / "invalid_rows.csv", rows.report().to_csv(index=False))
        results = []
        for seed in seeds:
            place = directory / f"seed-{seed}"
            result = _finished(place, settings)
            if result is None:
                network, facts, split = _start(model, task, hyper, rows, seed, from_scratch)
                result = {"seed": seed, "settings": settings}
                result |= _train(place, network, facts, rows, split, hyper, seed, tokenizer)
                write_json(place / "result.json", result)
            results.append(result)
        return _summarise(directory, rows.table, seeds, results, settings)


def _announce(task: TaskConfig, rows: Rows) -> None:
    """Says what was understood of the table, and which rows cannot be used."""
    guess = "" if task.task_type else " (inferred; set task.task_type if that is wrong)"
    print(f"{task.dataset}: {rows.table.task_type} of {listed(rows.table.label_columns, 5)}{guess}")
    bad = rows.report()
    if not len(bad):
        return
    first = bad.iloc[0]
    example = f"row {first['row']}, value {first['value']!r}: {first['reason']}"
    if task.on_invalid == "error":
        raise InputError(f"{task.dataset}: {example}; correct or remove it, or set task.on_invalid to skip")
    actions = ", ".join(f"{count} {action}" for action, count in bad["action"].value_counts().items())
    print(f"{len(bad)} of {len(rows.ids)} rows are invalid ({actions}; see invalid_rows.csv), the first: {example}")


def resolve(task: TaskConfig, train: FinetuneConfig) -> tuple[TaskConfig, FinetuneConfig]:
    """Fills in what a MoleculeNet set brings along, then the defaults."""
    known: dict[str, Any] = {}
    if task.dataset.lower() in MOLECULENET:
        entry = MOLECULENET[task.dataset.lower()]
        known = asdict(entry)
        columns = task.label_columns or (list(entry.label_columns) if entry.label_columns else None)
        task = replace(
            task,
            dataset=str(find_dataset(task.dataset, task.data_dir)),
            text_column=task.text_column or entry.text_column,
            label_columns=columns,
            task_type=task.task_type or entry.task_type,
        )
    missing = {name: known.get(name, default) for name, default in DEFAULTS.items() if getattr(train, name) is None}
    return task, replace(train, **missing)


def split_rows(task: TaskConfig, rows: Rows, seed: int) -> Split:
    """The split with unusable rows removed, and a valid part (a tenth of train) where there was none."""
    split = {part: chosen[rows.usable[chosen]] for part, chosen in make_split(task.split, rows.table, seed).items()}
    if not len(split["valid"]):
        carved = random_split(split["train"].tolist(), (0.9, 0.1, 0.0), seed)
        split = {"train": carved["train"], "valid": carved["valid"], "test": split["test"]}
    for part in PARTS:
        if not len(split[part]):
            raise InputError(f"the {task.split} split of {task.dataset} leaves no {part} rows; use another split")
    return split


def _start(
    model: str, task: TaskConfig, hyper: FinetuneConfig, rows: Rows, seed: int, from_scratch: bool
) -> tuple[PreTrainedModel, dict[str, Any], Split]:
    """The network of a seed, what prediction must know about the task, and the split."""
    torch.manual_seed(seed)
    split = split_rows(task, rows, seed)
    mean, std = _scale(rows.table, split["train"])
    facts = {
        "task_type": rows.table.task_type,
        "label_columns": rows.table.label_columns,
        "classes": rows.table.classes,
        "molecules": task.molecules,
        "max_length": task.max_length,
        "mean": mean,
        "std": std,
    }
    network = _build(model, rows.table, hyper, facts, from_scratch)
    distributed.place(network)
    return network, facts, split


def _train(
    place: Path,
    network: PreTrainedModel,
    facts: dict[str, Any],
    rows: Rows,
    split: Split,
    hyper: FinetuneConfig,
    seed: int,
    tokenizer: PreTrainedTokenizerFast,
) -> dict[str, Any]:
    """Trains one seed, keeps the epoch that is best on valid, predicts every row; returns the metrics."""
    task_type, labels, pad = rows.table.task_type, rows.table.labels, tokenizer.pad_token_id

    def score(model: PreTrainedModel, part: str) -> dict[str, float]:
        predictions = predict_rows(model, rows.ids, split[part], facts, pad)
        return evaluate(task_type, labels[split[part]], predictions[split[part]])

    selector = Selector(network, partial(score, part="valid"), task_type, hyper.patience)
    targets = (labels - facts["mean"]) / facts["std"] if task_type == "regression" else labels
    assert hyper.batch_size  # filled in by `resolve`
    batches = RowBatches(rows.ids, targets, split["train"], hyper.batch_size, pad, seed)
    place.mkdir(parents=True, exist_ok=True)
    fit(
        network,
        partial(supervised_loss, problem_type=network.config.problem_type),
        batches,
        _loop(hyper, batches.per_epoch),
        place,
        seed,
        evaluate=selector,
        description=f"{place.parent.name} {place.name}",
    )
    selector.restore()
    predictions = predict_rows(network, rows.ids, np.flatnonzero(rows.usable), facts, pad)
    _write_predictions(place, rows, split, predictions, facts)
    save_model(place, network.eval(), tokenizer)
    return {
        "best_epoch": selector.best_epoch,
        "split": {part: len(chosen) for part, chosen in split.items()},
        "split_sha256": split_hash(split),
        "left_out": int((~rows.usable).sum()),
        "rdkit": rdkit.__version__,
        **{part: score(network, part) for part in ("valid", "test")},
    }


def _scale(table: LabelledTable, train: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation [tasks] of the training labels; 0 and 1 for classification."""
    if table.task_type != "regression":
        return [0.0] * table.labels.shape[1], [1.0] * table.labels.shape[1]
    known = (~np.isnan(table.labels[train])).any(0)
    if not known.all():
        column = table.label_columns[int(np.argmin(known))]
        raise InputError(f"column {column!r} has no label in the train part; leave it out or use another split")
    mean, std = np.nanmean(table.labels[train], 0), np.nanstd(table.labels[train], 0)
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()


def _build(
    path: str, table: LabelledTable, hyper: FinetuneConfig, facts: dict[str, Any], from_scratch: bool
) -> PreTrainedModel:
    names = table.classes or table.label_columns
    changes = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": PROBLEM_TYPE[table.task_type],
        "hidden_dropout_prob": hyper.dropout,
        "attention_probs_dropout_prob": hyper.dropout,
        "classifier_dropout": hyper.pooler_dropout,
        "classifier_pooling": hyper.pooling,
        "task": facts,
    }
    return load_model(path, ExLMForSequenceClassification, changes, from_scratch)[0]


def _loop(hyper: FinetuneConfig, per_epoch: int) -> LoopConfig:
    assert hyper.epochs and hyper.learning_rate and hyper.warmup_ratio is not None  # filled in by `resolve`
    steps = hyper.epochs * per_epoch
    optimizer = OptimizerConfig(
        learning_rate=hyper.learning_rate,
        warmup_steps=int(hyper.warmup_ratio * steps),
        weight_decay=hyper.weight_decay,
        clip_norm=hyper.clip_norm,
    )
    return LoopConfig(steps, optimizer, hyper.precision, log_every=per_epoch, eval_every=per_epoch, save_every=0)


def _write_predictions(place: Path, rows: Rows, split: Split, predictions: np.ndarray, facts: dict[str, Any]) -> None:
    part = np.full(len(rows.ids), "", dtype=object)
    for name, chosen in split.items():
        part[chosen] = name
    names = prediction_columns(facts)
    columns = {"split": part} | {name: predictions[:, i] for i, name in enumerate(names)} | {"problem": rows.reasons()}
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "predictions.csv", with_columns(rows.table.frame, columns).to_csv(index=False))


def _finished(place: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a finished seed with the same settings, data and model, or None."""
    try:
        result = json.loads((place / "result.json").read_text())
        before = result["settings"]
    except (OSError, ValueError, KeyError):
        return None
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{place} holds a finished run with other settings ({name}); choose another output directory"
            )
    return result


def _summarise(
    directory: Path, table: LabelledTable, seeds: list[int], results: list[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
    defined = [
        {part: {k: np.nan if v is None else v for k, v in r[part].items()} for part in PARTS[1:]} for r in results
    ]
    summary = {part: summarise([result[part] for result in defined]) for part in PARTS[1:]}
    report = {"settings": settings, "seeds": seeds, **summary, "runs": results}
    write_json(directory / "results.json", report)
    name, _ = MAIN_METRIC[table.task_type]
    mean, std = summary["test"][name]
    value = f"{mean:.4f} +- {std:.4f} over {len(seeds)} seeds" if len(seeds) > 1 else f"{mean:.4f} (one seed)"
    note = "" if np.isfinite(mean) else " (not defined: the test part has only one class)"
    print(f"test {name} {value}{note}; everything is in {directory}")
    return report
