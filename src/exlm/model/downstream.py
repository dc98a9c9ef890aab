"""Encoders with a head for a labelled task: classification, regression, labels of tokens and
question answering.

In the `input_ids` [B, S] a [MASK] is an ordinary token. The heads read the hidden states after
`config.task_layers` layers, with which `hidden_states` end. `ExLMModel.task_input` describes the
arguments of `forward` that are not described here."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import modeling_outputs as outputs
from transformers.utils import can_return_tuple

from exlm.model.configuration_exlm import ExLMConfig
from exlm.model.heads import ExLMClassificationHead
from exlm.model.modeling_exlm import ExLMModel, ExLMPreTrainedModel
from exlm.ops.dropout import Dropout
from exlm.ops.expansion import IGNORED
from exlm.ops.precision import at_least_float32, linear


class ExLMForSequenceClassification(ExLMPreTrainedModel):
    """Classification (binary, multi-class, multi-label) and regression by `config.problem_type`."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.exlm = ExLMModel(config)
        self.classifier = ExLMClassificationHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> outputs.SequenceClassifierOutput:
        """Logits [B, num_labels], and the mean loss over labelled entries if `labels` are given:
        [B] class indices, or [B, num_labels] floats in which NaN marks a missing label."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.exlm.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        pooling = self.config.classifier_pooling
        pooled, hidden_states = self.exlm.pool(sequences, attention_mask, pooling, every_layer)
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            loss = mean_loss(logits, labels, self.config.problem_type)
        return outputs.SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=hidden_states or None
        )


class ExLMForTokenClassification(ExLMPreTrainedModel):
    """A label for every token, such as the secondary structure of residues or named entities."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.exlm = ExLMModel(config)
        self.dropout = Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 0)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> outputs.TokenClassifierOutput:
        """Logits [B, S, num_labels], and the mean loss if `labels` [B, S] are given; -100 stands
        for no label.

        If the model repeats its input, logits and `hidden_states` belong to each token's first
        repeat."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.exlm.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        hidden, hidden_states = self.exlm.encode_tokens(
            sequences, every_layer, repeat_pooling="first"
        )
        logits = linear(self.dropout(hidden), self.classifier)
        logits = logits.to(at_least_float32(logits.dtype))
        loss = None
        if labels is not None:
            loss = mean_loss(logits, labels, "single_label_classification")
        return outputs.TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=hidden_states or None
        )


class ExLMForQuestionAnswering(ExLMPreTrainedModel):
    """Extractive question answering: where the answer starts and ends in the input."""

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.exlm = ExLMModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> outputs.QuestionAnsweringModelOutput:
        """Logits [B, S] of the answer's first and last token, and the mean loss if both positions
        [B] are given. Padding has a finite logit, lower than all others."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.exlm.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        hidden, hidden_states = self.exlm.encode_tokens(
            sequences, every_layer, repeat_pooling="first"
        )
        logits = linear(hidden, self.qa_outputs)
        # In bfloat16 different spans would have equal logits.
        logits = logits.to(at_least_float32(logits.dtype))
        if attention_mask is not None:
            padding = ~attention_mask.bool().to(logits.device)
            logits = logits.masked_fill(padding[..., None], torch.finfo(logits.dtype).min / 2)
        start, end = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start, end, start_positions, end_positions) / len(start)
        return outputs.QuestionAnsweringModelOutput(
            loss=loss, start_logits=start, end_logits=end, hidden_states=hidden_states or None
        )


def mean_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """The `classification_loss` per labelled entry; 0 without any."""
    total, count = classification_loss(logits, labels.to(logits.device), problem_type)
    return total / count.clamp(min=1)


def classification_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of labelled entries, and their number, from logits [B, tasks or
    classes], or of tokens [B, S, classes]. Labels are [B] or [B, S] class indices
    (single_label_classification), -100 where missing, else [B, tasks] with NaN where missing.
    `problem_type` is as in transformers; if None, it is inferred as there."""
    if logits.dim() == 3:
        logits, labels = logits.flatten(0, 1), labels.flatten()
    if problem_type is None and logits.shape[1] > 1:
        if labels.is_floating_point():
            problem_type = "multi_label_classification"
        else:
            problem_type = "single_label_classification"
    if problem_type == "single_label_classification":
        return F.cross_entropy(logits, labels.long(), reduction="sum"), (labels != IGNORED).sum()
    labels = labels.to(logits.dtype).reshape(logits.shape)
    labelled = ~labels.isnan()
    answers = labels.nan_to_num(0.0)
    if problem_type == "multi_label_classification":
        losses = F.binary_cross_entropy_with_logits(logits, answers, reduction="none")
    else:
        losses = (logits - answers) ** 2
    return torch.where(labelled, losses, 0.0).sum(), labelled.sum()


def span_loss(start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Sum over a batch of the mean of the cross entropies of start and end; logits [B, S],
    positions [B]."""
    device = start_logits.device
    start = F.cross_entropy(start_logits, starts.to(device), reduction="sum")
    end = F.cross_entropy(end_logits, ends.to(device), reduction="sum")
    return (start + end) / 2
