"""Sorts runs into families that may be compared, and names each by what sets it apart."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from exlm.paper.report.cells import Family, Setting
from exlm.paper.report.records import Pretraining
from exlm.paper.report.runs import Runs


def families(runs: Runs) -> list[Family]:
    """Comparable runs together; the largest family first."""
    groups: dict[Any, list[Pretraining]] = defaultdict(list)
    for run in runs.pretrainings:
        groups[run.family].append(run)
    parts = [family for group in groups.values() for part in _by_choices(group) for family in _by_steps(part)]
    parts.sort(key=lambda family: -len(family.runs))
    found = [family for i, family in enumerate(parts) if not any(_within(family, other) for other in parts[:i])]
    for family in found:
        _take_tunings(family, runs)
        family.ratios = {path.parent: content["ratio"] for path, content in runs.efficiency}
        family.label = _label(family)
    _tell_apart(found)
    return sorted(found, key=lambda family: (-len(family.runs), family.label))


def _by_choices(group: list[Pretraining]) -> list[list[Pretraining]]:
    """ExLM runs of equal choices, the most runs first; those that do not have some of them stand beside all that do.

    That is a vanilla MLM; but the grid of repeated tokens, which is compared with no ExLM, stands once.
    """
    found = dict.fromkeys(run.choices for run in group)
    widest = [choices for choices in found if not any(choices < other for other in found)]
    parts = [[run for run in group if run.choices <= choices] for choices in widest]
    first, *others = sorted(parts, key=len, reverse=True)
    return [first, *([run for run in part if run.repeat == 1] for part in others)]


def _within(family: Family, other: Family) -> bool:
    """Whether all its runs stand in another one, as those of an MLM may."""
    return {run.id for run in family.runs} <= {run.id for run in other.runs}


def _by_steps(group: list[Pretraining]) -> list[Family]:
    """Runs of equal length; a vanilla MLM longer than the ExLM runs is their MLM++, of the most frequent length."""
    lengths = sorted({run.steps for run in group if run.method.startswith("ExLM")} or {run.steps for run in group})
    found: dict[int, Family] = {}
    counts = Counter((run.recipe["data"]["mask_ratio"], run.steps) for run in group)
    for run in sorted(group, key=lambda r: (-counts[r.recipe["data"]["mask_ratio"], r.steps], r.steps, r.seed, r.id)):
        shorter = [steps for steps in lengths if steps < run.steps]
        plus = run.steps not in lengths and bool(shorter) and run.method == "Vanilla MLM" and run.repeat == 1
        method, steps = (f"{run.method}++", shorter[-1]) if plus else (run.method, run.steps)
        family = found.setdefault(steps, Family(steps, {}))
        others = family.cells.setdefault(Setting(method, run.states, run.recipe["data"]["mask_ratio"], run.repeat), [])
        twice = any(run.seed == other.seed or run.steps != other.steps for other in others)  # a seed counts once
        (family.repeated if twice else others).append(run)
    return list(found.values())


def _take_tunings(family: Family, runs: Runs) -> None:
    """Its fine-tunings; of each task those settings that most of them share, so that only like is compared."""
    everything = [(run, tuning) for run in family.runs for tuning in runs.tunings.get(run.id, [])]
    counts = Counter((tuning.task, tuning.how) for _, tuning in everything if not tuning.settings.get("from_scratch"))
    usual = {task: how for (task, how), _ in sorted(counts.items(), key=lambda item: (item[1], item[0]))}
    for run, tuning in everything:
        used = not tuning.settings.get("from_scratch") and tuning.how == usual[tuning.task]
        if used and (run.id, tuning.task) not in family.tunings:
            family.tunings[run.id, tuning.task] = tuning
        else:
            family.left_out.append(tuning)


def _label(family: Family) -> str:
    """Corpus, vocabulary, size and length, as far as they are known."""
    run = family.runs[0]
    model, data = run.recipe["model"], run.recipe["data"]
    sizes = sorted({f"{run.result['parameters'] / 1e6:.1f}" for run in family.runs}, key=float)
    tokens = f" of {data['tokens_per_batch']:,} tokens" if data.get("tokens_per_batch") else ""
    words = [
        Path(data["corpus"]).name,
        f"vocabulary {run.config['vocab_size']:,}" if "vocab_size" in run.config else "",
        f"{model['num_hidden_layers']} layers × {model['hidden_size']}",
        f"{'–'.join(dict.fromkeys([sizes[0], sizes[-1]]))}M parameters",
        f"{family.steps:,} updates{tokens}",
    ]
    chosen = max((run.chosen for run in family.runs), key=len)
    return " · ".join(filter(None, [*words, *chosen]))


def _tell_apart(found: list[Family]) -> None:
    """Where two labels agree, adds the settings in which the families differ."""
    for label in {family.label for family in found}:
        same = [family for family in found if family.label == label]
        keys: list[set[Any]] = [set(family.runs[0].family) for family in same]
        for family, key in zip(same, keys, strict=True):
            own = sorted(key - set.intersection(*keys))
            family.label += "".join(f" · {name.split('.')[-1]} {str(json.loads(value))[:12]}" for name, value in own)
