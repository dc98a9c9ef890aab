"""ExLM: masked language models in which every [MASK] becomes k hidden states (Zheng et al., ICML
2025).

Importing the package registers its models with transformers, so that
`AutoModelForMaskedLM.from_pretrained` and its siblings load ExLM directories without remote
code. So the models cannot wait until someone asks for a name of this module. They take seconds
to import, which is too long for `exlm models`: the command line alone asks for the package
without them, by EXLM_WITHOUT_MODELS, and each command imports what it needs. The collator waits,
because it alone needs the `Trainer` of transformers."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

from exlm.storage.shipped import model_path

# Taken away at once: processes that this one starts get all models.
if os.environ.pop("EXLM_WITHOUT_MODELS", None) is None:
    from exlm.errors import InputError
    from exlm.model import (
        ExLMConfig,
        ExLMForMaskedLM,
        ExLMForQuestionAnswering,
        ExLMForSequenceClassification,
        ExLMForTokenClassification,
        ExLMModel,
    )
    from exlm.model.convert import from_official


__all__ = [
    "ExLMConfig",
    "ExLMDataCollator",
    "ExLMForMaskedLM",
    "ExLMForQuestionAnswering",
    "ExLMForSequenceClassification",
    "ExLMForTokenClassification",
    "ExLMModel",
    "InputError",
    "__version__",
    "from_official",
    "model_path",
]

if TYPE_CHECKING:  # a type checker would let `__getattr__` have any name
    from exlm.data.collator import ExLMDataCollator
else:

    def __getattr__(name: str) -> Any:
        """The collator, imported when it is first asked for."""
        if name != "ExLMDataCollator":
            raise AttributeError(f"module 'exlm' has no attribute {name!r}")
        from exlm.data.collator import ExLMDataCollator

        return ExLMDataCollator
