"""Operators of a graph on ranks of several kinds: each kind's ranks measure the same calls.

Which calls plans on several kinds make depends on shares that are chosen by these very times. So
those are measured that plans make on each group alone, and on all devices as if they were of one
kind; shares between the two are interpolated by rows (docs/operator-tables.md).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwise.cost.options import Options
from shardwise.graph import Graph
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.operator_tables import OperatorTable
from shardwise.measure.kinds.layout import MeasuredGroup
from shardwise.measure.kinds.together import measure_together
from shardwise.measure.operators.clock import cache_bytes
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.measuring import Measured
from shardwise.measure.operators.needed import Of, OperatorItem, needed_operators
from shardwise.measure.operators.profile import working_set_bytes
from shardwise.measure.operators.tables import merged
from shardwise.measure.rank import Rank

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class OperatorQuestion:
    """The graph whose operators are measured, of which plans, and within how much time.

    `gpus` is a number of devices that was asked for, which ranks of several kinds refuse.
    """

    graph: Graph
    of: Of
    options: Options
    time_limit_s: float
    gpus: int | None = None


def with_operators(
    rank: Rank,
    mine: Rank,
    groups: Sequence[MeasuredGroup],
    profile: Hardware | None,
    question: OperatorQuestion,
    memory_bytes: float,
    tell: Tell,
) -> Hardware | None:
    """Returns the profile with the operators of all kinds on rank 0, None on the others.

    Collective; `mine` is this rank among those of its group.
    """
    items: tuple[OperatorItem, ...] = ()
    if profile is not None:
        tell("which operators plans need", 0.0)
        items = needed_on_kinds(profile, groups, question)
        tell(f"{len(items)} operators on each kind", 0.0)
    box = [items]
    rank.torch.distributed.broadcast_object_list(box, 0, group=rank.control)
    measured = _measured(rank, mine, groups, box[0], question, memory_bytes)
    outcomes: list[Measured | None] = rank.gather(measured)
    if profile is None:
        return None
    tables: tuple[OperatorTable, ...] = profile.operators
    left_out = list(profile.measurement["left_out"])
    for group in groups:
        outcome = outcomes[group.ranks[0]]
        if outcome is not None:
            tables = merged(tables, outcome.tables)
            for line in outcome.notes():
                left_out.append(f"{group.name}: {line}")
    when = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")[:10]
    source = f"measured on {when} with torch {rank.torch.__version__}, all kinds at once"
    return replace(
        profile,
        operators=tables,
        sources={**profile.sources, "operators": source},
        measurement={**profile.measurement, "left_out": left_out},
    )


def needed_on_kinds(
    profile: Hardware, groups: Sequence[MeasuredGroup], question: OperatorQuestion
) -> tuple[OperatorItem, ...]:
    """Returns the calls that plans make on each group alone and on all devices, slowest first."""
    devices = sum(len(group.ranks) for group in groups)
    found: dict[OperatorItem, OperatorItem] = {}
    for group in groups:
        alone = profile.of_group(group.name)
        nodes = -(-devices // alone.per_node)
        inside, between = alone.levels
        wide = replace(alone, nodes=nodes, levels=(inside, replace(between, size=nodes)))
        for gpus in dict.fromkeys((devices, len(group.ranks))):
            for item in needed_operators(
                question.graph, wide, gpus, question.options, of=question.of
            ):
                known = found.get(item)
                longest = item if known is None else max(known, item, key=lambda i: i.expected_s)
                found[item] = longest
    return tuple(sorted(found.values(), key=lambda item: -item.expected_s))


def _measured(
    rank: Rank,
    mine: Rank,
    groups: Sequence[MeasuredGroup],
    items: Sequence[OperatorItem],
    question: OperatorQuestion,
    memory_bytes: float,
) -> Measured | None:
    """Measures the calls on this rank's kind; returns them on the first rank of each kind.

    Groups of one kind that differ in ranks per node have one table: the first measures.
    """
    group = next(g for g in groups if rank.world.rank in g.ranks)
    if group is not next(g for g in groups if g.kind == group.kind):
        return None
    size = 1 if rank.on_gpu else group.per_node
    device = "cuda" if rank.on_gpu else "cpu"
    cache = cache_bytes(rank.torch, rank.device)
    gpus = sum(len(g.ranks) for g in groups)
    effort = Effort(
        device,
        group.kind,
        time_limit_s=question.time_limit_s,
        memory_limit_bytes=memory_bytes,
        ranks=size,
        threads=0 if rank.on_gpu else rank.torch.get_num_threads(),
        flushed=working_set_bytes(question.graph) / gpus > cache / size,
        slowed=rank.label.slowed,
    )
    return measure_together(mine, group.ranks[0], items, effort)
