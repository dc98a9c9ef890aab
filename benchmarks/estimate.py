"""How long a micro-batch of ExLM takes on a GPU that is not at hand: an estimate, part by part.

    python benchmarks/estimate.py text-base molecules-paper
    python benchmarks/estimate.py text-base --without rotary unpadded vocabulary heads   # as it was

A forward and a backward pass run on fake tensors, which have shapes and no numbers. Every kernel
takes the longest of three times: that of its operations, that of the bytes it reads and writes, and
the least that a kernel takes. What is compiled to one kernel reads its inputs and writes its
results once. All rates below are assumptions about an H100. The optimizer is not counted.
"""

import argparse
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedModel

from cost import Shape, alignment_visits, step_flops
from exlm import ExLMForMaskedLM, ExLMModel
from exlm.model import encoder, modeling_exlm
from exlm.ops import alignment, dropout, emission, fused, rotary, transition
from exlm.ops.alignment_torch import Inputs
from exlm.ops.precision import exact_level
from models import PRESETS, Contender, build_model, random_batch

CPU = torch.device("cpu")
BANDWIDTH = 2.8e12  # bytes a second; the data sheet says 3.35e12
PEAK = 790e12  # operations a second of large bfloat16 products; the data sheet says 989e12
TF32 = PEAK / 2
FLASH = 350e12  # of attention that needs no mask
MASKED = 150e12  # of attention with a mask
UNALIGNED = 0.4  # share of their rate that products have with rows at odd addresses
KERNEL = 3e-6  # seconds of the smallest kernel
# Seconds of the alignment for an edge: 64 sequences of 79 targets and 316 states take 0.5 ms.
EDGE = 0.5e-3 / alignment_visits(64, 79, 316)

SHAPES = {
    "text-base": replace(PRESETS["text-base-512"], batch=128),
    "molecules-paper": replace(PRESETS["molecules-paper"], batch=712),
}
IMPROVEMENTS = {
    "rotary": "a rotation is one compiled kernel",
    "unpadded": "a batch is one row without padding, also with dropout of attention weights",
    "vocabulary": "the vocabulary is padded to a multiple of 64, and chunks are larger",
    "heads": "heads of the transition are computed together where lattices are small",
}
NO_KERNEL = {"detach", "alias", "_unsafe_view", "empty", "new_empty", "empty_like", "empty_strided"}
PARTS = {"native_layer_norm": "norms", "gelu": "activation", "native_dropout": "dropout"}
OWNERS = {  # of the forward and the backward pass that are counted as one part
    "rotary": rotary._Rotation,
    "vocabulary": emission._TargetLogits,
    "transition": transition._Mixture,
}


