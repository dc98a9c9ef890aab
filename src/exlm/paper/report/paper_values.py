"""The numbers of the paper's tables, and of its figures where the text states them (Zheng et al., ICML 2025)."""

from exlm.paper.variants import Space

Values = tuple[float | None, ...]

# Table of molecules: ROC-AUC in percent, scaffold splits; the paper's ExLM and its own baseline (*) come last.
MOLECULE_TASKS = ("bace", "bbbp", "tox21", "sider", "muv", "clintox", "toxcast")
MOLECULES: dict[str, Values] = {  # ..., mean
    "D-MPNN": (80.9, 71.0, 75.9, 57.0, 78.6, 90.6, 65.5, 74.2),
    "Attentive FP": (78.4, 64.3, 76.1, 60.6, 76.6, 84.7, 63.7, 72.1),
    "N-Gram RF": (77.9, 69.7, 74.3, 66.8, 76.9, 77.5, None, None),
    "GROVER": (82.6, 70.0, 74.3, 64.8, 62.5, 81.2, 65.4, 71.5),
    "GraphMVP": (81.2, 72.4, 75.9, 63.9, 77.7, 79.1, 63.1, 73.3),
    "Mole-BERT": (80.8, 71.9, 76.8, 62.8, 78.6, 78.9, 64.3, 73.4),
    "3D InfoMax": (79.7, 69.1, 74.5, 60.6, 74.4, 79.9, 64.4, 71.8),
    "SMILES-BERT*": (77.8, 68.6, 75.1, 61.2, 75.1, 89.8, 64.9, 73.2),
    "ExLM": (79.6, 72.8, 78.2, 64.5, 78.8, 91.6, 66.9, 76.1),
}

# Table of text: GLUE and SQuAD 2.0 development sets, medians of five seeds.
# MNLI-m, MNLI-mm, QQP, QNLI, SST-2, CoLA, RTE, MRPC, STS-B, mean; EM, F1
TEXT: dict[str, Values] = {
    "BERT": (84.5, None, 91.3, 91.7, 93.2, 58.9, 68.6, 87.3, 89.5, 83.1, 73.7, 76.3),
    "ALBERT": (81.6, None, None, None, 90.3, None, None, None, None, None, 77.1, 80.0),
    "XLNet": (85.8, 85.4, None, None, 92.7, None, None, None, None, None, 78.5, 81.3),
    "UniLMv2": (86.1, 86.1, None, None, 93.2, None, None, None, None, None, 80.9, 83.6),
    "TUPE": (86.2, 86.2, 91.3, 92.2, 93.3, 63.6, 73.6, 89.9, 89.2, 84.9, None, None),
    "RoBERTa*": (85.9, 85.8, 91.6, 92.3, 93.7, 64.3, 75.5, 88.7, 89.5, 85.2, 78.3, 81.5),
    "ExLM": (86.9, 86.7, 92.0, 93.1, 93.9, 64.6, 78.8, 89.6, 90.5, 86.2, 82.0, 84.6),
    "ExLM LARGE": (87.8, 87.5, 92.2, 93.8, 94.5, 65.3, 79.1, 90.4, 91.2, 86.9, 82.6, 85.0),
}
OF_THE_PAPER = ("SMILES-BERT*", "RoBERTa*", "ExLM", "ExLM LARGE")  # the other rows it quotes itself

# Ablations (k = 4, p = 15%) and the sparse DAG: MNLI, QNLI, QQP, RTE, average.
ABLATION_TASKS = ("mnli", "qnli", "qqp", "rte")
ABLATIONS: dict[str, Values] = {
    "ExLM w/o 2D RoPE": (84.6, 91.1, 91.3, 56.7, 80.9),
    "ExLM w/o Transitions": (83.8, 90.9, 91.1, 55.6, 80.4),
    "ExLM w/ Sparse DAG": (84.4, 91.2, 91.3, 56.9, 81.0),
    "Vanilla MLM": (83.6, 90.0, 90.3, 54.7, 79.6),
    "Vanilla MLM++": (84.4, 91.2, 90.6, 56.3, 80.7),
    "ExLM": (85.1, 91.4, 91.3, 57.6, 81.4),
}

# Mask ratio p and number of states k (k = 1: the vanilla MLM): MNLI, QNLI, QQP, RTE, average.
SWEEP: dict[tuple[float, int], Values] = {
    (0.15, 1): (83.6, 90.0, 90.3, 54.7, 79.6),
    (0.15, 2): (84.6, 91.3, 91.1, 56.7, 80.9),
    (0.15, 4): (85.1, 91.4, 91.3, 57.6, 81.4),
    (0.15, 8): (84.4, 91.0, 90.9, 56.9, 80.8),
    (0.387, 1): (83.3, 90.0, 90.2, 53.3, 79.2),
    (0.387, 2): (84.1, 91.4, 91.0, 55.4, 80.5),
    (0.387, 4): (84.9, 91.6, 91.2, 57.0, 81.2),
    (0.387, 8): (84.3, 90.9, 90.7, 56.8, 80.7),
}

# Repeated MLM: MNLI by (p, r) where a number is printed: the first two in the text, the third
# inferred from it ("from 82.8 to 79.6" at a fixed mask ratio), the last in the table of k and p.
RATIOS, REPEATS = Space().mask_ratios, Space().repeats
VANISHING = Space().smallest  # shares of corrupted semantics below it are left out
REPEATED_MNLI: dict[tuple[float, int], float] = {
    (0.15, 1): 83.6,
    (0.789, 8): 82.8,
    (0.789, 1): 79.6,
    (0.387, 1): 83.3,
}

# Training time of the analysis models on A100 80G, in GPU hours, and the ratio that the text gives.
GPU_HOURS = {"Vanilla MLM": 54.7, "ExLM": 104.2}
COST_RATIO = 1.9
