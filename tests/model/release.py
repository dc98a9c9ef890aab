"""The authors' model written plainly, and the recorded case `release_k3.npz` that was made with it.

    python -m tests.model.release

One sequence at a time, in float64, over all expanded positions, by nothing but PyTorch. It takes
weights under the names of the authors' release. Change it only if the release is found to do
something else; then record the case again.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

CASE = Path(__file__).with_name("release_k3.npz")
BOS, PAD, EOS = 0, 1, 2
NONE = -1e30  # a logarithm of 0 whose differences are no NaN
TRUNK, HEAD = "encoder.sentence_encoder.", "encoder.lm_head."
Weights = dict[str, Tensor]


class Expanded(NamedTuple):
    """A sequence after expansion: L positions, in order."""

    tokens: list[int]
    words: list[int]  # the place of the token that each was made from
    copies: list[int]  # 1..k for a state, 0 for an ordinary token
    targets: list[int]  # BOS, the masked tokens, EOS


class Outputs(NamedTuple):
    """What a sequence gives."""

    features: Tensor  # [L, D]
    logits: Tensor  # [L, V]
    links: Tensor  # [L, L], -inf where there is no link
    loss: Tensor


def expand(tokens: list[int], answers: list[int], k: int) -> Expanded:
    """k copies of BOS, of EOS and of every token that has an answer; the answers are PAD
    elsewhere."""
    result = Expanded([], [], [], [])
    for word, (token, answer) in enumerate(zip(tokens, answers, strict=True)):
        is_boundary, is_masked = token in (BOS, EOS), answer != PAD
        copies = range(1, k + 1) if is_boundary or is_masked else [0]
        for copy in copies:
            result.tokens.append(token)
            result.words.append(word)
            result.copies.append(copy)
        if is_boundary or is_masked:
            result.targets.append(answer if is_masked else token)
    return result


def rotate(x: Tensor, positions: list[int]) -> Tensor:
    """x [H, L, w], its first half paired with its second, turned by positions [L]."""
    width = x.shape[-1]
    frequencies = 10000.0 ** (-2 * torch.arange(width // 2, dtype=x.dtype) / width)
    angles = torch.tensor(positions, dtype=x.dtype)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


def encode(weights: Weights, expanded: Expanded) -> Tensor:
    """Hidden states [L, D]."""
    heads = len(weights["encoder.gate_linear.weight"])

    def affine(x: Tensor, name: str) -> Tensor:
        return linear(x, weights[f"{TRUNK}{name}.weight"], weights[f"{TRUNK}{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(
            x, x.shape[-1:], weights[f"{TRUNK}{name}.weight"], weights[f"{TRUNK}{name}.bias"]
        )

    def of_heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(0, 1)  # [H, L, d]

    def turned(x: Tensor) -> Tensor:
        by_word, by_copy = of_heads(x).chunk(2, dim=-1)
        return torch.cat(
            [rotate(by_word, expanded.words), rotate(by_copy, expanded.copies)], dim=-1
        )

    hidden = weights[TRUNK + "embed_tokens.weight"][expanded.tokens]
    layers = {name.split(".")[3] for name in weights if name.startswith(TRUNK + "layers.")}
    for layer in (f"layers.{i}." for i in range(len(layers))):
        x = norm(hidden, layer + "self_attn_layer_norm")
        query, key, value = (affine(x, f"{layer}self_attn.{name}_proj") for name in "qkv")
        query = query * (query.shape[-1] // heads) ** -0.5
        scores = turned(query) @ turned(key).transpose(1, 2)
        mixed = scores.softmax(-1) @ of_heads(value)
        hidden = hidden + affine(mixed.transpose(0, 1).flatten(1), layer + "self_attn.out_proj")
        inner = gelu(affine(norm(hidden, layer + "final_layer_norm"), layer + "fc1"))
        hidden = hidden + affine(inner, layer + "fc2")
    return norm(hidden, "emb_layer_norm_after")


def links_of(weights: Weights, hidden: Tensor, is_state: Tensor) -> Tensor:
    """Log transitions [L, L] between the states among all positions; NONE where there is no
    link."""
    heads, length = len(weights["encoder.gate_linear.weight"]), len(hidden)
    positions = weights["encoder.link_positional.weight"][PAD + 1 :][:length]
    features = torch.cat([hidden, positions], dim=-1)
    query, key, gate = (
        linear(
            features,
            weights[f"encoder.{name}_linear.weight"],
            weights[f"encoder.{name}_linear.bias"],
        )
        for name in ("query", "key", "gate")
    )
    log_gate, mixture = gate.log_softmax(-1), hidden.new_full((length, length), NONE)
    later = torch.arange(length) > torch.arange(length)[:, None]
    edges = later & is_state & is_state[:, None]
    for q, k, of_head in zip(
        query.chunk(heads, -1), key.chunk(heads, -1), log_gate.unbind(-1), strict=True
    ):
        scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~edges, NONE)
        mixture = torch.logaddexp(mixture, scores.log_softmax(-1) + of_head[:, None])
    return mixture.masked_fill(~edges, NONE)


def sequence(weights: Weights, tokens: list[int], answers: list[int], k: int) -> Outputs:
    """A sequence without padding through the model; its loss is -log f / M."""
    expanded = expand(tokens, answers, k)
    hidden = encode(weights, expanded)
    x = gelu(linear(hidden, weights[HEAD + "dense.weight"], weights[HEAD + "dense.bias"]))
    x = layer_norm(
        x, x.shape[-1:], weights[HEAD + "layer_norm.weight"], weights[HEAD + "layer_norm.bias"]
    )
    logits = linear(x, weights[TRUNK + "embed_tokens.weight"], weights[HEAD + "bias"])
    links = links_of(weights, hidden, torch.tensor(expanded.copies) > 0)
    emitted = logits.log_softmax(-1)[:, expanded.targets].T  # [M, L]
    starts = torch.arange(len(hidden)) == 0
    alpha = torch.where(starts, emitted[0], NONE)
    for emission in emitted[1:]:
        alpha = (alpha[:, None] + links).logsumexp(0) + emission
    links = links.masked_fill(links == NONE, -torch.inf)
    return Outputs(hidden, logits, links, -alpha[-1] / len(expanded.targets))


def batch(weights: Weights, src: np.ndarray, tgt: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Arrays under the names of a recorded case, from input tokens `src` [B, S] and answers `tgt`
    [B, S]. Padding is PAD in `ext_tokens`, -inf in `links` and 0 in the others. `g.NAME` is the
    gradient of the weight NAME."""
    leaves = {name: value.double().requires_grad_() for name, value in weights.items()}
    rows = [row[row != PAD].tolist() for row in src]
    answers = [targets[: len(row)].tolist() for row, targets in zip(rows, tgt, strict=True)]
    outputs = [
        sequence(leaves, row, targets, k) for row, targets in zip(rows, answers, strict=True)
    ]
    tokens = [
        torch.tensor(expand(row, targets, k).tokens)
        for row, targets in zip(rows, answers, strict=True)
    ]
    plain = [encode(leaves, expand(row, [PAD] * len(row), k)) for row in rows]  # as in fine-tuning
    loss = torch.stack([output.loss for output in outputs]).mean()
    loss.backward()
    length = max(len(ids) for ids in tokens)
    links = torch.full((len(rows), length, length), -torch.inf, dtype=torch.float64)
    for i, output in enumerate(outputs):
        links[i, : len(tokens[i]), : len(tokens[i])] = output.links

    def padded(values: list[Tensor], fill: int = 0) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=fill)

    arrays = {
        "ext_tokens": padded(tokens, PAD),
        "features": padded([output.features for output in outputs]),
        "plain_features": padded(plain),
        "logits": padded([output.logits for output in outputs]),
        "links": links,
        "loss": loss,
    }
    gradients = {f"g.{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {name: value.detach().numpy() for name, value in (arrays | gradients).items()}


def random_weights(
    vocabulary: int, width: int, inner: int, heads: int, layers: int, positions: int
) -> Weights:
    """Weights in float32 under the release's names, large enough that nothing is close to
    uniform."""
    generator = torch.Generator().manual_seed(0)
    square, affine = (width, width), {}
    for i in range(layers):
        layer = f"{TRUNK}layers.{i}."
        affine |= {f"{layer}self_attn.{name}_proj": square for name in ("q", "k", "v", "out")}
        affine |= {f"{layer}fc1": (inner, width), f"{layer}fc2": (width, inner)}
        affine |= {f"{layer}self_attn_layer_norm": (width,), f"{layer}final_layer_norm": (width,)}
    affine |= {
        TRUNK + "emb_layer_norm_after": (width,),
        HEAD + "dense": square,
        HEAD + "layer_norm": (width,),
    }
    affine |= {f"encoder.{name}_linear": (width, 2 * width) for name in ("query", "key")}
    affine["encoder.gate_linear"] = (heads, 2 * width)

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    weights = {
        TRUNK + "embed_tokens.weight": draw(vocabulary, width),
        HEAD + "bias": draw(vocabulary),
    }
    weights["encoder.link_positional.weight"] = draw(PAD + 1 + positions, width)
    for name, shape in affine.items():
        weights[name + ".weight"] = draw(*shape) + (len(shape) == 1)  # those of norms are around 1
        weights[name + ".bias"] = draw(shape[0])
    return weights


def recorded() -> dict[str, np.ndarray]:
    """The case: its inputs, weights, outputs and gradients. The last column is padding, because the
    release misreads rows that fill the width of their batch."""
    mask = 19
    src = [
        [BOS, 5, mask, 7, mask, mask, 9, EOS, PAD],
        [BOS, mask, 12, 13, EOS, PAD, PAD, PAD, PAD],
        [BOS, 6, 8, 14, 15, EOS, PAD, PAD, PAD],
    ]
    tgt = [
        [PAD, PAD, 6, PAD, 8, 17, PAD, PAD, PAD],
        [PAD, 11, PAD, PAD, PAD, PAD, PAD, PAD, PAD],
        [PAD] * 9,
    ]
    inputs = {"src": np.array(src), "tgt": np.array(tgt)}
    weights = random_weights(
        vocabulary=mask + 1, width=16, inner=24, heads=2, layers=2, positions=24
    )
    named = {f"w.{name}": value.numpy() for name, value in weights.items()}
    return inputs | named | batch(weights, **inputs, k=3)


if __name__ == "__main__":
    np.savez_compressed(CASE, **recorded())
