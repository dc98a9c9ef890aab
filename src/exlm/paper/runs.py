"""Finished runs found on disk, each turned into a record whose numbers have been checked."""

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exlm.errors import InputError
from exlm.tasks.datasets import MOLECULENET
from exlm.tasks.metrics import LOWER_IS_BETTER

Json = dict[str, Any]
RESULTS = ("result.json", "results.json", "efficiency.json")
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
MEASURED = {  # the numbers of measurements.json
    "entropy": ("mean", "stderr", "tokens", "left_out"),  # the first two are null where no token counted
    "corruption": ("mean", "std", "predicted", "predicted_std", "fixed_count", "fixed_count_std", "sequences"),
}
CHOICES: dict[str, tuple[Any, str]] = {  # settings of ExLM alone: the usual value, and the setting in words
    "model.expanded_layers": ("all", "expanded layers {}"),
    "model.copy_embedding": (0.0, "copy embedding {:g}"),
    "prior.order": (0.0, "order prior {:g}"),
    "prior.sticky": (0.0, "sticky prior {:g}"),
    "prior.decay": (None, "prior falls to 0 from {0[0]:.0%} to {0[1]:.0%} of the run"),
    "transition_warmup": (0, "warm-up of transitions {:,} updates"),  # of earlier recipes
}
VARIED = {  # settings that the experiments vary, that follow from those, or that do not change a result
    *CHOICES, "seed", "train.steps", "data.mask_ratio", "data.repeat", "data.tokens_per_micro_batch",
    "model.objective", "model.num_states", "model.rotary", "model.dag", "model.max_position_embeddings",
}  # fmt: skip


@dataclass(frozen=True)
class Pretraining:
    """A pre-trained model. Its `scores` are numbers on held-out text, in the unit of the tables; some may lack."""

    id: str  # first 8 hexadecimal digits of the SHA-256 of its identity
    path: Path
    result: Json  # content of its result.json
    model: Json  # the architecture and the data of its recipe
    data: Json
    steps: int
    seed: int
    method: str  # the paper's name of it
    states: int  # k, which is 1 for an MLM
    choices: frozenset[tuple[str, Any]]  # the settings of CHOICES that its objective has
    chosen: list[str]  # those of them that are not the usual ones, in words
    shared: tuple[tuple[str, str], ...]  # all settings that comparable runs have in common
    scores: dict[str, float]
    measurements: Json  # entropy and corruption, as far as they were measured
    vocabulary: int | None
    weights: str | None  # SHA-256, as `exlm.pretrained.fingerprint` gives it

    @property
    def study(self) -> Path | None:
        """The directory of the `exlm analyze` that made it."""
        return next((parent.parent for parent in self.path.parents if parent.name == "pretrain"), None)


@dataclass(frozen=True)
class Finetuning:
    """A model fine-tuned on one task with several seeds, with the content of its results.json."""

    id: str
    path: Path
    result: Json
    task: str  # the name of a known data set, or the stem of a file
    shared: str  # the settings of comparable fine-tunings: data, start, hyper-parameters or their grid

    @property
    def settings(self) -> Json:
        return self.result["settings"]

    @property
    def caveats(self) -> list[str]:
        """How its data differ from the published."""
        return self.settings.get("departures") or []

    def values(self, metric: str | None = None, split: str | None = None) -> list[float]:
        """One number per seed, shares in percent; by default the run's own metric on the test data, else on valid."""
        metric, split = metric or self.result["metric"], split or ("test" if "test" in self.result else "valid")
        found = [run["scores"].get(split, {}).get(metric) for run in self.result["runs"]]
        in_percent = self.settings["task"].get("task_type") == "question_answering"
        factor = 1.0 if in_percent or metric in LOWER_IS_BETTER else 100.0
        return [factor * value for value in found if value is not None]


@dataclass
class Runs:
    """Everything that was found; `damaged` says what is wrong with each file that could not be used."""

    pretrainings: list[Pretraining] = field(default_factory=list)
    finetunings: list[Finetuning] = field(default_factory=list)
    costs: list[tuple[Path, Json]] = field(default_factory=list)  # contents of efficiency.json
    damaged: list[tuple[Path, str]] = field(default_factory=list)
    unlinked: list[Finetuning] = field(default_factory=list)  # whose pre-trained model is not among the runs
    by_model: dict[str, list[Finetuning]] = field(default_factory=dict)  # fine-tunings by the id of the pre-training


