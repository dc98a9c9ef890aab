"""Fills all masks of a text together, or those of every line of a file. `exlm.filling.search` does the search."""

import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exlm.data.readers import Source, read_rows
from exlm.errors import InputError
from exlm.filling.texts import MASKS, FillOptions, Record, fill_texts, load_for_filling
from exlm.storage import replacing
from exlm.train import distributed


def fill(
    model: str,
    texts: list[str],
    file: str | None = None,
    output: str | None = None,
    states: bool = False,
    tokens_per_batch: int = 4096,
    **options: Any,
) -> None:
    """Fills the masks of texts or SMILES jointly and prints or writes the fillings with their probabilities.

    The output has every text in its place. If one has no mask or is too long, for example, `problem` says so.

    Args:
        model: a pre-trained model directory.
        texts: texts in which the tokenizer's mask token, or [MASK], marks every place to fill.
        file: a text file with one such text per line (.gz, .xz and .zst are read too), in place of texts.
        output: JSONL file to write: line, text, fillings (text, tokens of each mask, probability, log_probability),
            exact (beam: whether it is proven that no more probable filling was missed), kept, warning and problem.
            Without a file, a table is printed.
        states: add the states of every mask, each with the probability that a path visits it and its top words.
        tokens_per_batch: how many expanded tokens one forward pass may have.
        options: the settings of `FillOptions`.
    """
    chosen = FillOptions(**options)
    if bool(texts) == (file is not None):
        raise InputError("give either texts after the model or --file, a file with one text per line")
    if output and Path(output).suffix != ".jsonl":
        raise InputError(f"cannot write {output}; the name must end in .jsonl")
    if file is not None:
        texts = list(read_rows(Source(file, "lines", None)))
    network, tokenizer = load_for_filling(model)
    if not any(MASKS.search(text) or str(tokenizer.mask_token) in text for text in texts):
        raise InputError("there is no mask in any text; write [MASK] where something is to be filled in")
    distributed.to_device(network)
    lines = fill_texts(network, tokenizer, texts, chosen, states, tokens_per_batch)
    records = tqdm(lines, "fill", len(texts), unit="line", disable=file is None)
    if not output:
        print("\n\n".join(map(_table, records)))
        return
    with replacing(Path(output)) as partial, partial.open("w", encoding="utf-8") as stream:
        bad = weak = 0
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            bad += record["problem"] is not None
            weak += record["warning"] is not None
    print(f"{len(texts) - bad} lines filled, {bad} with a problem, {weak} with a warning: {output}")


def _table(record: Record) -> str:
    """A record as lines of text, for printing."""
    rows = [record["text"]]
    if record["problem"]:
        rows.append(record["problem"])
    if record["kept"] is not None:
        rows.append(f"kept {record['kept']:.4g} of the probability of all paths")
    if record["warning"]:
        rows.append(f"warning: {record['warning']}")
    for entry in record["fillings"]:
        length = sum(map(len, entry["tokens"]))
        free = f"tokens {length} ({entry['length_probability']:.4f})  " if "length_probability" in entry else ""
        rows.append(f"{entry['probability']:<11.4g}{free}{entry['text']}")
    if record["exact"] is False:
        rows.append("more probable ones may have been missed; raise --beam")
    for m, states in enumerate(record.get("states", []), 1):
        for c, state in enumerate(states, 1):
            words = "  ".join(f"{word} {p:.3f}" for word, p in state["words"])
            rows.append(f"mask {m} state {c}  weight {state['weight']:.3f}  {words}")
    return "\n  ".join(rows)
