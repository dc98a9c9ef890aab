"""Preparing a corpus, and making batches beside the training steps that use them.

    python benchmarks/loader.py [--input molecules.smi.gz] [--recipe recipes/molecules/exlm-1M.yaml]
    python benchmarks/loader.py --corpus corpus/molecules --device cuda

Without `--input` the molecules are those of the package chemicals. Batches are those of the recipe;
the loader draws, masks and pads them and lays out the lattice on the host. Times are wall time: in
training, a thread makes the next batches while the present ones are used, so that the loader costs
nothing as long as its rate is above the step's.
"""

import time
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml

from exlm import ExLMForMaskedLM
from exlm.data.batching import MaskedBatches
from exlm.data.corpus import Corpus
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.tokenizers import load_tokenizer
from exlm.train.optim import OptimizerConfig, build_optimizer
from models import Batch, loss_of
from timing import arguments, record

RECIPE = Path(__file__).parents[1] / "recipes" / "molecules" / "exlm-1M.yaml"


def bundled_molecules(path: Path) -> Path:
    """A .smi file of 20,000 molecules of the package chemicals."""
    tables = run_path(str(Path(__file__).parents[1] / "examples" / "public_tables.py"))
    path.write_text("\n".join(tables["molecules"](20_000)) + "\n")
    return path


def measure_prepare(source: str, output: Path, workers: int) -> dict[str, float]:
    """Rows and tokens per second of `exlm prepare`, vocabulary included."""
    from exlm.data.prepare import prepare  # needs RDKit, which measuring batches does not

    start = time.perf_counter()
    counts = prepare([source], str(output), workers=workers, held_out=0.01)["counts"]
    elapsed = time.perf_counter() - start
    tokens = counts["train_tokens"] + counts["valid_tokens"]
    return {"rows": counts["rows"], "tokens": tokens, "seconds": elapsed, "workers": workers}


class Trainer:
    """The recipe's model and optimizer, one update per call."""

    def __init__(self, recipe: dict[str, Any], tokenizer: Any, device: str) -> None:
        torch.manual_seed(0)
        self.model = ExLMForMaskedLM(ArchitectureConfig(**recipe["model"]).build(tokenizer))
        self.model.train().to(torch.device(device))
        self.optimizer = build_optimizer(self.model, OptimizerConfig())
        self.device = device

    def __call__(self, batches: list[Batch]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            loss_of(self.model, batch, "auto").backward()
        self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure_loader(
    corpus: Path, recipe: dict[str, Any], device: str, updates: int
) -> dict[str, float]:
    """Seconds of making batches, of laying out lattices and of updates, and tokens with and without
    padding.

    After one warm-up.
    """
    tokenizer = load_tokenizer(str(corpus))
    sizes = {
        name: recipe["data"][name]
        for name in ("tokens_per_batch", "tokens_per_micro_batch", "mask_ratio")
    }
    batches = MaskedBatches(Corpus(corpus), tokenizer, **sizes, seed=0)
    train = Trainer(recipe, tokenizer, device)
    names = ("tokens", "places", "states", "expanded", "batches", "lattices", "updates")
    result = dict.fromkeys(names, 0.0)
    for update in range(updates + 1):
        start = time.perf_counter()
        made = [batch for _, batch in batches(update)]
        drawn = time.perf_counter()
        lattices = [train.model.exlm.expand(**batch) for batch in made]
        laid_out = time.perf_counter()
        train(made)
        if update:
            result["tokens"] += sum(int(batch["attention_mask"].sum()) for batch in made)
            result["places"] += sum(batch["attention_mask"].numel() for batch in made)
            result["states"] += sum(int(lattice.attention_mask.sum()) for lattice in lattices)
            result["expanded"] += sum(lattice.attention_mask.numel() for lattice in lattices)
            result["batches"] += drawn - start
            result["lattices"] += laid_out - drawn
            result["updates"] += time.perf_counter() - laid_out
    return result


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--input", help="molecules to prepare (default: of the package chemicals)")
    parser.add_argument("--corpus", type=Path, help="a prepared corpus; nothing is prepared then")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of the preparation, 0 for one per core"
    )
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = yaml.safe_load(options.recipe.read_text())
    with TemporaryDirectory() as folder:
        corpus = options.corpus
        if corpus is None:
            source = options.input or str(bundled_molecules(Path(folder) / "molecules.smi"))
            corpus = Path(folder) / "corpus"
            prepared = measure_prepare(source, corpus, options.workers)
            rates = {name: prepared[name] / prepared["seconds"] for name in ("rows", "tokens")}
            print(f"prepare: {rates['rows']:,.0f} molecules/s, {rates['tokens']:,.0f} tokens/s")
            record(options.output, "prepare", "cpu", **prepared, rates=rates)
        result = measure_loader(corpus, recipe, options.device, options.updates)
    loader = result["tokens"] / (result["batches"] + result["lattices"])
    step = result["tokens"] / result["updates"]
    print(
        f"loader: {result['tokens'] / result['batches']:,.0f} tokens/s of batches, {loader:,.0f} "
        "with lattices; "
        f"training {step:,.0f} tokens/s; loader/training {loader / step:.1f}"
    )
    padding = {
        "input": 1 - result["tokens"] / result["places"],
        "expanded": 1 - result["states"] / result["expanded"],
    }
    print(
        "padding: "
        + ", ".join(f"{share:.1%} of the {name} tokens" for name, share in padding.items())
    )
    values = {
        "recipe": options.recipe.name,
        "seconds": result,
        "padding": padding,
        "loader": loader,
        "training": step,
    }
    record(options.output, "loader", options.device, **values, ratio=loader / step)


if __name__ == "__main__":
    main()
