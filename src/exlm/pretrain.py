"""Pre-training: from a recipe to a Hugging Face model directory."""

import dataclasses
import fcntl
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .data.batching import MaskedBatches, SpecialTokens, masked_batch
from .data.corpus import Corpus
from .data.masking import Purpose, mix
from .data.tokenization import load_tokenizer
from .directory import plain, save_model, write_yaml
from .errors import InputError
from .model.configuration_exlm import ExLMConfig
from .model.modeling_exlm import ExLMForMaskedLM, num_parameters
from .train import distributed
from .train.loop import LoopConfig, autocast, fit
from .train.tracking import read_log

HELD_OUT_EPOCH = -1  # held-out data are always masked in the same way


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how it is cut and masked.

    Attributes:
        corpus: directory written by `exlm prepare`.
        mask_ratio: share of tokens replaced by [MASK].
        tokens_per_batch: upper bound of one update's sequences x longest sequence, over all processes.
        tokens_per_micro_batch: the same for one forward and backward pass; smaller needs less memory.
        eval_sequences: held-out sequences used in an evaluation; 0 takes all.
    """

    corpus: str
    mask_ratio: float = 0.15
    tokens_per_batch: int = 65536
    tokens_per_micro_batch: int = 16384
    eval_sequences: int = 2000

    def __post_init__(self) -> None:
        if not 0 < self.mask_ratio < 1:
            raise InputError(f"mask_ratio is {self.mask_ratio}; it must lie strictly between 0 and 1")
        if self.tokens_per_batch < 8 or self.tokens_per_micro_batch < 8:
            raise InputError("tokens_per_batch and tokens_per_micro_batch must be at least 8")


@dataclass(frozen=True)
class ArchitectureConfig:
    """Encoder sizes and the switches of the method; see `exlm.ExLMConfig` for what each switch does.

    Attributes:
        objective: `exlm`, `mlm` (vanilla) or `ctc` (without transitions).
        num_states: k, hidden states per [MASK].
        rotary: `2d`, or `1d` for the ablation.
        dag: `full` or `sparse`.
        transition: `gated` (release) or `single` (paper's equation).
        boundary_states: states of BOS and EOS, `1` or `k`.
        max_position_embeddings: longest expanded sequence of the gated transition.
    """

    objective: Literal["exlm", "mlm", "ctc"] = "exlm"
    num_states: int = 2
    rotary: Literal["2d", "1d"] = "2d"
    dag: Literal["full", "sparse"] = "full"
    transition: Literal["gated", "single"] = "gated"
    boundary_states: Literal[1, "k"] = 1
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    activation_dropout: float = 0.0
    max_position_embeddings: int = 2048

    def build(self, tokenizer: Any) -> ExLMConfig:
        """The model configuration for a tokenizer."""
        return ExLMConfig(
            **dataclasses.asdict(self),
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            unk_token_id=tokenizer.unk_token_id,
            mask_token_id=tokenizer.mask_token_id,
        )


def pretrain(
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    seed: int = 0,
    compile: bool = False,
) -> dict[str, Any]:
    """Pre-trains ExLM, or a baseline, on a prepared corpus; run again to resume after an interruption.

    Args:
        output: directory for the model, its checkpoints and the log.
        data: corpus, masking and batches.
        model: architecture and objective.
        train: length of the run, optimizer, precision, evaluation and checkpoints.
        seed: of initial weights, order, masks and dropout.
        compile: compile the encoder layers with torch.compile.

    Returns:
        The final evaluation, also in `result.json`.
    """
    recipe = plain({"output": output, "data": data, "model": model, "train": train, "seed": seed, "compile": compile})
    corpus, tokenizer = Corpus(data.corpus, "train"), load_tokenizer(data.corpus)
    special = SpecialTokens.of(tokenizer)
    directory = Path(output)
    with distributed.process_group() as (rank, world), run_lock(directory, rank):
        if (finished := finished_result(directory, recipe)) is not None:
            print(f"{directory} is finished already: {_describe(finished)}")
            return finished
        torch.manual_seed(seed)
        network = ExLMForMaskedLM(model.build(tokenizer))
        distributed.place(network)
        if compile:
            for layer in network.exlm.layers:
                layer.compile(dynamic=True)
        if distributed.is_main():
            write_yaml(directory / "recipe.yaml", recipe)
        held_out = list(held_out_batches(data, special, seed, rank, world))
        batches = MaskedBatches(
            corpus,
            special,
            data.tokens_per_batch,
            data.tokens_per_micro_batch,
            data.mask_ratio,
            seed,
            rank,
            world,
        )
        fit(
            network,
            pretraining_loss,
            batches,
            train,
            directory,
            seed,
            dropout_seed,
            evaluate=partial(evaluate, batches=held_out, precision=train.precision),
            identity={
                "tokenizer": corpus.tokenizer_hash,
                "corpus": corpus.corpus_hash,
                **training_facts(recipe),
            },
            description=f"{model.objective} {num_parameters(network) / 1e6:.1f}M",
        )
        return _finish(directory, network, tokenizer, recipe) if distributed.is_main() else {}


def pretraining_loss(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum, count, infeasible sequences) of any objective."""
    output = model(**batch)
    return output.total, output.count, output.infeasible


def dropout_seed(seed: int, step: int, piece: int) -> int:
    """Seed of the global generator for one piece of one step."""
    return int(mix(seed, Purpose.DROPOUT, step, piece)) >> 1


def held_out_batches(
    data: DataConfig, special: SpecialTokens, seed: int, rank: int, world: int
) -> Iterator[dict[str, Tensor]]:
    """This process's share of the held-out sequences, masked the same way in every run with this seed."""
    corpus = Corpus(data.corpus, "valid")
    if not len(corpus):
        raise InputError(f"{data.corpus} has no held-out sequences; prepare it with a larger held_out")
    count = min(data.eval_sequences or len(corpus), len(corpus))
    order = np.argsort(np.asarray(corpus.lengths[:count]), kind="stable")
    for part in np.array_split(order, max(1, -(-count // 256)))[rank::world]:
        if len(part):
            yield masked_batch(corpus, part, special, seed, HELD_OUT_EPOCH, data.mask_ratio)


def evaluate(model: ExLMForMaskedLM, batches: list[dict[str, Tensor]], precision: str) -> dict[str, float]:
    """Objective per count; accuracy and perplexity of every masked token's marginal distribution."""
    model.eval()
    device = next(model.parameters()).device
    sums = dict.fromkeys(("total", "count", "infeasible", "masked", "correct", "nll"), 0.0)
    for batch in batches:
        with autocast(device, precision):
            part = model.evaluate_batch(**{name: tensor.to(device) for name, tensor in batch.items()})
        sums = {name: sums[name] + part[name] for name in sums}
    total, count, infeasible, masked, correct, nll = distributed.sum_over_processes(list(sums.values()))
    return {
        "loss": total / max(count, 1.0),
        "accuracy": correct / max(masked, 1.0),
        "perplexity": math.exp(min(nll / max(masked, 1.0), 700.0)),
        "infeasible": infeasible,
    }


def training_facts(recipe: dict[str, Any]) -> dict[str, Any]:
    """The part of a recipe that a resumed run must share: all but where it is written and what it reports."""
    free = ("log_every", "eval_every", "save_every", "keep_checkpoints")
    train = {key: value for key, value in recipe["train"].items() if key not in free}
    flat = {f"train.{key}": value for key, value in train.items()}
    flat |= {f"model.{key}": value for key, value in recipe["model"].items()}
    skipped = ("corpus", "eval_sequences")
    flat |= {f"data.{key}": value for key, value in recipe["data"].items() if key not in skipped}
    return flat | {"seed": recipe["seed"]}


def finished_result(directory: Path, recipe: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a finished run with the same settings, or None."""
    path = directory / "result.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    if training_facts(result["recipe"]) != training_facts(recipe):
        raise InputError(f"{directory} holds a finished run with other settings; choose another output directory")
    return result


@contextmanager
def run_lock(directory: Path, rank: int) -> Iterator[None]:
    """Two runs must not write into one directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if rank:
        yield
        return
    with (directory / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run is writing to {directory}; wait for it or choose another output") from None
        yield


def _finish(directory: Path, network: ExLMForMaskedLM, tokenizer: Any, recipe: dict[str, Any]) -> dict[str, Any]:
    log = read_log(directory / "log.jsonl")
    final = next(record for record in reversed(log) if record["kind"] == "eval")
    seconds = sum(record["seconds"] for record in log if record["kind"] == "train")
    result = {
        "parameters": num_parameters(network),
        "evaluation": final,
        "training_seconds": seconds,
        "infeasible": sum(record["infeasible"] for record in log if record["kind"] == "train"),
        "recipe": recipe,
    }
    network.eval()
    save_model(directory, network, tokenizer, step=final["step"])
    (directory / "result.json").write_text(json.dumps(result, indent=1))
    print(f"{directory}: {_describe(result)}")
    return result


def _describe(result: dict[str, Any]) -> str:
    held_out, seconds = result["evaluation"], result["training_seconds"]
    return (
        f"{result['parameters'] / 1e6:.1f}M parameters, {held_out['step']} updates in {seconds:.0f} s, "
        f"held-out accuracy {held_out['accuracy']:.4f} and perplexity {held_out['perplexity']:.3f}, "
        f"{result['infeasible']:.0f} sequences without an alignment"
    )
