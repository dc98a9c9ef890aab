"""What a prediction rests on: by how much it changes when a token or word is masked, in numbers and
on a page of coloured texts and molecules."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.colors import to_hex, to_rgba
from rdkit import Chem
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from exlm.data.cell_texts import text_to_write
from exlm.data.columns import identifier_column
from exlm.data.drawing import atom_starts, draw
from exlm.data.spelling import Spelling
from exlm.data.tokenization import alphabet_name, find_span_ends
from exlm.errors import InputError
from exlm.storage.files import write_text
from exlm.storage.templates import render
from exlm.tasks.encoders.inference import Tokens
from exlm.tasks.encoders.saved_task import SavedTask
from exlm.tasks.rows.table import TextTable

RAISES, LOWERS = "#C55A11", "#2E75B6"
STRONGEST = 0.75  # the opacity of the strongest change; other changes are in proportion
MOST_DRAWINGS = 100
PAGE = Path(__file__).with_name("explanations.html")


class Span(NamedTuple):
    """A token, or a word of several tokens."""

    text: str
    start: int  # its first character, where a second text begins at the end of the first
    places: list[int]  # of its tokens


class Explanation(NamedTuple):
    """The predictions for a text, and how much of each is lost when a span is masked."""

    title: str  # of its row
    smiles: str | None  # None if the text is no molecule
    spans: list[Span]
    predictions: np.ndarray  # [outputs]
    changes: np.ndarray  # [spans, outputs], positive where a span raises the prediction

    def as_json(self, names: list[str]) -> str:
        """The spans and, by the name of each output, the changes."""
        changes = dict(zip(names, self.changes.T.tolist(), strict=True))
        tokens = [span.text for span in self.spans]
        return json.dumps({"tokens": tokens, **changes}, ensure_ascii=False)


def _spans(
    text: str, pair: str | None, tokenizer: PreTrainedTokenizerFast, length: int, molecules: bool
) -> list[Span]:
    """The tokens of a molecule or protein, or the words of one or two texts, of which the model
    reads `length` tokens."""
    by_token = molecules or alphabet_name(tokenizer.backend_tokenizer) is not None
    encoding = tokenizer(
        text, pair, truncation=not molecules, max_length=length, return_offsets_mapping=True
    )
    words: dict[tuple[int, int | None], list[int]] = {}
    for place, sequence in enumerate(encoding.sequence_ids()):
        if sequence is not None:  # no special token
            word = place if by_token else encoding.word_ids()[place]
            words.setdefault((sequence, word), []).append(place)
    texts = (text, pair or "")
    ends = [find_span_ends(a_text, tokenizer) for a_text in texts]
    spans = []
    for (sequence, _), places in words.items():
        start, _ = encoding["offset_mapping"][places[0]]
        _, end = encoding["offset_mapping"][places[-1]]
        characters = texts[sequence][start : ends[sequence][end]].strip()
        spans.append(Span(characters, sequence * len(text) + start, places))
    return spans


def explain(
    table: TextTable,
    examples: list[Tokens],
    predict: Callable[[list[Tokens]], np.ndarray],
    tokenizer: PreTrainedTokenizerFast,
    saved_task: SavedTask,
    molecules: bool,
) -> list[Explanation | None]:
    """Explains the prediction for every row; None for rows that cannot be used. `examples` are the
    tokens of all rows, and `predict` gives the predictions [n, outputs] for n examples. InputError
    if the tokenizer has no mask."""
    if tokenizer.mask_token_id is None:
        raise InputError("explain needs a model whose tokenizer has a mask token; leave it out")
    explanations: list[Explanation | None] = [None] * len(table.texts)
    name_column = identifier_column(table.frame)
    spelling = Spelling(molecules, saved_task.standardize)
    for row in tqdm(np.flatnonzero(table.usable), "explaining", unit="row"):
        text = spelling.as_read(table.texts[row])
        pair = spelling.as_read(table.pairs[row]) if table.pairs else None
        spans = _spans(text, pair, tokenizer, saved_task.max_length, molecules)
        example = examples[row]
        masked = [example]
        for span in spans:
            ids = example["input_ids"].copy()
            ids[span.places] = tokenizer.mask_token_id
            masked.append({**example, "input_ids": ids})
        predictions = predict(masked)
        changes = predictions[0] - predictions[1:]
        title = f"row {row + 1}"
        if name_column is not None:
            title += f", {name_column} {text_to_write(table.frame[name_column].iloc[row]) or ''}"
        smiles = text if molecules else None
        explanations[row] = Explanation(title, smiles, spans, predictions[0], changes)
    return explanations


def write_page(
    path: Path, explanations: Sequence[Explanation | None], names: list[str], draws_best_only: bool
) -> None:
    """Draws the prediction of every output, called by `names`, or of the most probable class alone;
    at most MOST_DRAWINGS predictions."""
    to_draw = [
        (explanation, output, name)
        for explanation in filter(None, explanations)
        for output, name in enumerate(names)
        if not draws_best_only or output == explanation.predictions.argmax()
    ]
    drawings = [
        _drawing(explanation, output, name) for explanation, output, name in to_draw[:MOST_DRAWINGS]
    ]
    page = render(PAGE, drawings=drawings, count=len(to_draw), raises=RAISES, lowers=LOWERS)
    write_text(path, page)


def _drawing(explanation: Explanation, output: int, name: str) -> dict[str, object]:
    """What the page shows of one `output`, which is called `name`."""
    changes = explanation.changes[:, output]
    largest = np.abs(changes).max(initial=1e-12)
    colours = [
        to_rgba(RAISES if change > 0 else LOWERS, STRONGEST * abs(change) / largest)
        for change in changes
    ]
    smiles = explanation.smiles
    molecule = Chem.MolFromSmiles(smiles) if smiles else None
    svg = None
    if smiles and molecule:
        starts = atom_starts(smiles, molecule)
        # a token may have several atoms
        span_starts = [span.start for span in explanation.spans]
        span_of_atom = np.searchsorted(span_starts, starts, "right") - 1
        svg = draw(molecule, {atom: colours[span] for atom, span in enumerate(span_of_atom)})
    return {
        "title": explanation.title,
        "name": name,
        "prediction": explanation.predictions[output],
        "texts": [span.text for span in explanation.spans],
        "changes": changes,
        "colours": [to_hex(colour, keep_alpha=True) for colour in colours],
        "strongest": int(np.abs(changes).argmax()) if len(changes) else None,
        "space": " " if smiles is None else "",
        "svg": svg,
    }
