"""Two kinds of devices on one CPU: ranks slowed on purpose (`measure/slowed.py`), their profile
made from that of ranks of one kind, and random strategies with what is predicted of them.

All ranks are on one host, so that what is measured of its collectives holds for every group of
ranks. The slow kind's operators take `times` as long as measured; updates of parameters and copies
of what is sent are not slowed, and take as long as measured on both kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from harness.execute.mixed import data_parallel, drawn_strategy
from harness.execute.plans import unsearched_plan
from shardwise.answers.mixed import described_cluster
from shardwise.cost.mixed.assemble import MixedProblem, mixed_costed
from shardwise.cost.mixed.catalogue import Probed
from shardwise.cost.options import Options, quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.documents import Plan
from shardwise.graph import Graph
from shardwise.hardware import (
    Blocks,
    DeviceGroup,
    Devices,
    GroupShape,
    Hardware,
    JointLinks,
    collective_times,
)
from shardwise.hardware.operator_tables import OperatorTable
from shardwise.measure.cores import allowed_cores, ranks_on_core
from shardwise.measure.operators import Effort, Measured, OperatorItem, measure_operators
from shardwise.measure.operators.needed import operators_of
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.search.search import Subject
from shardwise.sharding.layout import Floats

FAST, SLOW = "fast", "slow"
ZERO = (0, 1, 2, 3)
MEMORY = 0.6
"""What the slow kind has of the fast one's memory: uneven shards follow it."""


@dataclass(frozen=True)
class Kinds:
    """How many times as slow each rank is: fast ranks first, as many of each kind.

    With a `quota` every rank has this share of a core and no more, also while others wait.
    """

    times: tuple[float, ...]
    quota: float | None = None

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.times)

    @property
    def held(self) -> float:
        """How many times as long as measured operators take for the quota.

        They are measured without: a core's ranks share it, and count the time it takes for all.
        """
        if self.quota is None:
            return 1.0
        return 1.0 / (self.quota * ranks_on_core(allowed_cores(), 0, self.world))

    @property
    def slow(self) -> float:
        """How many times as slow the slow kind is."""
        return max(self.times)


