"""Joint fillings of all masks of a text: the n best, the best path, samples and lengths. All
tensors are in float64.

A path fills a text with m tokens: it leaves the first state (BOS), emits one token at each of m
states in order, and enters the last state (EOS). E are the transition probabilities and p_u is the
distribution of state u over words. Then

    f(y_1..y_m) = sum over paths of  E[0, u_1] p_{u_1}(y_1) E[u_1, u_2] p_{u_2}(y_2) ... E[u_m, N-1]
    p(y | m)    = f(y) / Z_m,    Z_m = the same sum without the p_u

Each p_u sums to 1, so p(y | m) sums to 1 over all sequences of m tokens. Z_m is the probability of
m tokens.

R_i(u) is the probability to go from u, after i tokens, to the end after exactly m tokens. The
probabilities E[u, v] R_{i+1}(v) / R_i(u) then make a Markov chain of all paths with m tokens. Its
forward algorithm gives the exact probability p(y_1..y_i | m) that a filling begins with y_1..y_i,
summed over everything that may follow.

The beam search ranks beginnings by an upper bound for all fillings that begin like this. The bound
is the same sum, but every later token is as probable as the best word of its state. If the n-th
filling found is at least as probable as the largest bound of all dropped beginnings, the search has
proven that it found the n best."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from exlm.ops import alignment


@dataclass(frozen=True)
class Graph:
    """What a model says about the masks of one text."""

    # [N, V] distribution of every state over the vocabulary; the first and last are not used
    probs: Tensor
    # [N, N] log-probabilities of going from state u to state v > u; -inf where there is no edge
    links: Tensor
    # [N] which mask a state belongs to: 0 .. M-1, -1 for BOS, M for EOS
    mask: Tensor

    @property
    def masks(self) -> int:
        """M, the number of masks."""
        return int(self.mask[-1])


@dataclass(frozen=True)
class Fillings:
    """Fillings of equal length. The best is first, but samples are in the order in which they were
    drawn."""

    # [n, m]
    tokens: Tensor
    # [n] log p(y | m), summed over all paths
    log_prob: Tensor
    # [n, m] the state of each token, on the drawn path (samples) or else on the most probable path
    path: Tensor
    # whether no missing filling is more probable than the last one; only beam search proves it
    proven: bool = False
    # [n] log p(path, y | m); only `viterbi` gives it
    path_log_prob: Tensor | None = None


def one_per_mask(graph: Graph) -> Graph:
    """The graph with only those edges that lead from one mask to the next. Every path visits each
    mask exactly once."""
    following = graph.mask[:, None] + 1 == graph.mask
    return replace(graph, links=graph.links.masked_fill(~following, -torch.inf))


def share_one_per_mask(graph: Graph) -> float:
    """The probability of the paths of `one_per_mask`, divided by that of all paths with as many
    tokens as masks."""
    one = ways(one_per_mask(graph).links, graph.masks)[-1, 0]
    every = ways(graph.links, graph.masks)[-1, 0]
    return min(1.0, float((one - every).exp()))


def summed_out(graph: Graph, revealed: Tensor) -> Graph:
    """The graph of the `revealed` masks [M] (bool) of `one_per_mask`, with all tokens of the other
    masks summed out: a link leads over the states of the masks between, which emit nothing."""
    links = graph.links
    for mask in (~revealed).nonzero()[:, 0]:
        between = graph.mask == mask
        # from every state over one of these to every state
        over = links[:, between, None] + links[between]
        links = torch.logaddexp(links, over.logsumexp(1))
    # of BOS, the masks, EOS: whether they stay, and their new number
    visited = F.pad(revealed, (1, 1), value=True)
    number = visited.cumsum(0) - 2
    stays = visited[graph.mask + 1]
    return Graph(graph.probs[stays], links[stays][:, stays], number[graph.mask[stays] + 1])


def ways(links: Tensor, tokens: int) -> Tensor:
    """Log-probabilities [m + 2, N] to go from each state to the last one in exactly 0, 1, .. or m +
    1 steps. Row m + 1 - i is log R_i. The first entry of the last row is log Z_m; it is -inf if no
    path has m tokens."""
    rows = [torch.eye(1, len(links)).to(links)[0].flip(0).log()]
    for _ in range(tokens + 1):
        rows.append((links + rows[-1]).logsumexp(1))
    return torch.stack(rows)


def length_distribution(links: Tensor) -> Tensor:
    """Log-probabilities [N - 1] of 0, 1, .. or N - 2 tokens, among the paths that reach the last
    state."""
    return ways(links, len(links) - 2)[1:, 0].log_softmax(0)


def log_probability(graph: Graph, tokens: Tensor) -> Tensor:
    """log p(y | m), [n], of n sequences of m tokens, [n, m]."""
    emission = graph.probs[:, tokens].log().permute(1, 2, 0)
    log_f = alignment.log_likelihood(*_aligned(graph, emission))
    return log_f - ways(graph.links, tokens.shape[1])[-1, 0]


def beam_search(
    graph: Graph, tokens: int, n_best: int = 5, width: int = 64, candidates: int = 200
) -> Fillings:
    """The `n_best` most probable sequences of `tokens` tokens, or all of them if there are fewer.
    After each token the search keeps the `width` best beginnings. If there is only one, every word
    continues it. Else the `candidates` most probable words of every state that can be reached
    continue them."""
    # log R_i
    mass = ways(graph.links, tokens).flip(0)
    # For each state of the i-th token: how probable all later tokens can be together at most.
    # Logarithms [N].
    best = graph.probs.amax(1).log()
    ceilings = [torch.zeros_like(best)]
    for i in range(tokens - 1, 0, -1):
        step = _step(graph.links, mass[i], mass[i + 1])
        ceilings.append((step + best + ceilings[-1]).logsumexp(1))
    common = graph.probs.topk(min(candidates + 1, graph.probs.shape[1]), dim=1)
    # for each state, the best word that is no candidate (0: none)
    rare = common.values[:, candidates:].sum(1)
    # Every beginning has its tokens [n, i], its log-probability [n], and the probability to be at
    # each state [n, N].
    beginnings = torch.empty(1, 0, dtype=torch.long, device=best.device)
    score = best.new_zeros(1)
    alpha = torch.eye(1, len(best)).to(best)
    # the largest bound of all dropped beginnings
    missed = -torch.inf
    for i, ceiling in enumerate(reversed(ceilings)):
        arrived = alpha @ _step(graph.links, mass[i], mass[i + 1]).exp()
        scale = float(ceiling.max())
        bound = arrived * (ceiling - scale).exp()
        live = (bound > 0).any(0).nonzero()[:, 0]
        # for a single beginning, it is cheap to try every word
        if len(beginnings) == 1:
            words = torch.arange(graph.probs.shape[1], device=best.device)
        else:
            words = common.indices[live, :candidates].unique()
            missed = max(missed, scale + float((score + (bound @ rare).log()).max()))
        bounds = score[:, None] + (bound[:, live] @ graph.probs[live[:, None], words]).log()
        ranked = bounds.flatten()
        last = i == tokens - 1
        keep = min(n_best if last else width, int((ranked > -torch.inf).sum()))
        ranking = ranked.topk(min(keep + 1, len(ranked)))
        if not last and len(ranking.values) > keep:
            missed = max(missed, scale + float(ranking.values[keep]))
        parent = ranking.indices[:keep] // len(words)
        word = words[ranking.indices[:keep] % len(words)]
        alpha = arrived[parent] * graph.probs[:, word].T
        share = alpha.sum(1)
        alpha = alpha / share[:, None]
        score = score[parent] + share.log()
        beginnings = torch.cat([beginnings[parent], word[:, None]], dim=1)
    proven = missed == -torch.inf or (len(beginnings) == n_best and float(score[-1]) >= missed)
    return Fillings(beginnings, score, best_paths(graph, beginnings), proven)


def _step(links: Tensor, mass: Tensor, next_mass: Tensor) -> Tensor:
    """Log transition probabilities [N, N] of the Markov chain of all paths at one step, from log R
    [N] before and after it; -inf in the rows of impossible states."""
    here = mass[:, None]
    return torch.where(here > -torch.inf, links + next_mass - here, -torch.inf)


def best_paths(graph: Graph, tokens: Tensor) -> Tensor:
    """The most probable path, [n, m], of each of n fillings, [n, m]."""
    emission = graph.probs[:, tokens].log().permute(1, 2, 0)
    return alignment.best_path(*_aligned(graph, emission))[0][:, 1:-1]


def viterbi(graph: Graph, tokens: int) -> Fillings:
    """The most probable pair of a path and its tokens. Other tokens may be more probable when
    summed over all paths."""
    best = graph.probs.max(1)
    emission = best.values.log().expand(1, tokens, -1)
    path, value = alignment.best_path(*_aligned(graph, emission))
    path = path[:, 1:-1]
    words = best.indices[path]
    path_log_prob = value - ways(graph.links, tokens)[-1, 0]
    return Fillings(words, log_probability(graph, words), path, path_log_prob=path_log_prob)


def sample(
    graph: Graph, tokens: int, count: int, generator: torch.Generator | None = None
) -> Fillings:
    """`count` fillings of `tokens` tokens drawn from p(y | m)."""
    free = graph.probs.new_zeros(count, tokens, len(graph.links))
    path = alignment.sample(*_aligned(graph, free), generator=generator)[:, 1:-1]
    words = torch.empty_like(path)
    for state in path.unique():
        here = path == state
        words[here] = torch.multinomial(
            graph.probs[state], int(here.sum()), replacement=True, generator=generator
        )
    return Fillings(words, log_probability(graph, words), path)


def visits(graph: Graph, tokens: int) -> Tensor:
    """The probability [m + 2, N] that a path emits BOS, each of m tokens and EOS at each state, by
    the transitions."""
    emission = graph.probs.new_zeros(1, tokens, len(graph.links))
    at_state, _ = alignment.posterior(*_aligned(graph, emission))
    return at_state[0]


def _aligned(graph: Graph, emission: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments of `ops.alignment`, from log emissions [n, m, N] of m tokens. BOS and EOS get
    log emission 0."""
    count, tokens, states = emission.shape
    lengths = torch.tensor([tokens + 2, states], device=emission.device)[:, None].expand(-1, count)
    with_ends = F.pad(emission, (0, 0, 1, 1))
    return with_ends, graph.links.expand(count, -1, -1), lengths[0], lengths[1]
