"""The settings of a fine-tuning recipe, and grids of hyper-parameters."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

from exlm.data.chemistry import Standardize
from exlm.data.problems import OnInvalid
from exlm.errors import InputError, check_at_least, check_choices
from exlm.identity import IDENTITY_IF_CHANGED, NOT_IDENTITY
from exlm.ops.precision import Precision

DEFAULT_STRIDE = 128  # tokens
Duplicates = Literal["keep", "mean", "drop"]


@dataclass(frozen=True)
class TaskConfig:
    """The labelled data.

    Attributes:
        dataset: a MoleculeNet set (bace, bbbp, tox21, sider, muv, clintox, toxcast, esol, freesolv,
            lipophilicity), a GLUE task (mnli, qqp, qnli, sst-2, cola, rte, mrpc, sts-b), `squad2`,
            a table with labels (.csv, .tsv, .jsonl, .parquet, .xlsx, .sdf; .conll if words have
            them), or a SQuAD JSON file.
        valid: file of the validation rows, where they have one; then all rows of `dataset` are for
            training.
        test: file of the test rows, where they have one; without `valid`, a tenth of `dataset` is
            drawn for validation.
        text_column: column of the SMILES or text, or of lists of words; found by its name where
            absent.
        pair_column: column of the second text, for tasks on pairs; found with the first by their
            usual names (premise and hypothesis, sentence1 and sentence2, ...).
        label_columns: columns of the labels; where absent the only other column, the only numeric
            one, or all if they hold nothing but 0 and 1 (or yes and no), but never a column of
            identifiers (it is called so, or all its words or whole numbers differ).
        mask_column: column of 0 and 1, which says what residues or words count
            (token_classification).
        task_type: binary, multiclass, multilabel (cells may be missing), regression, or, if named,
            question_answering or token_classification (in the label column, a letter for every
            residue, a word for every word, or a list of labels; -100 is none).
        positive: the one of two classes that is label 1; it makes a column of any two values
            binary, several columns of the same two multilabel. Where absent: active, positive, yes
            or true beside inactive, negative, no or false, in any case.
        metric: chooses the best epoch and grid cell; where absent, the data set or the task type
            decides it.
        split: `scaffold`, `random`, `column:NAME`, `column:FOLD=3` (rows with 3 in the column FOLD
            are the test part) or `file:INDICES.json`; a missing valid part is drawn from train.
            Where absent: scaffold for molecules, random for text, `parts` (one per file) where
            there are several files.
        molecules: whether the texts are SMILES; then rows that RDKit cannot parse are invalid.
            Inferred where absent.
        on_invalid: rows that are not a molecule are reported and left out (`skip`), reported and
            used all the same (`keep`; a scaffold split cannot). Rows without text or label and
            over-long molecules are left out. Over-long text is cut and reported, tokens that are
            not known are reported. With `error`, the first row with anything to report stops the
            run.
        duplicates: rows with the same molecule (canonical SMILES) or the same text, which every
            split keeps together but those by column or file. All are used (`keep`); the first of
            them, with the mean of their labels (`mean`, regression only); or the first of them if
            their labels agree, else none (`drop`). Not for questions.
        train_rows: train on so many rows only, drawn anew for every seed; all where absent. Not for
            questions.
        max_length: longest text, or pair of texts, in tokens; longest window of a question and its
            context.
        stride: tokens that neighbouring windows of a context share (question answering). Where
            absent: 128, or a third of a window that is too short for that.
        max_answer: longest answer in tokens (question answering).
        data_dir: where the files of a named data set are. Where absent: the folder molecules,
            text/glue or text/squad2 inside the folder that the environment variable EXLM_DATA
            names.
        header: whether tables have a header line; without it, their columns are called `column 1`,
            `column 2`, ...
        sheet: sheet of .xlsx files; the first where absent.
        standardize: rewrite molecules as RDKit's canonical SMILES (`canonical`), also without salts
            and charges (`parent`), or not (`none`). Where absent, as the corpus of the model was.
            Predictions do the same."""

    dataset: str
    valid: str | None = None
    test: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_columns: list[str] | None = None
    mask_column: str | None = field(default=None, metadata=IDENTITY_IF_CHANGED)
    task_type: str | None = None
    positive: str | None = field(default=None, metadata=IDENTITY_IF_CHANGED)
    metric: str | None = None
    split: str | None = None
    molecules: bool | None = None
    on_invalid: OnInvalid = "skip"
    duplicates: Duplicates = field(default="keep", metadata=IDENTITY_IF_CHANGED)
    train_rows: int | None = None
    max_length: int | None = None
    stride: int | None = None
    max_answer: int = 30
    data_dir: str | None = None
    header: bool = field(default=True, metadata=IDENTITY_IF_CHANGED)
    sheet: str | None = field(default=None, metadata=IDENTITY_IF_CHANGED)
    standardize: Standardize | None = field(default=None, metadata=IDENTITY_IF_CHANGED)

    def __post_init__(self) -> None:
        check_choices(self)
        if (self.valid or self.test) and self.split not in (None, "parts"):
            raise InputError(
                "task.split excludes task.valid and task.test; "
                "name a split or the files of the parts"
            )
        if self.positive is not None and self.task_type not in (None, "binary", "multilabel"):
            raise InputError(
                "task.positive is for a binary or multilabel task, not for "
                f"{self.task_type}; leave it out"
            )
        check_at_least(self, train_rows=1, max_length=3, stride=0, max_answer=1)


@dataclass(frozen=True)
class FinetuneConfig:
    """Hyper-parameters. Each MoleculeNet set has its own defaults (datasets.yaml). For any text the
    defaults lie inside the paper's grids: 3 epochs, 32 rows, learning rate 3e-5. For other
    molecules: 40 epochs, 64 rows, 1e-4.

    Attributes:
        epochs: passes over the training rows.
        batch_size: rows per update.
        learning_rate: peak learning rate.
        warmup_ratio: share of the updates spent warming up.
        dropout: dropout of the encoder.
        pooler_dropout: dropout of the classification head.
        pooling: the classification head reads the `first` state (paper), or the `mean` (ExLM and
            ModernBERT only). It is not for labels of residues or words, nor for questions, whose
            heads read every token.
        layers: the head reads the output of the first `layers` layers (models of this library
            only); all where absent.
        patience: stop after this many epochs without a better valid score; 0 never stops early.
        weight_decay: decoupled weight decay.
        clip_norm: largest gradient norm; 0 means no limit.
        precision: auto, bf16 or fp32.
        gradient_checkpointing: compute the layers again in the backward pass: less memory, a third
            more time, the same numbers."""

    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    warmup_ratio: float | None = None
    dropout: float | None = None
    pooler_dropout: float | None = None
    pooling: Literal["first", "mean"] = "first"
    layers: int | None = None
    patience: int = 20
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    precision: Precision = "auto"
    gradient_checkpointing: bool = field(default=False, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("epochs", "batch_size", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value}; it must be positive")
        for name in ("warmup_ratio", "dropout", "pooler_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise InputError(f"{name} is {value}; it must lie in [0, 1)")
        check_at_least(self, layers=1, weight_decay=0, clip_norm=0, patience=0)


def grid_cells(hyper: FinetuneConfig, grid: dict[str, list[Any]]) -> dict[str, FinetuneConfig]:
    """The hyper-parameters of every combination of a grid's values, by the name of the grid cell,
    such as `learning_rate=1e-05,batch_size=16`. Without a grid one cell, named "". InputError for
    a grid that cannot be run."""
    types = get_type_hints(FinetuneConfig)
    for name, values in grid.items():
        if name not in types:
            raise InputError(
                f"the grid has {name!r}, which is no hyper-parameter; use {', '.join(types)}"
            )
        if not isinstance(values, list) or not values:
            raise InputError(
                f"the grid's {name} must be a list of values, for example [1.0e-5, 2.0e-5]"
            )
        _check_values(name, values, types[name])
    hyper_by_cell = {}
    for combination in itertools.product(*grid.values()):
        hyper_of_cell = dict(zip(grid, combination, strict=True))
        cell_name = ",".join(f"{name}={value}" for name, value in hyper_of_cell.items())
        hyper_by_cell[cell_name] = replace(hyper, **hyper_of_cell)
    return hyper_by_cell


def _check_values(name: str, values: list[Any], hint: Any) -> None:
    """Raises InputError if a value of a grid is there twice, or is not of the type of its
    hyper-parameter, which is a type, a Literal, or one of them or None."""
    accepted = list(get_args(hint) or (hint,))
    if float in accepted:
        accepted.append(int)
    for value in values:
        if value not in accepted and type(value) not in accepted:
            types = " or ".join(getattr(option, "__name__", option) for option in accepted)
            types = types.replace("NoneType", "null")
            raise InputError(f"the grid's {name} has {value!r}; use {types}")
        if values.count(value) > 1:
            raise InputError(
                f"the grid's {name} has {value!r} {values.count(value)} times; give it once"
            )
