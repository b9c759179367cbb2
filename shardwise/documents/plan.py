"""`shardwise.plan/1`: one strategy, spelled out far enough to be executed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import (
    Certificate,
    ComputeShares,
    Expected,
    Layout,
    MeshDescription,
    OperatorName,
    Provenance,
    SearchReport,
    Step,
)
from shardwise.documents.parallelism import PlannedTrainer
from shardwise.documents.timeline import Timeline
from shardwise.errors import BadInput


class Mixture(msgspec.Struct, frozen=True):
    """A part of a strategy: what its groups do, with their share of all parameters and of the
    compute time."""

    label: str
    parameters: float
    compute: float


class Faster(msgspec.Struct, frozen=True):
    """The fastest strategy that was found, where a plan is a simpler one: its label, what it saves
    of the plan's step, relative, and its own step and peak."""

    label: str
    saves: float
    replayed_time_s: float
    peak_bytes: int


class Prediction(msgspec.Struct, frozen=True):
    """What a plan is predicted to take: sums of the search, and the step as it was replayed.

    `gap` is how much longer than the shortest possible the time may be, relative, null without a
    proof. `label` is the strategy in the words of parallel training (docs/strategies.md), and
    `mixtures` what it consists of, the largest part first. `faster` is there where a faster
    strategy was found, within the tolerance of the search, that makes more different choices.
    `expected` says how far published steps on such GPUs were from their predictions, where enough
    were compared.
    `model_flops_utilisation` is what the model's products would take at the GPUs' peak, over the
    time that ranks; recomputation does not count. Causal attention counts whole in it, and as its
    kernels compute it in `causal_flops_utilisation`. `tokens_per_s` is null where samples are not
    sequences of tokens. `host_s` is how long the host launches the step's work, for which GPUs may
    wait. `bound_by` is `compute`, `links inside a node`, `links between nodes`, `memory limit` or
    `host`, and `to_go_faster` says in a sentence what would shorten the step.
    """

    memory_bytes: int
    peak_bytes: int
    fixed_memory_bytes: float
    time_s: float
    replayed_time_s: float
    exposed_communication_s: float
    compute_s: float
    compute_shares: ComputeShares | None
    communication_s: float
    fixed_time_s: float
    samples_per_s: float | None
    gap: float | None
    label: str | UnsetType = UNSET
    model_flops_utilisation: float | UnsetType = UNSET
    causal_flops_utilisation: float | UnsetType = UNSET
    tokens_per_s: float | UnsetType | None = UNSET
    bound_by: str | UnsetType = UNSET
    to_go_faster: str | UnsetType = UNSET
    host_s: float | UnsetType = UNSET
    mixtures: list[Mixture] | UnsetType = UNSET
    faster: Faster | UnsetType = UNSET
    expected: Expected | UnsetType = UNSET


class Load(msgspec.Struct, frozen=True):
    """How an input of the graph gets from the layout in which it arrives to the wanted one."""

    tensor: str
    arrives: Layout
    steps: list[Step]


class Move(msgspec.Struct, frozen=True):
    """An input that an operator reads in another layout than it has in the group."""

    input: int
    tensor: str
    forward: list[Step]
    backward: list[Step]


class PlannedOperator(msgspec.Struct, frozen=True):
    """One operator: per mesh axis the variable that it splits (`variables`: its position).

    Its costs are those on one device in one step; `compute_from` says what each direction of the
    compute time is based on. `runs_again` is false for one that need not run again in backward
    though its group does. `precision` is what a rule gives it; `rounding_s` is what of its compute
    time rounds to 8 or 4 bits.
    """

    name: str
    kind: str
    split: list[str | None]
    variables: list[int | None]
    inputs: dict[str, Layout]
    outputs: dict[str, Layout]
    loads: list[Load]
    moves: list[Move]
    precision: str | UnsetType = UNSET
    runs_again: bool | UnsetType = UNSET
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    compute_from: dict[str, str] = {}
    rounding_s: float | UnsetType = UNSET


COLLECTIVE_SUM = "collective"
"""What plans call the sum of gradients by collectives over all replicas."""


class Choice(msgspec.Struct, frozen=True):
    """What a group chooses: per mesh axis the variable that it splits, ZeRO, recomputation.

    With devices of several kinds also its `proportion`, by position among those of the cluster, and
    how its gradients are summed: `collective`, `server NAME` or `by memory`.
    """

    split: dict[str, str | None]
    zero: int
    zero_axes: list[str]
    recompute: bool
    proportion: int | UnsetType = UNSET
    gradient_sum: str | UnsetType = UNSET