def two_kinds(one: Hardware, kinds: Kinds, operators: Sequence[OperatorTable] = ()) -> Hardware:
    """Returns the profile of two kinds made from one of `kinds.world` ranks of this host.

    With `operators`, the measured tables of all that strategies need, what has no table takes as
    long on both kinds. Without, the slow kind's peaks are lower, which is what shares are made
    from.
    """
    device, each = one.devices[0], kinds.world // 2
    scale = 1.0 if operators else kinds.slow
    slow = replace(
        device,
        kind=SLOW,
        memory_bytes=device.memory_bytes * MEMORY,
        peak_flops_per_s={k: v / scale for k, v in device.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / scale,
        kernel_latency_s=device.kernel_latency_s * scale,
    )
    inside = one.levels[0]
    tables = [
        replace(table, consecutive=False, groups=(group,))
        for table in one.collectives
        if table.ranks_per_node == each and table.consecutive
        for group in (FAST, SLOW)
    ]
    return replace(
        one,
        name=f"{one.name}, {':'.join(f'{t:g}' for t in kinds.times)}",
        devices=(replace(device, kind=FAST), slow),
        levels=(replace(inside, size=each), replace(inside, name="between nodes", size=2)),
        collectives=tuple(tables),
        operators=tuple(
            _timed(table, kind, kinds.held * (times if table.direction != "update" else 1.0))
            for kind, times in ((FAST, 1.0), (SLOW, kinds.slow))
            for table in operators
        ),
        nodes=None,
        groups=(DeviceGroup(FAST, FAST, 1, each), DeviceGroup(SLOW, SLOW, 1, each)),
    )


def _timed(table: OperatorTable, kind: str, times: float) -> OperatorTable:
    return replace(table, device=kind, times_s=tuple(t * times for t in table.times_s))


class HostLinks(JointLinks):
    """Links between ranks of one host, of which all collectives were measured.

    A sum to a server and its way back take what a broadcast takes. A change of shares takes what
    all_to_all takes, by a line over its sizes.
    """

    def __init__(self, blocks: Blocks, one: Hardware) -> None:
        super().__init__(blocks)
        self._one, self._size = one, blocks.size

    def _shape(self, support: tuple[int, ...], ranks: int) -> GroupShape:
        size = len(support) * ranks
        return GroupShape(size, 1, size, 1, ranks == self._size)

    def times(
        self, operation: str, sizes_bytes: Floats, support: tuple[int, ...], ranks: int
    ) -> Floats:
        return collective_times(self._one, operation, sizes_bytes, self._shape(support, ranks))

    def to_server_s(
        self, sizes_bytes: Floats, server: int, block: int, support: tuple[int, ...], ranks: int
    ) -> Floats:
        return self.times("broadcast", sizes_bytes, support, ranks)

    def flows_s(self, flows: Floats, block: int) -> tuple[float, float]:
        sent, came = float(flows[block].sum()), float(flows[:, block].sum())
        if not (sent or came):
            return 0.0, 0.0
        sizes = np.geomspace(2**14, 2**25, 12)
        shape = self._shape((0, 1), 1)
        times = collective_times(self._one, "all_to_all", sizes, shape)
        # Half of an all_to_all's buffer goes to the other of two ranks.
        lines = np.stack([sizes / 2, np.ones(len(sizes))], axis=1) / times[:, None]
        (per_byte, fixed), *_ = np.linalg.lstsq(lines, np.ones(len(sizes)), rcond=None)
        return max(float(per_byte), 0.0) * max(sent, came), max(float(fixed), 0.0)


def bundle_of(hardware: Hardware, kinds: Kinds) -> Devices:
    """Returns all devices of a profile that `two_kinds` made."""
    return Devices.of(hardware, {FAST: kinds.world // 2, SLOW: kinds.world // 2})


def data_parallel_plan(graph: Graph, hardware: Hardware, kinds: Kinds, origin: str) -> Plan:
    """Returns the plan of data parallelism with the proportion of this origin."""
    subject = Subject.of(graph)
    options = Options(zero=(0,), recompute="never", micro_batches=(1,))
    blocks = Blocks.of(hardware, bundle_of(hardware, kinds))
    problem = mixed_costed(subject.variant(options, 1), blocks, options, quiet).joined(quiet)
    origins = [proportion.origin for proportion in problem.cluster.proportions]
    choices = data_parallel(problem, origins.index(origin), gradient_sum=0)
    return planned(subject, problem, choices, [0] * len(problem.edges), origin)


def planned(
    subject: Subject, problem: MixedProblem, choices: list[int], edges: list[int], name: str
) -> Plan:
    """Returns the plan of given configurations and alternatives of edges."""
    cluster = problem.cluster
    place, mesh = cluster.places[0], cluster.search.mesh
    plan = unsearched_plan(subject, place.hardware, mesh, problem, choices, edges, name)
    return msgspec.structs.replace(plan, cluster=described_cluster(cluster, []))


@dataclass(frozen=True)
class Drawn:
    """A strategy with what is predicted of it, seconds and bytes; `peaks` by rank."""

    plan: Plan
    time_s: float
    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]
    peaks: tuple[float, ...]


class RandomStrategies:
    """Random strategies of a graph on two kinds of ranks."""

    def __init__(self, graph: Graph, one: Hardware, kinds: Kinds, count: int, seed: int) -> None:
        """`one` is a profile of `kinds.world` ranks of one kind."""
        self.kinds, self._one, self._seed = kinds, one, seed
        self._subject = Subject.of(graph)
        self._options = Options(
            overlap=False,
            zero=ZERO,
            recompute="auto",
            micro_batches=(1,),
            step=StepSettings("cpu", "for-loop", 64),
        )
        self._rough = self._problem(two_kinds(one, kinds), None)
        drawn = [drawn_strategy(self._rough, seed * 1000 + p)[0] for p in range(count)]
        self._choices = np.array(drawn, dtype=np.int64).reshape(count, len(self._rough.costs))

    def add_data_parallel(self, origin: str) -> None:
        """Adds data parallelism with the proportion of this origin to the strategies."""
        origins = [proportion.origin for proportion in self._rough.cluster.proportions]
        choices = data_parallel(self._rough, origins.index(origin), gradient_sum=0, zero=0)
        self._choices = np.concatenate([self._choices, [choices]])

    def _problem(self, hardware: Hardware, probed: Probed | None) -> MixedProblem:
        """Returns the problem with all configurations, so that they have the same numbers whatever
        is measured."""
        costed = mixed_costed(
            self._subject.variant(self._options, 1),
            Blocks.of(hardware, bundle_of(hardware, self.kinds)),
            self._options,
            quiet,
            1,
            lambda blocks: HostLinks(blocks, self._one),
            probed,
        )
        return replace(costed, keep_beaten=True).joined(quiet)

    def measured(self, limit_s: float, own_time: bool = False) -> Measured:
        """Measures all calls that the strategies make at any place, on ranks of one kind.

        `own_time` counts processor time, for machines that others use at the same time.
        """
        needed: dict[OperatorItem, OperatorItem] = {}
        for place in self._rough.places:
            for item in operators_of(place, self._choices):
                known = needed.get(item)
                more = 0.0 if known is None else known.expected_s
                needed[item] = replace(item, expected_s=item.expected_s + more)
        items = sorted(needed.values(), key=lambda item: -item.expected_s)
        effort = Effort(
            time_limit_s=limit_s,
            ranks=self.kinds.world,
            threads=1,
            own_time=own_time,
            kind=FAST,
        )
        return measure_operators(items, effort)

    def predicted(self, tables: Sequence[OperatorTable]) -> list[Drawn]:
        """Returns the strategies with what is predicted of them, from measured operators."""
        cluster = self._rough.cluster
        probed = Probed(cluster.proportions, cluster.states, cluster.servers)
        hardware = two_kinds(self._one, self.kinds, tables)
        problem = self._problem(hardware, probed)
        random = np.random.default_rng(self._seed)
        edges = np.zeros((len(self._choices), len(problem.edges)), dtype=np.int64)
        for p, choices in enumerate(self._choices):
            for e, edge in enumerate(problem.edges):
                cell = edge.table.cell(choices[edge.source], choices[edge.target])
                edges[p, e] = random.integers(int(edge.table.count[cell]))
        memory = [place.hardware.devices[0].memory_bytes for place in problem.cluster.places]
        replayer = MixedReplayer(problem, self._options.step, np.array(memory))
        replayed = replayer.replay(self._choices, edges)
        values = replayer.values(self._choices, edges)
        peaks, _, _, busy_s = replayer.outcome(values)
        size, place_of = problem.cluster.blocks.size, problem.cluster.place_of
        at = [place_of[rank // size] for rank in range(self.kinds.world)]
        return [
            Drawn(
                planned(
                    self._subject,
                    problem,
                    self._choices[p].tolist(),
                    edges[p].tolist(),
                    f"random:{p}",
                ),
                float(replayed.time_s[p]),
                tuple(busy_s[p, 2 * place] for place in at),
                tuple(busy_s[p, 2 * place + 1] for place in at),
                tuple(peaks[p, at]),
            )
            for p in range(len(self._choices))
        ]
