"""Gradient accumulation: a step of A micro-batches is A runs of the graph on a batch / A.

Batch dimensions, batch variables (`sharding/batch.py`) and the flops of operators that have one are
divided by A; what no batch reaches keeps its size. Everything but the update and the gradient
synchronisation is then paid A times (`cost/group_costs.py`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from shardwise.errors import BadInput
from shardwise.graph.graph import Graph, Tensor
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.sharding.batch import batch_variables
from shardwise.sharding.coarsen import Coarsened, Group, Member


def split_batch(coarsened: Coarsened, micro_batches: int) -> Coarsened:
    """Returns the same groups on a batch of 1 / `micro_batches`.

    Raises `BadInput` when the graph has no batch dimension or the count does not divide it.
    """
    if micro_batches == 1:
        return coarsened
    graph = coarsened.graph
    require_divisor(graph.batch_size, micro_batches)
    dims = coarsened.batch_dims
    tensors = {
        name: smaller_tensor(t, {dims[name]} if name in dims else set(), micro_batches)
        for name, t in graph.tensors.items()
    }
    divided: dict[tuple[int, frozenset[int]], OperatorSemantics] = {}

    def member(whole: Member) -> Member:
        # Like layers have the same semantics, the very same object.
        sem = whole.semantics
        chosen = frozenset(batch_variables(whole.operator, sem, dims))
        if not chosen:
            return whole
        key = (id(sem), chosen)
        if key not in divided:
            divided[key] = _divide(sem, chosen, micro_batches)
        return Member(whole.operator, divided[key], whole.variables, whole.on_parameters)

    groups = tuple(
        Group(group.index, tuple(map(member, group.members)), group.variables)
        for group in coarsened.groups
    )
    small = Graph(graph.name, tensors, graph.operators)
    return replace(coarsened, graph=small, groups=groups)


def require_divisor(batch: int | None, micro_batches: int) -> None:
    """Raises `BadInput` unless a batch of this size can be cut into `micro_batches`."""
    if micro_batches == 1:
        return
    if batch is None:
        raise BadInput(
            "the graph's inputs name no batch dimension",
            field="micro-batches",
            expected="1, or a graph whose inputs have batch_dim",
        )
    if batch % micro_batches:
        raise BadInput(
            f"{micro_batches} does not divide the batch of {batch}",
            field="micro-batches",
            expected="a divisor of the batch",
        )


def smaller_tensor(tensor: Tensor, dims: Set[int], parts: int) -> Tensor:
    """Returns the tensor with 1 / `parts`, rounded up, of the extents of its batch dimensions."""
    if not dims:
        return tensor
    shape = tuple(-(-n // parts) if d in dims else n for d, n in enumerate(tensor.shape))
    return replace(tensor, shape=shape)


def _divide(sem: OperatorSemantics, chosen: Set[int], parts: int) -> OperatorSemantics:
    """Returns an operator's semantics with 1 / `parts` of these variables."""

    def access(v: int, whole: Access) -> Access:
        return replace(whole, granularity=-(-whole.granularity // parts)) if v in chosen else whole

    variables = tuple(
        replace(variable, extent=-(-variable.extent // parts)) if v in chosen else variable
        for v, variable in enumerate(sem.variables)
    )
    return replace(
        sem,
        variables=variables,
        inputs=tuple({v: access(v, a) for v, a in by.items()} for by in sem.inputs),
        outputs=tuple({v: access(v, a) for v, a in by.items()} for by in sem.outputs),
        forward_flops=sem.forward_flops / parts,
        backward_flops=sem.backward_flops / parts,
    )
