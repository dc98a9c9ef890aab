"""The report as files that others can read: tables, page, figures, and what is missing."""

import json
import math
import re
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path
from statistics import stdev

import pytest

from exlm import ExLMConfig
from exlm.errors import InputError
from exlm.model.evaluation import sum_names, summary
from exlm.paper.display import CURVES, HELD_OUT
from exlm.paper.figures import repeated_figures, sweep_curves
from exlm.paper.find_runs import find_runs
from exlm.paper.page import TEMPLATES, Section, Table, write_report
from exlm.paper.report import report
from exlm_command import main
from tests.paper.fake_runs import editing, efficiency, finetuning, pretraining, write
from tests.paper.reports import only_group, read_csv, report_table


def test_joint_nll_in_several_passes_stands_beside_that_in_one(tmp_path):
    pretraining(tmp_path, "exlm", joint=2.0, passes={"1": 2.0, "2": 1.9, "all": 1.7})
    pretraining(
        tmp_path,
        "mlm",
        objective="mlm",
        steps=190,
        joint=2.2,
        passes={"1": 2.2, "2": 1.8, "4": 1.6, "all": 1.5},
    )
    rows = report_table(tmp_path, "worth")
    scores = {row["score"]: (float(row["ExLM"]), float(row["Vanilla MLM++"])) for row in rows}
    in_passes = {"Joint nll in 2 passes": (1.9, 1.8), "Joint nll, one mask per pass": (1.7, 1.5)}
    assert scores == {"Joint nll": (2.0, 2.2), **in_passes}  # ExLM was not measured in 4


def test_seeds_and_runs_are_those_that_have_the_numbers(tmp_path):
    """One of three runs was not scored in two passes, and has no task."""
    for seed in range(3):
        passes = {"2": 1.9} if seed else None
        exlm = pretraining(tmp_path, f"exlm-{seed}", seed=seed, joint=2.0, passes=passes)
        mlm = pretraining(
            *(tmp_path, f"mlm-{seed}"),
            **dict(seed=seed, objective="mlm", steps=190, joint=2.2, passes={"2": 1.8}),
        )
        for run in (exlm, mlm) if seed else (mlm,):
            finetuning(tmp_path, f"{run.name}-rte", run, "rte", [0.6, 0.7])
    rows = {row["score"]: row for row in report_table(tmp_path, "worth")}
    seeds = {score: row["seeds"] for score, row in rows.items()}
    assert seeds == {
        **{"Joint nll": "3 × 0; 3 × 0", "Joint nll in 2 passes": "2 × 0; 3 × 0"},
        "RTE": "2 × 2; 3 × 2",
    }
    counts = [len(rows[score]["runs"].split()) for score in rows]
    assert counts == [6, 5, 5]
    tables = tmp_path / "out" / "tables"
    ablations = {row["model"]: row["seeds"] for row in read_csv(tables / "ablations.csv")}
    assert ablations["ExLM"] == "3 × 2; RTE: 2 × 2"
    assert ablations["Vanilla MLM++"] == "3 × 2"
    claims = {row["claim"]: row["seeds"] for row in read_csv(tables / "claims.csv")}
    assert claims["ExLM scores higher than an MLM with more updates (MLM++)"] == "2 × 2; 3 × 2"


def test_nll_by_the_number_of_masks_stands_in_a_table_of_its_own(tmp_path):
    for seed, one in ((0, 0.5), (1, 0.7)):
        pretraining(tmp_path, f"exlm-{seed}", seed=seed, by_masks={"1": one, "4": 0.4})
    pretraining(tmp_path, "mlm", objective="mlm", by_masks={"1": 0.3, "4": 0.45})
    rows = {row["model"]: row for row in report_table(tmp_path, "masks")}
    assert {model: float(row["nll at 1 mask"]) for model, row in rows.items()} == {
        "ExLM, k = 4, p = 15%": pytest.approx(0.6), "Vanilla MLM, p = 15%": 0.3,
    }  # fmt: skip
    assert not rows["Vanilla MLM, p = 15%"]["nll at 16 masks"]  # not measured


