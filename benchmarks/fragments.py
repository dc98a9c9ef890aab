"""The fragment tasks of SAFE (arXiv 2310.10773) and GenMol (arXiv 2501.06158): new molecules around
pieces of ten drugs.

    python benchmarks/fragments.py results.jsonl --models molecules-5M molecules-5M-mlm

A line of JSON for every model, task and number of passes; what has a line is not done again. 100
samples for each of ten drugs. The pieces were cut from the drugs' SMILES for this file; those of
the papers are others. The number of tokens of a site is not sampled: each one of SITES gets as
many samples as any other.

linker           two pieces, a linker between them
motif            one piece is extended
decoration       two sites of a scaffold
superstructure   a ring system is extended

validity      the share of samples that RDKit reads, and that still contain what was given
raw_validity  the share of samples that RDKit reads
uniqueness    of the valid ones, the share of different molecules
quality       the share of samples that are valid, no earlier one, QED >= 0.6 and SA score <= 4
diversity     mean Tanimoto distance (Morgan, radius 2, 1,024 bits) between different molecules
distance      mean Tanimoto distance from the drug
"""

import argparse
import json
import math
import time
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator
from transformers import PreTrainedTokenizerFast

from exlm import ExLMForMaskedLM
from exlm.data.chemistry import molecule_problem
from exlm.filling.filled_text import FilledText, Filling
from exlm.filling.filler import Filler
from exlm.filling.graphs import load_for_filling
from exlm.filling.molecule_facts import judge
from exlm.filling.options import FillCommandOptions
from exlm.filling.templates import molecule_template
from exlm.model.passes import Passes

PASSES: tuple[Passes, ...] = (1, 4, "all")
SAMPLES = 100
SITES = {"linker": "3-12", "motif": "6-15", "decoration": "2-5", "superstructure": "8-17"}
MORGAN = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024)

# A drug, and for each task what is given of it.
DRUGS: dict[str, dict[str, str]] = {
    "NS(=O)(=O)c1cc2c(cc1Cl)NC(C1CC3C=CC1C3)NS2(=O)=O": {  # cyclothiazide
        "linker": "NS(=O)(=O)c1ccc([*:1])cc1Cl.[*:1]C1CC2C=CC1C2",
        "motif": "NS(=O)(=O)c1cc2c(cc1Cl)NC([*:1])NS2(=O)=O",
        "decoration": "[*:1]c1cc2c(cc1[*:2])NCNS2(=O)=O",
        "superstructure": "[*:1]C1Nc2ccccc2S(=O)(=O)N1",
    },
    "CC(C)Nc1nc2cc(Cl)c(Cl)cc2n1C1OC(CO)C(O)C1O": {  # maribavir
        "linker": "CC(C)N[*:1].[*:1]C1OC(CO)C(O)C1O",
        "motif": "[*:1]C1OC(CO)C(O)C1O",
        "decoration": "[*:1]c1nc2cc(Cl)c(Cl)cc2n1[*:2]",
        "superstructure": "[*:1]n1cnc2ccccc12",
    },
    "CCOC(=O)C(CCc1ccccc1)NC(C)C(=O)N1CC2(CC1C(=O)O)SCCS2": {  # spirapril
        "linker": "c1ccccc1CC[*:1].[*:1]N1CC2(CC1C(=O)O)SCCS2",
        "motif": "[*:1]N1CC2(CC1C(=O)O)SCCS2",
        "decoration": "[*:1]C(CCc1ccccc1)NC(C)C(=O)N1CC2(CC1[*:2])SCCS2",
        "superstructure": "[*:1]N1CC2(CC1)SCCS2",
    },
    "CCS(=O)(=O)N1CC(CC#N)(n2cc(-c3ncnc4[nH]ccc34)cn2)C1": {  # baricitinib
        "linker": "CCS(=O)(=O)N1CC([*:1])C1.[*:1]c1ncnc2[nH]ccc12",
        "motif": "[*:1]c1ncnc2[nH]ccc12",
        "decoration": "[*:1]N1CC(C[*:2])(n2cc(-c3ncnc4[nH]ccc34)cn2)C1",
        "superstructure": "[*:1]n1cc(-c2ccncn2)cn1",
    },
    "CCCCCCCC(=O)NC(CN1CCCC1)C(O)c1ccc2c(c1)OCCO2": {  # eliglustat
        "linker": "C1CCCN1[*:1].[*:1]c1ccc2c(c1)OCCO2",
        "motif": "[*:1]c1ccc2c(c1)OCCO2",
        "decoration": "[*:1]NC(CN1CCCC1)C([*:2])c1ccc2c(c1)OCCO2",
        "superstructure": "[*:1]C(CN1CCCC1)C(O)c1ccccc1",
    },
    "COCCOc1cc2ncnc(Nc3cccc(C#C)c3)c2cc1OCCOC": {  # erlotinib
        "linker": "COCCOc1cc2ncnc([*:1])c2cc1OCCOC.[*:1]c1cccc(C#C)c1",
        "motif": "COCCOc1cc2ncnc([*:1])c2cc1OCCOC",
        "decoration": "[*:1]c1cc2ncnc(Nc3cccc(C#C)c3)c2cc1[*:2]",
        "superstructure": "[*:1]c1ncnc2ccccc12",
    },
    "COc1cc(C#Cc2nn(C3CCN(C(=O)C=C)C3)c3ncnc(N)c23)cc(OC)c1": {  # futibatinib
        "linker": "COc1cc([*:1])cc(OC)c1.[*:1]c1nn(C2CCN(C(=O)C=C)C2)c2ncnc(N)c12",
        "motif": "[*:1]c1nn(C2CCN(C(=O)C=C)C2)c2ncnc(N)c12",
        "decoration": "COc1cc(C#Cc2nn([*:1])c3ncnc(N)c23)cc([*:2])c1",
        "superstructure": "[*:1]n1ncc2c(N)ncnc12",
    },
    "O=C(O)CSc1nnc(Br)n1-c1ccc(C2CC2)c2ccccc12": {  # lesinurad
        "linker": "O=C(O)CS[*:1].[*:1]c1ccc(C2CC2)c2ccccc12",
        "motif": "[*:1]c1ccc(C2CC2)c2ccccc12",
        "decoration": "[*:1]c1nnc([*:2])n1-c1ccc(C2CC2)c2ccccc12",
        "superstructure": "[*:1]n1cnnc1",
    },
    "NC(Cc1cc(I)c(Oc2ccc(O)c(I)c2)c(I)c1)C(=O)O": {  # liothyronine
        "linker": "NC(Cc1ccc([*:1])cc1)C(=O)O.[*:1]c1ccc(O)c(I)c1",
        "motif": "[*:1]c1ccc(O)c(I)c1",
        "decoration": "[*:1]Cc1cc(I)c(Oc2ccc(O)c([*:2])c2)c(I)c1",
        "superstructure": "[*:1]c1ccc(Oc2ccccc2)cc1",
    },
    "CCC(C)C(=O)OC1CC(C)C=C2C=CC(C)C(CCC3CC(O)CC(=O)O3)C12": {  # lovastatin
        "linker": "CCC(C)C(=O)O[*:1].[*:1]C1CC(O)CC(=O)O1",
        "motif": "[*:1]C1CC(O)CC(=O)O1",
        "decoration": "[*:1]C1CC(C)C=C2C=CC(C)C([*:2])C12",
        "superstructure": "[*:1]C1CCC=C2C=CCCC21",
    },
}


