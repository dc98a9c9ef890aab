#!/usr/bin/env bash
# Reproduces docs/results/text-small.md: ExLM (k = 4) and the same-size vanilla MLM, pre-trained on Wikipedia articles and
# novels with identical order, masks and updates, then fine-tuned, beside a model from scratch, on five GLUE tasks; ExLM on
# SQuAD 2.0 as well. Needs the data folder in EXLM_DATA. Every step can be interrupted and repeated; finished runs are
# skipped.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
data=${EXLM_DATA:-../shared/data}/text
runs=runs/text

pretrain() { # objective
  exlm pretrain recipes/text/exlm-small.yaml --output "$runs/$1" --model.objective "$1" --data.tokens_per_batch 4096 \
    --data.eval_sequences 300 --train.steps 2000 --train.optimizer.warmup_steps 150 --train.eval_every 100 \
    --train.save_every 100
}

tune() { # name task epochs [options]
  exlm finetune recipes/text/finetune.yaml --output "$runs/glue/$1-$2" --task.dataset "$2" \
    --task.data_dir "$data/glue" --train.epochs "$3" "${@:4}"
}

glue() { # name [options]
  tune "$1" rte 5 "${@:2}"
  for task in mrpc cola sts-b; do tune "$1" $task 3 "${@:2}"; done
  tune "$1" sst-2 1 "${@:2}"
}

if [ ! -e corpus/text ]; then
  exlm prepare "$data"/pretrain/{wiki_en_2018,english_novels}.txt.xz --tokenizer bpe --vocabulary_size 16384 \
    --documents blank --max_length 128 --output corpus/text
fi
pretrain exlm
pretrain mlm
glue exlm --model "$runs/exlm"
glue mlm --model "$runs/mlm"
glue scratch --model "$runs/mlm" --from_scratch true
exlm finetune recipes/text/finetune.yaml --model "$runs/exlm" --task.dataset squad2 --task.data_dir "$data/squad2" \
  --task.max_length 256 --task.stride 64 --train.epochs 2 --output "$runs/squad2/exlm"
python docs/results/text_table.py "$runs"
