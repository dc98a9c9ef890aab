"""Encoders with a head for a labelled task: classification, regression, labels of tokens and
question answering.

In the `input_ids` [B, S] a [MASK] is an ordinary token. The heads read the hidden states after
`config.task_layers` layers, and `hidden_states`, if they are asked for, end with these."""

from typing import ClassVar

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


class ExLMClassificationModel(ExLMPreTrainedModel):
    """What classification of sequences and of tokens share. A subclass makes the `classifier`."""

    output_class: ClassVar[type[outputs.ModelOutput]]
    has_token_labels: ClassVar[bool]  # whether every token has a label; else every sequence has
    classifier: nn.Module

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.exlm = ExLMModel(config)

    def compute_logits(self, vectors: Tensor) -> Tensor:
        """Logits [..., num_labels], at least float32, from vectors [..., D]."""
        return self.classifier(vectors)

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
    ) -> outputs.ModelOutput:
        """The logits, and the mean loss over labelled entries if `labels` are given; the class has
        the shapes of both. The other arguments are those of `ExLMModel.forward`."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.exlm.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        problem_type: str | None = self.config.problem_type
        if self.has_token_labels:
            problem_type = "single_label_classification"
            encoded = self.exlm.encode_tokens(sequences, every_layer, repeat_pooling="first")
        else:
            pooling = self.config.classifier_pooling
            encoded = self.exlm.pool(sequences, attention_mask, pooling, every_layer)
        logits = self.compute_logits(encoded.hidden)
        loss = None if labels is None else mean_loss(logits, labels, problem_type)
        hidden_states = encoded.hidden_states or None
        return self.output_class(loss=loss, logits=logits, hidden_states=hidden_states)


class ExLMForSequenceClassification(ExLMClassificationModel):
    """Classification (binary, multi-class, multi-label) and regression by `config.problem_type`.

    Logits are [B, num_labels]; labels are [B] class indices, or [B, num_labels] floats in which NaN
    marks a missing label."""

    output_class = outputs.SequenceClassifierOutput
    has_token_labels = False

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.classifier = ExLMClassificationHead(config)
        self.post_init()


class ExLMForTokenClassification(ExLMClassificationModel):
    """A label for every token, such as the secondary structure of residues or named entities.

    Logits are [B, S, num_labels]; labels are [B, S] class indices, -100 where there is no label. If
    the model repeats its input, logits and `hidden_states` belong to each token's first repeat."""

    output_class = outputs.TokenClassifierOutput
    has_token_labels = True
    classifier: nn.Linear

    def __init__(self, config: ExLMConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 0)
        self.post_init()

    def compute_logits(self, vectors: Tensor) -> Tensor:
        logits = linear(self.dropout(vectors), self.classifier)
        return logits.to(at_least_float32(logits.dtype))


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
        are given, [B] or [B, 1]. A position outside of the S tokens, where an answer was cut off,
        does not count in the loss. Padding has a finite logit, lower than all others. The other
        arguments are those of `ExLMModel.forward`."""
        every_layer = self.wants_every_layer(output_hidden_states, output_attentions)
        sequences = self.exlm.task_input(
            input_ids, attention_mask, position_ids, token_type_ids, inputs_embeds
        )
        encoded = self.exlm.encode_tokens(sequences, every_layer, repeat_pooling="first")
        logits = linear(encoded.hidden, self.qa_outputs)
        # In bfloat16 different spans would have equal logits.
        logits = logits.to(at_least_float32(logits.dtype))
        if attention_mask is not None:
            padding = ~attention_mask.bool().to(logits.device)
            logits = logits.masked_fill(padding[..., None], torch.finfo(logits.dtype).min / 2)
        start_logits, end_logits = logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            total, count = span_loss(start_logits, end_logits, start_positions, end_positions)
            loss = total / count.clamp(min=0.5)  # 0 if no position counts
        return outputs.QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=encoded.hidden_states or None,
        )


def mean_loss(logits: Tensor, labels: Tensor, problem_type: str | None) -> Tensor:
    """The mean of the losses of labelled entries; 0 without any. The arguments are those of
    `classification_loss`."""
    total, count = classification_loss(logits, labels.to(logits.device), problem_type)
    return total / count.clamp(min=1)


def classification_loss(
    logits: Tensor, labels: Tensor, problem_type: str | None
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of labelled entries, and their number.

    `problem_type` is that of transformers; if None, it is inferred as there.

    problem type                  logits                        labels; missing ones are
    single_label_classification   [B, classes], [B, S, classes] [B], [B, S] class indices; -100
    multi_label_classification    [B, labels]                   [B, labels] 0 or 1; NaN
    regression                    [B, labels]                   [B, labels] numbers; NaN"""
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


def span_loss(
    start_logits: Tensor, end_logits: Tensor, starts: Tensor, ends: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of all sequences, and their number; logits are [B, S], positions [B] or
    [B, 1]. A loss is half the cross entropy of the start plus half the cross entropy of the end. A
    position outside of the S tokens adds nothing, and takes half a sequence from the number."""
    start_total, start_count = _position_loss(start_logits, starts)
    end_total, end_count = _position_loss(end_logits, ends)
    return (start_total + end_total) / 2, (start_count + end_count) / 2


def _position_loss(logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropies of positions within the text, and the number of these."""
    positions = positions.to(logits.device).reshape(len(logits))
    is_inside = (positions >= 0) & (positions < logits.shape[1])
    targets = positions.masked_fill(~is_inside, IGNORED)
    return F.cross_entropy(logits, targets, reduction="sum"), is_inside.sum()
