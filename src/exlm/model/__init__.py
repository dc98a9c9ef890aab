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
for auto_class, model_class in (
    (transformers.AutoModel, ExLMModel),
    (transformers.AutoModelForMaskedLM, ExLMForMaskedLM),
    (transformers.AutoModelForSequenceClassification, ExLMForSequenceClassification),
    (transformers.AutoModelForTokenClassification, ExLMForTokenClassification),
    (transformers.AutoModelForQuestionAnswering, ExLMForQuestionAnswering),
):
    auto_class.register(ExLMConfig, model_class, exist_ok=True)
