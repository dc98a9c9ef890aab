#!/bin/sh
# All runs of proteins.md, one after the other. What is finished is not run again.
#
#   sh docs/results/proteins-jobs.sh DATA [OUTPUT]
#
# DATA has the files of sequences and labels. The variable EXLM has the command, if it is not `exlm`.
data=$1
output=${2:-runs/proteins}
exlm=${EXLM:-exlm}
export OMP_NUM_THREADS=1

mkdir -p "$output"
[ -d "$output/corpus" ] || $exlm prepare "$data"/sequences_*.fasta.xz --tokenizer protein --max_length 254 \
    --documents row --cross_documents false --on_invalid skip --output "$output/corpus"
[ -f "$output/variants.csv" ] || python docs/results/proteins.py data "$data" "$output"

for seed in 0 1 2; do
    for objective in exlm mlm; do
        steps=1200
        [ $objective = mlm ] && steps=1400 # the same time
        model=$output/$objective-s$seed
        $exlm pretrain proteins/protein-1M --corpus "$output/corpus" --seed $seed --objective $objective \
            --tokens_per_batch 4096 --tokens_per_micro_batch 4096 --steps $steps --learning_rate 2e-3 \
            --warmup_steps 60 --eval_every 300 --output "$model" || exit
        $exlm score "$model" "$output/variants.csv" --label_column label \
            --output "$output/variants-$objective-s$seed.csv" || exit
        $exlm finetune --model "$model" --dataset "$output/signal.csv" --split column:split --task_type multiclass \
            --label_columns label --metric matthews --epochs 6 --batch_size 32 --learning_rate 1e-3 --pooling mean \
            --seeds $seed --output "$output/signal-$objective-s$seed" || exit
        $exlm finetune --model "$model" --dataset "$output/structure.csv" --split column:split \
            --task_type token_classification --label_columns label --mask_column mask --epochs 4 --batch_size 16 \
            --learning_rate 1e-3 --seeds $seed --output "$output/structure-$objective-s$seed" || exit
    done
done

# The same tasks without pre-training.
for seed in 0 1 2; do
    $exlm finetune --model "$output/mlm-s0" --from_scratch true --dataset "$output/signal.csv" --split column:split \
        --task_type multiclass --label_columns label --metric matthews --epochs 6 --batch_size 32 --learning_rate 1e-3 \
        --pooling mean --seeds $seed --output "$output/signal-scratch-s$seed" || exit
    $exlm finetune --model "$output/mlm-s0" --from_scratch true --dataset "$output/structure.csv" --split column:split \
        --task_type token_classification --label_columns label --mask_column mask --epochs 4 --batch_size 16 \
        --learning_rate 1e-3 --seeds $seed --output "$output/structure-scratch-s$seed" || exit
done
