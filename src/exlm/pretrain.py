"""Pre-training: from a recipe to a Hugging Face model directory."""

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .data.batching import MaskedBatches, SpecialTokens, masked_batch
from .data.corpus import Corpus
from .errors import InputError
from .model.configuration_exlm import ExLMConfig
from .model.evaluation import evaluate_batch, no_sums, summary
from .model.heads import NO_PRIOR, Prior
from .model.masked_lm import ExLMForMaskedLM
from .model.modeling_exlm import num_parameters
from .pretrained import load_tokenizer, save_model
from .randomness import Purpose, mix
from .storage import lock, machine, plain, problem, write_json, write_yaml
from .train import distributed
from .train.loop import LoopConfig, fit
from .train.precision import in_precision, used_precision
from .train.tracking import read_log

HELD_OUT_EPOCH = -1  # held-out data are always masked in the same way


@dataclass(frozen=True)
class DataConfig:
    """What to train on, and how it is cut and masked.

    Attributes:
        corpus: directory written by `exlm prepare`.
        mask_ratio: share of tokens replaced by [MASK].
        repeat: copies of each token, masked one by one (Repeated MLM); a fine-tuning then repeats its input alike.
        tokens_per_batch: upper bound of one update's sequences x longest sequence, over all processes, without copies.
        tokens_per_micro_batch: the same for one forward and backward pass, with copies; smaller needs less memory.
        eval_sequences: held-out sequences used in an evaluation; 0 takes all.
    """

    corpus: str
    mask_ratio: float = 0.15
    repeat: int = 1
    tokens_per_batch: int = 65536
    tokens_per_micro_batch: int = 16384
    eval_sequences: int = 2000

    def __post_init__(self) -> None:
        if not 0 < self.mask_ratio < 1:
            raise InputError(f"mask_ratio is {self.mask_ratio}; it must lie strictly between 0 and 1")
        if not 1 <= self.repeat <= 64:
            raise InputError(f"repeat is {self.repeat}; it must lie between 1 and 64")
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
        hidden_size: width of the encoder.
        num_hidden_layers: its layers.
        num_attention_heads: heads of every layer, and of the gated transition.
        intermediate_size: width inside the feed-forward blocks.
        hidden_dropout_prob: dropout on embeddings and on the output of every block.
        attention_probs_dropout_prob: dropout on attention weights.
        activation_dropout: dropout inside the feed-forward blocks.
        max_position_embeddings: longest expanded sequence of the gated transition.
        initializer_range: standard deviation of initial weights. Narrow models leave their start sooner with more.
        rotary_base: longest wavelength of the positions, over 2 pi. Short sequences need less than the usual 10,000.
        expanded_layers: how many of the last layers read the expanded sequence, `all` (paper) or fewer (late
            expansion).
        copy_embedding: standard deviation of the initial embedding of the copy index; 0 for none (paper).
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
    initializer_range: float = 0.02
    rotary_base: float = 10000.0
    expanded_layers: int | Literal["all"] = "all"
    copy_embedding: float = 0.0

    def build(self, tokenizer: Any, repeat: int = 1, prior: Prior = NO_PRIOR) -> ExLMConfig:
        """The model configuration for a tokenizer; `prior` is what remains of it at the end of training."""
        order, sticky = prior if self.objective == "exlm" else NO_PRIOR
        return ExLMConfig(
            **dataclasses.asdict(self),
            repeat=repeat,
            order_prior=order,
            sticky_prior=sticky,
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            unk_token_id=tokenizer.unk_token_id,
            mask_token_id=tokenizer.mask_token_id,
        )


@dataclass(frozen=True)
class PriorConfig:
    """What is added to the links between states by their order alone, beyond the paper (all 0: the paper).

    With the full DAG a small model settles on one certain path through the wrong masks before it has learned any word,
    and predicts no more than frequencies. The order prior keeps paths near their own masks.

    Attributes:
        order: penalty on a link's score for every mask it skips, and for staying within a mask.
        sticky: bonus on a link's score from a copy of one mask to the same copy of the next; copies then come to stand
            for different readings.
        decay: where the prior stays, absent; or the two fractions of the run between which it falls linearly to 0. What
            remains at the end is part of the model.
    """

    order: float = 0.0
    sticky: float = 0.0
    decay: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.order < math.inf and 0 <= self.sticky < math.inf):
            raise InputError(f"prior.order is {self.order} and prior.sticky {self.sticky}; neither may be negative")
        if self.decay is not None and not 0 <= self.decay[0] < self.decay[1] <= 1:
            raise InputError(f"prior.decay is {self.decay}; give two fractions of the run as [0.0, 0.5]")

    def at(self, step: int, steps: int) -> Prior:
        """In update `step` (0-based) of `steps`, and after the last one for `step` = `steps`."""
        begin, end = self.decay or (math.inf, math.inf)
        left = 1.0 if step / steps <= begin else max(0.0, (end - step / steps) / (end - begin))
        return Prior(left * self.order, left * self.sticky)


