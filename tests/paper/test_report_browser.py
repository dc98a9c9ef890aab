"""The report in a browser: names that look like code are shown, and do nothing."""

import re
import shutil
import subprocess

import pytest

from exlm.paper.report import report
from tests.paper.fake_runs import finetuning, pretraining, write

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SCRIPT = "<script>document.title = 'ran'</script>"
IMAGE = '"><img src=x onerror="document.body.id = \'loaded\'">'


def elements(page, profile):
    """The page's elements as HTML, after the browser has run what it would run."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--dump-dom",
    ]
    return subprocess.run(
        [*command, page.as_uri()], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def harm(dom):
    return "<title>ran</title>" in dom, 'id="loaded"' in dom


def test_the_browser_runs_what_is_not_escaped(tmp_path):
    (tmp_path / "page.html").write_text(
        f'<!doctype html><title>safe</title>{SCRIPT}<a title="{IMAGE}">x</a>'
    )
    assert harm(elements(tmp_path / "page.html", tmp_path / "profile")) == (True, True)


def test_hostile_names_in_a_report_stay_text(tmp_path):
    runs, machine = tmp_path / "runs", {"device": SCRIPT}
    for seed in (0, 1):
        run = pretraining(runs, f"{seed} {IMAGE}", seed=seed, corpus=SCRIPT, machine=machine)
        finetuning(runs, f"tuned {seed}", run, IMAGE, [0.5, 0.6])
    write(runs / "bad" / "result.json", [SCRIPT])
    report([str(runs)], str(tmp_path / "out"))
    dom = elements(tmp_path / "out/index.html", tmp_path / "profile")
    assert (
        harm(dom) == (False, False)
        and "<script" not in dom
        and not re.search(r"<img[^>]*onerror", dom)
    )
    for code in (SCRIPT, IMAGE):
        assert code.replace("<", "&lt;").replace(">", "&gt;") in dom.replace("&quot;", '"')
