"""A plan on several kinds of devices in the forms that can ask for hosts of several kinds.

`sbatch` is a heterogeneous job of Slurm: one component for each run of equal hosts, whose GPUs are
asked for by type (`--gres=gpu:v100:2`). Each component has a step of its own; torchrun's node rank
is the number of hosts before the component plus that within it, so that ranks are numbered as the
plan has them. `ray` has the keywords of `ray.util.placement_group`: a bundle for each host, in
order, tied to its kind by Ray's resource `accelerator_type:V100`, each on another node.

Kueue's Job has like pods, a task of SkyPilot like nodes, Ray Train like workers; tables of rates
are by one kind of GPU. So no other form can say what such a plan needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.hardware.kinds import model_of
from shardwise.schedulers.hosts import Host, hosts_of

FORMS = ("sbatch", "ray")
AFFINITY = 0.001
"""Of a node's `accelerator_type` resource, what a bundle takes to be there (Ray's own choice)."""


def export_hosts(plan: Mapping[str, Any], form: str, names: Mapping[str, str] | None = None) -> str:
    """Returns what hosts a plan on several kinds needs, in one of `FORMS`.

    `names` are what the scheduler calls kinds, else the model in their names. Raises `BadInput` for
    another form, a plan on one kind, and a name for a kind that the plan does not have.
    """
    if form not in FORMS:
        raise BadInput(
            f"{form[:40]!r} cannot ask for hosts of several kinds",
            field="format",
            expected=f"one of {', '.join(FORMS)}",
        )
    hosts = required_hosts(plan)
    for kind in names or {}:
        if kind not in {host.kind for host in hosts}:
            raise BadInput(
                f"the plan has no {kind[:40]!r}",
                field="gpu-type",
                expected=f"one of {', '.join(dict.fromkeys(host.kind for host in hosts))}",
            )
    if form == "sbatch":
        return _sbatch(str(plan.get("graph_name") or "job"), hosts, names or {})
    document = {
        "bundles": [
            {"GPU": host.ranks, f"accelerator_type:{_upper(host.kind, names or {})}": AFFINITY}
            for host in hosts
        ],
        "strategy": "STRICT_SPREAD",
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def required_hosts(plan: Mapping[str, Any]) -> list[Host]:
    """Returns the hosts of a plan on several kinds. Raises `BadInput` for one on one kind."""
    hosts = hosts_of(plan)
    if not hosts:
        raise BadInput(
            "the plan is for one kind of device",
            field="cluster",
            expected="a plan on several kinds; `shardwise curve --format` writes the others",
        )
    return hosts


def _type(kind: str, names: Mapping[str, str]) -> str:
    """Returns what a scheduler calls a kind."""
    named = names.get(kind) or model_of(kind) or kind
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", named).strip("-") or "gpu"


def _upper(kind: str, names: Mapping[str, str]) -> str:
    """Returns what Ray calls a kind: `V100`, unless another name is given."""
    return names.get(kind) or _type(kind, names).upper()


def _sbatch(title: str, hosts: list[Host], names: Mapping[str, str]) -> str:
    parts = [(host, len(list(alike))) for host, alike in groupby(hosts)]
    header = "\n#SBATCH hetjob\n".join(
        f"#SBATCH --nodes={count}\n#SBATCH --ntasks-per-node=1\n"
        f"#SBATCH --gres=gpu:{_type(host.kind, names)}:{host.ranks}"
        for host, count in parts
    )
    steps, before = [], 0
    for number, (host, count) in enumerate(parts):
        steps.append(f'step {number} {before} {host.ranks} "$@"')
        before += count
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", title).strip("-")[:64] or "job"
    lines = "\n".join(steps)
    return f"""#!/bin/sh
#SBATCH --job-name={name}
{header}
# {", ".join(f"{count} x {host.ranks} {host.kind}" for host, count in parts)}, in this order.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | head -n 1)
export head
pids=
step() {{
  part=$1 before=$2 ranks=$3
  shift 3
  before=$before ranks=$ranks srun --het-group="$part" sh -c 'exec torchrun \\
    --nnodes={len(hosts)} --node-rank=$((before + SLURM_NODEID)) --nproc-per-node="$ranks" \\
    --master-addr="$head" --master-port=29500 "$@"' sh "$@" &
  pids="$pids $!"
}}
{lines}
status=0
for pid in $pids; do wait "$pid" || status=$?; done
exit $status
"""
