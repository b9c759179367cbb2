"""What torch allocates around one operator: what backward keeps, temporaries, shared gradients.

The descriptions (`tdl/semantics.py`) say which arguments and results backward needs; their sizes
are what the search adds up. Replay needs to know besides which of these tensors is really there:
dropout keeps a mask and not its result, a cross entropy the logarithms of the probabilities and
not its argument, and so on. Everything here is how PyTorch's eager operators and their derivatives
(`tools/autograd/derivatives.yaml`) allocate, found by tracking real steps (`docs/replay.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.advise.step_settings import CUDA
from shardwise.graph.coarsen import Member
from shardwise.graph.graph import DTYPE_BYTES, Graph, Operator


@dataclass(frozen=True)
class Size:
    """Of one buffer: as many elements as a tensor of the operator has, or fewer.

    `output` says whether `position` counts outputs or inputs; only `dims` of that tensor count
    (None: all of them), times `item_bytes`.
    """

    output: bool
    position: int
    item_bytes: float
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Footprint:
    """The memory of one operator beside its inputs and outputs.

    `saves_inputs`, `saves_outputs`: kept until its backward has run. `kept`: further buffers with
    that life. `forward` and `backward`: buffers that live while forward or backward runs.
    `shares[i]`: the gradient of input i is the storage of output 0's gradient. `alias`: the outputs
    lie in input 0's storage.
    """

    saves_inputs: tuple[bool, ...]
    saves_outputs: tuple[bool, ...]
    kept: tuple[Size, ...] = ()
    forward: tuple[Size, ...] = ()
    backward: tuple[Size, ...] = ()
    shares: tuple[bool, ...] = ()
    alias: bool = False


Rule = Callable[[Member, Graph, str, Footprint], Footprint]


def footprint(member: Member, graph: Graph, device: str) -> Footprint:
    """The footprint of a member on a kind of device (`cuda` or `cpu`)."""
    op, sem = member.operator, member.semantics
    view = sem.category == "view"
    # Of a part (a slice, a piece of a split) the gradient is written into a whole of its own.
    whole = view and _elements(graph, op.inputs[0]) == _elements(graph, op.outputs[0])
    plain = Footprint(
        sem.saves_inputs,
        sem.saves_outputs,
        shares=tuple(whole and i == 0 for i in range(len(op.inputs))),
        alias=view,
    )
    rule = _RULES.get(op.kind)
    return plain if rule is None else rule(member, graph, device, plain)


def _elements(graph: Graph, name: str) -> int:
    return graph.tensors[name].elements


def _item(graph: Graph, name: str) -> int:
    return DTYPE_BYTES[graph.tensors[name].dtype]


def _same_shape(graph: Graph, op: Operator, position: int) -> bool:
    mine = graph.tensors[op.inputs[position]]
    return mine.shape == graph.tensors[op.outputs[0]].shape


def _addition(member: Member, graph: Graph, device: str, plain: Footprint) -> Footprint:
    """Both gradients are the result's, where nothing is broadcast, scaled or converted."""
    op = member.operator
    out = graph.tensors[op.outputs[0]]
    shares = tuple(
        _same_shape(graph, op, i)
        and graph.tensors[name].dtype == out.dtype
        and (i == 0 or op.attributes.get("alpha", 1) == 1)
        for i, name in enumerate(op.inputs)
    )
    return replace(plain, shares=shares)


def _dropout(member: Member, graph: Graph, device: str, plain: Footprint) -> Footprint:
    op = member.operator
    if float(op.attributes.get("p", 0.0)) == 0.0 or not op.attributes.get("train", True):
        return replace(plain, saves_outputs=(False,), shares=(True,))
    # CUDA keeps a mask of bytes; elsewhere the scaled noise is made and kept.
    item = 1 if device == CUDA else _item(graph, op.inputs[0])
    mask = Size(False, 0, item)
    return replace(plain, saves_inputs=(False,), saves_outputs=(False,), kept=(mask,))


def _cross_entropy(member: Member, graph: Graph, device: str, plain: Footprint) -> Footprint:
    """log_softmax and nll_loss: the logarithms are kept, the gradient passes through a copy."""
    item = _item(graph, member.operator.inputs[0])
    scores = Size(False, 0, item)
    saves = (False, *plain.saves_inputs[1:])
    return replace(plain, saves_inputs=saves, kept=(scores,), backward=(scores,))


def _power(member: Member, graph: Graph, device: str, plain: Footprint) -> Footprint:
    """gradient · (n · x^(n - 1)): both factors are there while the product is made."""
    size = Size(False, 0, _item(graph, member.operator.inputs[0]))
    return replace(plain, backward=(size, size))


_RULES: Mapping[str, Rule] = {
    "aten.add.Tensor": _addition,
    "aten.sub.Tensor": _addition,
    "aten.dropout.default": _dropout,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.pow.Tensor_Scalar": _power,
}
"""By operator kind; whatever is not here allocates as its description says."""


def attribute(op: Operator, key: str, default: Any) -> Any:
    """A non-tensor argument."""
    value = op.attributes.get(key)
    return default if value is None else value
