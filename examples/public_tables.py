"""Molecules and measured melting points from the files inside the package chemicals (MIT licence):
SMILES of PubChem, and Bradley's Open Notebook collection of melting points (CC0)."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from rdkit import Chem, rdBase

from exlm.errors import InputError


def molecules(count: int) -> list[str]:
    """So many different molecules of 15 to 80 characters, as canonical SMILES in random order."""
    table = _pubchem()
    one_part = ~table["smiles"].str.contains(".", regex=False)
    table = table[table["smiles"].str.len().between(15, 80) & one_part]
    return _canonical(table.sample(frac=1.0, random_state=0), count)["smiles"].tolist()


def melting_points(count: int) -> pd.DataFrame:
    """So many different molecules of at least 10 characters in random order: their canonical
    SMILES, and `melting_point`, measured, in degrees Celsius."""
    kelvin = pd.read_csv(_folder() / "Phase Change" / "OpenNotebook Melting Points.tsv", sep="\t")
    table = kelvin.merge(_pubchem(), on="CAS")
    table = table[table["smiles"].str.len() >= 10].sample(frac=1.0, random_state=0)
    table["melting_point"] = (table["Tm"] - 273.15).round(1)
    return _canonical(table, count)[["smiles", "melting_point"]]


@cache
def _pubchem() -> pd.DataFrame:
    """CAS number and SMILES of 71,000 compounds."""
    path = _folder() / "Identifiers" / "chemical identifiers pubchem large.tsv"
    fields = [line.split("\t", 5) for line in path.read_text(encoding="utf-8").splitlines()]
    return pd.DataFrame([(line[1], line[4]) for line in fields], columns=["CAS", "smiles"])


def _canonical(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """The first `count` rows with different molecules, with canonical SMILES."""
    rdBase.DisableLog("rdApp.*")
    table = table.head(2 * count)
    parsed = table["smiles"].map(Chem.MolFromSmiles)
    table = table[parsed.notna()].assign(smiles=parsed.dropna().map(Chem.MolToSmiles))
    return table.drop_duplicates("smiles").head(count).reset_index(drop=True)


def _folder() -> Path:
    spec = find_spec("chemicals")
    if spec is None or spec.origin is None:
        raise InputError(
            "the molecules of the examples come with the package chemicals; "
            "install it with: pip install 'exlm[demo]'"
        )
    return Path(spec.origin).parent
