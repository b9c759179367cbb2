"""Slurm: a batch script whose header asks for the count, and which runs its arguments.

    sbatch train.sbatch train.py --epochs 3

One task per node starts torchrun, which starts as many processes as the node has GPUs. GPUs of a
node are asked for with `--gres=gpu:N`, which every Slurm with GPUs knows.
"""

from __future__ import annotations

import re

from shardwise.schedulers.counts import Count, Counts


def sbatch(counts: Counts, efficiency: float = 0.0) -> str:
    """Returns the script for the best count with as many GPUs on every node."""
    best = counts.even().best(efficiency)
    flags = "\n".join(f"#SBATCH {flag}" for flag in header(best))
    title = re.sub(r"[^A-Za-z0-9_.-]+", "-", counts.name).strip("-")[:64] or "job"
    return f"""#!/bin/sh
{flags}
#SBATCH --job-name={title}
# {counts.rate(best):.6g} {"samples" if counts.batch_known else "steps"}/s predicted on \
{counts.hardware}, {best.step_s:.6g} s a step.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun --nnodes={best.nodes} --nproc-per-node={best.per_node} \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" "$@"
"""


def header(count: Count) -> list[str]:
    """Returns the options of sbatch, for the header or its command line."""
    return [
        f"--nodes={count.nodes}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{count.per_node}",
    ]