class NextBest(msgspec.Struct, frozen=True):
    """The best other choice of a group, and what it would add."""

    split: dict[str, str | None]
    zero: int
    zero_axes: list[str]
    recompute: bool
    added_time_s: float
    added_memory_bytes: float


class PlaceCost(msgspec.Struct, frozen=True):
    """What a group or a step takes on the devices of one place, in one step."""

    place: str
    compute_s: float
    communication_s: float


class PlannedGroup(msgspec.Struct, frozen=True):
    """A group of operators that share a choice: split, ZeRO stage, recomputation.

    With devices of several kinds, costs are those on the devices of the busiest place, and `places`
    has the times of all.
    """

    name: str
    choice: int
    segment: int
    split: dict[str, str | None]
    zero: int
    zero_axes: list[str]
    recompute: bool
    parameter_bytes: float
    activation_bytes: float
    compute_s: float
    compute_shares: ComputeShares | None
    communication_s: float
    operators: list[PlannedOperator]
    next_best: NextBest | None
    proportion: int | UnsetType = UNSET
    gradient_sum: str | UnsetType = UNSET
    places: list[PlaceCost] | UnsetType = UNSET

    @property
    def slowest(self) -> str:
        """The operator that computes longest, after which people call the group; the group's own
        name, that of its first operator, where none takes time."""
        longest = max(self.operators, key=lambda op: op.compute_s, default=None)
        return longest.name if longest is not None and longest.compute_s else self.name


class PlannedEdge(msgspec.Struct, frozen=True):
    """How tensors cross from one group to another, and which copies backward keeps.

    `again` is what backward runs once more to rebuild a copy.
    """

    source: str
    target: str
    tensors: list[str]
    layout_at_source: Layout
    layout_at_target: Layout
    kept: str
    memory_bytes: float
    time_s: float
    forward: list[Step]
    backward: list[Step]
    again: list[Step]
    proportion_at_source: int | UnsetType = UNSET
    proportion_at_target: int | UnsetType = UNSET


class PlannedBlock(msgspec.Struct, frozen=True):
    """Devices of one group in one node; ranks are numbered block by block."""

    group: str
    node: int


class PlannedProportion(msgspec.Struct, frozen=True):
    """The weights of the blocks, which cut a dimension by largest remainder, and what they are for.

    A block of weight 0 does not have the operator.
    """

    weights: list[int]
    origin: str


class PlannedPlace(msgspec.Struct, frozen=True):
    """Blocks that do the same: one device's peak and times in the replayed step."""

    name: str
    group: str
    kind: str
    blocks: list[int]
    memory_limit_bytes: float
    peak_bytes: int
    compute_s: float
    communication_s: float


class PlannedHost(NamedTuple):
    """A host of a plan on several kinds: the group and kind of its devices, and how many ranks."""

    group: str
    kind: str
    ranks: int


class PlannedCluster(msgspec.Struct, frozen=True):
    """The devices of a plan on several kinds (docs/mixed.md).

    `servers` maps gradient sums at a server to its block, `states` are the uneven shards of the
    optimizer's state, whose `origin` is the gradient sum.
    """

    bundle: str
    block_size: int
    blocks: list[PlannedBlock]
    proportions: list[PlannedProportion]
    places: list[PlannedPlace]
    states: list[PlannedProportion] = []
    servers: dict[str, int] = {}

    @property
    def kinds(self) -> list[str]:
        """The kind of each rank's device, by rank."""
        of_block = {block: place.kind for place in self.places for block in place.blocks}
        return [
            of_block[block] for block in range(len(self.blocks)) for _ in range(self.block_size)
        ]

    def hosts(self) -> list[PlannedHost]:
        """Returns the hosts in the order of their ranks.

        Ranks are numbered block by block, so hosts are nodes in the order of their blocks. Raises
        `BadInput` for blocks that are not node by node, each node of one group, and each in a
        place.
        """
        kinds = {block: place.kind for place in self.places for block in place.blocks}
        hosts: list[PlannedHost] = []
        last = -1
        for number, block in enumerate(self.blocks):
            goes_on = block.node == last and hosts[-1].group == block.group
            if number not in kinds or not (goes_on or block.node == last + 1):
                raise BadInput(
                    f"block {number} of {block.group[:80]} on node {block.node}",
                    field="cluster.blocks",
                    expected="blocks node by node, each node of one group, and each in a place",
                )
            ranks = self.block_size + (hosts.pop().ranks if goes_on else 0)
            hosts.append(PlannedHost(block.group, kinds[number], ranks))
            last = block.node
        return hosts


