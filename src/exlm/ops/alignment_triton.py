"""The GPU back end in Triton, for float32 on CUDA.

* `_sweep`: alpha and beta at once, one program per sequence and direction. Every row is shifted by
  the peak of the row before. Only the value sums the shifts, in float64, so float32 rounding does
  not grow with log f.
* The posterior of the states is alpha + beta, normalised row by row, so that the shifts cancel.
* `_link_posterior`: the posterior of a state is divided among its predecessors with weights of at
  most 1, as in the other back ends. Here this is done for all targets at once, by one program per
  sequence and tile of links.

Logarithms are in base 2, and log 0 is a large negative number. Both directions read only inputs
that a path of the right length can use, so no posterior is NaN if the value is not. Nothing waits
for the GPU: shapes give all sizes."""
# mypy: disable-error-code="no-untyped-def, assignment"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from exlm.ops.alignment_torch import LOG_ZERO, NO_PATH_BELOW, Inputs, Result
from exlm.ops.fused import LOG2E

# With at most so many states one program computes all rows; else many programs share each row.
PERSISTENT = 768
LANES = 128  # states of a sweep's tile
ROWS = 4  # predecessors of a sweep's tile that are read in parallel
UNROLL = 8  # how many times as many are read in turn
TILE = 64  # side of a tile of links
# Entries that may be read beyond the end of a row of states: up to ROWS * UNROLL or TILE.
PADDING = 64


@triton.jit
def _lengths(target_lengths, state_lengths, b, T, N):
    """Number of targets of sequence b, and states - targets; 0 targets if the lengths allow no
    path."""
    targets, states = tl.load(target_lengths + b), tl.load(state_lengths + b)
    possible = (targets >= 1) & (targets <= T) & (targets <= states) & (states <= N)
    possible &= (targets > 1) | (states == 1)
    slack = tl.where(possible, states - targets, 0)
    return tl.where(possible, targets, 0).to(tl.int32), slack.to(tl.int32)


@triton.jit
def _band(i, targets, slack):
    """Range [low, high) of the states of target i; the first target has the first state, the last
    one the last."""
    return tl.where(i == targets - 1, i + slack, i), tl.where(i == 0, 1, i + slack + 1)


@triton.jit
def _origins(state, low, high, backward):
    """Range within [low, high) of the states from which a sweep reaches a state."""
    begin = tl.where(backward, tl.maximum(state + 1, low), low)
    return begin, tl.where(backward, high, tl.minimum(state, high))


