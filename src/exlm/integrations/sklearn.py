"""Embeddings as a scikit-learn transformer: SMILES or texts in, vectors out."""

from functools import lru_cache
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize
from exlm.data.columns import listed
from exlm.data.frames import FileRows
from exlm.data.records import HALF_CHARACTER, HALF_CHARACTER_PROBLEM
from exlm.errors import InputError
from exlm.model.modeling_exlm import ExLMModel, Pooling
from exlm.storage.models import check_model, load_model, weight_hash
from exlm.tasks.embed import embeddings
from exlm.tasks.encoders.saved_task import read_text_settings
from exlm.tasks.rows.reading import ReadOptions, note_spelling, reader_for
from exlm.tasks.rows.table import unlabelled_table
from exlm.train import devices

# While transformers loads a model, it replaces methods for the whole process. If two threads loaded
# at a time, the methods would stay replaced.
LOAD_LOCK = Lock()
# The models for which `note_spelling` has said something. It is not said again, as a search turns
# parts of the same data into vectors many times.
MODELS_WITH_NOTE = set[str]()


class Embedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Turns strings into the vectors [rows, width] that `exlm embed` writes.

    The input is a list, an array or a Series of strings, or a table with one column of them. `fit`
    trains nothing. A fitted Embedder, also a pickled one, holds the model's path and the hash of
    its weights: another model under that path is an InputError. One that was never fitted uses the
    model that lies there.

    Args:
        model: a pre-trained or fine-tuned model directory.
        pooling: `mean` over the tokens, or the `first` state.
        layers: how many of the layers to use; None: as many as the fine-tuning used, or else all,
            with late expansion the layers before it.
        molecules: whether the strings are SMILES, which RDKit must be able to read; None: what the
            model was trained on, or for models that do not say, what most strings are.
        max_length: longest string in tokens; None: as in the fine-tuning, or 512. Longer text is
            cut, and a longer molecule cannot be used.
        standardize: rewrite molecules as RDKit's canonical SMILES (`canonical`), also without salts
            and charges (`parent`), or not (`none`); None: as in the training of the model.
        on_invalid: `error` raises InputError at the first string that cannot be used, `nan` gives a
            vector of NaN.
        device: `auto`, `cpu`, `cuda` or `cuda:0`."""

    def __init__(
        self,
        model: str,
        *,
        pooling: Pooling = "mean",
        layers: int | None = None,
        molecules: bool | None = None,
        max_length: int | None = None,
        standardize: Standardize | None = None,
        on_invalid: Literal["error", "nan"] = "error",
        device: str = "auto",
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.molecules = molecules
        self.max_length = max_length
        self.standardize = standardize
        self.on_invalid = on_invalid
        self.device = device

    def fit(self, X: Any, y: Any = None) -> "Embedder":
        """Checks the model's files and that the input is one column; nothing is learned."""
        check_model(self.model)
        choices = {
            "pooling": get_args(Pooling),
            "standardize": (None, *get_args(Standardize)),
            "on_invalid": ("error", "nan"),
        }
        for name, values in choices.items():
            value = getattr(self, name)
            if value not in values:
                raise InputError(f"{name} is {value!r}; it must be one of {listed(values)}")
        _read_strings(X)
        self.weights_ = weight_hash(self.model)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The vectors [rows, width] float32. InputError if a string cannot be used and `on_invalid`
        is `error`."""
        texts = _read_strings(X)
        network, tokenizer = self._load()
        if not texts:
            return np.empty((0, network.config.hidden_size), dtype=np.float32)
        table = unlabelled_table(_rows(texts), "the input", "text")
        reader = reader_for(
            table,
            tokenizer,
            self.max_length,
            read_text_settings(network.config),
            self.standardize,
            ReadOptions(molecules=self.molecules),
        )
        reads_any_spelling = reader.molecules and reader.standardize == "none"
        may_note = reads_any_spelling and self.model not in MODELS_WITH_NOTE
        if may_note and note_spelling(table.texts, "the input"):
            MODELS_WITH_NOTE.add(self.model)
        table, tokens = reader.read(table)
        if self.on_invalid == "error" and not table.usable.all():
            row = int(np.argmin(table.usable))
            raise InputError(
                f"row {row + 1}, value {texts[row]!r}, cannot be used: {table.problems[row]}; "
                "correct it, or set on_invalid to nan"
            )
        return embeddings(network, tokenizer, table, tokens, self.pooling)

    def _load(self) -> tuple[ExLMModel, PreTrainedTokenizerFast]:
        weights_sha256 = weight_hash(self.model)
        # An Embedder that was never fitted takes any weights.
        if getattr(self, "weights_", weights_sha256) != weights_sha256:
            raise InputError(
                f"{self.model} is no longer the model that this Embedder was fitted with; "
                "put that model there, or fit again what uses its vectors"
            )
        with LOAD_LOCK:
            return _load_once(self.model, self.layers, self.device, weights_sha256)

    @property
    def _n_features_out(self) -> int:
        return int(self._load()[0].config.hidden_size)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags


def _rows(texts: list[str]) -> FileRows:
    """The texts as rows. A text with half a character, which pandas cannot hold, is a problem."""
    frame = pd.DataFrame({"text": [HALF_CHARACTER.sub("\ufffd", text) for text in texts]})
    halves = [row for row, text in enumerate(texts) if HALF_CHARACTER.search(text)]
    return FileRows(frame, dict.fromkeys(halves, HALF_CHARACTER_PROBLEM))


@lru_cache(maxsize=2)
def _load_once(
    model: str, layers: int | None, device: str, weights_sha256: str
) -> tuple[ExLMModel, PreTrainedTokenizerFast]:
    """A model and its tokenizer. By `weights_sha256`, the cache tells apart two models that lay
    under the same path."""
    network, tokenizer = load_model(model, ExLMModel, layers)
    devices.place_model(network, device)
    return network, tokenizer


def _read_strings(X: Any) -> list[str]:
    """The strings of one column; a missing value becomes "". InputError for anything else, such as
    numbers."""
    values = np.asarray(X, dtype=object)
    if values.shape[1:] == (1,):
        values = values[:, 0]
    texts = pd.Series([*values.ravel()], dtype=object).fillna("").tolist()
    others = [row for row, text in enumerate(texts) if not isinstance(text, str)]
    if values.ndim == 1 and len(others) <= len(texts) / 2 and others:
        row = others[0]
        raise InputError(
            f"row {row + 1} is {texts[row]!r}, which is no string; correct it, or make it one with "
            "str()"
        )
    if values.ndim != 1 or others:
        raise InputError(
            "the input is not one column of strings; give a list of strings, or select the column "
            "(two texts of a row are read together by exlm embed, with pair_column)"
        )
    return texts
