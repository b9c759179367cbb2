"""A published run on the cost model: its own parallelism, not a better one.

The mesh has one axis of data-parallel ranks between nodes, one inside a node, and one of
tensor-parallel ranks, innermost. Pinned are

    data axes      the batch, in every group that has one
    tensor axis    anything but the batch and the hidden size of the residual stream; positions
                   only with sequence parallelism and outside products, and then in all that is on
                   the residual stream; in groups with a matrix some dimension of the matrix
    ZeRO           the stage, over all data-parallel ranks or those inside a node
    recompute      by layer (all or an even share of them), in the attention between the
                   projections, or torchtitan's rule
    reuse          what sequence parallelism gathers, kept for backward or gathered again

and of the strategies that are left (which dimension of a matrix, which copy is kept) the fastest
one is taken: columns, then rows, then one reduction come out, as the published systems have it.
Where experts or positions are divided, the strategy is that of these degrees as it is priced for
trainers (`peers/practices.py`), on a mesh with an axis for each degree.
Time and memory are given twice: added up, and replayed, with communication overlapped, the wait for
the host, and the peak of what is held.

Of runs to which numbers may be fitted (`Run.is_fitted`) the host's time is not priced while the
problem is assembled but counted: operators cost a host of
eager PyTorch one second each and collectives COLLECTIVE_S, small enough for both counts to be read
from one sum. So the counts hold for any profile of a host and for any framework's share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import floor

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem, assemble
from shardwise.cost.options import Options, quiet
from shardwise.cost.pins import Pin
from shardwise.cost.software import EAGER, FRAMEWORKS
from shardwise.cost.space import NONE
from shardwise.documents.parallelism import text_of, whole
from shardwise.errors import BadInput
from shardwise.hardware import Hardware, Mesh, load_hardware
from shardwise.hardware.host import Host, soft_maximum
from shardwise.hardware.levels import BETWEEN, INSIDE
from shardwise.hardware.mesh import MeshAxis
from shardwise.peers.evaluate import Point, evaluate, point_of
from shardwise.peers.practices import Practices
from shardwise.peers.practitioners import practitioners
from shardwise.peers.restrict import least_time
from shardwise.replay.replay import Replayer
from shardwise.search.search import Subject
from shardwise.sharding.batch import batch_variables
from shardwise.sharding.coarsen import Coarsened, Group
from shardwise.sharding.names import named_dimensions

from .run import Run

Mask = NDArray[np.bool_]
Choices = NDArray[np.uint32]
BATCH = "batch"
TENSOR_AXIS = "tensor"


COLLECTIVE_S = 2.0**-24
"""Seconds of one collective where one operator takes a second: a step has fewer than 2^24."""


@dataclass(frozen=True)
class Prediction:
    """A run as the cost model has it; `problem` and `point` say how it is made up.

    `point` has the sums; `device_s`, `host_s` and `peak_bytes` are replayed: the time of devices
    alone, and of the profile's host under the run's framework (0 where it has none). `operators`
    are the passes of operators that a host launches in a step, `collectives` its collectives, both
    0 where these were not counted.
    """

    run: Run
    hardware: Hardware
    problem: SearchProblem
    point: Point
    device_s: float
    host_s: float
    peak_bytes: float
    operators: int
    collectives: int

    @property
    def time_s(self) -> float:
        """The time of the step, with the wait for the host."""
        return float(soft_maximum(np.array([self.device_s]), np.array([self.host_s]))[0])


def predict(
    run: Run, subject: Subject, change: Callable[[Hardware], Hardware] = lambda profile: profile
) -> Prediction:
    """The run's iteration time and memory on its profile, which `change` may alter.

    `subject` is the run's model on its batch. Raises `BadInput` naming the run where the model
    cannot be parallelised as it says.
    """
    hardware = change(run_hardware(run))
    mesh = run_mesh(run, hardware)
    options = run_options(run, mesh)
    if not run.is_fitted:
        options = replace(options, framework=run.framework)
    variant = subject.variant(options, run.micro_batches)
    host = hardware.host
    counting = replace(hardware, host=Host(1.0, COLLECTIVE_S)) if run.is_fitted else hardware
    problem = assemble(variant, counting, mesh, options, quiet, run.micro_batches)
    try:
        found = candidates(run, problem, options)
    except ValueError as error:
        raise BadInput(str(error), field=f"run {run.name}", expected="another model") from None
    replayer = Replayer(problem, options.step, subject.kits)
    replayed = replayer.replay(*(np.stack(rows) for rows in zip(*found, strict=True)))
    limit_bytes = options.limit_for(hardware.devices[0].memory_bytes)
    best = min(
        range(len(found)),
        key=lambda at: (
            (False, replayed.device_s[at])
            if replayed.peak_bytes[at] <= limit_bytes
            else (True, replayed.peak_bytes[at])
        ),
    )
    host_s, operators, collectives = float(replayed.host_s[best]), 0, 0
    if run.is_fitted:
        operators = floor(host_s)
        collectives = round((host_s - operators) / COLLECTIVE_S)
        host_s = _host_s(run, host, operators, collectives)
    return Prediction(
        run,
        hardware,
        problem,
        point_of(problem, *found[best]),
        float(replayed.device_s[best]),
        host_s,
        float(replayed.peak_bytes[best]),
        operators,
        collectives,
    )


def _host_s(run: Run, host: Host | None, operators: int, collectives: int) -> float:
    """Returns the seconds that a host takes under the run's framework; 0 where there is none."""
    if host is None:
        return 0.0
    framework = FRAMEWORKS[run.framework]
    of_operators = operators * host.operator_s * framework.operator
    return of_operators + collectives * host.collective_s * framework.collective


