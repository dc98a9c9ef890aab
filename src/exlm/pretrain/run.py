"""Pre-training: from a recipe to a Hugging Face model directory."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from exlm.data.corpus import Corpus, corpus_name, count_leaked, count_trained_on
from exlm.describe.card import write_card
from exlm.errors import InputError, advising, note
from exlm.identity import describe_changes, identity_of
from exlm.model.masked_lm import ExLMForMaskedLM
from exlm.ops.loss import LossSum
from exlm.ops.precision import used_precision
from exlm.pretrain.batches import check_positions, complete_batches, make_masked_batches
from exlm.pretrain.held_out import HeldOutData, describe_scores, evaluate_held_out
from exlm.pretrain.settings import ArchitectureConfig, DataConfig, Recipe, evaluation_settings
from exlm.pretrain.start import find_other_corpus, start_hash, take_weights
from exlm.randomness import RANDOM_NUMBERS_VERSION
from exlm.storage.files import (
    GRID_RESULTS,
    MEASUREMENTS,
    RECIPE,
    RUN_RESULT,
    TRAINING_LOG,
    read_log,
    read_or_empty,
    to_json_types,
    write_log,
    write_yaml,
)
from exlm.storage.machine import machine
from exlm.storage.manifest import damage, finish_run
from exlm.storage.models import load_model, save_model, weight_files
from exlm.storage.run_directories import finished_result, lock
from exlm.storage.shipped import model_path
from exlm.storage.tokenizers import load_tokenizer
from exlm.train import checkpoint, devices, distributed
from exlm.train.checkpoint import Checkpoints
from exlm.train.loop import ADVICE, LoopConfig, fit
from exlm.train.tracking import RunLog

ADVICE_WITH_CHECKPOINTS = (
    "the last good checkpoint is kept; change the learning rate or the precision and add "
    "--resume_anyway true"
)
MEMORY_ADVICE = (
    "lower tokens_per_micro_batch and start the run again, it goes on; "
    "the result changes by rounding alone, or with dropout by what it drops; "
    "train.gradient_checkpointing saves memory, too, and does not change it"
)
# The beginnings of the names of settings that `--resume_anyway` may change. It may not change the
# corpus, the tokenizer, the architecture, the start and the random numbers.
CHANGEABLE = ("train.", "data.", "prior.", "seed")
# Nats per masked token. If joint nll is better by less than this, links tie no masks together.
SMALLEST_TIE = 0.001


def pretrain(
    output: str,
    data: DataConfig,
    model: ArchitectureConfig = ArchitectureConfig(),
    train: LoopConfig = LoopConfig(),
    resume_anyway: bool = False,
    device: str = "auto",
    **options: Any,
) -> dict[str, Any]:
    """Pre-trains ExLM, an MLM or CTC on a prepared corpus; run again to resume after an
    interruption.

    A finished run is not trained again; where `data.eval_sequences` or a setting of `evaluate` is
    another one, its model is scored anew.

    Args:
        output: directory for the model, its checkpoints and the log.
        data: corpus, masking and batches.
        model: architecture and objective.
        train: length of the run, optimizer, precision, evaluation and checkpoints.
        resume_anyway: continue from a checkpoint although training settings (not corpus or model)
            have changed. `result.json` then says which (`changed`), and a report leaves the run
            out, as no settings are those of all its updates.
        device: auto, cpu, cuda or cuda:NUMBER.
        options: the other settings of `Recipe`. As they are passed on to it, the command line takes
            their names and types from there.

    Returns the content of `result.json`; in all processes but the main one {}, unless the run was
    finished already."""
    train = train.with_warmup_steps()
    recipe = Recipe(output=output, data=data, model=model, train=train, **options)
    directory = Path(output)
    _check_output(directory)
    corpus = Corpus(data.corpus, "train")
    corpus.check_files()
    tokenizer = load_tokenizer(corpus.path)
    with (
        distributed.process_group(train.max_wait) as (rank, _),
        lock(directory) if rank == 0 else nullcontext(),
    ):
        identity = _find_identity(recipe, corpus, device)
        advice = f"choose another output, and add --start_from {directory} to go on from it"
        result = finished_result(directory / RUN_RESULT, "identity", identity, advice)
        if result and damage(directory) is None:
            before = evaluation_settings(result["recipe"])
            now = evaluation_settings(to_json_types(recipe))
            if before != now:
                result = _score_anew(recipe, result, tokenizer, device, before, now)
            print(f"{directory} is finished already: {_describe(result, model.has_links)}")
            return result
        check_positions(data, model, recipe.evaluate.by_masks)
        network = _build(recipe, corpus, tokenizer, device)
        if rank == 0 and not (directory / RECIPE).exists():
            write_yaml(directory / RECIPE, recipe)
        leaked_entries = _count_leaked(corpus) | _count_leaked_from_start(recipe, corpus)
        scores, changes = _train(recipe, corpus, tokenizer, network, identity, resume_anyway)
        if rank > 0:
            return {}
        result = _make_result(recipe, identity, network, scores) | leaked_entries
        result |= {"changed": changes} if changes else {}
        save_model(directory, network.eval(), tokenizer, step=train.steps)
        write_yaml(directory / RECIPE, recipe)
        write_card(directory, result)
        # This file, the last, says that the run is finished.
        finish_run(directory, RUN_RESULT, result)
        print(f"{directory}: {_describe(result, model.has_links)}")
        return result


def _check_output(directory: Path) -> None:
    """InputError if a fine-tuning would be overwritten."""
    if (directory / GRID_RESULTS).exists() or "task" in read_or_empty(directory / "config.json"):
        raise InputError(
            f"{directory} holds a fine-tuning, which would be overwritten; choose another output"
        )


def _find_identity(recipe: Recipe, corpus: Corpus, device: str) -> dict[str, Any]:
    """The identity of a run: all that two runs must share to be the same."""
    identity = {
        "tokenizer": corpus.tokenizer_hash,
        "corpus": corpus.corpus_hash,
        **identity_of(recipe.model, "model"),
        **identity_of(recipe.train, "train"),
        **identity_of(recipe.data, "data"),
        "seed": recipe.seed,
    }
    if recipe.start_from:
        identity["start"] = _find_start(recipe.start_from, Path(recipe.output))
    # `auto` is another precision on another machine.
    identity["train.precision"] = used_precision(devices.device(device), recipe.train.precision)
    if recipe.model.has_links:
        identity |= identity_of(recipe.prior, "prior")
    return identity


def _find_start(start: str, directory: Path) -> str:
    """The hash of the weights of a start. A run that is finished recorded it, and needs its start
    no more."""
    result = read_or_empty(directory / RUN_RESULT, "identity")
    recorded = result.get("identity", {}).get("start")
    is_gone = not Path(model_path(start)).exists()
    return recorded if recorded and is_gone and damage(directory) is None else start_hash(start)


def _score_anew(
    recipe: Recipe,
    result: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    device: str,
    before: dict[str, Any],
    now: dict[str, Any],
) -> dict[str, Any]:
    """Scores the model of a finished run again, as its `evaluation_settings` were `before` and are
    others `now`. Returns the new result; the main process writes it, the recipe and the card."""
    directory = Path(recipe.output)
    changes = [name for name in now if now[name] != before[name]]
    if distributed.is_main():
        phrases = [f"{name} is {now[name]} instead of {before[name]}" for name in changes]
        print(
            f"the model in {directory} is scored anew, without training: {', '.join(phrases)}; "
            "its scores and its card are replaced"
        )
    check_positions(recipe.data, recipe.model, recipe.evaluate.by_masks)
    network, _ = load_model(recipe.output, ExLMForMaskedLM)
    devices.place_model(network, device)
    held_out = HeldOutData(recipe.data, tokenizer, recipe.seed)
    scores = evaluate_held_out(held_out, recipe, network, recipe.train.steps)
    data = {**result["recipe"]["data"], "eval_sequences": recipe.data.eval_sequences}
    recorded = {**result["recipe"], "data": data, "evaluate": to_json_types(recipe.evaluate)}
    evaluation = {"step": recipe.train.steps, **scores}
    result = {**result, "evaluation": evaluation, "recipe": recorded}
    if distributed.is_main():
        if "data.eval_sequences" in changes:
            # The measurements are of the earlier sequences; `exlm analyze` makes them again.
            (directory / MEASUREMENTS).unlink(missing_ok=True)
        log = directory / TRAINING_LOG
        write_log(log, [*read_log(log), to_json_types({"kind": "eval", **evaluation})])
        write_yaml(directory / RECIPE, recorded)
        write_card(directory, result)
        finish_run(directory, RUN_RESULT, result)
    return result


def _count_leaked(corpus: Corpus) -> dict[str, int]:
    """The entry `held_out_in_training` of `result.json`: how many held-out sequences are training
    sequences of another corpus, with a note if there are any. Without another corpus, no entry."""
    if len(corpus.paths) == 1:
        return {}
    leaked, total = count_leaked(corpus.paths)
    if leaked and distributed.is_main():
        note(
            f"{leaked} of the {total} held-out sequences of {corpus_name(corpus.paths)} are "
            "training sequences of another of these corpora, so scores on held-out data will be "
            "too good; prepare the files of all together into one corpus"
        )
    return {"held_out_in_training": leaked}


def _count_leaked_from_start(recipe: Recipe, corpus: Corpus) -> dict[str, int]:
    """The entry `held_out_in_start` of `result.json`: how many held-out sequences are training
    sequences of the start, with a note if there are any. No entry where it is not known."""
    trained_on = find_other_corpus(recipe.start_from, corpus) if recipe.start_from else None
    if trained_on is None:
        return {}
    held_out = Corpus(corpus.paths, "valid")
    leaked = count_trained_on(held_out, trained_on)
    if leaked and distributed.is_main():
        note(
            f"{leaked} of the {len(held_out)} held-out sequences of {corpus_name(corpus.paths)} "
            f"are training sequences of the start {recipe.start_from}, so scores on held-out data "
            "will be too good"
        )
    return {"held_out_in_start": leaked}


def _build(
    recipe: Recipe, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, device: str
) -> ExLMForMaskedLM:
    """The model as its seed makes it, or with the weights of its start, on its device. A run that
    goes on from a checkpoint does not read its start again."""
    torch.manual_seed(recipe.seed)
    steps = recipe.train.steps
    config = recipe.model.build(tokenizer, recipe.data.repeat)
    if config.has_links:
        config.order_prior, config.sticky_prior = recipe.prior.at(steps, steps)
    config.molecules = corpus.molecules
    config.standardize = corpus.standardize
    network = ExLMForMaskedLM(config)
    if recipe.start_from and not checkpoint.all_checkpoints(Path(recipe.output)):
        description = take_weights(network, tokenizer, recipe.start_from)
        if distributed.is_main():
            print(description)
    devices.place_model(network, device)
    if recipe.compile:
        for layer in network.exlm.layers:
            layer.compile(dynamic=True)
    return network


def _train(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerFast,
    network: ExLMForMaskedLM,
    identity: dict[str, Any],
    resume_anyway: bool,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Trains the network. Returns its scores at the end, and the `changes` of its `Checkpoints`. If
    there is a checkpoint, training goes on from there; InputError if it has another value of a
    setting that may not change."""
    held_out = HeldOutData(recipe.data, tokenizer, recipe.seed)
    evaluate = partial(evaluate_held_out, held_out, recipe, network)
    masked_batches = make_masked_batches(recipe, corpus, tokenizer, network)
    identity = {**identity, "random streams": RANDOM_NUMBERS_VERSION}
    directory = Path(recipe.output)
    checkpoints = Checkpoints(directory, identity, CHANGEABLE if resume_anyway else ())
    objective = recipe.model.objective
    millions = network.num_parameters(only_trainable=True) / 1e6
    advice = ADVICE_WITH_CHECKPOINTS if recipe.train.save_every else ADVICE
    with advising(advice, MEMORY_ADVICE):
        scores = fit(
            network=network,
            loss=pretraining_loss,
            batches=partial(complete_batches, masked_batches, network.config, recipe),
            config=recipe.train,
            seed=recipe.seed,
            log=RunLog(directory, f"{objective}_loss", f"{objective} {millions:.1f}M"),
            checkpoints=checkpoints,
            evaluate=evaluate,
        )
    # There are no scores if the newest checkpoint was made after the last update.
    return scores or evaluate(recipe.train.steps), checkpoints.changes


