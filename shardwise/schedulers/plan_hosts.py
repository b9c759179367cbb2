"""The hosts of a plan or a pipeline: how many GPUs of which kind each one starts, in the order of
ranks.

A plan on several kinds of devices numbers its ranks block by block (docs/mixed.md), so the hosts
have their order: whoever starts them gives each its place in it, as torchrun's `--node-rank`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from msgspec import UNSET

from shardwise.documents.plan import Plan, PlannedCluster
from shardwise.errors import BadInput
from shardwise.schedulers.counts import accelerator
from shardwise.schedulers.groups import names_of

PORT = 29500
"""Where rank 0 listens: torchrun's own default."""


@dataclass(frozen=True)
class HostGroup:
    """Like hosts, one after another in the order of ranks, `first` the number of the first.

    `group` is the profile's, empty where that has none, `kind` what its devices are, and `gpu_type`
    what the scheduler calls them where that was said.
    """

    group: str
    kind: str
    gpu_type: str | None
    first: int
    nodes: int
    per_node: int

    @property
    def type_name(self) -> str:
        """The scheduler's name of the GPUs; by default that of the group, else of the kind."""
        return self.gpu_type or self.group or self.kind


@dataclass(frozen=True)
class Hosts:
    """All hosts of a plan: `name` is that of its graph, `step_s` the predicted seconds of a
    step."""

    name: str
    hardware: str
    plan_id: str
    step_s: float
    groups: tuple[HostGroup, ...]

    @property
    def nodes(self) -> int:
        """How many hosts there are."""
        return sum(group.nodes for group in self.groups)

    @property
    def kinds(self) -> list[str]:
        """The kinds of devices, each once."""
        return list(dict.fromkeys(group.kind for group in self.groups))

    @classmethod
    def of(cls, plan: Plan, gpu_type: str | None = None) -> Hosts:
        """Returns the hosts of a plan or a pipeline; `gpu_type` is as in `names_of`.

        Raises `BadInput`, which names the field, for hosts of one kind with unequal numbers of
        GPUs, whose order the plan does not say, for GPU types that are not of its groups, and for a
        pipeline on several kinds of devices, which does not say how many a node has.
        """
        if plan.bundle is not UNSET:
            raise BadInput(
                f"stages on several kinds of devices, {plan.bundle}",
                field="bundle",
                expected="devices of one kind, or a plan without stages: start these hosts by hand",
            )
        cluster = plan.cluster
        groups = _of_one_kind(plan, gpu_type) if cluster is UNSET else _of(cluster, gpu_type)
        return cls(plan.graph_name or "job", plan.hardware, plan.id, plan.step_s, groups)


def _of_one_kind(plan: Plan, gpu_type: str | None) -> tuple[HostGroup, ...]:
    # `Hardware.of_group` names one group of a profile so; a plan may be that group's alone.
    _, _, group = plan.hardware.partition("/")
    if gpu_type and "=" in gpu_type:
        gpu_type = _name_of(group, gpu_type)
    per_node, rest = divmod(plan.gpus, max(plan.nodes, 1))
    if rest or not per_node:
        raise BadInput(
            f"{plan.gpus} GPUs on {plan.nodes} nodes", field="gpus", expected="as many on each"
        )
    kind = group or accelerator(plan.hardware)
    return (HostGroup(group, kind, gpu_type, 0, plan.nodes, per_node),)


def _name_of(group: str, gpu_type: str) -> str | None:
    """Returns the name of the plan's only group among those of all groups of its question; those
    that stay idle are of no use here, and no fault."""
    if not group:
        raise BadInput(
            f"got {gpu_type[:80]!r}", field="gpu_type", expected="one name: the plan has one kind"
        )
    named = [part.partition("=")[0].strip() for part in gpu_type.split(",")]
    return names_of(gpu_type, named).get(group)


def _of(cluster: PlannedCluster, gpu_type: str | None) -> tuple[HostGroup, ...]:
    kinds = {place.group: place.kind for place in cluster.places}
    names = names_of(gpu_type, kinds)
    groups: list[HostGroup] = []
    first = 0
    for (group, kind, per_node), alike in groupby(cluster.hosts()):
        count = len(list(alike))
        groups.append(HostGroup(group, kind, names.get(group), first, count, per_node))
        first += count
    return tuple(groups)