def candidates(
    run: Run, problem: SearchProblem, options: Options, stages: int = 1
) -> list[tuple[Choices, Choices]]:
    """The choices of groups and of edges that are the run's, at least one: the fastest that are
    pinned, or those of its degrees with the fastest and the smallest copies.

    `stages` are those of its pipeline. Raises ValueError where the problem has none.
    """
    if not run.as_trained:
        choices, _ = least_time(problem, masks(run, problem), options, quiet)
        point = evaluate(problem, choices)
        return [(point.choices, point.edge_choices)]
    wanted = run.parallelism
    practices = Practices(problem, quiet).in_stages(stages)
    partial = (wanted,) if whole(wanted) != wanted else ()
    found = practitioners(
        problem, allowed=lambda one: one == wanted, partial=partial, practices=practices
    )
    if not found:
        why = practices.refusal(wanted) or "a group cannot be split so, or samples are too few"
        raise ValueError(f"{text_of(wanted)}: {why}")
    return [(one.choices, one.edge_choices) for one in found]


def run_options(run: Run, mesh: Mesh) -> Options:
    """What is pinned of the run. The framework is eager, whose host's time is what is counted.

    Degrees of trainers are taken later (`candidates`)."""
    pins = [
        Pin("*", axis.name, frozenset({BATCH}), axis.name == TENSOR_AXIS)
        for axis in mesh.axes
        if not run.as_trained
    ]
    if run.gathers_again:
        pins.append(Pin("*", "reuse", frozenset({"before"}), False))
    return Options(
        overlap=False,
        optimizer=run.optimizer,
        zero=(run.zero,),
        recompute="auto",
        pins=tuple(pins),
        precision=run.precision,
        framework=EAGER,
        kernels=run.light_kernels,
        loss=run.loss or None,
        rerun=run.rerun_of_segments,
        step=run.step,
    )


def with_clock(share: float) -> Callable[[Hardware], Hardware]:
    """A change of a profile: its devices sustain this share of the clocks that they have there."""

    def changed(hardware: Hardware) -> Hardware:
        devices = tuple(
            replace(d, sustained_clock=d.sustained_clock * share) for d in hardware.devices
        )
        return replace(hardware, devices=devices)

    return changed


def run_hardware(run: Run) -> Hardware:
    """The run's profile, with its nodes and its network where the source states others."""
    hardware = load_hardware(run.hardware)
    if run.per_node:
        hardware = hardware.with_devices_per_node(run.per_node)
    if run.network_gbps:
        hardware = hardware.with_network(run.network_gbps * 1e9 / 8)
    return hardware


