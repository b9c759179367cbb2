"""Slurm: a batch script whose header asks for the count, and which runs its arguments.

    sbatch train.sbatch train.py --epochs 3

One task per node starts torchrun, which starts as many processes as the node has GPUs. GPUs of a
node are asked for with `--gres=gpu:N`, which every Slurm with GPUs knows. A task has a single CPU
unless it asks for more, so torchrun's asks for one per GPU; a site's users raise that on the
command line (`sbatch --cpus-per-task=64 train.sbatch`). srun does not take the job's number over
since Slurm 22.05, so it is told.

The hosts of a plan on several kinds are a heterogeneous job (`#SBATCH hetjob`): a component for
each run of like hosts, in the order of ranks, and one srun with a command for each (`--het-group`).
A host's number is the component's first and its position among the component's hosts.
"""

from __future__ import annotations

import re

from shardwise.errors import BadInput
from shardwise.schedulers.counts import Count, Counts
from shardwise.schedulers.plan_hosts import PORT, HostGroup, Hosts

TYPE = re.compile(r"[A-Za-z0-9_.-]+")
"""The type of a generic resource, as gres.conf has it."""

START = r"""start='first=$1 each=$2 hosts=$3
shift 3
at=$(printf "%s\n" "$hosts" | grep -nxF "$SLURMD_NODENAME" | cut -d: -f1)
exec torchrun --nnodes=NODES --node-rank=$((first + at - 1)) --nproc-per-node="$each" \
  --master-addr="$head" --master-port=PORT "$@"'"""
"""What each host runs: the number of its component's first host, its GPUs, its component's hosts
and the script's arguments follow."""


def sbatch(counts: Counts, efficiency: float = 0.0) -> str:
    """Returns the script for the best count with as many GPUs on every node."""
    best = counts.even().best(efficiency)
    flags = "\n".join(f"#SBATCH {flag}" for flag in header(best))
    title = job_name(counts.name)
    return f"""#!/bin/sh
{flags}
#SBATCH --job-name={title}
# {counts.rate(best):.6g} {"samples" if counts.batch_known else "steps"}/s predicted on \
{counts.hardware}, {best.step_s:.6g} s a step.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun --cpus-per-task="${{SLURM_CPUS_PER_TASK:-{best.per_node}}}" \\
  torchrun --nnodes={best.nodes} --nproc-per-node={best.per_node} \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$head:29500" "$@"
"""


def header(count: Count) -> list[str]:
    """Returns the options of sbatch, for the header or its command line."""
    return [
        f"--nodes={count.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={count.per_node}",
        f"--gres=gpu:{count.per_node}",
    ]


def job_name(text: str) -> str:
    """Returns a name for the job that cannot be anything else in a script."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")[:64] or "job"


def sbatch_of_plan(hosts: Hosts) -> str:
    """Returns the script that starts the hosts of a plan, a heterogeneous job where they differ.

    Raises `BadInput` for a GPU type that Slurm cannot have.
    """
    plan = re.sub(r"[^A-Za-z0-9_.:-]+", "-", hosts.plan_id)
    head = "\n#SBATCH hetjob\n".join(
        "\n".join(f"#SBATCH {flag}" for flag in component(group)) for group in hosts.groups
    )
    runs = " : ".join(f"\\\n  {run}" for run in _runs(hosts))
    return f"""#!/bin/sh
#SBATCH --job-name={job_name(hosts.name)}
{head}
# {hosts.step_s:.6g} s a step predicted on {job_name(hosts.hardware)}, plan {plan}
names() {{ scontrol show hostnames "$1"; }}
head=$(names "${_nodes(hosts, 0)}" | head -n 1)
export head
{START.replace("NODES", str(hosts.nodes), 1).replace("PORT", str(PORT), 1)}
exec srun {runs}
"""


def _variable(hosts: Hosts, name: str, component: int) -> str:
    """Returns the variable in which Slurm says something of a component."""
    return f"{name}_HET_GROUP_{component}" if len(hosts.groups) > 1 else name


def _nodes(hosts: Hosts, component: int) -> str:
    return _variable(hosts, "SLURM_JOB_NODELIST", component)


def _runs(hosts: Hosts) -> list[str]:
    """Returns what srun takes for each component, user arguments last."""
    runs = []
    for i, group in enumerate(hosts.groups):
        where = f"--het-group={i} " if len(hosts.groups) > 1 else ""
        cpus = f"${{{_variable(hosts, 'SLURM_CPUS_PER_TASK', i)}:-{group.per_node}}}"
        given = f'{group.first} {group.per_node} "$(names "${_nodes(hosts, i)}")" "$@"'
        runs.append(f'{where}--cpus-per-task="{cpus}" \\\n    sh -c "$start" start {given}')
    return runs


def component(group: HostGroup) -> list[str]:
    """Returns the options of sbatch for like hosts; without a name of their type any GPUs do."""
    name = group.gpu_type or group.group
    if name and not TYPE.fullmatch(name):
        raise BadInput(f"got {name[:80]!r}", field="gpu_type", expected="a type of gres.conf")
    return [
        f"--nodes={group.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={group.per_node}",
        f"--gres=gpu:{name + ':' if name else ''}{group.per_node}",
    ]