@triton.jit(do_not_specialize=["batch", "T", "N", "first_row", "end_row"])
def _sweep(
    emission, links, transposed, target_lengths, state_lengths, rows, sums, peaks,
    batch, T, N, first_row, end_row,
    WIDTH: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
    PADDING: tl.constexpr, LOG2E: tl.constexpr, LOG_ZERO: tl.constexpr, NO_PATH_BELOW: tl.constexpr,
):  # fmt: skip
    """Rows `first_row` to `end_row` - 1, counted along the sweep; the grid is (directions * batch,
    programs that share a row).

    transposed  [batch, N, N]  the links with axes swapped: the backward sweep reads in order
    rows        [directions, batch, T, N + PADDING]  out: alpha and beta, both with emission;
                LOG_ZERO on entry
    sums        [batch, T, N]  out: log-sum over the predecessors, relative to the alpha before;
                LOG_ZERO on entry
    peaks       [batch, T]  out: what the next alpha is shifted by; 0 on entry"""
    b = (tl.program_id(0) % batch).to(tl.int64)
    backward = tl.program_id(0) >= batch
    targets, slack = _lengths(target_lengths, state_lengths, b, T, N)
    stride = N + PADDING
    step_links = (transposed if backward else links) + b * N * N
    emission, sums, peaks = emission + b * T * N, sums + b * T * N, peaks + b * T
    rows += tl.program_id(0).to(tl.int64) * T * stride
    # A tile has a row for each predecessor that is read in parallel, and a lane for each state.
    row, lane, column = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES), tl.arange(0, WIDTH)

    # The sweep begins at the only state of its first row.
    begins = (first_row == 0) & (targets > 0) & (tl.program_id(1) == 0)
    i, u = tl.where(backward, targets - 1, 0), tl.where(backward, targets - 1 + slack, 0)
    start = tl.load(emission + i * N + u, mask=begins, other=0.0) * LOG2E
    tl.store(rows + i * stride + u, tl.where(start < LOG_ZERO, LOG_ZERO, start), mask=begins)
    tl.store(sums + i * N + u, 0.0, mask=begins & (not backward))
    tl.debug_barrier()

    for step in range(tl.maximum(first_row, 1), tl.minimum(end_row, targets)):
        i = tl.where(backward, targets - 1 - step, step)
        before = tl.where(backward, i + 1, i - 1)
        from_row = rows + before * stride
        peak = tl.max(tl.load(from_row + column, mask=column < N, other=LOG_ZERO), 0)
        # A row that no path reaches must not raise the next rows.
        peak = tl.where(peak > NO_PATH_BELOW, peak, 0.0)
        tl.store(peaks + before, peak, mask=(tl.program_id(1) == 0) & (not backward))
        low, high = _band(before, targets, slack)
        first_state, end_state = _band(i, targets, slack)
        for block in range(tl.program_id(1), tl.cdiv(slack + 1, LANES), tl.num_programs(1)):
            block_start = i + block * LANES
            state = block_start + lane
            real = (state >= first_state) & (state < end_state)
            emitted = tl.load(emission + i * N + state, mask=real, other=0.0) * LOG2E
            begin, end = _origins(state, low, high, backward)
            # Row r of a tile at p reads predecessor p + r, so p + r < end is p < end - r.
            begin, end = begin[None, :] - row, tl.where(real, end, 0)[None, :] - row
            begin_all, _ = _origins(block_start, low, high, backward)
            _, end_all = _origins(block_start + LANES - 1, low, high, backward)
            link_tile = step_links + (row * N + state[None, :])
            # Every (row, lane) has its own sum, relative to its own peak, so no thread waits for
            # another in the loop. The first peak is below all scores, yet finite.
            top = tl.full([ROWS, LANES], 1e8 * LOG_ZERO, tl.float32)
            total = tl.full([ROWS, LANES], 1.0, tl.float32)
            for p in range(begin_all, end_all, ROWS * UNROLL):
                scores = ()
                for k in tl.static_range(0, ROWS * UNROLL, ROWS):
                    alive = (p >= begin - k) & (p < end - k)
                    link = tl.load(link_tile + p * N + k * N, mask=alive, other=float("-inf"))
                    scores += (tl.load(from_row + p + row + k) + link * LOG2E,)
                higher = top
                for k in tl.static_range(UNROLL):
                    higher = tl.maximum(higher, scores[k])
                total *= tl.exp2(top - higher)
                for k in tl.static_range(UNROLL):
                    total += tl.exp2(scores[k] - higher)
                top = higher
            highest = tl.max(top, 0)
            result = highest + tl.log2(tl.sum(total * tl.exp2(top - highest[None, :]), 0))
            tl.store(sums + i * N + state, result, mask=real & (not backward))
            result += emitted - peak
            result = tl.where(result < LOG_ZERO, LOG_ZERO, result)
            tl.store(rows + i * stride + state, result, mask=real)
        tl.debug_barrier()


@triton.jit(do_not_specialize=["T", "N"])
def _link_posterior(
    links, target_lengths, state_lengths, rows, sums, state_posterior, corners, link_use, T, N,
    TILE: tl.constexpr, PADDING: tl.constexpr, LOG2E: tl.constexpr,
):  # fmt: skip
    """One tile of the expected use of links; the grid is (batch, tiles).

    state_posterior  [batch, T, N]
    corners          [2, tiles]  the tiles on and above the diagonal, as multiples of TILE
    link_use         [batch, N, N]  out; 0 on entry"""
    b = tl.program_id(0).to(tl.int64)
    targets, slack = _lengths(target_lengths, state_lengths, b, T, N)
    u0 = tl.load(corners + tl.program_id(1)).to(tl.int32) * TILE
    v0 = tl.load(corners + tl.num_programs(1) + tl.program_id(1)).to(tl.int32) * TILE
    u, v = u0 + tl.arange(0, TILE), v0 + tl.arange(0, TILE)
    inside = (u[:, None] < v[None, :]) & (v < targets + slack)[None, :]
    tile = b * N * N + (u[:, None] * N + v[None, :])
    link = tl.load(links + tile, mask=inside, other=float("-inf")) * LOG2E
    # A NaN on a path is in `state_posterior`. A link that is NaN itself is on no path.
    link = tl.where(link == link, link, float("-inf"))
    rows += b * T * (N + PADDING)
    sums += b * T * N
    state_posterior += b * T * N
    used = tl.zeros([TILE, TILE], tl.float32)
    first_target = tl.maximum(tl.maximum(u0 + 1, v0) - slack, 1)
    for i in range(first_target, tl.minimum(tl.minimum(u0 + 1, v0) + TILE, targets)):
        share = tl.load(state_posterior + i * N + v, mask=v < N, other=0.0)[None, :]
        total = tl.load(sums + i * N + v, mask=v < N, other=0.0)[None, :]
        score = tl.load(rows + (i - 1) * (N + PADDING) + u)[:, None] + link
        used += share * tl.exp2(tl.minimum(score - total, 0.0))
    tl.store(link_use + tile, used, mask=inside)


