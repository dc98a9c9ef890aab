"""The model: Hugging Face classes, which importing this package registers with transformers."""

import transformers

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.downstream import (
    ExLMForQuestionAnswering,
    ExLMForSequenceClassification,
    ExLMForTokenClassification,
)
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.model.modeling_exlm import ExLMModel

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
