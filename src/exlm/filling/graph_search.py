"""Joint fillings of all masks of a text: the n best, samples and lengths. Tensors are in float64.

A path fills a text with m tokens: it leaves the first state (BOS), emits one token at each of m
states in order, and enters the last state (EOS). E are the probabilities of the links and p_u is
the distribution of state u over the vocabulary. Then

    f(y_1..y_m) = sum over paths of  E[0, u_1] p_{u_1}(y_1) E[u_1, u_2] p_{u_2}(y_2) ... E[u_m, N-1]
    p(y | m)    = f(y) / Z_m,    Z_m = the same sum without the p_u

Each p_u sums to 1, so p(y | m) sums to 1 over all sequences of m tokens. Z_m is the probability of
m tokens.

R_i(u) is the probability to go from u, after i tokens, to the end after exactly m tokens. So all
paths with m tokens are a Markov chain, and its forward algorithm gives the exact probability that a
filling begins with y_1..y_i, summed over everything that may follow:

    P_i(u, v)        = E[u, v] R_{i+1}(v) / R_i(u)
    a_{i+1}(v)       = sum over u of  a_i(u) P_i(u, v) p_v(y_{i+1}),    a_0 = 1 at BOS
    p(y_1..y_i | m)  = sum over v of  a_i(v)

The beam search ranks beginnings by an upper bound for all fillings that begin like this. The bound
is the same sum, but every later token is as probable as the best token of its state: what follows a
token at v then adds the ceiling C_i(v). If the n-th filling is at least as probable as the largest
bound of all dropped beginnings, the search is *exact*: these are the n best."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from exlm.ops import alignment
from exlm.randomness import Purpose, random_bits


@dataclass(frozen=True)
class Graph:
    """What a model says about the masks of one text: the states of its lattice, without padding,
    their links and what they may emit."""

    # [N, V] distribution of every state over the vocabulary; the first and last are not used
    probs: Tensor
    # [N, N] log-probabilities of going from state u to state v > u; -inf where there is no link
    links: Tensor
    # [N] where in the text the mask of each state stands; the states of BOS come first, of EOS last
    place_of_state: Tensor

    @property
    def places(self) -> Tensor:
        """[M] where in the text each mask stands."""
        return self.place_of_state.unique()[1:-1]

    @property
    def num_masks(self) -> int:
        """M, the number of masks."""
        return int(self.target_of_state[-1]) - 1

    @cached_property
    def target_of_state(self) -> Tensor:
        """[N] which target a state belongs to, as in a lattice: 0 is BOS, 1 .. M the masks, M + 1
        EOS."""
        return self.place_of_state.unique(return_inverse=True)[1]


@dataclass(frozen=True)
class TokenFillings:
    """Fillings of equal length, the best first; samples as they were drawn."""

    token_ids: Tensor  # [n, m]
    log_prob: Tensor  # [n] log p(y | m), summed over all paths
    # [n, m] the state of each token, on the sampled path or else on the most probable path
    path: Tensor
    exact: bool = False  # whether it is proven that no missing filling is more probable
    missing_bound: float = 0.0  # how probable a missing filling can be at most, a logarithm


def restrict(graph: Graph, allowed: Tensor | None, temperature: float) -> Graph:
    """The graph at a temperature, where only `allowed` tokens [V] (bool; None: all) are filled in.

    The probability of a filling becomes the conditional one, given that all of its tokens are
    allowed. For that, each link into a state is multiplied by the probability of all allowed tokens
    in this state."""
    if allowed is None and temperature == 1.0:
        return graph
    log_probs = (graph.probs.log() / temperature).log_softmax(1)
    if allowed is None:
        return replace(graph, probs=log_probs.exp())
    log_probs = log_probs.masked_fill(~allowed, -torch.inf)
    log_allowed = log_probs.logsumexp(1)  # [N] of all allowed tokens together
    # a state without any allowed token is not reached
    probs = (log_probs - log_allowed[:, None]).exp().nan_to_num(0.0)
    log_allowed[[0, -1]] = 0.0  # BOS and EOS are no tokens of a filling
    return replace(graph, probs=probs, links=graph.links + log_allowed)


def with_one_per_mask(graph: Graph) -> Graph:
    """The graph with only the links that lead from one mask to the next. Every path visits each
    mask exactly once."""
    target = graph.target_of_state
    following = target[:, None] + 1 == target
    return replace(graph, links=graph.links.masked_fill(~following, -torch.inf))


def kept_share(graph: Graph) -> float:
    """The probability of the paths of `with_one_per_mask`, among all paths with as many tokens as
    masks; `kept` in the output of `exlm fill`."""
    log_kept = log_weight_of_all_paths(with_one_per_mask(graph).links, graph.num_masks)
    log_weight = log_weight_of_all_paths(graph.links, graph.num_masks)
    return min(1.0, float((log_kept - log_weight).exp()))


def sum_out(graph: Graph, is_revealed: Tensor) -> Graph:
    """The graph of the masks that `is_revealed` [M] says, with all tokens of the other masks summed
    out: its links lead over the states of these masks. `graph` is one of `with_one_per_mask`."""
    links = graph.links
    target_stays = F.pad(is_revealed, (1, 1), value=True)  # BOS and EOS stay, too
    for target in (~target_stays).nonzero()[:, 0]:
        in_mask = graph.target_of_state == target
        # The links from every state over one state of this mask to every state.
        over_mask = links[:, in_mask, None] + links[in_mask]
        links = torch.logaddexp(links, over_mask.logsumexp(1))
    stays = target_stays[graph.target_of_state]
    return Graph(graph.probs[stays], links[stays][:, stays], graph.place_of_state[stays])


def log_mass_to_end(links: Tensor, length: int) -> Tensor:
    """Log-probabilities [m + 2, N] to go from each state to the last one with m tokens altogether.
    Row i is log R_i: i tokens are emitted already, so m + 1 - i steps are left."""
    at_end = links.new_full((len(links),), -torch.inf)
    at_end[-1] = 0.0
    rows = [at_end]
    for _ in range(length + 1):
        rows.append((links + rows[-1]).logsumexp(1))
    return torch.stack(rows[::-1])


def log_weight_of_all_paths(links: Tensor, length: int) -> Tensor:
    """log Z_m, the log-probability of m tokens, by the links alone; -inf if no path has m."""
    return log_mass_to_end(links, length)[0, 0]


def length_distribution(links: Tensor) -> Tensor:
    """Log-probabilities [N - 1] of 0, 1, .. or N - 2 tokens, among the paths that reach the last
    state."""
    # With N - 2 tokens altogether, row i leaves N - 2 - i tokens for a path from the first state.
    log_masses = log_mass_to_end(links, len(links) - 2)[:-1, 0]
    return log_masses.flip(0).log_softmax(0)


def log_probability(graph: Graph, token_ids: Tensor) -> Tensor:
    """log p(y | m), [n], of n sequences of m tokens, [n, m]."""
    log_f = alignment.log_likelihood(*_alignment_arguments(graph, _emission(graph, token_ids)))
    return log_f - log_weight_of_all_paths(graph.links, token_ids.shape[1])


def beam_search(
    graph: Graph, length: int, n_best: int = 5, beam: int = 64, candidates: int = 200
) -> TokenFillings:
    """The `n_best` most probable sequences of `length` tokens, or all of them if there are fewer.
    After each token the search keeps the `beam` best beginnings. If there is only one, every token
    continues it. Else the `candidates` most probable tokens of every state that can be reached
    continue them."""
    log_mass = log_mass_to_end(graph.links, length)
    best_tokens = graph.probs.topk(min(candidates + 1, graph.probs.shape[1]), dim=1)
    # 0 for a state whose tokens are all candidates
    best_other_token = best_tokens.values[:, candidates:].sum(1, keepdim=True)
    # the n beginnings of i tokens, at first the only one of 0 tokens, whose paths are at BOS
    token_ids = torch.empty(1, 0, dtype=torch.long)  # [n, i]
    log_prob = graph.probs.new_zeros(1)  # [n] log p(y_1..y_i | m)
    # [n, N] a_i / sum of a_i: how probably the last token was emitted at each state
    at_state = torch.eye(1, len(graph.probs), dtype=graph.probs.dtype)
    # logarithms: the largest bound of all dropped beginnings, and of what the last token dropped
    dropped_bound = next_bound = -torch.inf
    for i, ceiling in enumerate(_ceilings(graph, log_mass)):
        at_next = at_state @ _log_steps(graph.links, log_mass, i).exp()
        # [n, N] of the fillings that go on with each state
        bounds = log_prob[:, None] + at_next.log() + ceiling
        reachable = (bounds > -torch.inf).any(0).nonzero()[:, 0]
        if len(bounds) == 1:
            candidate_ids = torch.arange(graph.probs.shape[1])
        else:
            candidate_ids = best_tokens.indices[reachable, :candidates].unique()
            dropped_bound = max(dropped_bound, float(_log_product(bounds, best_other_token).max()))
        candidate_probs = graph.probs[reachable[:, None], candidate_ids]
        # [n * c] of the fillings that go on with each of c candidates
        bounds_of_tokens = _log_product(bounds[:, reachable], candidate_probs).flatten()
        dropped_bound = max(dropped_bound, next_bound)
        is_last = i == length - 1
        best, next_bound = _largest(bounds_of_tokens, n_best if is_last else beam)
        parents = best // len(candidate_ids)
        next_ids = candidate_ids[best % len(candidate_ids)]
        log_emitted = at_next[parents].log() + graph.probs[:, next_ids].T.log()
        log_step = log_emitted.logsumexp(1)
        token_ids = torch.cat([token_ids[parents], next_ids[:, None]], dim=1)
        log_prob = log_prob[parents] + log_step
        at_state = (log_emitted - log_step[:, None]).exp()
    # The last token drops whole fillings, none of which is more probable than the n best.
    is_bounded = len(log_prob) == n_best and float(log_prob[-1]) >= dropped_bound
    exact = is_bounded or dropped_bound == -torch.inf
    path, _ = alignment.best_path(*_alignment_arguments(graph, _emission(graph, token_ids)))
    missing_bound = max(dropped_bound, next_bound)
    return TokenFillings(token_ids, log_prob, path[:, 1:-1], exact, missing_bound)


def _largest(bounds: Tensor, count: int) -> tuple[Tensor, float]:
    """The places of the `count` largest bounds, or of all that are possible, the largest first; and
    the largest of the others, -inf if there is none."""
    size = min(count, int((bounds > -torch.inf).sum()))
    largest = bounds.topk(min(size + 1, len(bounds)))
    others = largest.values[size:]
    return largest.indices[:size], float(others[0]) if len(others) else -torch.inf


def _log_product(logs: Tensor, factor: Tensor) -> Tensor:
    """log(exp(logs) @ factor), [n, m], of `logs` [n, N] and `factor` [N, m], without rounding small
    numbers to 0."""
    scale = logs.logsumexp(1, keepdim=True).clamp(min=torch.finfo(logs.dtype).min)
    return ((logs - scale).exp() @ factor).log() + scale


def _ceilings(graph: Graph, log_mass: Tensor) -> list[Tensor]:
    """For the 1st, 2nd, .. m-th token, log-probabilities [N]: how probable all later tokens can be
    together at most if it is emitted at each state."""
    best_token = graph.probs.amax(1).log()
    ceilings = [torch.zeros_like(best_token)]
    for i in range(len(log_mass) - 3, 0, -1):
        log_steps = _log_steps(graph.links, log_mass, i)
        ceilings.append((log_steps + best_token + ceilings[-1]).logsumexp(1))
    return ceilings[::-1]


def _log_steps(links: Tensor, log_mass: Tensor, i: int) -> Tensor:
    """Log-probabilities [N, N] of a step in the Markov chain of all paths after i tokens; -inf in
    the rows of impossible states."""
    before = log_mass[i, :, None]
    return torch.where(before > -torch.inf, links + log_mass[i + 1] - before, -torch.inf)


def make_generator(*counters: int) -> torch.Generator:
    """The source of the samples of these counters, such as a seed and the number of a text."""
    bits = random_bits(Purpose.SAMPLED_FILLING, *counters)
    return torch.Generator().manual_seed(int(bits) >> 1)


def sample(
    graph: Graph, length: int, count: int, generator: torch.Generator | None = None
) -> TokenFillings:
    """`count` fillings of `length` tokens, sampled from p(y | m)."""
    emission = graph.probs.new_zeros(count, length, len(graph.links))
    path = alignment.sample(*_alignment_arguments(graph, emission), generator=generator)[:, 1:-1]
    token_ids = torch.empty_like(path)
    for state in path.unique():
        at_state = path == state
        token_ids[at_state] = torch.multinomial(
            graph.probs[state], int(at_state.sum()), replacement=True, generator=generator
        )
    return TokenFillings(token_ids, log_probability(graph, token_ids), path)


def visits(graph: Graph, length: int) -> Tensor:
    """The probability [m + 2, N] that a path emits BOS, each of m tokens and EOS at each state, by
    the links alone."""
    emission = graph.probs.new_zeros(1, length, len(graph.links))
    at_state, _ = alignment.posterior(*_alignment_arguments(graph, emission))
    return at_state[0]


def marginals(graph: Graph) -> Tensor:
    """The distribution [M, V] of each token, one for each mask, over all paths of the graph."""
    return visits(graph, graph.num_masks)[1:-1] @ graph.probs


def _emission(graph: Graph, token_ids: Tensor) -> Tensor:
    """Log-probabilities [n, m, N] of n sequences of m tokens, [n, m], at each state."""
    return graph.probs[:, token_ids].log().permute(1, 2, 0)


def _alignment_arguments(graph: Graph, emission: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments of `ops.alignment`, from log emissions [n, m, N] of m tokens. BOS and EOS get
    log emission 0."""
    count, length, states = emission.shape
    with_ends = F.pad(emission, (0, 0, 1, 1))
    links = graph.links.expand(count, -1, -1)
    return with_ends, links, torch.full([count], length + 2), torch.full([count], states)