def sampled(
    network: ExLMForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    fragment: str,
    lengths: str,
    passes: Passes,
) -> list[Filling]:
    """SAMPLES fillings of the sites of a fragment, in random order."""
    settings = FillCommandOptions(site=[lengths], molecules=True, samples=SAMPLES, passes=passes)
    template = molecule_template(fragment, settings)
    settings = replace(settings, samples=math.ceil(SAMPLES / len(template.masked_texts)))
    filler = Filler(network, tokenizer, settings)
    [of_fragment] = filler.fill([FilledText(1, fragment, template=template)])
    if of_fragment.problem:
        raise SystemExit(f"{fragment}: {of_fragment.problem}")
    order = np.random.default_rng(0).permutation(len(of_fragment.fillings))[:SAMPLES]
    fillings = [of_fragment.fillings[i] for i in order]
    return judge(replace(of_fragment, fillings=fillings), None).fillings


def scores_of(fillings: list[Filling], drug: str) -> dict[str, float]:
    """The numbers of one drug."""
    molecules = [x.molecule for x in fillings if x.molecule is not None and x.molecule.valid]
    unique = [molecule for molecule in molecules if molecule.unique]
    good = [x for x in unique if (x.qed or 0) >= 0.6 and (x.sa_score or 10) <= 4]
    bits = [MORGAN.GetFingerprint(Chem.MolFromSmiles(molecule.smiles)) for molecule in unique]
    similar = partial(
        DataStructs.TanimotoSimilarity, MORGAN.GetFingerprint(Chem.MolFromSmiles(drug))
    )
    between = [1 - DataStructs.TanimotoSimilarity(a, b) for a, b in combinations(bits, 2)]
    return {
        "validity": len(molecules) / len(fillings),
        "raw_validity": float(np.mean([molecule_problem(x.text) is None for x in fillings])),
        "uniqueness": len(unique) / len(molecules) if molecules else float("nan"),
        "quality": len(good) / len(fillings),
        "diversity": float(np.mean(between)) if between else float("nan"),
        "distance": float(np.mean([1 - similar(one) for one in bits])) if bits else float("nan"),
    }


def run(
    network: ExLMForMaskedLM, tokenizer: PreTrainedTokenizerFast, task: str, passes: Passes
) -> dict[str, float]:
    """The means over the drugs, and the processor time of a drug's samples."""
    start = time.process_time()
    by_drug = [
        scores_of(sampled(network, tokenizer, pieces[task], SITES[task], passes), drug)
        for drug, pieces in DRUGS.items()
    ]
    seconds = (time.process_time() - start) / len(DRUGS)
    means = {name: float(np.nanmean([one[name] for one in by_drug])) for name in by_drug[0]}
    return {**means, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results")
    parser.add_argument("--models", nargs="+", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Path(options.results)
    lines = results.read_text().splitlines() if results.exists() else []
    records = [json.loads(line) for line in lines]
    done = [[record["model"], record["task"], record["passes"]] for record in records]
    for model in options.models:
        network, tokenizer = load_for_filling(model)
        network.eval()
        for task in SITES:
            for passes in PASSES:
                place: list[Any] = [Path(model).name, task, passes]
                if place in done:
                    continue
                names = dict(zip(("model", "task", "passes"), place, strict=True))
                line = json.dumps(names | run(network, tokenizer, task, passes))
                with results.open("a") as stream:
                    stream.write(line + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
