#!/bin/sh
# What does my Megatron script take? Its variables have defaults, as launch scripts do; it is
# followed and never run. Needs: the base install.
set -eu

cat > train.sh <<'END'
#!/bin/bash
TP=${TP:-2}
: "${MBS:=1}"
GBS="64"
RECOMPUTE=${RECOMPUTE:-selective}
MORE=()
if [ "$RECOMPUTE" = full ]; then
    MORE+=(--recompute-granularity full --recompute-method uniform --recompute-num-layers 1)
elif [ "$RECOMPUTE" = selective ]; then
    MORE+=(--recompute-activations)
fi
torchrun --nproc_per_node ${GPUS_PER_NODE:-8} pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
    --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer \
    --micro-batch-size $MBS --global-batch-size $GBS --bf16 "${MORE[@]}"
END
shardwise explain shipped:llama-8b --like train.sh --hardware dgx-h100 --gpus 8 \
    --micro-batches 8,16 --quiet
