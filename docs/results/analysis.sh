#!/usr/bin/env bash
# Reproduces docs/results/analysis: the paper's experiments at the scale of a laptop, on molecules. Needs the data folder in
# EXLM_DATA; some twelve hours on one core. Every step can be interrupted and repeated; what is done is skipped. `text` runs
# the same on text, which is not part of the report.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} EXLM_DATA=${EXLM_DATA:-../shared/data}

prepare() { # output inputs and options
  [ -e "$1" ] || exlm prepare "${@:2}" --output "$1"
}

molecules() {
  prepare corpus/molecules "$EXLM_DATA"/molecules/*.smi.xz --drop_duplicates true --max_length 128
  recipe=recipes/molecules/analysis-small.yaml
  for experiment in efficiency ablations sweep; do
    exlm analyze $experiment $recipe --pretrain_seeds '[0, 1, 2]'
  done
  # the cells in which 15% of the tokens have no visible copy
  exlm analyze repeated-mlm $recipe --pretrain_seeds '[0, 1, 2]' \
    --space.cells '[[0.15, 1], [0.387, 2], [0.622, 4], [0.789, 8]]' --tasks \
    "{bbbp: {task: {dataset: bbbp}, train: {epochs: 4, batch_size: 32, learning_rate: 5.0e-4, dropout: 0.0}}}"
}

text() {
  prepare corpus/text-32 "$EXLM_DATA"/text/pretrain/{wiki_en_2018,english_novels}.txt.xz --tokenizer bpe \
    --vocabulary_size 512 --documents blank --max_length 32
  recipe=recipes/text/analysis-small.yaml
  for experiment in efficiency ablations sweep; do exlm analyze $experiment $recipe; done
  exlm analyze repeated-mlm $recipe --train.steps 900 --output runs/analysis/text-repeated --tasks \
    "{sst-2: {task: {dataset: sst-2, train_rows: 4000}, train: {epochs: 1, batch_size: 32, learning_rate: 5.0e-4, dropout: 0.0}}}"
}

keep() { # directory of runs: what the report reads of them, without weights
  (cd "$1" && find . -name results.json -o -name efficiency.json -o -path '*/pretrain/*/seed-*' \
    '(' -name result.json -o -name measurements.json -o -name manifest.json -o -name log.jsonl -o -name case.svg ')') |
    grep -v checkpoint | while read -r file; do
      mkdir -p "$2/$(dirname "$file")"
      sed "s|$EXLM_DATA|../shared/data|g" "$1/$file" > "$2/$file"
    done
}

case ${1:-all} in
molecules | text) "$1" ;;
keep) keep "$2" "$3" ;;
all)
  molecules
  keep runs/analysis/molecules docs/results/runs/molecules
  exlm report docs/results/runs --output docs/results/analysis
  ;;
esac