def find_runs(roots: list[str]) -> Runs:
    """All finished runs below some directories. A run that is there twice counts once.

    Raises InputError for a root that is no directory, and where there is no run at all.
    """
    if missing := [root for root in roots if not Path(root).is_dir()]:
        raise InputError(f"{missing[0]} is not a directory; give directories with runs")
    runs = Runs()
    folders = ((folder, names) for root in roots for folder, _, names in os.walk(root))
    for path in sorted({Path(folder) / name for folder, names in folders for name in RESULTS if name in names}):
        try:
            _add(runs, path, _load(path))
        except DAMAGE as error:
            runs.damaged.append((path, f"{type(error).__name__}: {error}"))
    if not (runs.pretrainings or runs.finetunings or runs.costs):
        where = f"{', '.join(roots)} ({len(runs.damaged)} damaged)"
        raise InputError(f"there is no finished run in {where}; give outputs of exlm pretrain, finetune or analyze")
    for tuning in runs.finetunings:
        _link(runs, tuning)
    return runs


def _add(runs: Runs, path: Path, content: Json) -> None:
    """Appends the record of one file, unless it is one seed of a fine-tuning (which has scores) or there already."""
    if path.name == "efficiency.json":
        runs.costs.append((path, _checked_cost(content)))
    elif path.name == "results.json":
        tuning = _finetuning(path.parent, content)
        if tuning.task and tuning.values() and tuning.id not in {other.id for other in runs.finetunings}:
            runs.finetunings.append(tuning)
    elif "scores" not in content:
        run = _pretraining(runs, path.parent, content)
        if run.id not in {other.id for other in runs.pretrainings}:
            runs.pretrainings.append(run)


def _pretraining(runs: Runs, path: Path, result: Json) -> Pretraining:
    identity, model, data = result["identity"], result["recipe"]["model"], result["recipe"]["data"]
    names = ("measurements.json", "config.json", "manifest.json")
    measurements, config, manifest = (_load_optional(runs, path / name) for name in names)
    kept = {"mlm": (), "ctc": ("model.",)}.get(model["objective"], ("",))  # an MLM has none, a CTC model no links
    choices = {key: identity.get(key, usual) for key, (usual, _) in CHOICES.items() if key.startswith(kept)}
    choices = {key: tuple(value) if isinstance(value, list) else value for key, value in choices.items()}
    files = sorted(manifest.get("files", {}).items())
    sums = "".join(entry["sha256"] for name, entry in files if name.endswith(".safetensors"))
    run = Pretraining(
        id=_identifier(identity),
        path=path,
        result=result,
        model=model,
        data=data,
        steps=result["recipe"]["train"]["steps"],
        seed=result["recipe"]["seed"],
        method=_method(model),
        states=1 if model["objective"] == "mlm" else model["num_states"],
        choices=frozenset(choices.items()),
        chosen=[CHOICES[key][1].format(value) for key, value in choices.items() if value != CHOICES[key][0]],
        shared=tuple(sorted((key, json.dumps(value)) for key, value in identity.items() if key not in VARIED)),
        scores=_held_out(result, measurements),
        measurements=measurements,
        vocabulary=config.get("vocab_size"),
        weights=hashlib.sha256(sums.encode()).hexdigest() if sums else None,
    )
    _check([result["parameters"], data["mask_ratio"], data.get("repeat", 1), run.seed, run.steps, run.states])
    _check([run.vocabulary or 0, *run.scores.values()])
    if not (run.shared and data["corpus"]):
        raise ValueError("a setting is missing")
    return run


def _method(model: Json) -> str:
    """The paper's name of what the switches of a model say."""
    if model["objective"] == "mlm":
        return "Vanilla MLM"
    without = ["Transitions"] * (model["objective"] == "ctc") + ["2D RoPE"] * (model["rotary"] != "2d")
    sparse = model["dag"] == "sparse" and model["objective"] == "exlm"
    return "ExLM" + (f" w/o {' and '.join(without)}" if without else "") + " w/ Sparse DAG" * sparse


