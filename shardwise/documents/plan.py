"""`Plan`: one strategy for a graph, in one stage or in several, and what all plans consist of.

It has two written forms: `shardwise.plan/1` (`whole_plan.py`) and `shardwise.pipeline/1`
(`pipeline.py`). Readers take a `Plan` and ask it, not its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.common import (
    Certificate,
    ComputeShares,
    Layout,
    MeshDescription,
    OperatorName,
    Provenance,
    SearchReport,
    Step,
)
from shardwise.documents.parallelism import PlannedTrainer
from shardwise.documents.prediction import Predicted
from shardwise.errors import BadInput


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


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a plan: devices `first_device` to `first_device` + `devices` - 1 run `groups`, by
    position among those of the plan. `label` is its strategy in the words of parallel training."""

    if TYPE_CHECKING:
        first_device: int
        devices: int
        label: str
        peak_bytes: int
        groups: Sequence[int]

    @property
    def idle(self) -> float | UnsetType:
        """The share of the step in which its devices wait for other stages."""
        return UNSET


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy for a graph on a number of GPUs: a list of stages, most often a single one.

    Both written forms have the members that are named here; each lists them itself, in the order
    in which it has written them since version 1. A member that a form does not write is unset.
    """

    if TYPE_CHECKING:
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
        device_memory_bytes: float
        memory_limit_bytes: float
        provenance: Provenance
        undescribed_operators: list[OperatorName]
        replicated_operators: list[OperatorName]
        warnings: list[str]
        micro_batches: int
        groups: list[PlannedGroup]
        edges: list[PlannedEdge]
        certificate: Certificate
        search: SearchReport

    @property
    def predicted(self) -> Predicted:
        """What a step is predicted to take."""
        raise NotImplementedError

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages, in the order in which a micro-batch goes through them."""
        raise NotImplementedError

    @property
    def piped(self) -> bool:
        """Whether micro-batches go from stage to stage."""
        return False

    @property
    def stage_mesh(self) -> MeshDescription:
        """The mesh of one stage, which the splits of `groups` and `edges` are of."""
        return self.mesh

    @property
    def stages_per_rank(self) -> int | UnsetType:
        """How many stages each group of devices has, where these are several."""
        return UNSET

    @property
    def ranks(self) -> int:
        """The number of groups of devices, which have one stage or several each."""
        return len(self.stages) // (self.stages_per_rank or 1)

    @property
    def pipeline_schedule(self) -> str:
        """In which order stages run their micro-batches; empty of a single stage."""
        return ""

    @property
    def replayed_s(self) -> float:
        """The seconds of a step as it was replayed."""
        raise NotImplementedError

    @property
    def step_s(self) -> float:
        """The seconds of a step by which strategies were ranked: replayed, or summed."""
        return self.replayed_s

    @property
    def peak_limit_bytes(self) -> float:
        """What a device that reaches the peak may use."""
        return self.memory_limit_bytes

    @property
    def overlap(self) -> bool:
        """Whether communication overlaps computation in the step by which strategies ranked."""
        return True

    @property
    def objective(self) -> str:
        """What picked it."""
        return "mini-time"

    @property
    def order(self) -> Sequence[str]:
        """The graph's operators as forward runs them; empty where the plan does not list them."""
        return ()

    @property
    def reordered(self) -> PlannedSchedule | UnsetType:
        """An order of execution other than the program's."""
        return UNSET

    @property
    def kinds(self) -> list[str]:
        """The kind of device of every rank, in their order; nothing where all are alike."""
        return [] if self.cluster is UNSET else self.cluster.kinds

    @property
    def cluster(self) -> PlannedCluster | UnsetType:
        """The blocks of devices of several kinds that share one stage."""
        return UNSET

    @property
    def bundle(self) -> str | UnsetType:
        """How many devices of which group, where stages are on several kinds."""
        return UNSET

    @property
    def execution(self) -> Execution | UnsetType:
        """What else of running a step memory depends on."""
        return UNSET

    @property
    def trainer(self) -> PlannedTrainer | UnsetType:
        """The trainer that can run it as it is."""
        return UNSET

    @property
    def kernels(self) -> str | UnsetType:
        """How light operators run."""
        return UNSET

    @property
    def assumed(self) -> bool | UnsetType:
        """Whether nobody asked for these kernels."""
        return UNSET

    @property
    def not_searched(self) -> list[str] | UnsetType:
        """As in a frontier."""
        return UNSET

    @property
    def program(self) -> str | UnsetType:
        """What runs the step, in words."""
        return UNSET

    @property
    def tune(self) -> str | UnsetType:
        """What is trained, where that is not all."""
        return UNSET