@pytest.mark.parametrize(
    "other,ending",
    [
        (dict(by_masks={"1": 0.3, "8": 0.4}, count=500), "500 sequences of at least 12 tokens"),
        (dict(by_masks={"1": 0.3, "4": 0.4}, count=92), "92 sequences of at least 6 tokens"),
        (dict(by_masks={"1": 0.3, "8": 0.4}, count=500, r=4), "500 sequences of at least 3 tokens"),
        (dict(by_masks={"1": 0.3, "4": 0.4}, count=None), "not recorded"),
    ],
)
def test_nll_by_masks_of_other_sequences_stands_under_a_heading_of_its_own(tmp_path, other, ending):
    kinds = {"exlm": dict(by_masks={"1": 0.5, "4": 0.4}, count=500), "mlm": other}
    for objective, kind in kinds.items():
        count = kind.pop("count")
        path = pretraining(tmp_path, objective, objective=objective, **kind)
        with editing(path / "result.json") as result:
            if count:
                result["evaluation"]["by_masks_sequences"] = count
    headings = [row["group"].split(" · ")[-1] for row in report_table(tmp_path, "masks")]
    assert sorted(headings) == sorted(["500 sequences of at least 6 tokens", ending])


def test_headings_say_what_a_reader_of_scores_must_know(tmp_path):
    for objective in ("exlm", "mlm"):
        path = pretraining(tmp_path, objective, objective=objective, by_masks={"1": 0.5})
        with editing(path / "result.json") as result:
            result["identity"]["start"] = "0123456789abcdef"
            result["held_out_in_training"] = 3
    [heading] = {row["group"] for row in report_table(tmp_path, "masks")}
    assert "started from the model 01234567" in heading
    assert "3 held-out sequences were trained on" in heading


@pytest.mark.parametrize("share,is_told", [(0.15, True), ([0.02, 0.6], False)])
def test_no_command_is_told_that_could_not_make_what_is_missing(tmp_path, share, is_told):
    for method in ({}, {"dag": "sparse"}, {"objective": "mlm"}):
        pretraining(tmp_path, str(method), p=share, **method)
    report([str(tmp_path)], str(tmp_path / "out"))
    page = (tmp_path / "out/report.md").read_text().split("## Not run")[0]
    assert ("exlm analyze ablations RECIPE --model.num_states" in page) == is_told


