"""Pre-training: from a recipe to a Hugging Face model directory."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from exlm.data.batching import MaskedBatches
from exlm.data.corpus import SPLITS, Corpus, corpus_name
from exlm.describe.card import write_card
from exlm.errors import InputError
from exlm.model.heads import Prior
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.precision import used_precision
from exlm.pretrain.held_out import (
    evaluate_by_masks,
    evaluate_in_passes,
    held_out_batches,
    score_held_out,
)
from exlm.pretrain.settings import (
    EARLIER,
    ArchitectureConfig,
    DataConfig,
    EvaluateConfig,
    PriorConfig,
    expanded_length,
    identity_of,
)
from exlm.pretrain.start import start_fingerprint, take_weights
from exlm.randomness import STREAMS
from exlm.storage.files import (
    finished_result,
    lock,
    machine,
    plain,
    problem,
    write_json,
    write_yaml,
)
from exlm.storage.models import load_tokenizer, save_model
from exlm.train import checkpoint, distributed
from exlm.train.loop import LoopConfig, fit
from exlm.train.tracking import read_log

MEMORY_ADVICE = (
    "lower tokens_per_micro_batch and start the run again, it goes on; "
    "the result changes by rounding alone, or with dropout by which units are dropped; "
    "train.gradient_checkpointing saves memory, too, and does not change it"
)
NO_START = {"start": None}  # of a run that started from no weights; earlier results do not say it


def pretrain(
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    seed: int = 0,
    prior: PriorConfig = PriorConfig(),
    evaluate: EvaluateConfig = EvaluateConfig(),
    start_from: str | None = None,
    compile: bool = False,
    resume_anyway: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """Pre-trains ExLM, or a baseline, on a prepared corpus; run again to resume after an
    interruption.

    Args:
        output: directory for the model, its checkpoints and the log.
        data: corpus, masking and batches.
        model: architecture and objective.
        train: length of the run, optimizer, precision, evaluation and checkpoints.
        seed: seed of initial weights, order, masks and dropout.
        prior: order prior of the links between states, and its schedule. An MLM has none.
        evaluate: what is measured once more at the end.
        start_from: directory of a pre-trained model of this library; what fits is taken from it,
            the rest is drawn.
        compile: compile the encoder layers with torch.compile.
        resume_anyway: continue from a checkpoint although training settings (not data or model)
            have changed.
        device: auto, cpu, cuda or cuda:NUMBER.

    Returns the content of `result.json`."""
    recipe = plain(
        {
            "output": output,
            "data": data,
            "model": model,
            "prior": prior,
            "train": train,
            "seed": seed,
        }
    )
    recipe |= {"evaluate": plain(evaluate), "start_from": start_from, "compile": compile}
    corpus = Corpus(data.corpus, "train")
    corpus.verify()
    tokenizer = load_tokenizer(corpus.path)
    directory = Path(output)
    with (
        distributed.process_group(train.max_wait) as (rank, world),
        lock(directory) if rank == 0 else nullcontext(),
    ):
        identity = {
            "tokenizer": corpus.tokenizer_hash,
            "corpus": corpus.corpus_hash,
            **identity_of(recipe, "model"),
        }
        identity |= {"start": start_fingerprint(start_from)} if start_from else {}
        settings = identity_of(recipe, "train") | identity_of(recipe, "data") | {"seed": seed}
        settings["train.precision"] = used_precision(distributed.device(device), train.precision)
        if model.has_links:
            settings |= identity_of(recipe, "prior")
        same_run = NO_START | identity | settings
        finished = finished_result(directory / "result.json", "identity", same_run, earlier=EARLIER)
        if finished and problem(directory) is None:
            print(f"{directory} is finished already: {_describe(finished)}")
            return finished
        check_positions(data, model)
        torch.manual_seed(seed)
        config = model.build(tokenizer, data.repeat, prior.at(train.steps, train.steps))
        config.molecules, config.standardize = corpus.molecules, corpus.standardize
        network = ExLMForMaskedLM(config)
        goes_on = train.save_every > 0 and bool(checkpoint.candidates(directory))
        if start_from and not goes_on:
            line = take_weights(network, tokenizer, start_from)
            if rank == 0:
                print(line)
        if rank == 0 and not (directory / "recipe.yaml").exists():
            write_yaml(directory / "recipe.yaml", recipe)
        distributed.to_device(network, device)
        if compile:
            for layer in network.exlm.layers:
                layer.compile(dynamic=True)
        held_out = list(held_out_batches(data, tokenizer, seed, rank, world))

        def measure(_: torch.nn.Module, step: int) -> dict[str, Any]:
            now = prior.at(step, train.steps)
            values = score_held_out(network, held_out, now)
            if step == train.steps:
                values |= evaluate_by_masks(
                    network, tokenizer, data, evaluate, seed, now, rank, world
                )
                values |= evaluate_in_passes(network, held_out, evaluate.passes, now)
            if distributed.is_main():
                tqdm.write(f"step {step}: {_describe_scores(values)}")
                sys.stdout.flush()
            return values

        sizes = (data.tokens_per_batch, data.tokens_per_micro_batch)
        masked = MaskedBatches(
            corpus, tokenizer, *sizes, data.mask_ratio, seed, rank, world, data.repeat
        )

        def micro_batches(step: int) -> list[tuple[int, dict[str, Any]]]:
            now = prior.at(step, train.steps)
            return [(number, complete_batch(network, batch, now)) for number, batch in masked(step)]

        parameters = network.num_parameters(only_trainable=True)
        kept = (
            NO_START
            | (identity if resume_anyway else identity | settings)
            | {"random streams": STREAMS}
        )
        name, description = f"{model.objective}_loss", f"{model.objective} {parameters / 1e6:.1f}M"
        final = fit(
            model=network,
            loss=pretraining_loss,
            batches=micro_batches,
            config=train,
            directory=directory,
            seed=seed,
            evaluate=measure,
            identity=kept,
            loss_name=name,
            description=description,
            memory_advice=MEMORY_ADVICE,
        ) or measure(network, train.steps)
        if not distributed.is_main():
            return {}
        log = [record for record in read_log(directory / "log.jsonl") if record["kind"] == "train"]
        result: dict[str, Any] = {
            "parameters": parameters,
            "evaluation": {"step": train.steps, **final},
        }
        result |= {"training_seconds": sum(record["seconds"] for record in log)}
        result |= {
            "processor_seconds": sum(
                record.get("processor_seconds", record["seconds"]) for record in log
            )
        }
        result |= {"infeasible": sum(record["infeasible"] for record in log), "machine": machine()}
        result |= {
            "identity": identity | settings,
            "recipe": recipe,
            "precision": settings["train.precision"],
        }
        save_model(directory, network.eval(), tokenizer, step=train.steps)
        write_yaml(directory / "recipe.yaml", recipe)
        write_card(directory, result)
        # the last file: it says that the run is finished
        write_json(directory / "result.json", result)
        print(f"{directory}: {_describe(result)}")
        return result


def check_positions(data: DataConfig, model: ArchitectureConfig) -> None:
    """Raises InputError if a training or held-out sequence can expand to more positions than the
    model has."""
    longest = max(int(Corpus(data.corpus, split).lengths.max(initial=0)) for split in SPLITS)
    limit = model.max_position_embeddings
    # nothing else has a table of positions
    limited = model.has_links and model.transition == "gated"
    if limited and (needed := expanded_length(longest, data, model)) > limit:
        found = f"a sequence of {corpus_name(data.corpus)} has {longest + 2} tokens and can expand to {needed}"
        advice = f"set it to {needed}, or prepare with a smaller --max_length"
        raise InputError(
            f"{found} positions, but model.max_position_embeddings is {limit}; {advice}"
        )


def complete_batch(
    model: ExLMForMaskedLM, batch: dict[str, Tensor], prior: Prior
) -> dict[str, Any]:
    """The batch with its expansion and prior; called in the thread that makes the next batches."""
    return {**batch, "lattice": model.exlm.expand(**batch), "prior": prior}


def pretraining_loss(
    model: torch.nn.Module, batch: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of any objective: (sum, count, sequences without an alignment)."""
    output = model(**batch)
    return output.total, output.count, output.infeasible


def _describe(result: dict[str, Any]) -> str:
    size = (
        "{parameters:,} parameters, {evaluation[step]} updates in {training_seconds:.0f} s".format(
            **result
        )
    )
    meaning = "perplexity: each masked token by itself; joint perplexity: all masked tokens of a sequence together"
    lost = f"{result['infeasible']:.0f} training sequences without an alignment"
    return f"{size}, {lost}\n{_describe_scores(result['evaluation'])} ({meaning})"


def _describe_scores(values: dict[str, Any]) -> str:
    names = ("accuracy", "perplexity", "joint_perplexity")
    return "held-out " + ", ".join(
        f"{name.replace('_', ' ')} {values[name]:.4f}" for name in names if name in values
    )
