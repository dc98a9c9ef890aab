#!/usr/bin/env bash
# The runs of evidence-plan.md: some 20 hours of one core. What is done is skipped, so the script can be stopped and
# started again, and several may run side by side.
#
#   EXLM_DATA=data OMP_NUM_THREADS=1 docs/results/evidence.sh [FOLDER]
#
# FOLDER then has the models and the results: lines of evidence.jsonl (pre-training) and of probes.jsonl (linear models on
# the frozen encoders). The files of these names beside this script are copies of ours.
set -euo pipefail
here=$(dirname "$(realpath "$0")") data=$(realpath "$EXLM_DATA")
mkdir -p "${1:-runs/evidence}" && cd "${1:-runs/evidence}"

exec 9> prepare.lock && flock 9 # two scripts make no corpus at the same time
[ -e molecules ] || exlm prepare "$data"/molecules/*.smi.xz --drop_duplicates true --max_length 128 --output molecules
[ -e text ] || exlm prepare "$data"/text/pretrain/{wiki_en_2018,english_novels}.txt.xz --tokenizer bpe \
  --vocabulary_size 512 --documents blank --max_length 32 --output text
exec 9>&-

run() {
  python "$here/learning.py" run "$1" evidence.jsonl --molecules molecules --text text --out models
}
head -n 6 "$here/evidence-jobs.jsonl" > first.jsonl # three pairs
run first.jsonl
python "$here/linear_probe.py" models/{mlm-5750,late-k2}-s{0,1,2} --layers 3 4 --data_dir "$data/molecules" \
  --output probes.jsonl
run "$here/evidence-jobs.jsonl"
