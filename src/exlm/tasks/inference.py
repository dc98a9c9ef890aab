"""Turns a table's rows into tokens, padded batches and a model's outputs, in bounded memory and in
table order."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, are_molecules, molecule_problem, standardize
from exlm.data.encoding import unknown_tokens
from exlm.data.tokenization import splits_residues
from exlm.errors import InputError
from exlm.model.modeling_exlm import ExLMPreTrainedModel
from exlm.ops.precision import in_precision
from exlm.tasks.table import Example, LabelledTable, OnInvalid

TOKENS_PER_BATCH = 16384
LEAST_SAMPLE = 10  # texts that must be there to say that they are no molecules
NO_PROTEIN = "not a protein"


@dataclass(frozen=True)
class ReadOptions:
    """How to read the texts of a table.

    Attributes:
        text_column: column of the SMILES or text; where absent that of the training, or one with a
            usual name.
        molecules: whether the texts are SMILES; where absent the model knows, and for older models
            the texts decide.
        header: whether a table has a header line; without it, its columns are called `column 1`,
            `column 2`, ...
        on_invalid: rows that cannot be used get a reason in the column `problem` and nothing else
            (`skip`), or stop the command (`error`). With `keep`, molecules that RDKit cannot parse
            are used too.
        device: auto, cpu, cuda or one of several (cuda:1)."""

    text_column: str | None = None
    molecules: bool | None = None
    header: bool = True
    on_invalid: OnInvalid = "skip"
    device: str = "auto"


class TextKind(NamedTuple):
    """What a model remembers of the texts that it was trained on."""

    molecules: bool | None  # None: a model of an earlier version does not say
    standardize: Standardize


def text_kind(config: PreTrainedConfig) -> TextKind:
    """What the configuration says of a pre-trained or a fine-tuned model's texts."""
    known = vars(config) | (getattr(config, "task", None) or {})
    return TextKind(known.get("molecules"), known.get("standardize") or "none")


def check_kind(texts: Sequence[str], known: bool | None, wanted: bool | None, path: str) -> bool:
    """Whether the texts of the file `path` are molecules: as the user says, or as the model knows,
    or as they look. InputError if the model knows molecules and most texts are none; a note is
    printed if it is the other way round."""
    if wanted is not None:
        return wanted
    found = are_molecules(texts)
    if found and known is False:
        print(
            f"note: the texts of {path} look like molecules, and the model was trained on other texts"
        )
    if known and not found and sum(map(bool, texts)) >= LEAST_SAMPLE:
        advice = (
            "choose another text_column or another model (molecules=false uses them all the same)"
        )
        raise InputError(
            f"{path}: most texts are no molecules, and the model was trained on molecules; {advice}"
        )
    return found if known is None else known


def tokenize_rows(
    table: LabelledTable,
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    molecules: bool,
    keep: bool = False,
    how: Standardize = "none",
    check: bool = True,
) -> LabelledTable:
    """The table with the tokens of every row, of molecules after they were standardized. Over-long
    molecules are left out; unless `keep`, so is what RDKit cannot parse, and what the tokenizer of
    proteins does not know. Over-long text is cut. No other row is lost for the vocabulary. Caveats:
    not a molecule, cut text, unknown tokens, one text of a pair is empty. With `check`, InputError
    if most texts are no proteins and the model is of proteins."""
    proteins = splits_residues(tokenizer.backend_tokenizer) and not keep
    texts, pairs = table.texts, table.pairs
    if molecules:
        texts = [standardize(text, how) for text in texts]
        pairs = pairs and [standardize(text, how) for text in pairs]
    examples = tokenize(texts, tokenizer, pairs)
    problems, caveats = list(table.problems), []
    for row, ids in enumerate(example["input_ids"] for example in examples):
        excess = f"{len(ids)} tokens, the limit is {max_length}" if len(ids) > max_length else ""
        caveat = ""
        if tokenizer.unk_token_id in ids:
            caveat = unknown_tokens(
                " ".join([texts[row], *(pairs[row : row + 1] if pairs else [])]), tokenizer
            )
            problems[row] = problems[row] or (f"{NO_PROTEIN}: {caveat}" if proteins else "")
        if molecules:
            invalid = molecule_problem(texts[row]) or ""
            problems[row] = problems[row] or excess or ("" if keep else invalid)
            caveat = invalid or caveat
        elif excess:
            caveat = f"{excess}; cut"
            [examples[row]] = tokenize([texts[row]], tokenizer, pairs and [pairs[row]], max_length)
        elif pairs and not (texts[row] and pairs[row]):
            caveat = "one of the two texts is empty"
        caveats.append(caveat)
    strange = [problem for problem in problems if problem.startswith(NO_PROTEIN)]
    if check and len(strange) > max(LEAST_SAMPLE - 1, sum(map(bool, texts)) / 2):
        advice = (
            "choose another text_column or another model (on_invalid=keep uses them all the same)"
        )
        raise InputError(
            f"the model was trained on proteins, and most texts are none ({strange[0]}); {advice}"
        )
    return replace(
        table, examples=examples, problems=problems, caveats=caveats, divided=table.usable
    )