def run_mesh(run: Run, hardware: Hardware) -> Mesh:
    """Data-parallel ranks between nodes and inside one, tensor-parallel ranks innermost.

    Nodes that are linked as one, as in a rack of NVLink, are one node. Where experts or positions
    are divided there is one that ends where the devices of each degree do.
    """
    nodes = -(-run.gpus // hardware.distinct_levels[0].size)
    per_node = run.gpus // nodes
    ends = {run.tensor_parallel: TENSOR_AXIS}
    if run.as_trained:
        ends.setdefault(run.tensor_parallel * run.context_parallel, "context")
        ends.setdefault(run.expert_devices, "experts")
    ends.setdefault(per_node, "data")
    ends.setdefault(run.gpus, "nodes")
    axes, inner = [], 1
    for end in sorted(ends):
        if end > inner:
            level = INSIDE if end <= per_node else BETWEEN
            axes.append(MeshAxis(ends[end], end // inner, level))
            inner = end
    return Mesh(run.gpus, nodes, per_node, tuple(reversed(axes)))


def masks(run: Run, problem: SearchProblem) -> list[Mask]:
    """Per group the configurations that are the run's."""
    sequence = _sequence_variables(problem.coarsened)
    hidden = _hidden_variables(problem)
    again = _recomputed(run, problem)
    return [
        _splits(run, problem, group, sequence[group.index], hidden[group.index])
        & _sharded(run, problem, group)
        & _taken(problem.costs[group.index].recompute, again[group.index])
        for group in problem.coarsened.groups
    ]


def _taken(flags: Mask, wanted: bool) -> Mask:
    """The configurations that recompute as wanted; all where the group has no such choice."""
    return flags == wanted if (flags == wanted).any() else np.ones_like(flags)


def _splits(
    run: Run, problem: SearchProblem, group: Group, sequence: set[int], hidden: set[int]
) -> Mask:
    cost = problem.costs[group.index]
    allowed = np.ones(len(cost.assignment), dtype=bool)
    names = [axis.name for axis in problem.context.mesh.axes]
    if TENSOR_AXIS not in names:
        return allowed
    split = cost.assignment[:, names.index(TENSOR_AXIS)]
    forbidden = set(hidden)
    if _is_heavy(group) or not run.sequence_parallel:
        forbidden |= sequence
    allowed &= ~np.isin(split, list(forbidden))
    matrix = _matrix_variables(problem, group)
    if matrix:
        allowed &= np.isin(split, list(matrix))
    if (
        run.sequence_parallel
        and hidden
        and not _is_heavy(group)
        and not _has_matrix(problem, group)
    ):
        positions = np.isin(split, list(sequence))
        allowed &= positions if (allowed & positions).any() else True
    return allowed


def _has_matrix(problem: SearchProblem, group: Group) -> bool:
    """Whether an operator reads a matrix, as an embedding does."""
    tensors = problem.context.graph.tensors
    return any(
        tensors[name].role == "parameter" and len(tensors[name].shape) > 1
        for member in group.members
        for name in member.operator.inputs
    )


def _is_heavy(group: Group) -> bool:
    return any(member.semantics.category == "heavy" for member in group.members)


def _hidden_variables(problem: SearchProblem) -> dict[int, set[int]]:
    """Per group the variables along the residual stream: what scales of normalisations run over."""
    names = named_dimensions(problem.coarsened)
    tensors = problem.context.graph.tensors
    hidden = {
        names.name_of[group.index, member.variables[v]]
        for group in problem.coarsened.groups
        if not _is_heavy(group)
        for member in group.members
        for name, accesses in zip(member.operator.inputs, member.semantics.inputs, strict=True)
        if tensors[name].role == "parameter" and len(tensors[name].shape) == 1
        for v in accesses
    }
    return {
        group.index: {
            v for v in range(len(group.variables)) if names.name_of[group.index, v] in hidden
        }
        for group in problem.coarsened.groups
    }


def _matrix_variables(problem: SearchProblem, group: Group) -> set[int]:
    """The variables along the dimensions of a matrix that a product reads."""
    tensors = problem.context.graph.tensors
    return {
        member.variables[v]
        for member in group.members
        if member.semantics.category == "heavy"
        for name, accesses in zip(member.operator.inputs, member.semantics.inputs, strict=True)
        if tensors[name].role == "parameter" and len(tensors[name].shape) > 1
        for v in accesses
    }


def _sharded(run: Run, problem: SearchProblem, group: Group) -> Mask:
    """State sharded over the run's data-parallel ranks, as far as they repeat a parameter.

    What the tensor axis repeats (scales of normalisations) may be sharded over it as well.
    """
    cost = problem.costs[group.index]
    data = sum(
        1 << a
        for a, axis in enumerate(problem.context.mesh.axes)
        if axis.name != TENSOR_AXIS and (run.zero_within == "job" or axis.level == INSIDE)
    )
    others = sum(
        1 << a for a, axis in enumerate(problem.context.mesh.axes) if axis.name != TENSOR_AXIS
    )
    sharding = cost.zero_axes & others
    possible: dict[bytes, int] = {}
    for row, axes in zip(cost.assignment, sharding.tolist(), strict=True):
        possible[row.tobytes()] = possible.get(row.tobytes(), 0) | axes
    wanted = [data & possible[row.tobytes()] for row in cost.assignment]
    return np.asarray(sharding == np.array(wanted))


def _sequence_variables(coarsened: Coarsened) -> dict[int, set[int]]:
    """Per group the variables that run over positions: dimension 1 of the tokens, followed."""
    graph = coarsened.graph
    dims = {n: 1 for n, t in graph.tensors.items() if t.role == "input" and len(t.shape) == 2}
    variables: dict[int, set[int]] = {group.index: set() for group in coarsened.groups}
    members = {m.operator.name: (g.index, m) for g in coarsened.groups for m in g.members}
    for op in graph.operators:
        if op.name not in members:
            continue
        index, member = members[op.name]
        for v in batch_variables(op, member.semantics, dims):
            variables[index].add(member.variables[v])
            for name, accesses in zip(op.outputs, member.semantics.outputs, strict=True):
                if v in accesses:
                    dims[name] = accesses[v].dim
    return variables


def _recomputed(run: Run, problem: SearchProblem) -> list[bool]:
    """Whether forward of each group is run again in backward."""
    groups = problem.coarsened.groups
    segments = problem.context.segments
    if run.recompute == "none":
        return [False] * len(groups)
    repeated = [segments.count(segments[g.index]) > 1 for g in groups]
    if run.recompute == "full":
        layers = dict.fromkeys(segments[g.index] for g in groups if repeated[g.index])
        chosen = even_share(list(layers), run.recompute_share)
        return [segments[g.index] in chosen for g in groups]
    if run.recompute == "attention":
        core = _attention_core(problem)
        return [g.index in core for g in groups]
    return _every_second_product(groups, segments, repeated)


def even_share(layers: Sequence[int], share: float) -> set[int]:
    """An evenly spaced share of the layers, as fairscale's and torchtitan's rules have it.

    Of the first i layers it has i · share, rounded.
    """
    counts = [floor(i * share + 0.5) for i in range(len(layers) + 1)]
    return {layer for i, layer in enumerate(layers) if counts[i + 1] > counts[i]}


def _every_second_product(
    groups: Iterable[Group], segments: tuple[int, ...], repeated: list[bool]
) -> list[bool]:
    """All of a layer but the first, third, … group with a product, and attention."""
    seen: dict[int, int] = {}
    again = []
    for group in groups:
        segment = segments[group.index]
        kinds = [m.operator.kind for m in group.members]
        attention = any("attention" in kind for kind in kinds)
        if not repeated[group.index] or attention:
            again.append(False)
        elif _is_heavy(group):
            seen[segment] = seen.get(segment, 0) + 1
            again.append(seen[segment] % 2 == 0)
        else:
            again.append(True)
    return again


def _attention_core(problem: SearchProblem) -> set[int]:
    """From the product of queries and keys to the last operator before that with values.

    The products of two activations, and the light groups between two such products.
    """
    tensors = problem.context.graph.tensors
    core: set[int] = set()
    pair: list[int] = []
    for group in problem.coarsened.groups:
        parameters = any(
            tensors[name].role == "parameter" for m in group.members for name in m.operator.inputs
        )
        if parameters:
            pair = []
        elif _is_heavy(group):
            pair.append(group.index)
            if len(pair) == 2:
                core |= set(range(pair[0], pair[1] + 1))
                pair = []
    return core


def tensor_split(prediction: Prediction, group: Group) -> str:
    """The name of the variable that the tensor axis splits in a group, `none` without one."""
    axes = [axis.name for axis in prediction.problem.context.mesh.axes]
    row = prediction.problem.costs[group.index].assignment[prediction.point.choices[group.index]]
    variable = int(row[axes.index(TENSOR_AXIS)])
    return "none" if variable == NONE else group.variables[variable]
