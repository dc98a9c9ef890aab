"""How a text is spelled when a model reads it, and when two texts are compared."""

from dataclasses import dataclass
from unicodedata import normalize

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from exlm.data.chemistry import Standardize, standardize
from exlm.errors import InputError


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
    # that of the model; without one, other texts than molecules are compared as they were written
    tokenizer: PreTrainedTokenizerFast | None = None

    def as_read(self, text: str) -> str:
        """The text that the tokenizer gets."""
        return standardize(text, self.form) if self.molecules else text

    def as_compared(self, text: str) -> str:
        """The same for texts that are equal: molecules at least as canonical SMILES, other texts as
        they are tokenized, with accents in one encoding (NFC)."""
        if self.molecules:
            return standardize(text, "canonical" if self.form == "none" else self.form)
        if self.tokenizer is not None:
            text = as_tokenized(text, self.tokenizer.backend_tokenizer)
        return normalize("NFC", text)


def check_form(form: Standardize, molecules: bool | None, section: str = "") -> None:
    """InputError if texts that are no molecules shall be rewritten as such. `section` is where the
    settings are, as `task.`."""
    if form != "none" and not molecules:
        raise InputError(
            f"{section}standardize={form} rewrites molecules; "
            f"set {section}molecules to true, or leave it out"
        )


def as_tokenized(text_as_read: str, tokenizer: Tokenizer) -> str:
    """The text that the tokenizer divides into tokens: proteins in capitals, others perhaps in
    small letters and without accents."""
    normalizer = tokenizer.normalizer
    return text_as_read if normalizer is None else normalizer.normalize_str(text_as_read)
