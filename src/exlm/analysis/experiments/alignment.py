"""Where targets stand: how probable it is that a masked token is emitted by a state of its own mask, and by which.

A path of the full DAG may go through any states in order, so the token of one mask may stand on a state of another.
Where the probability of its own mask stays low, states have learned the words of others, and predictions are poor;
where it is all on one state, the others of a mask are not used.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from exlm.model.modeling_exlm import ExLMForMaskedLM
from exlm.model.objectives import visits
from exlm.ops.expansion import Lattice
from exlm.train.loop import autocast


def own_states(weights: Tensor, lattice: Lattice, num_states: int) -> Tensor:
    """Probability of each masked target on each state of its own mask.

    Args:
        weights: [B, T, N], that a path is at state u when it emits target i.
        lattice: whose states and targets these are.
        num_states: k.

    Returns:
        [masked targets, k].
    """
    rows = lattice.target_is_mask.nonzero()[:, 0]
    own = (lattice.group[:, None, :] == lattice.target_index[:, :, None])[lattice.target_is_mask]
    copy = (lattice.state_index - lattice.first.gather(1, lattice.group))[rows]
    chosen = weights[lattice.target_is_mask] * own
    return torch.stack([(chosen * (copy == c)).sum(1) for c in range(num_states)], dim=1)


@torch.no_grad()
def measure(model: ExLMForMaskedLM, batches: Iterable[dict[str, Tensor]], precision: str) -> dict[str, object] | None:
    """Means over held-out tokens: `own`, of all states of the mask, and `by_state`; None without transitions."""
    if model.transition is None:
        return None
    model.eval()
    device = next(model.parameters()).device
    found = []
    for batch in batches:
        with autocast(device, precision):
            lattice = model.exlm.expand(**batch)
            states = model.states(lattice)
            lattice = lattice.to(states.device)
            found.append(own_states(visits(model, states, lattice), lattice, model.config.num_states).cpu())
    by_state = torch.cat(found).double().mean(0)
    return {"own": float(by_state.sum()), "by_state": by_state.tolist()}
