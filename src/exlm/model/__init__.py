"""The model: Hugging Face classes, which importing this package registers with transformers.

A batch goes through the files in this order:

    configuration_exlm  the sizes and switches
    expander            [MASK] tokens become states: the `Lattice`
    modeling_exlm       `ExLMModel.encode`: embeddings, and the layers in one or two stages
    encoder             the rows of positions that layers read; attention and feed-forward block
    heads               log-probabilities of tokens, and links between states
    objectives          the loss, and log-probabilities of masked tokens
    masked_lm           all of these together; `forward` is the place to begin reading

`downstream` has the heads of tasks; `evaluation` and `passes` score held-out sequences."""

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
