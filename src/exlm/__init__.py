"""ExLM: masked language models in which every [MASK] becomes k hidden states (Zheng et al., ICML 2025).

Importing the package registers its models with transformers, so that `AutoModelForMaskedLM.from_pretrained` and
its siblings load ExLM directories without remote code."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from exlm_command import VERSION as __version__

from .data.batching import ExLMDataCollator
from .errors import InputError
from .model.configuration_exlm import ExLMConfig
from .model.convert import from_official
from .model.downstream import ExLMForQuestionAnswering, ExLMForSequenceClassification, ExLMForTokenClassification
from .model.masked_lm import ExLMForMaskedLM
from .model.modeling_exlm import ExLMModel

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
]

AutoConfig.register("exlm", ExLMConfig, exist_ok=True)
AutoModel.register(ExLMConfig, ExLMModel, exist_ok=True)
AutoModelForMaskedLM.register(ExLMConfig, ExLMForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(ExLMConfig, ExLMForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(ExLMConfig, ExLMForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(ExLMConfig, ExLMForQuestionAnswering, exist_ok=True)
