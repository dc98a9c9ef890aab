"""The numbers of the paper (paper_numbers.yaml)."""

from dataclasses import dataclass

from exlm.paper.display import yaml_content
from exlm.paper.variants import EXLM, MLM, Variant

_PAPER_NUMBERS = yaml_content("paper_numbers.yaml")
# Numbers as the paper prints them, in the order of its columns. None is a dash.
PrintedRow = list[float | None]


@dataclass(frozen=True)
class MainTable:
    """One of the paper's two main tables.

    Attributes:
        columns: by the title of each of the paper's columns, the quantities of our runs whose mean
            stands in it.
        of_medians: whether ours are medians over fine-tuning seeds.
        pretrain: the recipe of the paper's ExLM.
        finetune: the recipes that fine-tune any model, each with its tasks.
        quoted: the rows that the paper quotes from elsewhere.
        paper: the rows of its own models."""

    columns: dict[str, list[str]]
    of_medians: bool
    pretrain: str
    finetune: dict[str, list[str]]
    quoted: dict[str, PrintedRow]
    paper: dict[str, PrintedRow]


MAIN_TABLES = {name: MainTable(**entry) for name, entry in _PAPER_NUMBERS["main_tables"].items()}
ABLATIONS: dict[str, PrintedRow] = _PAPER_NUMBERS["ablations"]
SWEEP: dict[Variant, PrintedRow] = {
    Variant(MLM if k == 1 else EXLM, k, p): row for p, k, *row in _PAPER_NUMBERS["sweep"]
}
REPEATED: dict[Variant, PrintedRow] = SWEEP | {
    Variant(MLM, 1, p, r): row for p, r, *row in _PAPER_NUMBERS["repeated_mlm"]
}
PAPER_COST: dict[str, str | float] = _PAPER_NUMBERS["cost"]
