"""What an update of the small models costs beside one of the MLM: the ratios behind "equal cost" in
order-prior.md.

    OMP_NUM_THREADS=1 python docs/results/cost_ratios.py CORPUS --layers 2 4 6

All models take the same batches one after the other in one process, several times; the minimum of
each batch counts (processor time of one thread). A line of JSON per number of layers and mask
ratio.
"""

import argparse
import json
import time
from typing import Any

from exlm import ExLMForMaskedLM
from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.ops.transition import PriorStrength
from exlm.pretrain.batches import complete_batch
from exlm.pretrain.run import pretraining_loss
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.models import load_tokenizer
from exlm.train import distributed
from exlm.train.loop import LoopConfig, update
from exlm.train.optim import build_optimizer

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 1024,
}
MODELS: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm"},
    "k2, last layer": {"num_states": 2, "expanded_layers": 1, "copy_embedding": 0.06},
    "k2, all": {"num_states": 2, "copy_embedding": 0.06},
    "k4, last layer": {"num_states": 4, "expanded_layers": 1, "copy_embedding": 0.06},
    "k4, all": {"num_states": 4, "copy_embedding": 0.06},
}
BATCHES, ROUNDS = 5, 6


def ratios(corpus: str, layers: int, mask_ratio: float, tokens: int) -> dict[str, float]:
    """Time of an update of every model divided by the MLM's."""
    tokenizer = load_tokenizer(corpus)
    batches = MaskedBatches(Corpus(corpus), tokenizer, tokens, 4 * tokens, mask_ratio, seed=0)
    networks = {}
    for name, switches in MODELS.items():
        config = ArchitectureConfig(**SIZES, num_hidden_layers=layers, **switches).build(tokenizer)
        networks[name] = ExLMForMaskedLM(config).train()
        distributed.place_model(networks[name])
    config = LoopConfig()
    optimizers = {
        name: build_optimizer(network, config.optimizer) for name, network in networks.items()
    }
    best = {(name, step): float("inf") for name in MODELS for step in range(BATCHES)}
    for _ in range(ROUNDS):
        for step in range(BATCHES):
            for name, network in networks.items():
                ready = [
                    (i, complete_batch(network.exlm.expander, batch, PriorStrength(10.0, 3.0)))
                    for i, batch in batches(step)
                ]
                start = time.process_time()
                update(
                    network,
                    optimizers[name],
                    pretraining_loss,
                    ready,
                    config,
                    seed=0,
                    step=0,
                )
                best[name, step] = min(best[name, step], time.process_time() - start)
    times = {name: sum(best[name, step] for step in range(BATCHES)) for name in MODELS}
    return {name: round(time / times["mlm"], 2) for name, time in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus")
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    for layers in options.layers:
        for mask_ratio in (0.15, 0.387):
            found = ratios(options.corpus, layers, mask_ratio, options.tokens)
            print(json.dumps({"layers": layers, "mask_ratio": mask_ratio, **found}), flush=True)


if __name__ == "__main__":
    main()