def test_directories_are_printed_as_they_were_given(tmp_path, monkeypatch):
    model = pretraining(tmp_path, "runs/exlm")
    pretraining(tmp_path, "runs/mlm", objective="mlm")
    finetuning(tmp_path, "runs/rte", model, "rte", [0.6, 0.7])
    finetuning(tmp_path, "runs/cola", tmp_path / "gone", "cola", [0.6, 0.7])
    efficiency(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    report(["runs"], "out")
    assert "runs/exlm" in Path("out/report.md").read_text()
    for path in (
        path for path in Path("out").rglob("*") if path.suffix in (".md", ".html", ".csv", ".tex")
    ):
        assert str(tmp_path) not in path.read_text(), path


def test_a_family_with_every_task_needs_no_command(tmp_path):
    model = pretraining(tmp_path, "m")
    for task in ("mnli", "qqp", "qnli", "sst-2", "cola", "rte", "mrpc", "sts-b", "squad2"):
        finetuning(tmp_path, task, model, task, [0.6], "f1" if task == "squad2" else "accuracy")
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "exlm finetune" not in (tmp_path / "out/report.md").read_text().split("## Not run")[0]


def test_the_csv_has_the_same_numbers_and_marks_the_papers(grid):
    rows = read_csv(grid / "out" / "tables" / "repeated-mlm.csv")
    assert len(rows) == 14
    first = next(row for row in rows if row["r"] == "1" and row["p, %"] == "15.0")
    values = [0.597 + 0.004 * seed + 0.003 * i for seed in (0, 1) for i in range(3)]
    assert float(first["RTE"]) == pytest.approx(100 * sum(values) / 6)
    assert float(first["RTE s.d."]) == pytest.approx(100 * stdev(values))
    assert (
        first["paper: MNLI"] == "83.6"
        and len(first["runs"].split()) == 2
        and first["seeds"] == "2 × 3"
    )
    main_table = read_csv(grid / "out" / "tables" / "main-text.csv")
    sources = {row["model"]: row["source"] for row in main_table}
    assert (
        sources["BERT"] == "quoted"
        and sources["RoBERTa*"] == "paper"
        and sources["Vanilla MLM"] == "ours"
    )
    ablations = {row["model"]: row for row in read_csv(grid / "out" / "tables" / "ablations.csv")}
    assert float(ablations["Vanilla MLM++"]["avg."]) == pytest.approx(72.0, abs=0.01)
    assert ablations["ExLM w/ Sparse DAG"]["paper: MNLI"] == "84.4"
    assert (
        ablations["ExLM"]["paper: avg."] == "81.4"
        and ablations["ExLM"]["paper: GPU hours"] == "104.2"
    )
    assert ablations["ExLM"]["Hours"] == "2.0" and ablations["ExLM"]["updates"] == "100"


def test_every_run_that_a_table_points_to_is_listed(grid):
    listed = {row["run"] for row in read_csv(grid / "out" / "tables" / "runs.csv")}
    for path in (grid / "out" / "tables").glob("*.csv"):
        for row in read_csv(path):
            assert set((row.get("runs") or "").split()) <= listed
    page = (grid / "out" / "index.html").read_text()
    assert set(re.findall(r'href="#(run-\w+)"', page)) <= set(re.findall(r'id="(run-\w+)"', page))


def test_markdown_and_html_set_quoted_rows_apart(grid):
    text = (grid / "out" / "report.md").read_text()
    assert "| *BERT* |  | *84.5* | – |" in text and "quoted from the paper: other systems" in text
    page = (grid / "out" / "index.html").read_text()
    assert re.search(r'<tr class="quoted"><td>BERT</td><td></td><td class="number">84.5</td>', page)


def test_missing_cells_name_their_commands(tmp_path):
    model = pretraining(tmp_path, "runs/exlm")
    pretraining(tmp_path, "runs/mlm", objective="mlm")
    pretraining(tmp_path, "runs/mlm-2", objective="mlm", p=0.387, r=2)
    finetuning(tmp_path, "runs/rte", model, "rte", [0.6, 0.7])
    report([str(tmp_path / "runs")], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    assert re.search("parameters.*: mnli, qqp, qnli, sst-2, cola, rte, mrpc, sts-b, squad2\n", text)
    command = "exlm finetune recipes/text/glue-small.yaml --model RUN --task.dataset TASK"
    assert text.count(f"{command} --output RUN-finetuned/TASK") == 1
    assert "exlm analyze repeated-mlm RECIPE" in text
    assert (
        re.search("p = 78.9%, r = 4; Vanilla MLM, p = 78.9%, r = 8", text)
        and "p = 15%, r = 8" not in text
    )
    not_run = text[text.index("## Not run") :]
    assert (
        "States k" in not_run
        and "exlm analyze sweep" in not_run
        and "Molecules: main results" in not_run
    )
    assert "Repeated MLM" not in not_run


def test_the_commands_for_missing_models_make_these(tmp_path):
    for name, change in {"k2": {}, "k3": {"num_states": 3}, "1d": {"rotary": "1d"}}.items():
        pretraining(tmp_path, name, **{"num_states": 2, **change})
    pretraining(tmp_path, "repeated", objective="mlm", p=0.387, r=2)
    report([str(tmp_path)], str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.md").read_text()
    assert "exlm analyze ablations RECIPE --model.num_states 2 --data.mask_ratio 0.15\n" in page
    sweep = "--space.states '[2, 4, 8]' --space.sweep_mask_ratios '[0.15, 0.387]'"
    assert f"exlm analyze sweep RECIPE {sweep}\n" in page
    assert "exlm analyze repeated-mlm RECIPE --space.cells '[[0.15, 1], [0.15, 2]," in page


def test_runs_of_a_study_are_continued_by_its_own_recipe(tmp_path):
    for name in ("pretrain/exlm/seed-0", "pretrain/mlm/seed-0"):
        pretraining(tmp_path / "my study", name, objective=name.split("/")[1])
    pretraining(tmp_path / "my study", "pretrain/mlm-r2/seed-0", p=0.387, r=2, objective="mlm")
    write(tmp_path / "my study" / "recipe.yaml", {})
    report([str(tmp_path)], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    for experiment in ("repeated-mlm", "ablations", "sweep", "efficiency"):
        assert f"exlm analyze {experiment} '{tmp_path}/my study/recipe.yaml'" in text
    assert "RECIPE\n" not in text


def test_latex_rows_are_balanced_and_characters_escaped(grid):
    for path in (grid / "out" / "tables").glob("*.tex"):
        body = path.read_text().split(r"\toprule")[1].split(r"\bottomrule")[0]
        rows = [row for row in body.split(r"\\") if row.strip() and r"\multicolumn" not in row]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1, path.name
        assert not re.search(r"(?<!\\)[%#_]", body) and body.isascii()
    assert TEMPLATES.filters["latex"]("a_b & 5% ± ^") == r"a\_b \& 5\% $\pm$ \textasciicircum{}"


def test_tables_survive_strange_words(tmp_path):
    words = {"group": "a & b", "source": "ours", "a|b": 'x,"|<b>'}
    rows = [words | {"paper: c": 1 / 3, "paper: c s.d.": 0.1}]
    table = Table("t", "T & t", "50% of_it", ["a|b", "paper: c"], rows)
    write_report(tmp_path, "<title>", ["one_two"], [Section("S", "about", blocks=[table])])
    (line,) = read_csv(tmp_path / "tables" / "t.csv")
    assert line["paper: c"] == repr(1 / 3) and line["a|b"] == 'x,"|<b>' and line["group"] == "a & b"
    latex = (tmp_path / "tables" / "t.tex").read_text()
    assert r"\caption{T \& t. 50\% of\_it}" in latex and r"\textit{0.3 $\pm$ 0.1} \\" in latex
    assert r"\multicolumn{2}{l}{\textbf{a \& b}} \\" in latex and r"\begin{tabular}{lr}" in latex
    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "index.html").read_text()
    assert r'| x,"\|\<b\> | *0.3 ± 0.1* |' in text and "one\\_two" in text
    assert "x,&#34;|&lt;b&gt;" in page and "<h1>&lt;title&gt;</h1>" in page


def test_the_report_reads_what_an_evaluation_writes():
    """The names of scores stand in two places: where they are found, and in display.yaml."""
    sums = dict.fromkeys(sum_names(ExLMConfig()), 0.0)
    written = {*summary(sums), "nll_by_masks", "joint_nll_in_passes"}
    places = [place.split("/") for place in HELD_OUT]
    assert {key for file, key, *_ in places if file == "evaluation"} <= written
    # the loss of updates, which every run logs, is the only curve beside them
    assert set(CURVES) - {"loss"} <= written


class Page(HTMLParser):
    """Open tags, references and ids of a page."""

    def __init__(self):
        super().__init__()
        self.open, self.references, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.references += [
            value for name, value in attributes if name in ("src", "href", "xlink:href")
        ]

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(grid):
    text = (grid / "out" / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open and all(
        r.startswith(("#", "data:image/svg+xml;base64,")) for r in page.references
    )
    assert len(page.ids) == len(set(page.ids)) and {
        r[1:] for r in page.references if r[0] == "#"
    } <= set(page.ids)
    assert "@import" not in text and "<script" not in text and not re.search(r"url\((?!#)", text)
    assert "color-scheme: light dark" in text


def test_figures_are_svg_and_png(grid):
    names = {path.name for path in (grid / "out" / "figures").iterdir()}
    expected = {"cost-curves", "repeated-mlm", "repeated-curves", "entropy", "sweep-curves"}
    assert names == {f"{name}.{kind}" for name in expected for kind in ("svg", "png")}
    for path in (grid / "out" / "figures").iterdir():
        if path.suffix == ".svg":
            xml.etree.ElementTree.parse(path)


def test_the_same_runs_give_the_same_bytes(grid, tmp_path):
    report([str(grid / "runs")], str(tmp_path / "out"))
    files = sorted(
        p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file()
    )
    assert files == sorted(
        p.relative_to(grid / "out") for p in (grid / "out").rglob("*") if p.is_file()
    )
    for file in files:
        assert (tmp_path / "out" / file).read_bytes() == (grid / "out" / file).read_bytes(), file


def test_a_loss_is_drawn_under_its_earlier_name_too(tmp_path):
    """A run that was begun by an earlier version and resumed has both names in its log."""

    def curves():
        _, figure = repeated_figures(only_group(tmp_path))
        assert figure.name == "repeated-curves"
        return figure.svg

    for r in (1, 2):
        pretraining(tmp_path, f"r{r}", 0.15, r, objective="mlm")
    before = curves()
    for log in tmp_path.rglob("log.jsonl"):
        lines = log.read_text().splitlines()
        resumed = [line.replace('"loss"', '"mlm_loss"') for line in lines[8:]]
        log.write_text("\n".join(lines[:8] + resumed))
    assert b"training loss" in before and curves() == before


def test_curves_are_of_the_updates_that_all_seeds_logged_and_of_the_scored_sequences(tmp_path):
    def curves():
        [figure] = sweep_curves(only_group(tmp_path))
        return figure.svg

    def rewrite(name, change):
        log = tmp_path / name / "log.jsonl"
        records = change([json.loads(line) for line in log.read_text().splitlines()])
        log.write_text("".join(json.dumps(record) + "\n" for record in records))

    def drop(records):
        return [record for record in records if record["step"] % 20 or record["kind"] == "train"]

    def add_others(records):
        """Evaluations of other sequences, and one before the model was scored anew."""
        numbered = [record | {"sequences": 123} for record in records if record["kind"] == "eval"]
        others = [record | {"sequences": 7, "accuracy": 0.9} for record in numbered]
        before = {**records[-1], "accuracy": 0.8}
        return [*others, *records[:-1], before, numbered[-1]]

    for name, seed, accuracy in (("exlm-0", 0, 0.2), ("exlm-1", 1, 0.6), ("mlm", 0, 0.4)):
        objective = name.split("-")[0]
        path = pretraining(tmp_path, name, seed=seed, accuracy=accuracy, objective=objective)
        with editing(path / "result.json") as result:
            result["evaluation"]["sequences"] = 123
    every_update = curves()
    rewrite("exlm-1", drop)
    with_gaps = curves()
    rewrite("exlm-0", drop)
    assert curves() == with_gaps != every_update
    for name in ("exlm-0", "mlm"):
        rewrite(name, add_others)
    assert curves() == with_gaps


def test_an_entropy_of_no_token_is_blank_and_costs_nothing_else(tmp_path):
    run_dir = pretraining(tmp_path, "a", 0.387, 4, objective="mlm", entropy=4.0)
    pretraining(tmp_path, "b", 0.387, 2, objective="mlm", entropy=4.0)
    with editing(run_dir / "measurements.json") as content:
        content["entropy"] |= {"mean": None, "std": None, "stderr": None, "tokens": 0}
    assert not find_runs([str(tmp_path)]).left_out
    report([str(tmp_path)], str(tmp_path / "out"))
    table = read_csv(tmp_path / "out/tables/repeated-mlm.csv")
    rows = {r["r"]: r for r in table if r["p, %"] == "38.7"}
    assert rows["4"]["Entropy, bits"] == "" and rows["4"]["Tokens of entropy"] == "0.0"
    assert float(rows["4"]["Corrupted, %"]) == pytest.approx(100 * 0.387**4, rel=0.2)
    assert rows["2"]["Entropy, bits s.d."] == "0.03" and rows["2"]["Tokens of entropy"] == "2500.0"


def test_damaged_files_are_counted_and_named(tmp_path, capsys):
    good = pretraining(tmp_path, "good", entropy=3.0)
    pretraining(tmp_path, "cut").joinpath("result.json").write_text('{"identity": {')
    write(tmp_path / "odd" / "result.json", {"identity": {}})
    write(tmp_path / "list" / "results.json", [1])
    write(good / "measurements.json", {"entropy": {"mean": "high"}})
    pretraining(tmp_path, "endless", joint=math.inf, seed=1)
    report([str(tmp_path)], str(tmp_path / "out"))
    assert "Left out: 5. Of these, damaged: 5." in capsys.readouterr().out
    rows = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    assert {row["file"].split("/")[-2] for row in rows} == {"cut", "odd", "list", "good", "endless"}
    assert [row["directory"] for row in read_csv(tmp_path / "out" / "tables" / "runs.csv")] == [
        str(good)
    ]


def test_a_run_of_an_unknown_objective_is_not_called_damaged(tmp_path, capsys):
    pretraining(tmp_path, "exlm")
    pretraining(tmp_path, "own", objective="electra")
    report([str(tmp_path)], str(tmp_path / "out"))
    printed = capsys.readouterr().out
    assert "Left out: 1." in printed and "damaged" not in printed
    (row,) = read_csv(tmp_path / "out" / "tables" / "left-out.csv")
    assert row["why"] == "a setting is unknown" and "objective is 'electra'" in row["what"]


def test_measured_cost_alone_is_a_report(tmp_path):
    efficiency(tmp_path / "cost")
    rows = report_table(tmp_path, "cost")
    assert [row["model"] for row in rows] == [
        "ExLM, k = 4",
        "Vanilla MLM",
        "ExLM, k = 4, expanded layers: all",
    ]
    assert [row["times MLM"] for row in rows] == ["1.9", "1.0", "1.6"] and rows[0][
        "source"
    ] == "paper"
    assert rows[2]["clock"] == "wall time" and rows[2]["quartiles"] == "1.55–1.66"


@pytest.mark.parametrize(
    "roots,message",
    [([], "at least one"), (["empty"], "no finished run"), (["no"], "is not a directory")],
)
def test_nothing_to_report_is_one_sentence(tmp_path, capsys, roots, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(
            ["report", *(str(tmp_path / root) for root in roots), "--output", str(tmp_path / "out")]
        )
    error = capsys.readouterr().err
    assert (
        caught.value.code == 2
        and message in error
        and "Traceback" not in error
        and not (tmp_path / "out").exists()
    )
    with pytest.raises(InputError):
        find_runs([str(tmp_path / "empty")])


def test_drawn_cases_are_shown(tmp_path):
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><g id="a"/></svg>'
    run_dirs = [pretraining(tmp_path / "runs", f"exlm {seed}", seed=seed) for seed in range(4)]
    ids = [run.id for run in only_group(tmp_path / "runs").runs]
    for run_dir in run_dirs[:2]:
        (run_dir / "case.svg").write_text(svg)
    out = tmp_path / "out"
    report([str(tmp_path / "runs")], str(out))
    assert {path.name for path in (out / "figures").iterdir()} == {
        f"case-{name}.svg" for name in ids[:2]
    }
    assert (out / "figures" / f"case-{ids[0]}.svg").read_text() == svg
    text, page = (out / "report.md").read_text(), (out / "index.html").read_text()
    assert f"](figures/case-{ids[0]}.svg)" in text and "ExLM, k = 4, p = 15%, seed 0" in text
    assert page.count('src="data:image/svg+xml;base64,') == 2 and 'id="a"' not in page


def test_a_file_is_no_place_for_a_report(tmp_path):
    pretraining(tmp_path / "runs", "exlm")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out is a file; give a directory"):
        report([str(tmp_path / "runs")], str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"


def test_data_that_are_not_the_published_are_named(tmp_path):
    model = pretraining(tmp_path, "m")
    finetuning(
        tmp_path,
        "t",
        model,
        "mrpc",
        [0.68, 0.69],
        departures=["valid has 1,725 rows, GLUE's has 408"],
    )
    report([str(tmp_path)], str(tmp_path / "out"))
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Not the published data: MRPC: valid has 1,725 rows, GLUE's has 408." in text
