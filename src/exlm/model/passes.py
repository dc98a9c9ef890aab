"""Joint likelihood of masked tokens in several passes of the network (docs/method.md), exact for
every objective.

Each pass reads the text with all tokens that earlier passes revealed, and reveals the masks that it
is most certain of. So the masks of a pass depend on what is known, never on what is still masked,
and the product over the passes is a distribution over all fillings (tests enumerate them). With M
masks left and P passes left, ceil(M / P) are revealed; of equal masks those further left come first
(as DUEL, arXiv 2603.01367, scores masked diffusion)."""

from typing import Literal

import torch
from torch import Tensor

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.expansion import IGNORED

Passes = int | Literal["all"]  # `all` reveals one mask in each pass


def passes_needed(passes: Passes, mask_count: int) -> int:
    """How many passes reveal so many masks: each reveals at least one."""
    return mask_count if passes == "all" else min(passes, mask_count)


def most_certain(certainty: Tensor, masked: Tensor, passes_left: int) -> Tensor:
    """Which masks the next pass reveals, [B, T] bool.

    Args:
        certainty: [B, T] the probability of each target's most probable token, or its
            logarithm.
        masked: [B, T] bool, the targets that are still masked.
        passes_left: how many passes are left, with the next one."""
    count = (masked.sum(1, keepdim=True) + passes_left - 1) // passes_left
    certainty_of_masked = certainty.masked_fill(~masked, -torch.inf)
    ranking = certainty_of_masked.argsort(dim=1, descending=True, stable=True)
    return masked & (ranking.argsort(dim=1) < count)


@torch.no_grad()
def nll_in_passes(network: ExLMForMaskedLM, batch: dict[str, Tensor], passes: Passes) -> Tensor:
    """-log-probability [B] of all masked tokens of each sequence in nats, float64; 0 without
    masks.

    Args:
        network: in evaluation mode, of any objective.
        batch: input_ids, attention_mask and labels, each [B, S]; labels are -100 on tokens
            without a mask.
        passes: at most so many passes; 1 gives the `joint_nll` of `evaluate_batch`."""
    attention_mask = batch["attention_mask"]
    input_ids, labels = batch["input_ids"].clone(), batch["labels"].clone()
    nll = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    most_masks = int((labels != IGNORED).sum(1).max())
    for passes_left in range(passes_needed(passes, most_masks), 0, -1):
        rows = (labels != IGNORED).any(1).nonzero()[:, 0]
        lattice = network.exlm.expand(input_ids[rows], attention_mask[rows], labels=labels[rows])
        output = network.lattice_output(lattice)
        certainty = output.log_marginals.amax(-1)
        revealed = most_certain(certainty, output.lattice.target_is_mask, passes_left)
        nll[rows] -= network.objective.joint(output, revealed).to(nll.device)
        row, target = revealed.to(labels.device).nonzero(as_tuple=True)
        places = rows[row], lattice.target_index[row, target]
        input_ids[places] = labels[places]
        labels[places] = IGNORED
    return nll