class Estimate(TorchDispatchMode):
    """Seconds by part, and the number of kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)
        self.kernels: dict[str, int] = defaultdict(int)
        self.part: str | None = None  # to which everything belongs now
        self.products_only = False  # inside a compiled kernel

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::").removesuffix("_")
        count_operations = flop_registry.get(function.overloadpacket)
        is_kernel = function.namespace == "aten" and name not in NO_KERNEL
        is_counted = count_operations is not None or not self.products_only
        if not (is_kernel and is_counted) or _is_view(function):
            return result
        seconds = _bytes(args, kwargs, result) / BANDWIDTH
        part = PARTS.get(name.removesuffix("_backward"), "other")
        if count_operations is not None:
            part = "products of the layers"
            is_half = result.element_size() == 2
            operations = count_operations(*args, out_val=result)
            seconds = max(seconds, operations / (PEAK if is_half else TF32))
        self.add(self.part or part, seconds)
        return result

    def add(self, part: str, seconds: float) -> None:
        """One kernel."""
        self.seconds[part] += max(seconds, KERNEL)
        self.kernels[part] += 1

    @contextmanager
    def counting(self, part: str | None, products_only: bool = False) -> Iterator[None]:
        before = self.part, self.products_only
        self.part, self.products_only = part, products_only
        yield
        self.part, self.products_only = before

    def as_part(self, part: str, function: Callable) -> staticmethod:
        """The function, whose kernels belong to `part`."""

        def counted(*args: Any) -> Any:
            with self.counting(part):
                return function(*args)

        return staticmethod(counted)

    def compiled(self, function: Callable) -> Callable:
        """Stands for `fused.compiled`."""

        def one_kernel(*args: Any) -> Any:
            with self.counting(self.part, products_only=True):
                result = function(*args)
            self.add(self.part or "other", _bytes(args, result) / BANDWIDTH)
            return result

        return one_kernel

    def align(self, inputs: Inputs, gradients: bool) -> Any:
        """Stands for a back end of the alignment."""
        scores, links, *_ = inputs
        self.add("alignment", EDGE * alignment_visits(*scores.shape))
        return scores.new_empty(len(scores)), torch.empty_like(scores), torch.empty_like(links)

    def add_product(
        self, total: Tensor, left: Tensor, right: Tensor, beta: float = 1, gradient: bool = False
    ) -> Tensor:
        """Stands for the product with the vocabulary."""
        rate = PEAK if left.element_size() == 2 else TF32
        if any(x.shape[-1] % 8 for x in (total, left, right)):
            rate *= UNALIGNED
        operations = 2 * left.shape[0] * left.shape[1] * right.shape[1]
        self.add("vocabulary", max(operations / rate, _bytes(total, left, right) / BANDWIDTH))
        return total

    def masked_attention(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, None]:
        pairs = len(query) * query.shape[2] * key.shape[2]
        seconds = 4 * pairs * module.heads * query.shape[-1] / MASKED
        return _Attention.apply(self, seconds, query.transpose(1, 2), key, value), None

    def unpadded_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *spans: Any, **options: Any
    ) -> tuple[Tensor]:
        with unset_fake_temporarily():
            query_lengths, key_lengths = (ends.diff().long() for ends in spans[:2])
            pairs = int((query_lengths * key_lengths).sum())
        seconds = 4 * pairs * query.shape[1] * query.shape[2] / FLASH
        return (_Attention.apply(self, seconds, query, key, value),)


def _dropout(x: Tensor, p: float) -> Tensor:
    """As a GPU has it."""
    return torch.native_dropout(x, p, True)[0] if p > 0 else x


class _Attention(torch.autograd.Function):
    """One kernel for each pass. The backward pass has five products, the forward pass two."""

    @staticmethod
    def forward(
        ctx: Any, counter: Estimate, seconds: float, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        ctx.counter, ctx.seconds = counter, seconds
        ctx.save_for_backward(query, key, value)
        counter.add("attention", seconds)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.counter.add("attention", 2.5 * ctx.seconds)
        return None, None, *map(torch.empty_like, ctx.saved_tensors)


def _is_view(function: Any) -> bool:
    aliases = [x.alias_info for x in function._schema.returns if x.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)


def _bytes(*records: Any) -> int:
    """What a kernel reads and writes of the tensors in its arguments and results; what is broadcast
    is read once."""
    total = 0
    for tensor in tree_leaves(records):
        if isinstance(tensor, Tensor):
            numbers = 1
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
                numbers *= size if stride else 1
            total += numbers * tensor.element_size()
    return total


def estimate(shape: Shape, rate: float = 0.1, without: tuple[str, ...] = ()) -> Estimate:
    """Of a micro-batch with dropout at `rate`, without some of the IMPROVEMENTS."""
    counter, batch = Estimate(), random_batch(shape)
    exact_level(CPU)  # is found out once in a process, which takes numbers
    pads = "vocabulary" not in without
    links_at_once = 0 if "heads" in without else transition.MOST_LINKS_AT_ONCE["cuda"]

    def on_cpu(function: Callable) -> Callable:
        """What happens before tensors are on the GPU."""

        def call(*args: Any) -> Any:
            with unset_fake_temporarily():
                return function(*args)

        return call

    attention = {"sdpa": counter.masked_attention}
    patches: list[AbstractContextManager[Any]] = [
        mock.patch.object(modeling_exlm, "arrange", on_cpu(modeling_exlm.arrange)),
        mock.patch.object(encoder.Layout, "to_rows", on_cpu(encoder.Layout.to_rows)),
        mock.patch.object(ExLMModel, "removes_padding", lambda *_: "unpadded" not in without),
        mock.patch.object(encoder, "ALL_ATTENTION_FUNCTIONS", attention),
        mock.patch.object(encoder, "flash_attention", counter.unpadded_attention),
        mock.patch.object(fused, "compiles_on", lambda _: True),
        mock.patch.object(fused, "compiled", counter.compiled),
        mock.patch.object(dropout, "dropout", _dropout),
        mock.patch.object(emission, "_add_product", counter.add_product),
        mock.patch.dict(emission.CHUNK, cpu=2**28 if pads else 2**26),
        mock.patch.dict(emission.VOCABULARY_MULTIPLE, cpu=64 if pads else 1),
        mock.patch.dict(transition.MOST_LINKS_AT_ONCE, cpu=links_at_once),
        # A fake model is where it should be.
        mock.patch.object(PreTrainedModel, "to", lambda model, _: model),
        mock.patch.dict(alignment.BACKENDS, c=counter.align),
    ]
    if "rotary" in without:
        patches.append(mock.patch.object(rotary, "_rotate", inspect.unwrap(rotary._rotate)))
    for part, owner in OWNERS.items():
        for method in ("forward", "backward"):
            counted = counter.as_part(part, getattr(owner, method))
            patches.append(mock.patch.object(owner, method, counted))
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        model = build_model(shape, Contender("exlm", dropout=rate), "cpu")
        assert isinstance(model, ExLMForMaskedLM)
        with unset_fake_temporarily():
            lattice = model.exlm.expand(**batch)
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        stack.enter_context(counter)
        model(lattice=lattice).loss.backward()
    return counter


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="+", choices=SHAPES)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--without", nargs="*", default=(), choices=IMPROVEMENTS)
    options = parser.parse_args()
    for name in options.shapes:
        counter = estimate(SHAPES[name], options.dropout, tuple(options.without))
        total = sum(counter.seconds.values())
        share = step_flops(SHAPES[name], "exlm") / total / PEAK
        kernels = sum(counter.kernels.values())
        print(f"{name}: {1e3 * total:.0f} ms, {share:.0%} of the peak, {kernels} kernels")
        for part, seconds in sorted(counter.seconds.items(), key=lambda item: -item[1]):
            print(f"{part:>24} {1e3 * seconds:7.1f} ms {counter.kernels[part]:6} kernels")


if __name__ == "__main__":
    main()
