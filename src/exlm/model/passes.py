"""Joint likelihood of masked tokens in several passes of the network, exact for every objective.

The policy: each pass reads the text with all tokens that earlier passes revealed, and reveals those
masks that it is most certain of. So the masks of a pass depend on what is known, never on what is
still masked, and

    p(y) = product over passes of p(tokens revealed in the pass | text, tokens revealed earlier)

is a distribution over all fillings y (tests enumerate them). With M masks left and P passes left,
ceil(M / P) are revealed: as even as possible, the larger passes first. A mask's certainty is the
marginal probability of its most probable token; of equal masks those further left come first (as
DUEL, arXiv 2603.01367, scores masked diffusion).

Inside a pass ExLM scores the revealed tokens together: f / Z_m as in `exlm.model.evaluation`, where
the emissions of masks that stay are 1, which sums over all their tokens. Models without links score
each token by its marginal."""

from typing import Literal

import torch
from torch import Tensor

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.expansion import IGNORED, Lattice

Passes = int | Literal["all"]  # `all` reveals one mask in each pass


def passes_needed(passes: Passes, masks: int) -> int:
    """How many passes reveal so many masks: each reveals at least one."""
    return masks if passes == "all" else min(passes, masks)


def most_certain(certainty: Tensor, masks: Tensor, passes_left: int) -> Tensor:
    """Which masks the next pass reveals, [B, T] bool.

    Args:
        certainty: [B, T] the probability of each target's most probable token, or its
            logarithm.
        masks: [B, T] bool, the targets that are still masked.
        passes_left: how many passes are left, with the next one."""
    count = (masks.sum(1, keepdim=True) + passes_left - 1) // passes_left
    ranking = certainty.masked_fill(~masks, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return masks & (ranking.argsort(dim=1) < count)


@torch.no_grad()
def nll_in_passes(model: ExLMForMaskedLM, batch: dict[str, Tensor], passes: Passes) -> Tensor:
    """-log-probability [B] of all masked tokens of each sequence in nats, float64; 0 without
    masks.

    Args:
        model: in evaluation mode, of any objective.
        batch: input_ids, attention_mask and labels, each [B, S]; labels are -100 on tokens
            without a mask.
        passes: at most so many passes; 1 gives the `joint_nll` of `evaluate_batch`."""
    attention_mask = batch["attention_mask"]
    input_ids, labels = batch["input_ids"].clone(), batch["labels"].clone()
    nll = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    most_masks = int((labels != IGNORED).sum(1).max())
    for passes_left in range(passes_needed(passes, most_masks), 0, -1):
        rows = (labels != IGNORED).any(1).nonzero()[:, 0]
        lattice = model.exlm.expand(input_ids[rows], attention_mask[rows], labels=labels[rows])
        revealed, values = _one_pass(model, lattice, passes_left)
        nll[rows] += values.to(nll.device)
        row, target = revealed.to(labels.device).nonzero(as_tuple=True)
        places = rows[row], lattice.target_index[row, target]
        input_ids[places] = labels[places]
        labels[places] = IGNORED
    return nll


def _one_pass(model: ExLMForMaskedLM, lattice: Lattice, passes_left: int) -> tuple[Tensor, Tensor]:
    """Which targets [B, T] the pass reveals, and -log of their joint probability [B]."""
    output = model.lattice_output(lattice)
    certainty = output.marginals.amax(-1)
    revealed = most_certain(certainty, output.lattice.target_is_mask, passes_left)
    return revealed, -model.objective.joint(output, revealed)
