"""Joint fillings of all masks of a text: n best, Viterbi, samples and lengths. Tensors in, tensors out, in float64.

m tokens fill a text if a path leaves the first state (BOS), emits one token at each of m states in order and enters
the last one (EOS). With E the transitions and p_u the distribution of state u over the vocabulary,

    f(y_1..y_m) = sum over paths of  E[0, u_1] p_{u_1}(y_1) E[u_1, u_2] p_{u_2}(y_2) ... E[u_m, N-1]
    p(y | m)    = f(y) / Z_m,    Z_m = the same sum without the p_u

since the p_u sum to one. p(y | m) is a proper distribution over all sequences of m tokens, and Z_m one over m.

With R_i(u) the transitions' mass of all ways from u after i tokens to the end after m, the links
E[u, v] R_{i+1}(v) / R_i(u) make a Markov chain of the paths with m tokens. Its forward probability of tokens y_1..y_i
is the exact probability p(y_1..y_i | m) of that beginning, with everything that may follow summed out.

The search ranks beginnings by a bound on what can become of them: the same sum, with every later token as probable as
the best word of its state. No filling exceeds the bound of its beginning; so if the n-th filling reaches the largest
bound among all that was dropped, the n best are proven to be the n best.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from exlm.ops import alignment

CANDIDATES = 200  # words of a state that continue more than one beginning


@dataclass(frozen=True)
class Graph:
    """What a model says about the masks of one text.

    Attributes:
        probs: [N, V] distribution of every state over the vocabulary; those of the first and last state are not used.
        links: [N, N] log-probabilities of going from state u to state v > u; -inf where there is no edge.
        mask: [N] which mask a state belongs to: 0 .. M-1, -1 for BOS, M for EOS.
    """

    probs: Tensor
    links: Tensor
    mask: Tensor

    @property
    def masks(self) -> int:
        """M."""
        return int(self.mask[-1])


@dataclass(frozen=True)
class Fillings:
    """Fillings of equal length, the best first unless they were drawn.

    Attributes:
        tokens: [n, m].
        log_prob: [n] log p(y | m), summed over all paths.
        path: [n, m] the state of each token: the path that was drawn, or else the most probable one.
        proven: no filling that is missing is more probable than the last one. True of nothing that was drawn.
    """

    tokens: Tensor
    log_prob: Tensor
    path: Tensor
    proven: bool


def one_per_mask(graph: Graph) -> Graph:
    """The graph without the paths that skip a mask or stop there twice: edges lead from one mask to the next alone."""
    following = graph.mask[:, None] + 1 == graph.mask
    return replace(graph, links=graph.links.masked_fill(~following, -torch.inf))


def kept(graph: Graph) -> float:
    """The share that `one_per_mask` keeps of the probability of all paths with as many tokens as there are masks.

    Raises ValueError where it keeps no path.
    """
    some, every = (Chain(links, graph.masks).remaining[0, 0] for links in (one_per_mask(graph).links, graph.links))
    return min(1.0, float((some - every).exp()))


def independent(log_probs: Tensor) -> Graph:
    """The graph of masks that know nothing of each other, from their log-probabilities [M, V]."""
    masks = len(log_probs)
    probs = F.pad(log_probs.double().softmax(-1), (0, 0, 1, 1))
    mask = torch.arange(-1, masks + 1, device=probs.device)
    return one_per_mask(Graph(probs, probs.new_zeros(masks + 2, masks + 2), mask))


def length_distribution(links: Tensor) -> Tensor:
    """log-probability [N - 1] that a path emits m = 0 .. N-2 tokens, from the links [N, N]."""
    reached = torch.full_like(links[0], -torch.inf)
    reached[0] = 0.0
    result = []
    for _ in range(len(links) - 1):
        reached = (reached[:, None] + links).logsumexp(0)
        result.append(reached[-1])
    return torch.stack(result).log_softmax(0)  # of log-probabilities: divides by their sum, 1 but for dead ends


class Chain:
    """The Markov chain of the paths with m tokens through links [N, N]. Raises ValueError if there is no such path.

    `remaining` [m + 2, N] is log R: the mass of all ways from a state after i steps to the last one after m + 1 steps.
    """

    def __init__(self, links: Tensor, tokens: int) -> None:
        rows = [torch.full_like(links[0], -torch.inf)]
        rows[0][-1] = 0.0
        for _ in range(tokens + 1):
            rows.append((links + rows[-1]).logsumexp(1))
        if rows[-1][0] == -torch.inf:
            raise ValueError(f"no path through the {len(links)} states emits {tokens} tokens")
        self.links, self.remaining = links, torch.stack(rows[::-1])

    def step(self, i: int) -> Tensor:
        """Transition probabilities [N, N] of step i = 0 .. m. Rows of states that cannot be there are zero."""
        here, there = self.remaining[i], self.remaining[i + 1]
        return torch.where(here[:, None] > -torch.inf, self.links + there - here[:, None], -torch.inf).exp()

    def start(self) -> Tensor:
        """The forward vector [1, N] of the empty beginning: at BOS."""
        return torch.eye(1, len(self.links), dtype=self.links.dtype, device=self.links.device)


def log_probability(graph: Graph, paths: Chain, tokens: Tensor) -> Tensor:
    """log p(y | m) [n] of token sequences [n, m]."""
    alpha = paths.start().expand(len(tokens), -1)
    total = alpha.new_zeros(len(tokens))
    for i, token in enumerate(tokens.unbind(1)):
        alpha, joint = _scaled((alpha @ paths.step(i)) * graph.probs[:, token].T)
        total = total + joint.log()
    return total


def _scaled(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Forward vectors [n, N] divided by their sums, and those sums [n]: what keeps long products in range."""
    total = alpha.sum(1)
    return alpha / total.clamp(min=torch.finfo(alpha.dtype).tiny)[:, None], total


