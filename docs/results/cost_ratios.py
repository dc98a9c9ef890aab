"""What an update of an ExLM costs beside one of the MLM of its size: cost-ratios.jsonl, and the
table of performance.md.

    OMP_NUM_THREADS=1 python docs/results/cost_ratios.py measure CORPUS
    python docs/results/cost_ratios.py table

All models take the same real batches one after the other in one process, several times; the minimum
of each batch counts (processor time of one thread). A line of JSON per size and share of masks.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pages import fill, table

from exlm import ExLMForMaskedLM
from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.ops.transition import PriorStrength
from exlm.pretrain.batches import complete_batch
from exlm.pretrain.run import pretraining_loss
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.tokenizers import load_tokenizer
from exlm.train import devices
from exlm.train.optim import OptimizerConfig, build_optimizer
from exlm.train.update import update

HERE = Path(__file__).parent
LINES = HERE / "cost-ratios.jsonl"
# layers, width, tokens of a batch: the small analyses, the pairs, and molecules-5M
SIZES = [(2, 128, 2048), (4, 128, 4096), (6, 128, 4096), (6, 256, 4096)]
SHOWN = [(4, 128), (6, 256)]  # layers and width of our models, for the page
SHARES: list[float | tuple[float, float]] = [0.15, 0.387, (0.02, 0.6)]
MODELS: dict[str, dict[str, Any]] = {
    "mlm": {"objective": "mlm"},
    "k = 2, last layer": {"num_states": 2, "expanded_layers": 1},
    "k = 2, all": {"num_states": 2},
    "k = 4, last layer": {"num_states": 4, "expanded_layers": 1},
    "k = 4, all": {"num_states": 4},
}
SETTINGS: dict[str, Any] = {
    "rotary": "full",
    "copy_embedding": 0.06,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 1024,
}
BATCHES, ROUNDS = 5, 6


def measure(
    corpus: str, layers: int, width: int, tokens: int, share: float | tuple[float, float]
) -> dict[str, float]:
    """Time of an update of every model divided by the MLM's."""
    tokenizer = load_tokenizer(corpus)
    batches = MaskedBatches(Corpus(corpus), tokenizer, tokens, 4 * tokens, share, seed=0)
    sizes: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": width}
    sizes["intermediate_size"] = 4 * width
    networks = {}
    for name, switches in MODELS.items():
        config = ArchitectureConfig(**sizes, num_attention_heads=4, **SETTINGS, **switches)
        networks[name] = ExLMForMaskedLM(config.build(tokenizer)).train()
        devices.place_model(networks[name])
    settings = OptimizerConfig()
    optimizers = {name: build_optimizer(network, settings) for name, network in networks.items()}
    shortest = {(name, step): float("inf") for name in MODELS for step in range(BATCHES)}
    for _ in range(ROUNDS):
        for step in range(BATCHES):
            for name, network in networks.items():
                prior = PriorStrength(10.0, 3.0)
                ready = [
                    (number, complete_batch(network.config, batch, prior))
                    for number, batch in batches(step)
                ]
                start = time.process_time()
                update(
                    network=network,
                    optimizer=optimizers[name],
                    loss=pretraining_loss,
                    micro_batches=ready,
                    precision="auto",
                    clip_norm=settings.clip_norm,
                    seed=0,
                    step=0,
                )
                seconds = time.process_time() - start
                shortest[name, step] = min(shortest[name, step], seconds)
    times = {name: sum(shortest[name, step] for step in range(BATCHES)) for name in MODELS}
    return {name: round(seconds / times["mlm"], 3) for name, seconds in times.items()}


def cost_table() -> str:
    """The ratios of our models, a cell for each kind of ExLM with those of all shares of masks."""
    lines = list(map(json.loads, LINES.read_text(encoding="utf-8").splitlines()))
    rows = []
    for layers, width in SHOWN:
        row = [f"{layers} x {width}"]
        of_size = [line for line in lines if (line["layers"], line["width"]) == (layers, width)]
        for name in list(MODELS)[1:]:
            row.append(", ".join(f"{line['ratios'][name]:.2f}" for line in of_size))
        rows.append(row)
    return table(["layers x width", *list(MODELS)[1:]], rows)


def parts() -> dict[str, str]:
    return {"costs": cost_table()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["measure", "table"])
    parser.add_argument("corpus", nargs="?")
    options = parser.parse_args()
    if options.action == "table":
        fill(HERE.parent / "performance.md", parts())
        return
    if options.corpus is None:
        sys.exit("measure needs a CORPUS")
    for layers, width, tokens in SIZES:
        for share in SHARES:
            ratios = measure(options.corpus, layers, width, tokens, share)
            line = {"layers": layers, "width": width, "mask_ratio": share, "ratios": ratios}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