def pretrain(
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    seed: int = 0,
    prior: PriorConfig = PriorConfig(),
    compile: bool = False,
    resume_anyway: bool = False,
) -> dict[str, Any]:
    """Pre-trains ExLM, or a baseline, on a prepared corpus; run again to resume after an interruption.

    Args:
        output: directory for the model, its checkpoints and the log.
        data: corpus, masking and batches.
        model: architecture and objective.
        train: length of the run, optimizer, precision, evaluation and checkpoints.
        seed: of initial weights, order, masks and dropout.
        prior: of the links between states, and its schedule. An MLM has none.
        compile: compile the encoder layers with torch.compile.
        resume_anyway: go on from a checkpoint although training settings (not data or model) have changed.

    Returns:
        The final evaluation, also in `result.json`.
    """
    recipe = plain({"output": output, "data": data, "model": model, "prior": prior, "train": train, "seed": seed})
    recipe |= {"compile": compile}
    corpus, tokenizer = _open_corpus(data.corpus)
    special = SpecialTokens.of(tokenizer)
    directory = Path(output)
    with distributed.process_group() as (rank, world), lock(directory) if rank == 0 else nullcontext():
        identity = {"tokenizer": corpus.tokenizer_hash, "corpus": corpus.corpus_hash, **facts(recipe, "model")}
        settings = facts(recipe, "train") | facts(recipe, "data") | {"seed": seed}
        settings["train.precision"] = used_precision(distributed.device(), train.precision)
        if model.objective == "exlm":
            settings |= facts(recipe, "prior")
        if (finished := _finished(directory, identity | settings)) is not None:
            print(f"{directory} is finished already: {_describe(finished)}")
            return finished
        if rank == 0 and not (directory / "recipe.yaml").exists():
            write_yaml(directory / "recipe.yaml", recipe)
        torch.manual_seed(seed)
        network = ExLMForMaskedLM(model.build(tokenizer, data.repeat, prior.at(train.steps, train.steps)))
        distributed.place(network)
        if compile:
            for layer in network.exlm.layers:
                layer.compile(dynamic=True)
        held_out = list(held_out_batches(data, special, seed, rank, world))

        def measure(_: torch.nn.Module, step: int) -> dict[str, Any]:
            return evaluate(network, held_out, prior.at(step, train.steps))

        batches = MaskedBatches(
            corpus,
            special,
            data.tokens_per_batch,
            data.tokens_per_micro_batch,
            data.mask_ratio,
            seed,
            rank,
            world,
            data.repeat,
        )
        fit(
            network,
            pretraining_loss,
            lambda step: [(p, whole(network, batch, prior.at(step, train.steps))) for p, batch in batches(step)],
            train,
            directory,
            seed,
            evaluate=measure,
            identity=identity if resume_anyway else identity | settings,
            description=f"{model.objective} {num_parameters(network) / 1e6:.1f}M",
        )
        final = measure(network, train.steps)
        if not distributed.is_main():
            return {}
        result = _result(directory, network, final, train.steps) | {"identity": identity | settings, "recipe": recipe}
        result |= {"precision": settings["train.precision"], "machine": machine()}
        save_model(directory, network.eval(), tokenizer, step=train.steps)
        write_yaml(directory / "recipe.yaml", recipe)
        write_json(directory / "result.json", result)
        print(f"{directory}: {_describe(result)}")
        return result


def _open_corpus(path: str) -> tuple[Corpus, PreTrainedTokenizerFast]:
    """The training split, every file of it verified, and its tokenizer."""
    corpus = Corpus(path, "train")
    corpus.verify()
    return corpus, load_tokenizer(path)