def forward_backward(inputs: Inputs, gradients: bool = True) -> Result:
    """The back end; without `gradients` the value alone."""
    inputs = Inputs(*(tensor.contiguous() for tensor in inputs))
    emission, links, target_lengths, state_lengths = inputs
    batch, targets, states = emission.shape
    with torch.cuda.device_of(emission):
        directions = 2 if gradients else 1
        rows = emission.new_full((directions, batch, targets, states + PADDING), LOG_ZERO)
        sums = torch.full_like(emission, LOG_ZERO)
        peaks = emission.new_zeros(batch, targets)
        transposed = links.transpose(1, 2).contiguous() if gradients else links
        width = max(triton.next_power_of_2(states), 32)
        lanes = min(width, LANES)
        # 64 sequences fill a device even with one program each.
        persistent = states <= PERSISTENT or batch >= 64
        programs, steps = (1, targets) if persistent else (triton.cdiv(states, lanes), 1)
        for i in range(0, min(targets, states), steps):
            _sweep[directions * batch, programs](
                emission=emission, links=links, transposed=transposed,
                target_lengths=target_lengths, state_lengths=state_lengths,
                rows=rows, sums=sums, peaks=peaks, batch=batch, T=targets, N=states,
                first_row=i, end_row=i + steps, WIDTH=width, LANES=lanes, ROWS=ROWS, UNROLL=UNROLL,
                PADDING=PADDING, LOG2E=LOG2E, LOG_ZERO=LOG_ZERO, NO_PATH_BELOW=NO_PATH_BELOW,
                num_warps=lanes * ROWS // 32,
            )  # fmt: skip
        last_target = (target_lengths - 1).clamp(0, targets - 1)
        last_state = (state_lengths - 1).clamp(0, states - 1)
        alpha = rows[0, torch.arange(batch, device=rows.device), last_target, last_state]
        value = (peaks.sum(1, dtype=torch.float64) + alpha) * math.log(2)
        value = value.masked_fill(alpha <= NO_PATH_BELOW, -torch.inf).float()
        if not gradients:
            return value, None, None
        state_posterior = sums + rows[1, :, :, :states]
        top = state_posterior.amax(2, keepdim=True)
        state_posterior.sub_(top).exp2_()
        total = state_posterior.sum(2, keepdim=True)
        state_posterior.div_(total.masked_fill(top <= NO_PATH_BELOW, torch.inf))
        link_use = _use_of_links(inputs, rows, sums, state_posterior)
    return value, state_posterior, link_use


def _use_of_links(inputs: Inputs, rows: Tensor, sums: Tensor, state_posterior: Tensor) -> Tensor:
    """The expected use of every link [B, N, N], by `_link_posterior`, whose arguments these are."""
    _, links, target_lengths, state_lengths = inputs
    batch, targets, states = state_posterior.shape
    link_use = torch.zeros_like(links)
    tiles = triton.cdiv(states, TILE)
    corners = torch.triu_indices(tiles, tiles, device=links.device)
    _link_posterior[batch, corners.shape[1]](
        links=links, target_lengths=target_lengths, state_lengths=state_lengths,
        rows=rows, sums=sums, state_posterior=state_posterior, corners=corners, link_use=link_use,
        T=targets, N=states, TILE=TILE, PADDING=PADDING, LOG2E=LOG2E, num_warps=8,
    )  # fmt: skip
    return link_use
