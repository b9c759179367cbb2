"""Which tensors may have their positions in zigzag order, so that causal shares do equal work.

Query s of causal attention sees keys 0 to s. Of c contiguous shares of a sequence the last one
computes up to (2c - 1)/c times the mean. In 2c pieces, of which share r has pieces r and
2c - 1 - r, all shares compute the same (Zhu 2024, ring-flash-attention; Megatron-LM and torchtitan
have it as their load balancer). That is a fixed permutation of the sequence: inputs, tables of
positions and labels are permuted where they are read, and what computes every position alone, or a
sum over all of them, need not know. Attention does, and masks by the positions of its rows.

`with_zigzag` follows the sequence of causal attention through the graph and says whether the whole
model is of such operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import Merging, OperatorSemantics


@dataclass(frozen=True)
class Zigzag:
    """The semantics of all operators, with attention that is balanced; `dims` has the dimension
    of each tensor along which its positions lie, none where the graph does not allow zigzag."""

    semantics: dict[str, OperatorSemantics]
    dims: Mapping[str, int]


def with_zigzag(
    graph: Graph, semantics: Mapping[str, OperatorSemantics], constants: Collection[str]
) -> Zigzag:
    """Returns the operators' semantics, and where positions lie. `constants` names the operators
    that depend on neither an input nor a parameter: these are computed in the order of the graph.
    """
    found = dict(semantics)
    causal = [op for op in graph.operators if _merges_causally(semantics[op.name].merging)]
    dims = _positions(graph, semantics, constants, causal) if causal else None
    if dims is None:
        return Zigzag(found, {})
    for op in causal:
        merging = semantics[op.name].merging
        if merging is not None:
            found[op.name] = replace(semantics[op.name], merging=replace(merging, balanced=True))
    return Zigzag(found, dims)


def _merges_causally(merging: Merging | None) -> bool:
    return merging is not None and merging.causal and merging.ring is not None


def _positions(
    graph: Graph,
    semantics: Mapping[str, OperatorSemantics],
    constants: Collection[str],
    causal: list[Operator],
) -> dict[str, int] | None:
    """Returns the dimension of the sequence of each tensor that has it; None where an operator
    tells one position from another."""
    readers: dict[str, list[Operator]] = defaultdict(list)
    for op in graph.operators:
        if op.name not in constants:
            for name in dict.fromkeys((*op.inputs, *op.outputs)):
                readers[name].append(op)
    dims: dict[str, int] = {}
    open_cells = [cell for op in causal for cell in _along_ring(op, semantics[op.name])]
    extents = {graph.tensors[name].shape[dim] for name, dim in open_cells}
    if len(extents) > 1:
        return None
    while open_cells:
        name, dim = open_cells.pop()
        if dims.setdefault(name, dim) != dim:
            return None
        if graph.tensors[name].role == "parameter":
            return None
        for op in readers.pop(name, ()):
            cells = _cells(graph, op, semantics[op.name], name, dim)
            if cells is None:
                return None
            open_cells += cells
    return dims


def _along_ring(op: Operator, sem: OperatorSemantics) -> list[tuple[str, int]]:
    ring = sem.merging.ring if sem.merging is not None else None
    ports = (*zip(op.inputs, sem.inputs, strict=True), *zip(op.outputs, sem.outputs, strict=True))
    return [(name, access[ring].dim) for name, access in ports if ring in access]


def _cells(
    graph: Graph, op: Operator, sem: OperatorSemantics, name: str, dim: int
) -> list[tuple[str, int]] | None:
    """Returns the dimensions of an operator's tensors that run along with one of them, each
    position alone; None where that is not so."""
    ports = [*zip(op.inputs, sem.inputs, strict=True), *zip(op.outputs, sem.outputs, strict=True)]
    if sem.merging is not None:
        cells = _along_ring(op, sem)
        return cells if (name, dim) in cells else None
    along = {
        v
        for tensor, accesses in ports
        if tensor == name
        for v, access in accesses.items()
        if access.dim == dim
    }
    if len(along) != 1:
        return None
    (variable,) = along
    extent, cells = sem.variables[variable].extent, []
    for tensor, accesses in ports:
        access = accesses.get(variable)
        if access is None:
            if tensor == name:
                return None
            continue
        whole = access.granularity in (0, extent)
        if access.halo_before or access.halo_after or not whole:
            return None
        if graph.tensors[tensor].shape[access.dim] != extent:
            return None
        cells.append((tensor, access.dim))
    return cells


def constant_operators(graph: Graph) -> set[str]:
    """Returns the operators that depend on neither a parameter nor an input."""
    varying = {name for name, t in graph.tensors.items() if t.role in ("input", "parameter")}
    constants = set()
    for op in graph.operators:
        if any(name in varying for name in op.inputs):
            varying.update(op.outputs)
        else:
            constants.add(op.name)
    return constants


def pieces_of(extent: int, parts: int) -> int:
    """Returns in how many pieces a sequence lies for shares that do equal work; 0 where it has no
    such."""
    return 2 * parts if parts > 1 and extent % (2 * parts) == 0 else 0


def zigzag_order(extent: int, pieces: int) -> list[range]:
    """Returns the positions of a sequence in zigzag order: pieces 0, n - 1, 1, n - 2, …"""
    length = extent // pieces
    order = [p for r in range(pieces // 2) for p in (r, pieces - 1 - r)]
    return [range(p * length, (p + 1) * length) for p in order]
