"""Pre-training with the Trainer: the masks, and the example on streamed texts."""

import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments

from exlm import ExLMDataCollator, ExLMForMaskedLM, InputError
from exlm.data.corpus import Corpus
from exlm.data.masking import mask_tokens
from exlm.pretrain.settings import ArchitectureConfig

TRAINER = dict(
    num_train_epochs=3, report_to=[], remove_unused_columns=False, use_cpu=True, disable_tqdm=True
)
EXAMPLE = Path(__file__).parents[1] / "examples/hf_trainer.py"


def rows_of(corpus, tokenizer, numbers) -> list[dict]:
    examples = Corpus(corpus)
    rows = []
    for i in numbers:
        ids = [tokenizer.bos_token_id, *examples[i].tolist(), tokenizer.eos_token_id]
        rows.append({"input_ids": ids, "index": i})
    return rows


@pytest.mark.parametrize("ratio", [0.3, (0.02, 0.6)])
@pytest.mark.parametrize("epoch", [0, 3])
def test_the_masks_are_those_of_exlm_pretrain(corpus, tokenizer, epoch, ratio):
    collator = ExLMDataCollator(tokenizer, mask_ratio=ratio, seed=5)
    collator.epoch = epoch
    rows = rows_of(corpus, tokenizer, [7, 2, 11])
    batch = collator(rows)
    numbers = np.array([7, 2, 11])
    tokens, lengths = Corpus(corpus).gather(numbers)
    expected = mask_tokens(tokens, lengths, numbers, tokenizer, 5, epoch, ratio)
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
    without_ends = [{**row, "input_ids": row["input_ids"][1:-1]} for row in rows]
    assert torch.equal(collator(without_ends)["input_ids"], batch["input_ids"])


def test_masks_depend_on_seed_epoch_and_index_alone(corpus, tokenizer):
    rows = rows_of(corpus, tokenizer, range(8))
    collator = ExLMDataCollator(tokenizer, seed=1)
    together = collator(rows)["labels"]
    alone = collator(rows[3:4])["labels"][0]
    assert torch.equal(together[3, : len(alone)], alone)
    collator.epoch = 1
    assert not torch.equal(collator(rows)["labels"], together)
    assert not torch.equal(ExLMDataCollator(tokenizer, seed=2)(rows)["labels"], together)


def test_workers_that_persist_hear_of_every_epoch(corpus, tokenizer):
    rows = rows_of(corpus, tokenizer, range(4))
    collator = pickle.loads(pickle.dumps(ExLMDataCollator(tokenizer)))
    loader = DataLoader(
        rows,
        collate_fn=collator,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    alone = ExLMDataCollator(tokenizer)
    for epoch in range(3):
        collator.epoch = alone.epoch = epoch
        labels = [batch["labels"] for batch in loader]
        assert all(map(torch.equal, labels, [alone([row])["labels"] for row in rows]))


def test_wrong_use_is_explained(tokenizer):
    with pytest.raises(InputError, match="remove_unused_columns=False"):
        ExLMDataCollator(tokenizer)([{"input_ids": [4, 5]}])
    with pytest.raises(InputError, match="mask_ratio is 1.5"):
        ExLMDataCollator(tokenizer, mask_ratio=1.5)


def test_the_example_trains_on_streamed_texts(smiles_file, corpus, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    epochs = set()
    masked = ExLMDataCollator.__call__
    monkeypatch.setattr(
        ExLMDataCollator,
        "__call__",
        lambda self, rows: epochs.add(self.epoch) or masked(self, rows),
    )
    scores = runpy.run_path(str(EXAMPLE))["main"](
        str(smiles_file), str(corpus), str(tmp_path / "model"), 6
    )
    assert 0 <= scores["eval_accuracy"] <= 1 and scores["eval_loss"] > 0
    assert {0, 1} <= epochs  # 200 rows are 4 batches
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path / "model"), ExLMForMaskedLM)


def test_the_epoch_of_a_resumed_training(corpus, tokenizer, tmp_path):
    """Interrupted in the second epoch, the Trainer goes on with the masks of the second."""
    rows = rows_of(corpus, tokenizer, range(8))
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    settings = dict(TRAINER, per_device_train_batch_size=2, save_steps=6)
    seen: dict[bool, list] = {}
    for resumed in (False, True):
        collator = ExLMDataCollator(tokenizer)
        model = ExLMForMaskedLM(ArchitectureConfig(**sizes).build(tokenizer))
        seen[resumed] = epochs = []

        def collate(rows, collator=collator, epochs=epochs):
            epochs.append((collator.epoch, sorted(row["index"] for row in rows)))
            return collator(rows)

        arguments = TrainingArguments(str(tmp_path), **settings)
        trainer = Trainer(
            model, arguments, data_collator=collate, callbacks=[collator], train_dataset=rows
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6") if resumed else None)
    assert [epoch for epoch, _ in seen[False]] == [0] * 4 + [1] * 4 + [2] * 4
    assert seen[True][-6:] == seen[False][-6:]


def test_a_trainers_workers_change_no_mask(corpus, tokenizer, tmp_path):
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = ArchitectureConfig(**sizes).build(tokenizer)
    seen: dict[int, list[torch.Tensor]] = {0: [], 2: []}

    class Recorder(Trainer):
        def training_step(self, model, inputs, *rest):
            seen[self.args.dataloader_num_workers].append(inputs["labels"])
            return super().training_step(model, inputs, *rest)

    for workers, labels in seen.items():
        collator = ExLMDataCollator(tokenizer)
        arguments = TrainingArguments(
            str(tmp_path),
            **TRAINER,
            per_device_train_batch_size=4,
            save_strategy="no",
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
        )
        rows = rows_of(corpus, tokenizer, range(8))
        Recorder(ExLMForMaskedLM(config), arguments, collator, rows, callbacks=[collator]).train()
        assert len(labels) == 6
    assert all(map(torch.equal, seen[0], seen[2]))
