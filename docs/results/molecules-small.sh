#!/usr/bin/env bash
# Reproduces docs/results/molecules-small.md: ExLM, its MLM baseline and MLM++ (the MLM given ExLM's time), about one
# million parameters each, pre-trained on a quarter of 1.27 million molecules and fine-tuned on three MoleculeNet sets.
# Needs the data folder in EXLM_DATA. Every step can be interrupted and repeated; finished runs are skipped.
set -euo pipefail
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
data=${EXLM_DATA:-../shared/data}
runs=runs/molecules
plus_steps=${PLUS_STEPS:-906} # 800 x (seconds per update of ExLM / of MLM), measured in the first two runs

pretrain() { # name objective steps
  exlm pretrain recipes/molecules/exlm-1M.yaml --output "$runs/$1" --model.objective "$2" --train.steps "$3" \
    --train.optimizer.warmup_steps 80 --train.eval_every 100 --train.save_every 100
}

finetune() { # name model dataset [options]
  exlm finetune recipes/molecules/finetune.yaml --output "$runs/$1-$3" --model "$runs/$2" --task.dataset "$3" \
    --task.data_dir "$data/molecules" --train.epochs 15 --train.patience 6 "${@:4}"
}

case ${1:-all} in
prepare) [ -e corpus/molecules ] || exlm prepare "$data"/molecules/*.smi.xz --output corpus/molecules ;;
pretrain) shift && pretrain "$@" ;;
finetune) shift && finetune "$@" ;;
all)
  "$0" prepare
  pretrain exlm-1M exlm 800
  pretrain mlm-1M mlm 800
  pretrain mlm++-1M mlm "$plus_steps"
  for set in bbbp bace clintox; do
    finetune scratch-1M mlm-1M $set --from_scratch true
    for name in mlm-1M mlm++-1M exlm-1M; do finetune $name $name $set; done
  done
  ;;
esac
