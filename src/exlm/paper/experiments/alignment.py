"""Where targets stand: how probable it is that a masked token is emitted by a state of its own mask, and by which.

A path of the full DAG may go through any states in order, so the token of one mask may stand on a state of another.
Where the probability of its own mask stays low, states have learned the words of others, and predictions are poor;
where it is all on one state, the others of a mask are not used.
"""

from torch import Tensor

from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain import evaluate


def measure(model: ExLMForMaskedLM, batches: list[dict[str, Tensor]]) -> dict[str, object] | None:
    """Means over held-out tokens: `own`, of all states of the mask, and `by_state`; None without transitions."""
    if model.transition is None:
        return None
    found = evaluate(model, batches)
    return {"own": found["own_states"], "by_state": found["by_state"]}
