"""A label for every unit of a text: for every residue of a protein (secondary structure), or for every word of a text
(named entities). The label of a word sits on its first token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, PreTrainedTokenizerFast

from exlm.data.columns import check_columns, listed
from exlm.data.frames import read_frame, with_columns
from exlm.errors import InputError
from exlm.pretrained import save_model
from exlm.tasks.classification import DEFAULT_LENGTH
from exlm.tasks.config import FinetuneConfig, TaskConfig
from exlm.tasks.encoders import Models, load_encoder, load_encoder_tokenizer, saved_text_kind
from exlm.tasks.inference import Rows, model_inputs, pad, run, tokenize_rows
from exlm.tasks.labelled import LabelledTask, split_rows
from exlm.tasks.metrics import evaluate
from exlm.tasks.predictions import Member, Predictions, PredictOptions
from exlm.tasks.splits import Split
from exlm.tasks.supervised import ShuffledBatches, train_best_epoch
from exlm.tasks.table import LabelledTable, make_table

NO_LABEL = -100  # of a token, as in transformers
NOT_READ = "-"  # in place of the label of a unit that was cut off
RESIDUE, WORD = r"\S", r"\S+"  # the units, as regular expressions


@dataclass(frozen=True)
class TokenRows:
    """A table's rows as tokens, with the labels of these. Predictions are probabilities [rows, tokens, classes]."""

    rows: Rows
    first: list[np.ndarray]  # [rows] of [units] the first token of every unit, -1 if it was cut off
    labels: np.ndarray  # [rows, tokens] class indices, NO_LABEL for tokens that do not count
    faults: list[str]  # [rows] what is wrong with the labels, "" if nothing is

    def score(self, predictions: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
        """The metrics over all labelled tokens of the chosen rows together."""
        labels = self.labels[chosen]
        counted = labels != NO_LABEL
        return evaluate("multiclass", labels[counted, None].astype(float), predictions[chosen][counted])

    def spelled(self, predictions: np.ndarray, task: dict[str, Any]) -> list[str]:
        """The predicted labels of every row as one string, "" for a row without predictions."""
        names, space = np.array([*task["classes"], NOT_READ]), "" if task["unit"] == RESIDUE else " "
        found = zip(predictions.argmax(-1), self.first, self.rows.usable, strict=True)
        return [space.join(names[np.where(at < 0, -1, best[at])]) if usable else "" for best, at, usable in found]


def read_tokens(
    table: LabelledTable, tokenizer: PreTrainedTokenizerFast, task: dict[str, Any], labelled: bool, keep: bool
) -> TokenRows:
    """The rows of a table, and if it is `labelled`, their labels. `task` is what is saved with a model."""
    tokenizer.padding_side = "right"
    rows = tokenize_rows(table, tokenizer, task["max_length"], False, keep)
    options: dict[str, Any] = dict(truncation=True, max_length=task["max_length"], return_offsets_mapping=True)
    offsets = tokenizer(table.texts, **options)["offset_mapping"]
    first = [first_tokens(*row, task["unit"]) for row in zip(table.texts, offsets, strict=True)]
    labels, faults = np.full((len(first), max(map(len, offsets))), NO_LABEL), [""] * len(first)
    if labelled:
        index = {name: i for i, name in enumerate(task["classes"])}
        names = units(table, task["label_columns"][0], task["unit"])
        mask = task["mask_column"]
        counts = units(table, mask, task["unit"]) if mask else [["1"] * len(own) for own in names]
        for row, (at, own, count) in enumerate(zip(first, names, counts, strict=True)):
            if not len(at) == len(own) == len(count):
                faults[row] = f"{len(at)} residues or words, but {len(own)} labels and a mask of {len(count)}"
            elif strange := set(own) - set(index):
                faults[row] = f"the model has no label {min(strange)!r}"
            else:
                chosen = (np.array(count) != "0") & (at >= 0)
                labels[row, at[chosen]] = np.array([index[name] for name in own])[chosen]
    return TokenRows(rows, first, labels, faults)


def units(table: LabelledTable, column: str, unit: str) -> list[list[str]]:
    """The residues or words in every cell of a column."""
    return [re.findall(unit, str(cell)) for cell in table.frame[column].fillna("")]


def first_tokens(text: str, offsets: list[tuple[int, int]], unit: str) -> np.ndarray:
    """The first token of every unit of a text, -1 for a unit that has none: [units]. `offsets` are the first character
    of every token and the one after its last; special tokens have no characters."""
    spans = [match.span() for match in re.finditer(unit, text)]
    owner, first = np.full(len(text), -1), np.full(len(spans), -1)
    for number, span in enumerate(spans):
        owner[slice(*span)] = number
    for token, (start, end) in reversed([*enumerate(offsets)]):
        if end > start and owner[end - 1] >= 0:  # the last character decides: a token may begin with a space
            first[owner[end - 1]] = token
    return first


def probabilities(
    model: nn.Module, tokens: TokenRows, chosen: np.ndarray, task: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> np.ndarray:
    """The probabilities of the classes for every token: [rows, tokens, classes], NaN where there is none."""
    longest, classes = tokens.labels.shape[1], len(task["classes"])

    def padded(batch: dict[str, Tensor]) -> Tensor:
        found = model(**batch).logits.float().softmax(-1)
        return F.pad(found, (0, 0, 0, longest - found.shape[1])).flatten(1)

    found = run(model, padded, longest * classes, tokens.rows, chosen, tokenizer, task["precision"])
    return found.reshape(-1, longest, classes)


class TokenClassification(LabelledTask):
    """A table with a string of labels for every text, and how to train a model on it (`kinds.py`)."""

    models: Models = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
    device = "auto"

    def __init__(self, model: str, task: TaskConfig, from_scratch: bool = False, start_from: str | None = None) -> None:
        self.columns = task.label_columns or ["label"]
        if len(self.columns) > 1 or task.pair_column:
            raise InputError("token_classification has one text column and one label column; name no others")
        self.tokenizer, self.max_length = load_encoder_tokenizer(model, task.max_length or DEFAULT_LENGTH)
        self.new_network = partial(load_encoder, model, self.models, from_scratch=from_scratch, start_from=start_from)
        # The base class reads the texts, and calls `read_rows`, which reads their labels.
        texts = replace(task, task_type="multiclass", label_columns=[], molecules=False)
        super().__init__(texts, saved_text_kind(model))
        self.task = replace(self.task, task_type="token_classification", label_columns=self.columns)
        what = "residues" if self.saved["unit"] == RESIDUE else "words"
        self.summary = f"{len(self.rows.table.texts)} texts, labels of {what}: {listed(self.saved['classes'])}"

    def read_rows(self, table: LabelledTable) -> Rows:
        mask = self.task.mask_column
        check_columns(table.frame, self.task.dataset, *self.columns, mask)
        unit = WORD if any(len(text.split()) > 1 for text in table.texts) else RESIDUE
        classes = sorted({name for names in units(table, self.columns[0], unit) for name in names})
        self.saved = {"task_type": "token_classification", "text_column": table.text_column, "classes": classes}
        self.saved |= {"label_columns": self.columns, "mask_column": mask, "unit": unit, "max_length": self.max_length}
        self.tokens = read_tokens(table, self.tokenizer, self.saved, True, self.task.on_invalid == "keep")
        both = zip(self.tokens.rows.problems, self.tokens.faults, strict=True)
        return replace(self.tokens.rows, problems=[problem or fault for problem, fault in both])

    def split(self, seed: int) -> Split:
        return split_rows(self.task, self.rows, seed)

    def score(self, predictions: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
        return self.tokens.score(predictions, chosen)

    def prediction_values(self, predictions: np.ndarray) -> dict[str, Any]:
        return {"predicted label": self.tokens.spelled(predictions, self.saved)}

    def train_seed(self, run_dir: Path, hyper: FinetuneConfig, seed: int) -> dict[str, Any]:
        """Trains with one seed and keeps the epoch that is best on valid. Returns it, and what `record` tells."""
        assert hyper.batch_size  # filled in before
        torch.manual_seed(seed)
        tokens, split, task = self.tokens, self.split(seed), self.saved | {"precision": hyper.precision}
        examples = tokens.rows.examples

        def collate(chosen: np.ndarray) -> dict[str, Tensor]:
            batch = pad([examples[row] for row in chosen], self.tokenizer)
            return batch | {"labels": torch.from_numpy(tokens.labels[chosen, : batch["input_ids"].shape[1]])}

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits = model(**model_inputs(model, batch)).logits.float()
            labels = batch["labels"].to(logits.device)
            total = F.cross_entropy(logits.mT, labels, ignore_index=NO_LABEL, reduction="sum")
            return total, (labels != NO_LABEL).sum(), torch.zeros_like(total)

        def validate(model: nn.Module) -> dict[str, float]:
            return self.score(probabilities(model, tokens, split["valid"], task, self.tokenizer), split["valid"])

        names = dict(enumerate(task["classes"]))
        settings = {"id2label": names, "label2id": {name: i for i, name in names.items()}, "task": task}
        network = self.new_network(hyper, settings)
        lengths = [len(example["input_ids"]) for example in examples]
        batches = ShuffledBatches(lengths, split["train"], hyper.batch_size, seed, collate)
        best_epoch = train_best_epoch(network, loss, batches, run_dir, hyper, validate, self.metric, self.device)
        save_model(run_dir, network, self.tokenizer)
        predictions = probabilities(network, tokens, np.flatnonzero(tokens.rows.usable), task, self.tokenizer)
        return {"best_epoch": best_epoch, **self.record(run_dir, split, predictions)}


def predict_tokens(members: Sequence[Member], input: str, options: PredictOptions) -> Predictions:
    """A string of labels for every row of a file, by the mean probabilities of the models."""
    if options.calibrated or options.distance:
        raise InputError("token_classification has no calibrated probabilities or distances; leave them out")
    task, frame, runs = members[0].task, read_frame(input, options.header), dict[str, np.ndarray]()
    column = options.text_column or (task["text_column"] if task["text_column"] in frame else None)
    table = make_table(frame, input, column, [])
    labelled = all(name in frame for name in (*task["label_columns"], task["mask_column"]) if name)
    for member in members:
        network, tokenizer = member.load()
        tokens = read_tokens(table, tokenizer, task, labelled, options.on_invalid == "keep")
        tokens.rows.check(input, options.on_invalid)
        usable = np.flatnonzero(tokens.rows.usable)
        runs[member.directory.name] = probabilities(network, tokens, usable, task, tokenizer)
    if len(runs) > 1:
        runs = {"ensemble": np.mean([*runs.values()], 0), **runs}
    labels = tokens.spelled(next(iter(runs.values())), task)
    cut = sum(bool((at < 0).any()) for at in tokens.first)
    summary = f"{len(usable)} rows predicted, {len(labels) - len(usable)} marked in the column problem"
    summary += f", {cut} cut at {task['max_length']} tokens (labelled {NOT_READ} behind)" if cut else ""
    scores = {name: partial(tokens.score, found) for name, found in runs.items()}
    known = usable[(tokens.labels[usable] != NO_LABEL).any(1)]
    faults = [*filter(None, tokens.faults)]
    note = f"{len(faults)} rows, the first: {faults[0]}" if faults else ""
    result = with_columns(frame, {"predicted label": labels, "problem": tokens.rows.problems})
    return Predictions(result, summary, scores if len(known) else {}, known, note)