def _held_out(result: Json, measurements: Json) -> dict[str, float]:
    """Numbers on held-out text by name. Earlier runs have no joint ones, and only ExLM has `own_states`."""
    found, entropy, corruption = result["evaluation"], measurements.get("entropy"), measurements.get("corruption")
    scores = {"accuracy": 100 * found["accuracy"], "perplexity": found["perplexity"]}
    scores["hours"] = result["training_seconds"] / 3600
    if found.keys() & {"nll", "joint_nll", "joint_perplexity", "own_states"}:
        scores |= {"joint perplexity": found["joint_perplexity"], "joint nll": found["joint_nll"]}
    if "own_states" in found:
        scores |= {"own mask": 100 * found["own_states"], "joint gain": found["nll"] - found["joint_nll"]}
    if corruption:
        scores["corruption"] = 100 * corruption["mean"]
    if entropy and entropy["mean"] is not None:
        scores["entropy"] = entropy["mean"]
        scores |= {"state entropy": entropy["states"]["mean"]} if entropy.get("states") else {}
    return scores


def _finetuning(path: Path, result: Json) -> Finetuning:
    settings, task = result["settings"], result["settings"]["task"]
    name = Path(task["dataset"]).name.lower().removesuffix(".gz").rsplit(".", 1)[0]
    known = {other.lower(): key for key, entry in MOLECULENET.items() for other in entry.other_names}
    hyper = sorted(result["cells"]) if "cells" in result else result["runs"][0]["settings"]["train"]
    data = {key: value for key, value in task.items() if key not in ("dataset", "data_dir")}
    shared = [hyper, data, settings.get("data_sha256"), settings.get("start_from") is not None]
    identity = {key: result[key] for key in ("settings", "seeds", "best")}
    return Finetuning(_identifier(identity), path, result, known.get(name, name), json.dumps(shared, sort_keys=True))


def _checked_cost(content: Json) -> Json:
    keys = ("seconds_per_step", "tokens_per_second", "peak_memory_bytes")
    numbers = [entry[key] for entry in content["models"].values() for key in keys]
    numbers += [content[key] for key in ("ratio", "num_states", "mask_ratio", "pairs")]
    _check([*numbers, *content["ratio_quartiles"], len(content["clock"]), len(late_expansion(content))])
    return content


def late_expansion(cost: Json) -> str:
    """What sets a measured ExLM apart from the paper's, if masks are expanded in its last layers alone."""
    layers = cost.get("recipe", {}).get("model", {}).get("expanded_layers", "all")
    return "" if layers == "all" else f", expanded layers {layers}"


def device(result: Json) -> str:
    """What a result was made on, as far as it says."""
    machine = result.get("machine") or {}
    found = machine.get("device")
    return str((machine.get("processor") if found in (None, "cpu") else found) or "not recorded")


def _identifier(identity: Any) -> str:
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _load(path: Path) -> Json:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _load_optional(runs: Runs, path: Path) -> Json:
    """A file that a run may have. Damage to it does not cost the run."""
    try:
        content = _load(path) if path.is_file() else {}
        for section, keys in MEASURED.items():
            found = content.get(section) or {}
            _check(found[key] for key in keys if found and not (found[key] is None and found["tokens"] == 0))
        return content
    except DAMAGE as error:
        runs.damaged.append((path, f"{type(error).__name__}: {error}"))
        return {}


def _check(numbers: Iterable[float]) -> None:
    """Raises TypeError for what is no number, and ValueError for what is not finite."""
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError("a number is not finite")


def _link(runs: Runs, tuning: Finetuning) -> None:
    """Gives a fine-tuning to its pre-training: by weights, else by the directory's name."""
    name, weights = str(tuning.settings["model"]), tuning.settings.get("model_sha256")
    same = [run for run in runs.pretrainings if weights and run.weights == weights]
    unsure = [run for run in runs.pretrainings if not weights or not run.weights]
    same += [run for run in unsure if name == run.result["recipe"].get("output") or Path(name) == run.path]
    if same:
        runs.by_model.setdefault(same[0].id, []).append(tuning)
    else:
        runs.unlinked.append(tuning)
