"""Three updates in float64, in one process or in one of several: `torchrun -m
tests.train.double_updates CORPUS FILE`. Process 0 writes the examples, the loss and the gradients
of every update."""

import sys
from typing import Any

import torch
import torch.distributed as dist

from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.pretrain.batches import complete_batch
from exlm.pretrain.run import pretraining_loss
from exlm.pretrain.settings import ArchitectureConfig, PriorSchedule
from exlm.storage.tokenizers import load_tokenizer
from exlm.train.distributed import process_group
from exlm.train.update import update

Updates = list[dict[str, Any]]


def updates(corpus: str, rank: int = 0, world: int = 1) -> Updates:
    """For every update, the `examples` of this process, and the `loss` and `gradients` over all
    processes."""
    tokenizer, source = load_tokenizer(corpus), Corpus(corpus)
    batches = MaskedBatches(source, tokenizer, 600, 150, 0.15, seed=3, rank=rank, world=world)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    prior = PriorSchedule(10.0, 3.0).at(0, 3)
    torch.manual_seed(0)
    config = ArchitectureConfig(
        num_states=2, expanded_layers=1, **sizes, max_position_embeddings=128
    )
    network = ExLMForMaskedLM(config.build(tokenizer)).double()
    wrapped = torch.nn.parallel.DistributedDataParallel(network) if world > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    found: Updates = []

    def keep_gradients(*_: Any) -> None:
        found[-1]["gradients"] = {
            name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None
        }

    optimizer.register_step_pre_hook(keep_gradients)
    gather = source.gather

    def noted(examples: Any) -> Any:
        found[-1]["examples"] += examples.tolist()
        return gather(examples)

    source.gather = noted  # type: ignore[method-assign]
    for step in range(3):
        found.append({"examples": []})
        parts = [
            (number, complete_batch(network.config, batch, prior))
            for number, batch in batches(step)
        ]
        sums, *_ = update(wrapped, optimizer, pretraining_loss, parts, "fp32", 0.0, 3, step)
        found[-1]["loss"] = sums.mean_loss
    return found


if __name__ == "__main__":
    with process_group(60) as (rank, world):
        found = updates(sys.argv[1], rank, world)
        everywhere: list[Any] = [None] * world
        dist.all_gather_object(everywhere, [one["examples"] for one in found])
        if rank == 0:
            for step, one in enumerate(found):
                one["examples"] = [examples[step] for examples in everywhere]
            torch.save(found, sys.argv[2])
