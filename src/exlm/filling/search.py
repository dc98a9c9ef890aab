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


@dataclass(frozen=True)
class Graph:
    """What a model says about the masks of one text."""

    probs: Tensor  # [N, V] distribution of every state over the vocabulary; those of the first and last are not used
    links: Tensor  # [N, N] log-probabilities of going from state u to state v > u; -inf where there is no edge
    mask: Tensor  # [N] which mask a state belongs to: 0 .. M-1, -1 for BOS, M for EOS

    @property
    def masks(self) -> int:
        """M."""
        return int(self.mask[-1])


@dataclass(frozen=True)
class Fillings:
    """Fillings of equal length, the best first unless they were drawn."""

    tokens: Tensor  # [n, m]
    log_prob: Tensor  # [n] log p(y | m), summed over all paths
    path: Tensor  # [n, m] the state of each token: the path that was drawn, or else the most probable one
    proven: bool = False  # no filling that is missing is more probable than the last one; only beam search proves it
    path_log_prob: Tensor | None = None  # [n] log p(path, y | m), of `viterbi` alone


def one_per_mask(graph: Graph) -> Graph:
    """The graph without the paths that skip a mask or stop there twice: edges lead from one mask to the next alone."""
    following = graph.mask[:, None] + 1 == graph.mask
    return replace(graph, links=graph.links.masked_fill(~following, -torch.inf))


def kept(graph: Graph) -> float:
    """The share that `one_per_mask` keeps of the probability of all paths with as many tokens as there are masks."""
    some, every = (ways(links, graph.masks)[-1, 0] for links in (one_per_mask(graph).links, graph.links))
    return min(1.0, float((some - every).exp()))


def ways(links: Tensor, tokens: int) -> Tensor:
    """Log-probabilities [m + 2, N] of all ways from each state to the last one in 0 .. m + 1 steps.

    Row m + 1 - i is log R_i, and the first entry of the last row log Z_m (-inf where no path has m tokens).
    """
    rows = [torch.eye(1, len(links)).to(links)[0].flip(0).log()]
    for _ in range(tokens + 1):
        rows.append((links + rows[-1]).logsumexp(1))
    return torch.stack(rows)


def length_distribution(links: Tensor) -> Tensor:
    """Log-probability [N - 1] that a path emits m = 0 .. N-2 tokens, from the links [N, N].

    It is divided by the sum over m, which is 1 unless some paths end nowhere.
    """
    return ways(links, len(links) - 2)[1:, 0].log_softmax(0)


def log_probability(graph: Graph, tokens: Tensor) -> Tensor:
    """log p(y | m) [n] of token sequences [n, m]."""
    emission = graph.probs[:, tokens].log().permute(1, 2, 0)
    return alignment.log_likelihood(*_aligned(graph, emission)) - ways(graph.links, tokens.shape[1])[-1, 0]


