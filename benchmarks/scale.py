"""What the paper's runs need: the hours on 1 and 8 GPUs, the memory, and the size of a checkpoint.

    python benchmarks/scale.py

Nothing is measured here. The hours follow from the floating-point operations of a step
(`cost.step_flops`), a range of assumed utilisations and the time that the host needs to launch a
micro-batch; the memory follows from its shapes (`memory.py`).
"""

import re
from pathlib import Path
from typing import NamedTuple, get_args

import yaml

from cost import FLOAT32, Objective, step_flops
from exlm.paper.analyze import Experiment, Study
from exlm.pretrain.settings import ArchitectureConfig, DataConfig
from exlm_command.parser import settings
from memory import CPU, GPU, Memory, memory_of, parameters, shape_of

RECIPES = Path(__file__).parents[1] / "recipes"
PEAK = 790e12  # bfloat16 operations a second that products reach on an H100
SHARES = (0.3, 0.2)  # of PEAK that a run may use: measured were 25 to 27% on text, 20% on molecules
# Seconds of the host for a micro-batch: 1,310 kernels (counted by estimate.py for text, base), each
# of some 7 microseconds.
LAUNCHES = 1310 * 7e-6
GPUS = (1, 8)
TYPICAL_MOLECULE = 46  # tokens
CORPORA = {  # name: tokens of the longest sequence and of the vocabulary
    "corpus/text-512": (512, 50265),
    "corpus/text-128": (128, 50265),
    "corpus/text-32": (32, 512),
    "corpus/text": (128, 16384),
    "corpus/molecules": (512, 369),
    "corpus/proteins": (512, 33),
    "demo-output/corpus": (512, 369),
}
# the longest sequence of a recipe that wants a corpus with shorter ones
SHORTER = {"molecules/analysis-small": 128}
RUNS = {
    "molecules, MLM (the paper's SMILES-BERT)": "molecules/paper-smiles-bert",
    "molecules, ExLM (k = 2)": "molecules/paper-exlm",
    "text, base, MLM (RoBERTa)": "text/paper-base-roberta",
    "text, base, ExLM (k = 4)": "text/paper-base-exlm",
    "text, large, MLM (RoBERTa)": "text/paper-large-roberta",
    "text, large, ExLM (k = 4)": "text/paper-large-exlm",
}


class Model(NamedTuple):
    """A pre-training of a recipe; of an analysis, one of many."""

    name: str
    data: DataConfig
    model: ArchitectureConfig
    longest: int  # tokens of a sequence
    vocabulary: int


def for_a_gpu(recipe: str) -> bool:
    """Whether a recipe is meant for one GPU with 80 GB; all others are for a laptop."""
    return re.search("paper|release", recipe) is not None


def models_of(recipe: str) -> list[Model]:
    """What a recipe pre-trains: one model, or those of all its experiments."""
    path = RECIPES / f"{recipe}.yaml"
    options = yaml.safe_load(path.read_text())
    longest, vocabulary = CORPORA[options["data"]["corpus"]]
    longest = SHORTER.get(recipe, longest)
    if "space" not in options:
        options = settings("pretrain", ["--config", str(path)])
        return [Model("", options["data"], options["model"], longest, vocabulary)]
    options = settings("analyze", ["sweep", "--config", str(path)])
    study = Study("", **{name: options[name] for name in ("data", "model", "train", "space")})
    models: dict[str, Model] = {}
    for experiment in get_args(Experiment):
        for name, run in study.models(experiment).items():
            models[name] = Model(name, run["data"], run["model"], longest, vocabulary)
    return list(models.values())


def recipes() -> list[str]:
    """The names of all recipes that pre-train something, those for a GPU first."""
    paths = [
        path for path in RECIPES.glob("*/*.yaml") if "data" in yaml.safe_load(path.read_text())
    ]
    names = [path.relative_to(RECIPES).with_suffix("").as_posix() for path in paths]
    return sorted(names, key=lambda name: (not for_a_gpu(name), name))


def memory_of_recipe(recipe: str) -> tuple[Model, Memory]:
    """The model of a recipe that needs most memory, and its memory: on a GPU in bfloat16, or on the
    CPU of a laptop in bfloat16 or float32, whichever needs more."""
    machine, elements = (GPU, (2,)) if for_a_gpu(recipe) else (CPU, (2, 4))
    needs = [
        (model, memory_of(*model[1:], machine=machine, element=element))
        for model in models_of(recipe)
        for element in elements
    ]
    return max(needs, key=lambda need: need[1].peak)


def rows() -> list[str]:
    """The table of docs/howto/paper-scale.md."""
    columns = ["run", "1 GPU", "8 GPUs", "memory of a GPU, GB", "a checkpoint, GB"]
    lines = [columns, ["---"] * len(columns)]
    for name, recipe in RUNS.items():
        (run,) = models_of(recipe)
        _, memory = memory_of_recipe(recipe)
        # weights and two moments
        checkpoint = 3 * FLOAT32 * parameters(run.model, run.vocabulary)
        sizes = [f"{size / 1e9:.1f}" for size in (memory.peak, checkpoint)]
        lines.append([name, *times(recipe, run), *sizes])
    return [f"| {' | '.join(line)} |" for line in lines]


def times(recipe: str, run: Model) -> list[str]:
    """How long a run takes on each number of GPUs."""
    length = TYPICAL_MOLECULE if recipe.startswith("molecules") else run.longest
    objective: Objective = "exlm" if run.model.expands else "mlm"
    steps = settings("pretrain", ["--config", str(RECIPES / f"{recipe}.yaml")])["train"].steps
    shape = shape_of(run.data, run.model, length, run.vocabulary, tokens=run.data.tokens_per_batch)
    step = step_flops(shape, objective) / PEAK
    micro_batches = run.data.tokens_per_batch / run.data.tokens_per_micro_batch
    ranges = []
    for gpus in GPUS:
        # At least one micro-batch is launched on every GPU.
        launching = max(micro_batches / gpus, 1) * LAUNCHES
        ends = [steps * max(step / share / gpus, launching) / 3600 for share in SHARES]
        ranges.append(_range(*map(_time, ends)))
    return ranges


def _range(shortest: str, longest: str) -> str:
    """As in "2 to 3 h", or one time if both are the same."""
    if shortest == longest:
        return longest
    number, unit = shortest.split()
    return f"{number if unit == longest.split()[1] else shortest} to {longest}"


def _time(hours: float) -> str:
    if hours < 1:
        return f"{60 * hours:.0f} min"
    return f"{hours:.0f} h" if hours < 100 else f"{hours / 24:.0f} days"


if __name__ == "__main__":
    print("\n".join(rows()))