def whole(model: ExLMForMaskedLM, batch: dict[str, Tensor], prior: Prior) -> dict[str, Any]:
    """The batch with its expansion and prior, so that the thread that makes batches ahead does this too."""
    return {**batch, "lattice": model.exlm.expand(**batch), "prior": prior}


def pretraining_loss(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """(sum, count, infeasible sequences) of any objective."""
    output = model(**batch)
    return output.total, output.count, output.infeasible


def held_out_batches(
    data: DataConfig, special: SpecialTokens, seed: int, rank: int, world: int
) -> Iterator[dict[str, Tensor]]:
    """This process's share of the held-out sequences, masked the same way in every run with this seed."""
    corpus = Corpus(data.corpus, "valid")
    if not len(corpus):
        raise InputError(f"{data.corpus} has no held-out sequences; prepare it with a larger held_out")
    draw = np.argsort(mix(seed, Purpose.HELD_OUT, np.arange(len(corpus))), kind="stable")
    chosen = draw[: data.eval_sequences or len(corpus)]
    chosen = chosen[np.argsort(-corpus.lengths[chosen], kind="stable")]
    parts, start = [], 0
    while start < len(chosen):
        # An evaluation holds the predictions of every token: as few sequences as in training.
        size = max(1, data.tokens_per_micro_batch // ((int(corpus.lengths[chosen[start]]) + 2) * data.repeat))
        parts.append(chosen[start : start + size])
        start += size
    for part in parts[rank::world]:
        yield masked_batch(corpus, part, special, seed, HELD_OUT_EPOCH, data.mask_ratio, data.repeat)


def evaluate(model: ExLMForMaskedLM, batches: list[dict[str, Tensor]], prior: Prior | None = None) -> dict[str, Any]:
    """Objective per count, and accuracy, marginal and joint probability of masked tokens (`exlm.model.evaluation`).

    Args:
        model: is put in evaluation mode.
        batches: this process's share.
        prior: of the links, in place of the configuration's.
    """
    model.eval()
    sums = no_sums(model.config)
    with in_precision(next(model.parameters()).device, "fp32"):
        for batch in batches:
            part = evaluate_batch(model, batch, prior)
            sums = {name: sums[name] + part[name] for name in sums}
    totals = distributed.sum_over_processes(list(sums.values()))
    return summary(dict(zip(sums, totals, strict=True)))


REPORTING = ("log_every", "eval_every", "save_every", "keep_checkpoints", "eval_sequences", "corpus")


def facts(recipe: dict[str, Any], section: str) -> dict[str, Any]:
    """The settings of a section that a resumed run must share, flat; all but what only changes where and when."""
    flat: dict[str, Any] = {}
    for key, value in recipe[section].items():
        if isinstance(value, dict):
            flat |= {f"{section}.{key}.{name}": item for name, item in value.items()}
        elif key not in REPORTING:
            flat[f"{section}.{key}"] = value
    return flat


def _finished(directory: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a finished, undamaged run with the same settings, or None if there is none."""
    try:
        result = json.loads((directory / "result.json").read_text())
        before = result["identity"]
    except (OSError, ValueError, KeyError):
        return None
    for name, value in identity.items():
        if before.get(name) != value:
            raise InputError(
                f"{directory} holds a finished run with {name} {before.get(name)!r} instead of {value!r}; choose "
                "another output directory"
            )
    return result if problem(directory) is None else None


def _result(directory: Path, network: ExLMForMaskedLM, final: dict[str, Any], steps: int) -> dict[str, Any]:
    log = [record for record in read_log(directory / "log.jsonl") if record["kind"] == "train"]
    return {
        "parameters": num_parameters(network),
        "evaluation": {"step": steps, **final},
        "training_seconds": sum(record["seconds"] for record in log),
        "infeasible": sum(record["infeasible"] for record in log),
    }


def _describe(result: dict[str, Any]) -> str:
    held_out, seconds = result["evaluation"], result["training_seconds"]
    return (
        f"{result['parameters'] / 1e6:.1f}M parameters, {held_out['step']} updates in {seconds:.0f} s, "
        f"held-out accuracy {held_out['accuracy']:.4f}, perplexity {held_out['perplexity']:.3f} and joint perplexity "
        f"{held_out['joint_perplexity']:.3f}, "
        f"{result['infeasible']:.0f} sequences without an alignment"
    )