def beam_search(graph: Graph, tokens: int, n_best: int = 5, width: int = 64, candidates: int = 200) -> Fillings:
    """The `n_best` most probable sequences of `tokens` tokens, or fewer where fewer exist.

    `width` beginnings are kept after each token. From the second token on, each is continued by the `candidates` most
    probable words of every state it can reach.
    """
    mass = ways(graph.links, tokens).flip(0)  # log R_i

    def step(i: int) -> Tensor:
        """Log transition probabilities [N, N] of the Markov chain at step i; -inf in rows of states it cannot be at."""
        here = mass[i][:, None]
        return torch.where(here > -torch.inf, graph.links + mass[i + 1] - here, -torch.inf)

    # How probable all tokens after the i-th can at most be together, from the state of the i-th: logarithms [N].
    best = graph.probs.amax(1).log()
    ceilings = [torch.zeros_like(best)]
    for i in range(tokens - 1, 0, -1):
        ceilings.append((step(i) + best + ceilings[-1]).logsumexp(1))
    common = graph.probs.topk(min(candidates + 1, graph.probs.shape[1]), dim=1)
    rare = common.values[:, candidates:].sum(1)  # of the words left out, the most probable one
    # Of every beginning: its tokens [n, i], log-probability [n], and probability of being at each state [n, N].
    found = torch.empty(1, 0, dtype=torch.long, device=best.device)
    score, alpha, missed = best.new_zeros(1), torch.eye(1, len(best)).to(best), -torch.inf
    for i, ceiling in enumerate(reversed(ceilings)):
        arrived, scale = alpha @ step(i).exp(), float(ceiling.max())
        bound = arrived * (ceiling - scale).exp()
        live = (bound > 0).any(0).nonzero()[:, 0]
        if len(found) == 1:  # one beginning is cheap to continue by every word
            words = torch.arange(graph.probs.shape[1], device=best.device)
        else:
            words = common.indices[live, :candidates].unique()
            missed = max(missed, scale + float((score + (bound @ rare).log()).max()))
        ranked = (score[:, None] + (bound[:, live] @ graph.probs[live[:, None], words]).log()).flatten()
        last = i == tokens - 1
        keep = min(n_best if last else width, int((ranked > -torch.inf).sum()))
        ranking = ranked.topk(min(keep + 1, len(ranked)))
        if not last and len(ranking.values) > keep:
            missed = max(missed, scale + float(ranking.values[keep]))
        parent, word = ranking.indices[:keep] // len(words), words[ranking.indices[:keep] % len(words)]
        alpha = arrived[parent] * graph.probs[:, word].T
        share = alpha.sum(1)
        alpha, score = alpha / share[:, None], score[parent] + share.log()
        found = torch.cat([found[parent], word[:, None]], dim=1)
    proven = missed == -torch.inf or (len(found) == n_best and float(score[-1]) >= missed)
    return Fillings(found, score, best_paths(graph, found), proven)


def best_paths(graph: Graph, tokens: Tensor) -> Tensor:
    """The most probable path [n, m] of every filling [n, m]."""
    emission = graph.probs[:, tokens].log().permute(1, 2, 0)
    return alignment.best_path(*_aligned(graph, emission))[0][:, 1:-1]


def viterbi(graph: Graph, tokens: int) -> Fillings:
    """The most probable pair of a path and its tokens. Summed over all paths, other tokens may be more probable."""
    mass, best = ways(graph.links, tokens)[-1, 0], graph.probs.max(1)
    path, value = alignment.best_path(*_aligned(graph, best.values.log().expand(1, tokens, -1)))
    path = path[:, 1:-1]
    chosen = best.indices[path]
    return Fillings(chosen, log_probability(graph, chosen), path, path_log_prob=value - mass)


def sample(graph: Graph, tokens: int, count: int, generator: torch.Generator | None = None) -> Fillings:
    """`count` fillings of `tokens` tokens drawn from p(y | m)."""
    free = graph.probs.new_zeros(count, tokens, len(graph.links))
    path = alignment.sample(*_aligned(graph, free), generator=generator)[:, 1:-1]
    chosen = torch.empty_like(path)
    for state in path.unique():
        here = path == state
        chosen[here] = torch.multinomial(graph.probs[state], int(here.sum()), replacement=True, generator=generator)
    return Fillings(chosen, log_probability(graph, chosen), path)


def visits(graph: Graph, tokens: int) -> Tensor:
    """Probability [N] that a path of `tokens` tokens passes through each state, by the transitions alone."""
    at_state, _ = alignment.posterior(*_aligned(graph, graph.probs.new_zeros(1, tokens, len(graph.links))))
    return at_state[0].sum(0)


def _aligned(graph: Graph, emission: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `ops.alignment` takes, from the log emissions [n, m, N] of m tokens; BOS and EOS have none."""
    count, tokens, states = emission.shape
    lengths = torch.tensor([tokens + 2, states], device=emission.device)[:, None].expand(-1, count)
    return F.pad(emission, (0, 0, 1, 1)), graph.links.expand(count, -1, -1), lengths[0], lengths[1]
