#!/usr/bin/env bash
# The runs of evidence-plan.md: some 20 hours of one core. What is done is skipped, so the script can be stopped and
# started again, and several may run side by side.
#
#   EXLM_DATA=data OMP_NUM_THREADS=1 docs/results/evidence.sh [FOLDER]
#
# The results are lines of evidence.jsonl (pre-training) and probes.jsonl (linear models on the frozen encoders).
set -euo pipefail
here=$(dirname "$(realpath "$0")") data=$(realpath "$EXLM_DATA")
mkdir -p "${1:-runs/evidence}" && cd "${1:-runs/evidence}"

exec 9> prepare.lock && flock 9 # two scripts make no corpus at the same time
[ -e molecules ] || exlm prepare "$data"/molecules/*.smi.xz --drop_duplicates true --max_length 128 --output molecules
[ -e text ] || exlm prepare "$data"/text/pretrain/{wiki_en_2018,english_novels}.txt.xz --tokenizer bpe \
  --vocabulary_size 512 --documents blank --max_length 32 --output text
exec 9>&-

python "$here/learning.py" run "$here/evidence-jobs.jsonl" "$here/evidence.jsonl" --molecules molecules --text text \
  --out models
python "$here/linear_probe.py" models/{mlm-5750,late-k2}-s{0,1,2} --layers 3 4 --data_dir "$data/molecules" \
  --output "$here/probes.jsonl"
