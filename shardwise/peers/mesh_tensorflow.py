"""Mesh-TensorFlow's strategies (Shazeer et al. 2018), as TensorOpt §4.2 restricts them.

    1. one mesh for the whole model: the devices as a grid of given dimensions;
    2. every named dimension is split across one mesh dimension or none, in every operator that
       has it; two names of one operator never take the same mesh dimension.

The names are those that the model's wiring forces (`names`): an author can give more dimensions the
same name, but not fewer. So this is Mesh-TensorFlow's largest space for a model, with a frontier of
its own. The meshes are all ways to bundle the axes of the searched mesh
(2·8, 4·4, 2·2·4, …); for each one

    allowed(g)  configurations in which every variable of g has one bundle or none
    tied        two groups with one name take it alike, or the strategy costs more than twice
                what a known one does, in memory and in time: an edge between the two says so

is one search problem; the frontier of Mesh-TensorFlow is what is best in any of them. Two things
are taken in its favour. Bundles of one kind (same sizes, same levels) are told apart within a
group only, so a name may lie along another axis of the same kind elsewhere, and the move between
is priced. And an operator that lacks a name needs no reshape by hand: the move is priced too.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress, go_on
from shardwise.cost.part import Part
from shardwise.errors import SolverError
from shardwise.peers.answer import Answer, pareto, proven
from shardwise.peers.bundles import AxisClasses, Bundle, Bundles, bundlings
from shardwise.peers.evaluate import Point, evaluate, point_of
from shardwise.peers.restrict import restrict, solve
from shardwise.sharding.names import NamedDimensions, named_dimensions

METHOD = "mesh-tensorflow"
TITLE = "Mesh-TensorFlow"
MOST_MESHES = 64
"""More ways to bundle the axes than this are not tried; the answer says how many were left out."""


def mesh_tensorflow(
    problem: SearchProblem,
    options: Options,
    progress: Progress,
    names: NamedDimensions | None = None,
) -> Answer:
    """Returns Mesh-TensorFlow's frontier. Raises `SolverError` if no mesh is searched in time."""
    names = names or named_dimensions(problem.coarsened)
    classes = AxisClasses.of(problem.context.mesh.axes)
    bundles = Bundles(problem, classes)
    meshes = list(bundlings(classes.whole))
    tried = meshes[:MOST_MESHES]
    points: list[Point] = []
    epsilon = 0.0
    late = []
    if options.time_limit_s is not None:
        options = replace(options, time_limit_s=options.time_limit_s / len(tried))
    for number, mesh in enumerate(tried):
        label = _label_of(classes, mesh)

        def report(stage: str, fraction: float, done: int = number, name: str = label) -> bool:
            return progress(f"mesh {name}", (done + fraction) / len(tried))

        go_on(report, "", 0.0)
        part = _with_names(problem, names, bundles, mesh, options.epsilon)
        try:
            solution = solve(part.problem, options, report, epsilon=options.epsilon)
        except SolverError:
            late.append(label)
            continue
        epsilon = max(epsilon, float(solution.epsilon))
        points += _points(problem, part, solution, label)
    if not points:
        raise SolverError("no mesh was searched in time")
    return Answer(
        METHOD,
        TITLE,
        "one mesh, one assignment of its dimensions to every named dimension; its own frontier",
        tuple(pareto(points)),
        frontier=True,
        epsilon=None if late or len(tried) < len(meshes) else proven(epsilon),
        notes=_notes(len(meshes) - len(tried), late),
        details={
            "named_dimensions": names.count,
            "renamed_dimensions": len(names.renamed),
            "meshes": len(tried) - len(late),
        },
    )


def _label_of(classes: AxisClasses, mesh: tuple[Bundle, ...]) -> str:
    sizes = sorted((classes.size(bundle) for bundle in mesh), reverse=True)
    return "×".join(map(str, sizes)) or "1"


def _with_names(
    problem: SearchProblem,
    names: NamedDimensions,
    bundles: Bundles,
    mesh: tuple[Bundle, ...],
    epsilon: float,
) -> Part:
    """Returns the problem on one mesh; the edges that tie come after its own."""
    allowed = [bundles.on(group, mesh) for group in range(len(problem.costs))]
    part = restrict(problem, allowed)
    # The first configuration replicates: always allowed, and alike everywhere.
    known = evaluate(problem, [int(rows[0]) for rows in part.rows])
    # Breaking a tie once must cost more than any point of the frontier may.
    too_much = 2.0 + epsilon
    memory, time = too_much * known.memory_bytes, too_much * known.time_s
    tables: dict[tuple[bytes, bytes], tuple[int, NDArray[np.uint32], NDArray[np.uint32]]] = {}
    for (one, other), pairs in _tied_groups(names).items():
        here = bundles.codes(one, part.rows[one], [v for v, _ in pairs])
        there = bundles.codes(other, part.rows[other], [v for _, v in pairs])
        key = (here.tobytes(), there.tobytes())
        if key not in tables:
            tables[key] = _tie(part.problem, here, there, memory, time)
        part.problem.add_edge(one, other, *tables[key])
    return part


def _tied_groups(
    names: NamedDimensions,
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Returns per pair of groups the variables that have one name."""
    tied: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (one, v), (other, w) in names.ties:
        pair, variables = ((one, other), (v, w)) if one < other else ((other, one), (w, v))
        if variables not in tied[pair]:
            tied[pair].append(variables)
    return tied


def _tie(
    problem: _core.Problem,
    here: NDArray[np.int64],
    there: NDArray[np.int64],
    memory_bytes: float,
    time_s: float,
) -> tuple[int, NDArray[np.uint32], NDArray[np.uint32]]:
    """Returns a table that costs nothing where both sides take their names alike."""
    left, rows = np.unique(here, axis=0, return_inverse=True)
    right, columns = np.unique(there, axis=0, return_inverse=True)
    differ = (left[:, None, :] != right[None, :, :]).any(axis=2)[..., None]
    table = problem.add_table(
        np.where(differ, memory_bytes, 0.0),
        np.where(differ, time_s, 0.0),
        np.ones(differ.shape[:2], dtype=np.uint8),
    )
    return table, rows.reshape(-1).astype(np.uint32), columns.reshape(-1).astype(np.uint32)


def _points(
    problem: SearchProblem,
    part: Part,
    solution: _core.Solution,
    label: str,
) -> list[Point]:
    return [
        point_of(
            problem,
            part.whole(solution.choices)[i],
            solution.edge_choices[i][: len(problem.edges)],
            label,
        )
        for i in range(len(solution.memory_bytes))
    ]


def _notes(left_out: int, late: list[str]) -> tuple[str, ...]:
    notes = []
    if left_out:
        notes.append(f"{left_out} more ways to bundle the mesh's axes were not tried")
    if late:
        notes.append(f"not searched in time: the meshes {', '.join(late)}")
    return tuple(notes)
