"""Pre-training ExLM with the Hugging Face Trainer, on texts that are streamed from files.

    python examples/hf_trainer.py TEXTS TOKENIZER OUTPUT [STEPS]

TEXTS is a text file with one SMILES string or sentence per line, of which the first 128 tokens are
read; TOKENIZER a directory with a tokenizer, such as a corpus of `exlm prepare`. TRACKER=trackio or
TRACKER=wandb in the environment records the run there, if that library is installed. The loop of
`exlm pretrain` adds batches of equal token counts, resuming that is exact on a CPU, and verified
checkpoints; this shows that nothing else depends on it. It needs
`pip install 'exlm[hub]' accelerate`.
"""

import os
import sys

import numpy as np
from datasets import load_dataset
from transformers import EvalPrediction, Trainer, TrainingArguments

from exlm import ExLMDataCollator, ExLMForMaskedLM
from exlm.pretrain.settings import ArchitectureConfig
from exlm.storage.tokenizers import load_tokenizer

MAX_LENGTH = 128


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """The share of masked tokens whose most probable token is right."""
    logits, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    masked = labels != -100
    return {"accuracy": float(np.mean(logits.argmax(-1)[masked] == labels[masked]))}


def main(texts: str, tokenizer_path: str, output: str, steps: int = 200) -> dict[str, float]:
    tokenizer = load_tokenizer(tokenizer_path)
    rows = load_dataset("text", data_files=texts, split="train", streaming=True)

    def tokenize(row: dict[str, str], index: int) -> dict[str, object]:
        # the index decides, with seed and epoch, which tokens are masked
        tokens = tokenizer(row["text"], truncation=True, max_length=MAX_LENGTH)
        return {"input_ids": tokens["input_ids"], "index": index}

    rows = rows.map(tokenize, with_indices=True, remove_columns="text")
    architecture = ArchitectureConfig(
        num_states=2,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
    )
    model = ExLMForMaskedLM(architecture.build(tokenizer))
    arguments = TrainingArguments(
        output,
        max_steps=steps,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        report_to=os.environ.get("TRACKER", "none"),
        logging_steps=20,
        remove_unused_columns=False,
    )
    collator = ExLMDataCollator(tokenizer, mask_ratio=0.15, seed=0)
    trainer = Trainer(
        model,
        arguments,
        data_collator=collator,
        callbacks=[collator],
        compute_metrics=accuracy,
        train_dataset=rows.skip(100).shuffle(seed=0, buffer_size=10_000),
        eval_dataset=rows.take(100),
    )
    trainer.train()
    trainer.save_model(output)
    tokenizer.save_pretrained(output)
    scores = trainer.evaluate()
    print(scores)
    return scores


if __name__ == "__main__":
    texts, tokenizer_path, output, *steps = sys.argv[1:]
    main(texts, tokenizer_path, output, *map(int, steps))