def beam_search(graph: Graph, tokens: int, n_best: int = 5, width: int = 64, candidates: int = CANDIDATES) -> Fillings:
    """The `n_best` most probable sequences of `tokens` tokens, of which there must be a path (`Chain`).

    Args:
        graph: with N states.
        tokens: m, at least 1.
        n_best: how many; fewer where fewer exist.
        width: beginnings kept after each token.
        candidates: from the second token on, a beginning is continued by this many words of every state it can reach.
    """
    paths = Chain(graph.links, tokens)
    common = graph.probs.topk(min(candidates + 1, graph.probs.shape[1]), dim=1)
    rare = common.values[:, candidates] if common.values.shape[1] > candidates else torch.zeros_like(graph.probs[:, 0])
    found = torch.empty(1, 0, dtype=torch.long, device=graph.probs.device)
    alpha, score, missed = paths.start(), graph.probs.new_zeros(1), -torch.inf
    for i, (ceiling, scale) in enumerate(_ceilings(graph, paths, tokens)):
        arrived = alpha @ paths.step(i)
        bound = arrived * ceiling
        live = (bound > 0).any(0).nonzero()[:, 0]
        if len(found) == 1:  # one beginning is cheap to continue by every word
            words = torch.arange(graph.probs.shape[1], device=alpha.device)
        else:
            words = common.indices[live, :candidates].unique()
            missed = max(missed, scale + float((score + (bound @ rare).log()).max()))
        ranked = (score[:, None] + (bound[:, live] @ graph.probs[live[:, None], words]).log()).flatten()
        last = i == tokens - 1
        keep = min(n_best if last else width, int((ranked > -torch.inf).sum()))
        best = ranked.topk(min(keep + 1, len(ranked)))
        if not last and len(best.values) > keep:
            missed = max(missed, scale + float(best.values[keep]))
        parent, word = best.indices[:keep] // len(words), words[best.indices[:keep] % len(words)]
        alpha, share = _scaled(arrived[parent] * graph.probs[:, word].T)
        score = score[parent] + share.log()
        found = torch.cat([found[parent], word[:, None]], dim=1)
    proven = missed == -torch.inf or (len(found) == n_best and float(score[-1]) >= missed)
    return Fillings(found, score, best_paths(graph, found), proven)


def _ceilings(graph: Graph, paths: Chain, tokens: int) -> list[tuple[Tensor, float]]:
    """For each token i, how probable all later ones can at most be together, from the state of i.

    Returns:
        [N], divided by its largest entry, and the logarithm of that entry.
    """
    best = graph.probs.amax(1)
    rows = [(torch.ones_like(best), 0.0)]
    for i in range(tokens - 1, 0, -1):
        ceiling = paths.step(i) @ (best * rows[-1][0])
        rows.append((ceiling / ceiling.max(), rows[-1][1] + float(ceiling.max().log())))
    return rows[::-1]


def best_paths(graph: Graph, tokens: Tensor) -> Tensor:
    """The most probable path [n, m] of every filling [n, m]."""
    emission = F.pad(graph.probs[:, tokens].log().permute(1, 2, 0), (0, 0, 1, 1))
    path, _ = alignment.best_path(emission, *_copies(graph, *tokens.shape))
    return path[:, 1:-1]


def _copies(graph: Graph, count: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Links [n, N, N], targets [n] and states [n], as `ops.alignment` wants them."""
    states = len(graph.links)
    lengths = torch.tensor([tokens + 2, states], device=graph.links.device)[:, None].expand(-1, count)
    return graph.links.expand(count, -1, -1), lengths[0], lengths[1]


def viterbi(graph: Graph, tokens: int) -> tuple[Fillings, Tensor]:
    """The single most probable pair of a path and its tokens, with log p(path, y | m) [1].

    The filling's own probability sums over all its paths; another filling may beat it there.
    """
    paths = Chain(graph.links, tokens)
    best = graph.probs.max(1)
    emission = best.values.log().expand(1, tokens + 2, -1).clone()
    emission[:, [0, -1]] = 0.0
    path, value = alignment.best_path(emission, *_copies(graph, 1, tokens))
    path = path[:, 1:-1]
    chosen = best.indices[path]
    return Fillings(chosen, log_probability(graph, paths, chosen), path, False), value - paths.remaining[0, 0]


def sample(graph: Graph, tokens: int, count: int, generator: torch.Generator | None = None) -> Fillings:
    """`count` fillings of `tokens` tokens drawn from p(y | m)."""
    paths = Chain(graph.links, tokens)
    links, targets, states = _copies(graph, count, tokens)
    free = graph.probs.new_zeros(count, tokens + 2, len(graph.links))
    path = alignment.sample(free, links, targets, states, generator=generator)[:, 1:-1]
    chosen = torch.empty_like(path)
    for state in path.unique():
        here = path == state
        chosen[here] = torch.multinomial(graph.probs[state], int(here.sum()), replacement=True, generator=generator)
    return Fillings(chosen, log_probability(graph, paths, chosen), path, False)


def visits(graph: Graph, tokens: int) -> Tensor:
    """Probability [N] that a path of `tokens` tokens passes through each state, by the transitions alone."""
    links, targets, states = _copies(graph, 1, tokens)
    free = torch.zeros_like(links[:, :1]).expand(-1, tokens + 2, -1)
    at_state, _ = alignment.posterior(free, links, targets, states)
    return at_state[0].sum(0)
