#!/bin/sh
# All runs of baselines.md, from small to large, one after the other. What is finished is not run again, so the script
# can be interrupted and started again.
#
#   EXLM_DATA=data nice -n 15 sh docs/results/baselines-jobs.sh [OUTPUT]
#
# The variable EXLM has the command, if it is not `exlm`.
output=${1:-runs/baselines}
export OMP_NUM_THREADS=1

run() { # SEEDS BASELINES DATASETS [OPTIONS]
    for dataset in $3; do
        for baseline in $2; do
            ${EXLM:-exlm} baseline "$baseline" "$dataset" --seeds "$1" \
                --output "$output/$baseline/$dataset" $4 || echo "not done: $baseline $dataset $1"
        done
    done
}

small="freesolv esol bace clintox sider bbbp"
ecfp="ecfp-knn ecfp-lr ecfp-rf"
run 0,1,2 "$ecfp" "$small lipophilicity tox21"
run 0,1,2 tfidf-lr "rte mrpc cola sts-b qnli mnli qqp sst-2"
run 0 chemprop "$small"
run 0 attentivefp "$small"
run 0 "ecfp-knn ecfp-lr" "muv toxcast"
run 0,1,2 chemprop "$small"
run 0 "chemprop attentivefp" "lipophilicity tox21"
run 0 ecfp-rf "muv toxcast"
run 0,1,2 attentivefp "$small"
run 0,1,2 chemprop "lipophilicity tox21"
run 0 chemprop toxcast
run 0 chemprop muv "--epochs 10"
run 0,1,2 attentivefp "lipophilicity tox21"
run 0 attentivefp toxcast
run 0 attentivefp muv "--epochs 10"
