"""The case study: states and transitions of a text, as `exlm analyze` or `exlm explore` has drawn them."""

from shlex import quote

from exlm.paper.report.cells import METHODS, Family
from exlm.paper.report.document import Drawing, Missing, Section

TEXT = "This is [MASK], and I'm very [MASK] to see this."
LARGEST = 200_000  # bytes of a drawing


def case_section(families: list[Family]) -> Section:
    """The drawings beside ExLM's pre-trainings, and the commands for those of text that have none."""
    about = "States of each mask and the transitions between them, of one text, by each ExLM that it was drawn for."
    section = Section("Case study", about, _command("RUN", "case.svg"))
    for family in families:
        lacking = []
        for cell in family.select(METHODS[2:]):
            for run in (run for run in family.cells[cell] if run.recipe["model"]["objective"] == "exlm"):
                path = run.path / "case.svg"
                if not path.is_file():
                    lacking.append(_command(quote(str(run.path)), quote(str(path))))
                elif path.stat().st_size <= LARGEST:
                    caption = f"{cell.label}, p = {100 * cell.p:.4g}%, seed {run.seed}, run {run.id} ({family.label})."
                    section.parts.append(Drawing(f"case-{run.id}", caption, path.read_bytes()))
        if lacking and not family.molecules:
            section.missing.append(Missing(family.label, "\n".join(lacking)))
    return section


def _command(model: str, output: str) -> str:
    return f'exlm explore {model} "{TEXT}" --output {output}'