class PlannedSchedule(msgspec.Struct, frozen=True):
    """An order of execution other than the program's; `order` of the plan is that of forward.

    `kind` is `rank`: list scheduling by upward rank (docs/replay.md). `backward` are the operators
    that have a backward in the order in which that runs. `program_time_s` and `program_peak_bytes`
    are those of the same strategy in the program's order, which `gap` is about.
    """

    kind: str
    backward: list[str]
    program_time_s: float
    program_peak_bytes: int


MORE_ROOM = "more room"
"""What plans call the fastest strategy known that leaves a part of the memory free."""


class Neighbour(msgspec.Struct, frozen=True):
    """The fastest strategy found that has a property which a plan lacks, replayed.

    `name` is the property: `pure FSDP`, `TP 4` (or another degree), `no recomputation`,
    `recomputation`, or `more room` (a lower peak). One that does not fit is the one of the least
    peak that was found.
    """

    name: str
    label: str
    micro_batches: int
    replayed_time_s: float
    peak_bytes: int
    fits: bool


class Execution(msgspec.Struct, frozen=True):
    """How a step runs, as far as its memory depends on it (`cost/step_settings.py`)."""

    device: str
    update: str
    block_bytes: int
    state: str
    gradients: str
    accumulation: str
    offload: str | UnsetType = UNSET
    weights: str | UnsetType = UNSET


class Plan(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.plan/1"):
    """One strategy for a graph on a number of GPUs.

    `neighbours` are there where the replayed time was searched near the memory limit. `framework`
    launches the work, `kernels` says how light operators run (`--framework`, `--kernels`; `assumed`
    where neither was asked for and they are compiled, as usual on GPUs), `execution` what else of
    running a step memory depends on. `trainer` is there for a plan that a trainer can run as it is
    (`--space`). `cluster` is there for devices of several kinds; memory is then scaled to the
    devices with the least (docs/mixed.md). `order` are the graph's operators as forward runs them;
    `schedule` is there if that is not the graph's own order, or backward not the reverse. `program`
    says in words what runs the step. `timeline` is the replayed step over time (docs/replay.md).
    `not_searched` is as in a frontier. `published` is what others measured of such a model on such
    GPUs, where that is known.
    """

    id: str
    graph: str
    graph_name: str
    batch_size: int | None
    hardware: str
    hardware_id: str
    gpus: int
    nodes: int
    mesh: MeshDescription
    optimizer: str
    precision: str
    overlap: bool
    device_memory_bytes: float
    memory_limit_bytes: float
    provenance: Provenance
    undescribed_operators: list[OperatorName]
    replicated_operators: list[OperatorName]
    warnings: list[str]
    micro_batches: int
    objective: str
    predicted: Prediction
    groups: list[PlannedGroup]
    edges: list[PlannedEdge]
    order: list[str]
    certificate: Certificate
    search: SearchReport
    neighbours: list[Neighbour] | UnsetType = UNSET
    framework: str | UnsetType = UNSET
    kernels: str | UnsetType = UNSET
    execution: Execution | UnsetType = UNSET
    trainer: PlannedTrainer | UnsetType = UNSET
    cluster: PlannedCluster | UnsetType = UNSET
    schedule: PlannedSchedule | UnsetType = UNSET
    timeline: Timeline | UnsetType = UNSET
    not_searched: list[str] | UnsetType = UNSET
    program: str | UnsetType = UNSET
    tune: str | UnsetType = UNSET
    assumed: bool | UnsetType = UNSET
    published: str | UnsetType = UNSET

    @property
    def replayed_s(self) -> float:
        """The seconds of a step as it was replayed."""
        return self.predicted.replayed_time_s

    @property
    def step_s(self) -> float:
        """The seconds of a step by which strategies were ranked: replayed, or summed."""
        return self.predicted.replayed_time_s if self.overlap else self.predicted.time_s

    @property
    def ranks(self) -> int:
        """The number of groups of devices with stages of their own: all have the one stage."""
        return 1

    @property
    def kinds(self) -> list[str]:
        """The kind of device of every rank, in their order; nothing where all are alike."""
        return [] if self.cluster is UNSET else self.cluster.kinds
