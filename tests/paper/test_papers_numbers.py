"""The paper's numbers in the report are those of its source."""

import os
import re
from pathlib import Path

import pytest

from exlm.paper import display as paper
from exlm.paper.display import Variant


@pytest.fixture(scope="module")
def source():
    """The paper's LaTeX source, or a skip."""
    base = Path(os.environ.get("EXLM_DATA", Path(__file__).parents[3] / "shared" / "data"))
    path = base.parent / "reference" / "exlm_paper.tex"
    if not path.is_file():
        pytest.skip(
            f"the paper's source is not at {path}; set EXLM_DATA to the data folder beside it"
        )
    return path.read_text()


def table_of(source, label):
    """(first cells, numbers) of every row of a table; a dash or nothing is None."""
    position = source.index(f"\\label{{{label}}}")
    start = source.rindex(r"\begin{table", 0, position)
    body = source[start : source.index(r"\end{table", position)].split(r"\midrule", 1)[1]
    rows = []
    for line in re.sub(r"\\(midrule|bottomrule|rowcolor\{\w+\})", "", body).split(r"\\"):
        cells = [
            re.sub(r"\\(textbf|underline|mathrm|rm)\b|[{}$*^_]", "", cell).strip()
            for cell in line.split("&")
        ]
        numbers = [
            float(c) if re.fullmatch(r"[\d.]+", c) else None
            for cell in cells[1:]
            for c in cell.split("/")
        ]
        if len(cells) > 4 and any(numbers):
            rows.append((line, numbers))
    return rows


def same(numbers, values):
    assert len(numbers) == len(values) and all(a == b for a, b in zip(numbers, values, strict=True))


def test_the_papers_main_tables_are_the_sources(source):
    def printed(name):
        main = paper.MAIN_TABLES[name]
        return [*main.quoted.values(), *main.paper.values()]

    rows = table_of(source, "table::classification")
    for (_, numbers), values in zip(rows, printed("main-molecules"), strict=True):
        same(numbers, values)
    rows = table_of(source, "tab:main_res")
    for (_, numbers), values in zip(rows, printed("main-text"), strict=True):
        padded = numbers if len(numbers) == 12 else [numbers[0], None, *numbers[1:]]
        same(padded, values)


def test_the_papers_ablations_and_states_are_the_sources(source):
    names = {"w/o 2D RoPE": "exlm-1d", "w/o Transitions": "ctc"}
    names |= {"Sparse": "exlm-sparse", "MLM++": "mlm-plus-plus", "MLM ": "mlm"}
    seen = set()
    for label in ("table::ablations", "table::ablations_sparse"):
        for line, numbers in table_of(source, label):
            name = next((full for part, full in names.items() if part in line), "exlm")
            seen.add(name)
            same(numbers, paper.PAPER_ABLATIONS[name][:5])
    assert seen == set(paper.PAPER_ABLATIONS)
    rows, p = {}, None
    for line, numbers in table_of(source, "table::impact_ratio"):
        if found := re.search(r"(\d+\.?\d*)\\%", line):
            p = round(float(found[1]) / 100, 4)
        k = re.search(r"k=\$?(\d)", line)
        rows[p, int(k[1]) if k else 1] = numbers[-5:]
    variants = {Variant("exlm" if k > 1 else "mlm", k, p): row for (p, k), row in rows.items()}
    assert variants == paper.PAPER_SWEEP


def test_the_papers_stated_numbers_are_in_its_text(source):
    assert "from $83.6$ to $82.8$" in source and "from $82.8$ to $79.6$" in source
    mnli = {
        (variant.p, variant.r): row[0]
        for variant, row in paper.PAPER_SCORES.items()
        if variant.k == 1
    }
    assert mnli == {(0.15, 1): 83.6, (0.789, 8): 82.8, (0.789, 1): 79.6, (0.387, 1): 83.3}
    assert "GPU Time (Hours)  & 54.7 & 104.2" in source and "approximately 1.9 times" in source
    hours = [paper.PAPER_ABLATIONS[method][5] for method in ("mlm", "exlm")]
    assert hours == [54.7, 104.2] and paper.PAPER_COST["times MLM"] == 1.9
