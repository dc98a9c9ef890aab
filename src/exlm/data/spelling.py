"""How a text is spelled when a model reads it, and when two texts are compared."""

from dataclasses import dataclass
from unicodedata import normalize

from tokenizers.normalizers import Normalizer
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, standardize


@dataclass(frozen=True)
class Spelling:
    """How a model spells texts, which have no spaces at their ends. For example:

    | text | what it is | `as_read` | `as_compared` |
    | --- | --- | --- | --- |
    | OCC | a molecule, form none | OCC | CCO |
    | OCC.Cl | a molecule, form parent | CCO | CCO |
    | mkv | a protein | mkv | MKV |

    The tokenizer itself makes capitals of mkv when it gets that."""

    molecules: bool = False  # whether the texts are SMILES
    form: Standardize = "none"  # how molecules are rewritten, as the option `standardize` says
    normalizer: Normalizer | None = None  # how the tokenizer rewrites a text that it gets

    def as_read(self, text: str) -> str:
        """The text that the tokenizer gets."""
        return standardize(text, self.form) if self.molecules else text

    def as_tokenized(self, text_as_read: str) -> str:
        """The text that the tokenizer divides into tokens: proteins in capitals, others perhaps in
        small letters and without accents."""
        return self.normalizer.normalize_str(text_as_read) if self.normalizer else text_as_read

    def as_compared(self, text: str) -> str:
        """The same for texts that are equal: molecules at least as canonical SMILES, other texts as
        they are tokenized, with accents in one encoding (NFC)."""
        if self.molecules:
            return standardize(text, "canonical" if self.form == "none" else self.form)
        return normalize("NFC", self.as_tokenized(text))


def spelling_of(
    tokenizer: PreTrainedTokenizerFast | None,
    molecules: bool = False,
    form: Standardize = "none",
) -> Spelling:
    """The spelling of a model with this tokenizer; without one, other texts than molecules are as
    they were written."""
    normalizer = None if tokenizer is None else tokenizer.backend_tokenizer.normalizer
    return Spelling(molecules, form, normalizer)
