"""Pre-training ExLM with the Hugging Face Trainer: the model computes its own loss from `labels`.

    python examples/hf_trainer.py CORPUS OUTPUT

CORPUS is a directory written by `exlm prepare`. Our own loop (`exlm pretrain`) adds token-budget batches, exact
resume and verified checkpoints; this shows that nothing else depends on it.
"""

import sys

from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from exlm import ExLMConfig, ExLMForMaskedLM
from exlm.data.corpus import Corpus
from exlm.pretrained import load_tokenizer


def main(corpus_path: str, output: str) -> None:
    corpus, tokenizer = Corpus(corpus_path), load_tokenizer(corpus_path)
    config = ExLMConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        num_states=2,
        max_position_embeddings=1024,
        mask_token_id=tokenizer.mask_token_id,
    )
    rows = [
        {"input_ids": [tokenizer.bos_token_id, *corpus[i].tolist(), tokenizer.eos_token_id]}
        for i in range(min(len(corpus), 20000))
    ]
    arguments = TrainingArguments(
        output, max_steps=200, per_device_train_batch_size=64, learning_rate=1e-3, report_to=[], logging_steps=20
    )
    # Every chosen token becomes [MASK]: ExLM expands masks, so random or kept tokens have no place here.
    collator = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=0.15, mask_replace_prob=1.0, random_replace_prob=0.0
    )
    trainer = Trainer(ExLMForMaskedLM(config), arguments, data_collator=collator, train_dataset=rows)
    trainer.train()
    trainer.save_model(output)
    tokenizer.save_pretrained(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
