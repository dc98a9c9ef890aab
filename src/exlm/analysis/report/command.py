"""The command: tables and figures of the paper from whatever runs there are, each beside the paper's numbers."""

from pathlib import Path

from exlm.analysis.report.appendix import left_out, runs_table
from exlm.analysis.report.cells import Family, families
from exlm.analysis.report.document import Figure, Missing, Section, Table
from exlm.analysis.report.figures import write_figure
from exlm.analysis.report.findings import findings_section
from exlm.analysis.report.main_tables import main_section
from exlm.analysis.report.measures import cost_section, entropy_section
from exlm.analysis.report.page import html_page, markdown_page
from exlm.analysis.report.paper_values import MOLECULES, TEXT
from exlm.analysis.report.render import csv_table, latex
from exlm.analysis.report.repeated import TITLE, repeated_section
from exlm.analysis.report.runs import Runs, find_runs
from exlm.analysis.report.sections import ablation_section, sweep_section
from exlm.errors import InputError
from exlm.files import write_text

HEAD = "The paper's experiments, from our runs"
LEAD = (
    "Numbers in italics are quoted from the paper (Zheng et al., ICML 2025); all others come from the runs listed at "
    "the end. Only runs that share corpus, size and training settings stand together; size and length differ from the "
    "paper's unless the heading says otherwise. A dash is a number that nobody has: not run, or not "
    "printed by the paper."
)
PAPER_RECIPE = "recipes/text/analysis-paper.yaml"


def report(runs: list[str], out: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished runs.

    Args:
        runs: directories, searched for outputs of pretrain, finetune and analyze at any depth.
        out: directory to write into.
    """
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    found = find_runs(runs)
    groups = families(found)
    sections = report_sections(found, groups)
    place = Path(out)
    for part in (part for section in sections for part in section.parts):
        if isinstance(part, Table):
            write_text(place / "tables" / f"{part.name}.csv", csv_table(part))
            write_text(place / "tables" / f"{part.name}.tex", latex(part))
        elif isinstance(part, Figure):
            write_figure(part, place / "figures")
    lead = [LEAD, summary(found, groups)]
    write_text(place / "report.md", markdown_page(HEAD, lead, sections))
    write_text(place / "index.html", html_page(HEAD, lead, sections))
    print(f"{summary(found, groups)}\n{place / 'index.html'}")


def summary(runs: Runs, groups: list[Family]) -> str:
    """How much was found, and how much could not be used."""
    left_out = sum(len(family.left_out) for family in groups)
    words = (
        f"pre-trainings: {len(runs.pretrainings)}, in families: {len(groups)}; fine-tunings: {len(runs.finetunings)}"
    )
    words += f"; measurements of cost: {len(runs.efficiency)}."
    if runs.damaged:
        words += f" Damaged files, left out: {len(runs.damaged)}."
    if runs.unlinked:
        words += f" Fine-tunings of models that are not among the runs: {len(runs.unlinked)}."
    return words + (
        f" Fine-tunings with other settings than most of their task, left out: {left_out}." if left_out else ""
    )


def report_sections(runs: Runs, groups: list[Family]) -> list[Section]:
    """Those with runs, the findings first; those without at the end, as commands."""
    experiments = {
        TITLE: ("repeated-mlm", lambda commands: repeated_section(groups, commands)),
        "Ablations": ("ablations", lambda commands: ablation_section(groups, commands)),
        "States k and mask ratio p": ("sweep", lambda commands: sweep_section(groups, commands)),
        "Entropy of ExLM and MLM": ("entropy", lambda commands: entropy_section(groups, commands)),
        "Training cost": ("efficiency", lambda commands: cost_section(groups, runs, commands[""])),
    }
    made: list[tuple[str, Section | None, str]] = []
    for title, (name, build) in experiments.items():
        commands = {family.label: f"exlm analyze {name} {recipe_of(family)}" for family in groups}
        commands[""] = f"exlm analyze {name} {recipe_of(groups[0]) if groups else PAPER_RECIPE}"
        made.append((title, build(commands), commands[""]))
    made[1:1] = [_main(groups, False), _main(groups, True)]
    findings = findings_section(groups, runs)
    absent = [Missing(title, command) for title, section, command in made if section is None]
    sections = [findings] if findings.parts else []
    sections += [section for _, section, _ in made if section]
    sections.append(Section("Runs", "What every number comes from.", [runs_table(groups), *left_out(runs, groups)]))
    if absent:
        text = "There is no run at all for these; each command makes what is missing."
        sections.append(Section("Not run", text, [], absent))
    return sections


def _main(groups: list[Family], molecules: bool) -> tuple[str, Section | None, str]:
    kind = "molecules" if molecules else "text"
    recipe = "recipes/molecules/paper-exlm.yaml" if molecules else "recipes/text/paper-base-exlm.yaml"
    section = main_section(groups, molecules, MOLECULES if molecules else TEXT, {"exlm": f"exlm pretrain {recipe}"})
    trained = [f for f in groups if f.molecules == molecules and f.select(["ExLM"])]
    model = trained[0].cells[trained[0].select(["ExLM"])[0]][0].path if trained else None
    if model is None:
        return f"{kind.capitalize()}: main results", section, f"exlm pretrain {recipe}"
    task, tuning = ("bace", "molecules/finetune.yaml") if molecules else ("rte", "text/finetune.yaml")
    command = f"exlm finetune recipes/{tuning} --model {model} --task.dataset {task} --output {model}-{task}"
    return f"{kind.capitalize()}: main results", section, command


def recipe_of(family: Family) -> str:
    """The recipe of the experiments at a family's size."""
    if family.molecules:
        return "recipes/molecules/analysis-small.yaml"
    large = family.runs[0].recipe["model"]["hidden_size"] >= 768
    return PAPER_RECIPE if large else "recipes/text/analysis-small.yaml"
