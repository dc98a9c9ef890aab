"""What is measured of every finished pre-training, on its held-out data with its own mask ratio and repetition."""

from pathlib import Path
from typing import Any

from exlm.data.batching import SpecialTokens
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.paper.experiments import alignment, corruption, entropy
from exlm.pretrain import held_out_batches
from exlm.pretrained import load_model
from exlm.recipe import DataConfig
from exlm.storage import write_json
from exlm.train import distributed

MEASUREMENTS = "measurements.json"
VERSION = 3  # of what is measured: another one makes finished measurements be done again


def measure_run(directory: Path, data: DataConfig, seed: int) -> dict[str, Any]:
    """Entropy, corrupted semantics and, of ExLM, the alignment, into `measurements.json` in the run's directory."""
    model, tokenizer = load_model(str(directory), ExLMForMaskedLM)
    distributed.place(model)
    batches = list(held_out_batches(data, SpecialTokens.of(tokenizer), seed, 0, 1))
    settings = {"mask_ratio": data.mask_ratio, "repeat": data.repeat}
    result = {
        "entropy": settings | entropy.measure(model, batches),
        "corruption": settings | corruption.measure(batches, data.mask_ratio, data.repeat),
        "alignment": alignment.measure(model, batches),
    }
    write_json(directory / MEASUREMENTS, result)
    return result
