"""The command: tables and figures of the paper from whatever runs there are, each beside the paper's numbers."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from exlm.errors import InputError
from exlm.paper.report.cases import case_section
from exlm.paper.report.cells import Family
from exlm.paper.report.comparisons import ablation_section, states_section
from exlm.paper.report.cost import cost_section
from exlm.paper.report.document import Drawing, Missing, Section, Table
from exlm.paper.report.entropy import entropy_section
from exlm.paper.report.families import families
from exlm.paper.report.figures import write_figure
from exlm.paper.report.findings import findings_section
from exlm.paper.report.main_tables import MOLECULES, TEXT, main_section
from exlm.paper.report.page import html_page, markdown_page
from exlm.paper.report.render import csv_table, latex
from exlm.paper.report.repeated import repeated_section
from exlm.paper.report.run_list import runs_section
from exlm.paper.report.runs import Runs, find_runs
from exlm.storage import replacing, write_text

HEAD = "The paper's experiments, from our runs"
LEAD = (
    "Numbers in italics are quoted from the paper (Zheng et al., ICML 2025); all others come from the runs listed at "
    "the end. Only runs that share corpus, size and training settings stand together; size and length differ from the "
    "paper's unless the heading says otherwise. A dash is a number that nobody has: not run, or not printed by the "
    "paper."
)


def report(runs: list[str], out: str = "report") -> None:
    """Writes report.md, index.html, tables (CSV, LaTeX) and figures (SVG, PNG) of all finished runs.

    Args:
        runs: directories, searched for outputs of pretrain, finetune and analyze at any depth.
        out: directory to write into.
    """
    if not runs:
        raise InputError("give at least one directory with runs before the options")
    if Path(out).is_file():
        raise InputError(f"{out} is a file; give a directory to write the report into")
    found = find_runs(runs)
    groups = families(found)
    sections = report_sections(found, groups)
    place = Path(out)
    for part in (part for section in sections for part in section.parts):
        if isinstance(part, Table):
            write_text(place / "tables" / f"{part.name}.csv", csv_table(part))
            write_text(place / "tables" / f"{part.name}.tex", latex(part))
        elif isinstance(part, Drawing):
            with replacing(place / "figures" / f"{part.name}.svg") as partial:
                partial.write_bytes(part.svg)
        else:
            write_figure(part, place / "figures")
    lead = [LEAD, summary(found, groups)]
    write_text(place / "report.md", markdown_page(HEAD, lead, sections))
    write_text(place / "index.html", html_page(HEAD, lead, sections))
    print(f"{lead[1]}\n{place / 'index.html'}")


def summary(runs: Runs, groups: list[Family]) -> str:
    """How much was found, and how much could not be used."""
    counts = {
        "Pre-trainings": f"{len(runs.pretrainings)}, in families: {len(groups)}",
        "Fine-tunings": len(runs.finetunings),
        "Measurements of cost": len(runs.efficiency),
        "Damaged files, left out": len(runs.damaged),
        "Fine-tunings of models that are not among the runs": len(runs.unlinked),
        "Fine-tunings with other settings than most of their task, left out": sum(len(f.left_out) for f in groups),
    }
    return " ".join(f"{words}: {count}." for words, count in counts.items() if count)


def report_sections(runs: Runs, groups: list[Family]) -> list[Section]:
    """The findings first, then the experiments with runs; those without at the end, as commands."""
    experiments = [
        repeated_section(groups),
        main_section(groups, TEXT),
        main_section(groups, MOLECULES),
        ablation_section(groups),
        states_section(groups),
        entropy_section(groups),
        case_section(groups),
        cost_section(groups, runs),
    ]
    text = "There is no run at all for these; each command makes what is missing."
    absent = [Missing(section.title, section.start) for section in experiments if not section.parts]
    not_run = Section("Not run", text, missing=absent)
    sections = [findings_section(groups, runs), *experiments, runs_section(runs, groups)]
    found = _numbered([section for section in sections if section.parts])
    return [*found, not_run] if absent else found


def _numbered(sections: list[Section]) -> list[Section]:
    """Makes the names of tables, and those of figures, unique: the second family's end in -2."""
    seen: Counter[tuple[type, str]] = Counter()
    for section in sections:
        for i, part in enumerate(section.parts):
            seen[type(part), part.name] += 1
            if (count := seen[type(part), part.name]) > 1:
                section.parts[i] = replace(part, name=f"{part.name}-{count}")
    return sections
