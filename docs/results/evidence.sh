#!/usr/bin/env bash
# The runs of evidence-plan.md: some 40 hours of one core. What is done is skipped, so the script can be stopped and
# started again. (To use several cores, start `learning.py run` below several times; then the rest.)
#
#   EXLM_DATA=data OMP_NUM_THREADS=1 docs/results/evidence.sh [FOLDER]
#
# FOLDER then has the models and the results: lines of evidence.jsonl (pre-training), probes.jsonl (linear models on the
# frozen encoders), finetuned-grid.jsonl and finetuned.jsonl (fine-tunings), and entropy.jsonl. The files of these names
# beside this script are copies of ours; evidence_page.py makes the tables of evidence.md from them.
set -euo pipefail
here=$(dirname "$(realpath "$0")") data=$(realpath "${EXLM_DATA:?must name the folder with the data}")
mkdir -p "${1:-runs/evidence}" && cd "${1:-runs/evidence}"

exec 9> prepare.lock && flock 9 # two scripts make no corpus at the same time
[ -e molecules ] || exlm prepare "$data"/molecules/*.smi.xz --drop_duplicates true --max_length 128 --output molecules
[ -e text ] || exlm prepare "$data"/text/pretrain/{wiki_en_2018,english_novels}.txt.xz --tokenizer bpe \
  --vocabulary_size 512 --documents blank --max_length 32 --output text
exec 9>&-

corpora="--molecules molecules --text text --out models"
run() { python "$here/learning.py" run "$1" evidence.jsonl $corpora; }
probe() { python "$here/linear_probe.py" --data_dir "$data/molecules" --output probes.jsonl "$@"; }
finetune() { python "$here/finetuned.py" "$@"; }

head -n 6 "$here/evidence-jobs.jsonl" > first.jsonl # three pairs
run first.jsonl
probe models/{mlm-5750,late-k2}-s{0,1,2} --layers 3 4
probe models/{mlm-5750,late-k2}-s{0,1,2} --layers 3 4 --pooling mean_max
finetune models/mlm-5750-s0 --layers 3 4 --rates 3e-4 1e-3 --seeds 0 --sets bbbp bace clintox \
  --data_dir "$data/molecules" --output finetuned-grid.jsonl
# Four layers and 1e-3 is what evidence.py chooses from our grid; look whether it is so for yours.
finetune models/{mlm-5750,late-k2}-s{0,1,2} --layers 4 --rates 1e-3 --data_dir "$data/molecules" --output finetuned.jsonl \
  --sets bbbp bace clintox sider tox21 esol lipophilicity freesolv
for set in esol freesolv lipophilicity; do # the other sets have their scaffold split in baselines-jobs.sh
  exlm baseline ecfp-rf $set --data_dir "$data/molecules" --split random --output "baselines/$set"
done
run "$here/evidence-jobs.jsonl"
probe models/long-{mlm-26400,late-k2-20000}-p387-s{0,1,2} --layers 3 4 --sets bbbp bace clintox sider tox21 esol \
  lipophilicity freesolv
probe models/mlm-p{150-r1,387-r2,622-r4,789-r8,622-r1,622-r2}-s{0,1,2} --layers 2
python "$here/learning.py" entropy evidence.jsonl entropy.jsonl $corpora
probe models/text-{mlm-8800,all-k4}-s{0,1,2} --layers 3 4 --data_dir "$data/text/glue" --sets rte cola sts-b mrpc sst-2
finetune models/text-{mlm-8800,all-k4}-s{0,1,2} --layers 4 --rates 1e-3 --data_dir "$data/text/glue" --output finetuned.jsonl \
  --sets rte cola sts-b mrpc sst-2
