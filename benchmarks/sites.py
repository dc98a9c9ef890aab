"""How many sites `exlm fill` fills in a second of processor time, and how many fillings are
molecules.

    python benchmarks/sites.py molecules.smi --sites 1000

Sites are made from a file of SMILES: the smaller side of a single bond outside rings, of 3 to 6
atoms, gives way to an attachment point, which may become 4 to 6 tokens. For each way of filling the
output has a line with sites a second (start included; 5 fillings for each number of tokens) and
the share of fillings that are molecules and still contain what was given.
"""

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from rdkit import Chem, rdBase

WAYS = {
    "best, 1 pass": ["--passes", "1"],
    "best, 4 passes": ["--passes", "4"],
    "drawn, 1 pass": ["--passes", "1", "--samples", "5"],
    "drawn, 4 passes": ["--passes", "4", "--samples", "5"],
}
SINGLE_BOND = Chem.MolFromSmarts("[!#1]-!@[!#1]")
ATOMS = range(3, 7)


def with_site(smiles: str) -> str | None:
    """The molecule with an attachment point in place of a small group; None if it has none."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or "." in smiles:
        return None
    for begin, end in molecule.GetSubstructMatches(SINGLE_BOND):
        bond = molecule.GetBondBetweenAtoms(begin, end).GetIdx()
        cut = Chem.FragmentOnBonds(molecule, [bond], dummyLabels=[(0, 0)])
        group, kept = sorted(Chem.GetMolFrags(cut, asMols=True), key=Chem.Mol.GetNumAtoms)
        if group.GetNumAtoms() - 1 in ATOMS:
            return Chem.MolToSmiles(kept).replace("*", "[*:1]", 1)
    return None


def fill(model: str, sites: Path, options: list[str]) -> tuple[float, float]:
    """(seconds of processor time, share of fillings that are molecules) of all sites of a file."""
    output = sites.with_suffix(".csv")
    command = [sys.executable, "-m", "exlm", "fill", model, "--file", str(sites), "--site", "4-6"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, "--output", str(output), *options], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with output.open() as file:
        valid = [row["valid"] == "True" for row in csv.DictReader(file)]
    output.unlink()
    return seconds, sum(valid) / len(valid)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("molecules", type=Path)
    parser.add_argument("--model", default="molecules-5M")
    parser.add_argument("--sites", type=int, default=1000)
    arguments = parser.parse_args()
    with rdBase.BlockLogs():
        lines = arguments.molecules.read_text().splitlines()
        candidates = map(with_site, (line.split()[0] for line in lines if line.strip()))
        texts = list(dict.fromkeys(text for text in candidates if text))[: arguments.sites]
    with tempfile.TemporaryDirectory() as directory:
        sites = Path(directory) / "sites.txt"
        sites.write_text("\n".join(texts))
        for way, options in WAYS.items():
            seconds, valid = fill(arguments.model, sites, options)
            print(
                f"{way}: {len(texts) / seconds:.2f} sites a second, {100 * valid:.0f}% molecules",
                flush=True,
            )


if __name__ == "__main__":
    main()