def pretraining_loss(network: torch.nn.Module, batch: dict[str, Any]) -> LossSum:
    """The loss of any objective."""
    output = network(lattice=batch["lattice"], prior=batch["prior"])
    return LossSum(output.total, output.count, output.infeasible)


def _make_result(
    recipe: Recipe, identity: dict[str, Any], network: ExLMForMaskedLM, scores: dict[str, Any]
) -> dict[str, Any]:
    """The content of `result.json`; times and the number of infeasible sequences are sums over the
    log."""
    log = read_log(Path(recipe.output) / TRAINING_LOG)
    updates = [entry for entry in log if entry["kind"] == "train"]
    return {
        "parameters": network.num_parameters(only_trainable=True),
        "evaluation": {"step": recipe.train.steps, **scores},
        "training_seconds": sum(entry["seconds"] for entry in updates),
        "processor_seconds": sum(entry["processor_seconds"] for entry in updates),
        "infeasible": sum(entry["infeasible"] for entry in updates),
        "machine": machine(network.device.type),
        "identity": identity,
        "recipe": to_json_types(recipe),
        "precision": identity["train.precision"],
        "weight_files": weight_files(recipe.start_from) if recipe.start_from else {},
    }


def _describe(result: dict[str, Any], has_links: bool) -> str:
    """The content of `result.json` in words, for people."""
    evaluation = result["evaluation"]
    nll = evaluation["nll"]
    joint_nll = evaluation["joint_nll"]
    remark = ""
    if has_links and nll - joint_nll < SMALLEST_TIE:
        remark = (
            "\nthe links between states tie no masks together: "
            f"joint nll {joint_nll:.4f}, each mask by itself {nll:.4f}; more updates, masks or "
            "states may change that, or the order prior (prior.order, prior.sticky)"
        )
    if changes := describe_changes(result.get("changed", [])):
        remark += f"\n{changes}; a report leaves this run out"
    return (
        f"{result['parameters']:,} parameters, {evaluation['step']} updates in "
        f"{result['training_seconds']:.0f} s, "
        f"{result['infeasible']:.0f} training sequences without an alignment\n"
        f"{describe_scores(evaluation)} (perplexity: each masked token by itself; "
        f"joint perplexity: all masked tokens of a sequence together){remark}"
    )
