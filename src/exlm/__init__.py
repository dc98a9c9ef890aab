"""ExLM: masked language models in which every [MASK] becomes k hidden states (Zheng et al., ICML
2025).

Importing the package registers its models with transformers, so that
`AutoModelForMaskedLM.from_pretrained` and its siblings load ExLM directories without remote
code."""

import transformers

from exlm.data.batching import ExLMDataCollator
from exlm.errors import InputError
from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.convert import from_official
from exlm.model.downstream import (
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
)
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.modeling_exlm import ExLMModel
from exlm_command import VERSION as __version__

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

transformers.AutoConfig.register("exlm", ExLMConfig, exist_ok=True)
transformers.AutoModel.register(ExLMConfig, ExLMModel, exist_ok=True)
transformers.AutoModelForMaskedLM.register(ExLMConfig, ExLMForMaskedLM, exist_ok=True)
transformers.AutoModelForSequenceClassification.register(
    ExLMConfig, ExLMForSequenceClassification, exist_ok=True
)
transformers.AutoModelForTokenClassification.register(
    ExLMConfig, ExLMForTokenClassification, exist_ok=True
)
transformers.AutoModelForQuestionAnswering.register(
    ExLMConfig, ExLMForQuestionAnswering, exist_ok=True
)
