"""What `pip install` gives: the package is built, installed and used outside the repository."""

import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from zipfile import ZipFile

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


def make_wheel(sources, folder, **variables):
    """The wheel that is built of the sources, and the alignment in C that it has."""
    shutil.rmtree(sources / "build", ignore_errors=True)
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder)
    run(*build, sources, cwd=folder, **variables)
    [wheel] = folder.glob("*.whl")
    files = ZipFile(wheel).namelist()
    assert "exlm/ops/alignment.py" in files
    return wheel, [file for file in files if fnmatch(file, "exlm/ops/_alignment.*.so")]


def test_a_package_is_built_without_a_compiler(sources, tmp_path):
    assert make_wheel(sources, tmp_path, CC="false")[1] == []


def test_an_installed_package_fills_with_its_own_model(sources, tmp_path):
    wheel, [_] = make_wheel(sources, tmp_path)
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    where = (sys.executable, "-c", "import exlm_command; print(exlm_command.__file__)")
    assert str(site) in run(*where, cwd=tmp_path, PYTHONPATH=str(site))
    command = (sys.executable, "-m", "exlm")
    assert exlm.__version__ in run(*command, "--version", cwd=tmp_path, PYTHONPATH=str(site))
    acid = "CC(=O)Oc1ccccc1[MASK](=O)O"
    fillings = run(*command, "fill", "molecules-5M", acid, cwd=tmp_path, PYTHONPATH=str(site))
    assert "CC(=O)Oc1ccccc1C(=O)O" in fillings
