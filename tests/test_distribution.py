"""What `pip install` gives: the package is built, installed and used outside the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import exlm

ROOT = Path(__file__).parents[1]


def run(*arguments, cwd, **variables):
    done = subprocess.run(
        list(map(str, arguments)),
        cwd=cwd,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sources")
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder)
    run(*build, ROOT, cwd=folder)
    [archive] = folder.glob("*.tar.gz")
    run("tar", "xzf", archive, cwd=folder)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.mark.parametrize("compiler", [None, "false"])
def test_an_installed_package_fills_with_its_own_model(sources, compiler, tmp_path):
    without_compiler = {"CC": compiler} if compiler else {}
    shutil.rmtree(sources / "build", ignore_errors=True)
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path)
    run(*build, sources, cwd=tmp_path, **without_compiler)
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    in_c = list((site / "exlm" / "ops").glob("_alignment.*.so"))
    assert bool(in_c) == (compiler is None)
    where = (sys.executable, "-c", "import exlm_command; print(exlm_command.__file__)")
    assert str(site) in run(*where, cwd=tmp_path, PYTHONPATH=str(site))
    command = (sys.executable, "-m", "exlm")
    assert exlm.__version__ in run(*command, "--version", cwd=tmp_path, PYTHONPATH=str(site))
    if compiler is None:  # what fills is the same without the compiled alignment
        acid = "CC(=O)Oc1ccccc1[MASK](=O)O"
        fillings = run(*command, "fill", "molecules-5M", acid, cwd=tmp_path, PYTHONPATH=str(site))
        assert "CC(=O)Oc1ccccc1C(=O)O" in fillings