def tokenize(
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    pairs: list[str] | None = None,
    max_length: int | None = None,
) -> list[Example]:
    """Tokens, with special tokens, of every text or pair. If there are over `max_length`, the
    longer text is cut."""
    names = [name for name in tokenizer.model_input_names if name != "attention_mask"]
    columns = tokenizer(texts, pairs, truncation=max_length is not None, max_length=max_length)
    return [
        {name: np.array(columns[name][row], dtype=np.int32) for name in names}
        for row in range(len(texts))
    ]


def pad(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    """The examples' entries and attention_mask as tensors [n, S], padded on the side that the
    tokenizer prefers."""
    columns = {name: [example[name].tolist() for example in examples] for name in examples[0]}
    return dict(tokenizer.pad(columns, return_tensors="pt", return_attention_mask=True))


def model_inputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that the model takes, without labels, on its device (an ExLM moves
    them itself)."""
    taken = inspect.signature(model.forward).parameters.keys() - {
        "labels",
        "start_positions",
        "end_positions",
    }
    device = "cpu" if isinstance(model, ExLMPreTrainedModel) else next(model.parameters()).device
    return {name: values.to(device) for name, values in batch.items() if name in taken}


def batches_by_length(model: nn.Module, examples: Sequence[Example]) -> Iterator[np.ndarray]:
    """Row numbers in batches of TOKENS_PER_BATCH tokens. The longest come first: too large a batch
    fails at once. The sizes of the last ones are powers of two, because libraries keep a kernel for
    every shape that they meet."""
    # the model repeats its input
    room = TOKENS_PER_BATCH // getattr(getattr(model, "config", None), "repeat", 1)
    lengths = np.array([len(example["input_ids"]) for example in examples], dtype=int)
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        rows, order = np.split(
            order, [min(max(1, room // lengths[order[0]]), 2 ** (len(order).bit_length() - 1))]
        )
        yield rows


def run(
    model: nn.Module,
    function: Callable[..., Tensor],
    width: int,
    table: LabelledTable,
    chosen: np.ndarray,
    tokenizer: PreTrainedTokenizerFast,
    precision: str = "auto",
    progress: str | None = None,
) -> np.ndarray:
    """`function(**batch) -> [n, width]` of the chosen rows, without gradients: [all rows, width],
    NaN for others."""
    model.eval()
    device = next(model.parameters()).device
    result = np.full((len(table.examples), width), np.nan, dtype=np.float32)
    examples = [table.examples[row] for row in chosen]
    with (
        torch.inference_mode(),
        tqdm(total=len(chosen), desc=progress, unit="row", disable=not progress) as bar,
    ):
        for numbers in batches_by_length(model, examples):
            batch = pad([examples[number] for number in numbers], tokenizer)
            with in_precision(device, precision):
                result[chosen[numbers]] = (
                    function(**model_inputs(model, batch)).float().cpu().numpy()
                )
            bar.update(len(numbers))
    return result
