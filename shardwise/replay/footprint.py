"""Torch's allocations around one operator: saved tensors, temporaries, shared gradients.

The descriptions (`graph/semantics.py`) say which arguments and results backward needs, and the
search adds up their sizes. Replay also needs to know which of these tensors really exist: dropout
keeps a mask and not its result, a cross entropy the logarithms of the probabilities and not its
argument. All this is how PyTorch's eager operators and their derivatives
(tools/autograd/derivatives.yaml) allocate, checked by tracking real steps (docs/replay.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardwise.cost.step_settings import CPU, CUDA
from shardwise.graph.graph import DTYPE_BYTES, Graph, Operator
from shardwise.sharding.coarsen import Member
from shardwise.sharding.fusion import ALONE, IN_PLACE
from shardwise.sharding.pattern import Patterns
from shardwise.sharding.recipes import weight_of


@dataclass(frozen=True)
class Dims:
    """Dimensions of a tensor of the operator, None for all: as many elements as they span."""

    output: bool
    position: int
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Size:
    """The size of one buffer: the product of what `spans` span, times `item_bytes`."""

    item_bytes: float
    spans: tuple[Dims, ...]


@dataclass(frozen=True)
class Footprint:
    """The memory of one operator besides its inputs and outputs.

    `saves_inputs`, `saves_outputs`: kept until its backward has run. `kept`: further buffers with
    that life. `forward` and `backward`: buffers that live while forward or backward runs.
    `shares[i]`: the gradient of input i is the storage of output 0's gradient. `views[i]`: it is a
    view, into which autograd adds nothing in place. `alias`: the outputs lie in input 0's storage.
    `in_place`: the gradient of input 0 is written into that input, which is saved.
    """

    saves_inputs: tuple[bool, ...]
    saves_outputs: tuple[bool, ...]
    kept: tuple[Size, ...] = ()
    forward: tuple[Size, ...] = ()
    backward: tuple[Size, ...] = ()
    shares: tuple[bool, ...] = ()
    views: tuple[bool, ...] = ()
    alias: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class FootprintSubject:
    """The member to which a rule applies, in its graph, on a kind of device; `loss` is one of
    `LOSS`."""

    member: Member
    graph: Graph
    device: str
    loss: str = ALONE

    @property
    def operator(self) -> Operator:
        return self.member.operator

    def item(self, position: int) -> int:
        """Returns bytes of an element of an input."""
        return DTYPE_BYTES[self.graph.tensors[self.operator.inputs[position]].dtype]

    def shape(self, position: int) -> tuple[int, ...]:
        """Returns the shape of an input."""
        return self.graph.tensors[self.operator.inputs[position]].shape

    def like(self, position: int, item_bytes: float | None = None) -> Size:
        """Returns a buffer with the elements of an input."""
        item = self.item(position) if item_bytes is None else item_bytes
        return Size(item, (Dims(False, position),))

    def attribute(self, key: str, default: Any) -> Any:
        """Returns a non-tensor argument."""
        value = self.operator.attributes.get(key)
        return default if value is None else value


Rule = Callable[[FootprintSubject, Footprint], Footprint]


def footprint(member: Member, patterns: Patterns, device: str) -> Footprint:
    """Returns the footprint of a member on a kind of device (`cuda` or `cpu`)."""
    graph, op, sem = patterns.graph, member.operator, member.semantics
    view = sem.category == "view"
    # The gradient of a part (a slice, a piece of a split) is written into a whole tensor of its
    # own.
    elements = [graph.tensors[name].elements for name in (*op.inputs[:1], *op.outputs[:1])]
    whole = view and len(set(elements)) == 1
    shares = tuple(whole and i == 0 for i in range(len(op.inputs)))
    plain = Footprint(
        patterns.saves_inputs(member),
        patterns.saves_outputs(member),
        shares=shares,
        views=shares,
        alias=view and bool(op.inputs),
    )
    rule = _RULES.get(op.kind)
    alone = (
        plain
        if rule is None
        else rule(FootprintSubject(member, graph, device, patterns.fusing.loss), plain)
    )
    rounded = patterns.rounded(member)
    if rounded is not None and rounded.keeps and patterns.carries_gradient(weight_of(op)):
        data = Size(rounded.recipe.item_bytes, (Dims(False, rounded.port),))
        alone = replace(alone, kept=(*alone.kept, data))
    elif patterns.is_fused(member):
        return _in_a_pass(plain, alone, member, patterns)
    return _with_stored(alone, FootprintSubject(member, graph, device), patterns)


def _with_stored(alone: Footprint, subject: FootprintSubject, patterns: Patterns) -> Footprint:
    """Adds operands that are stored in another form and expanded while the operator runs."""
    graph, op = subject.graph, subject.operator
    forward, backward = alone.forward, alone.backward
    for port, name in enumerate(op.inputs):
        if graph.tensors[name].stored is not None:
            forward = (*forward, subject.like(port))
            if patterns.backward_reads(subject.member, name):
                backward = (*backward, subject.like(port))
    return replace(alone, forward=forward, backward=backward)


def _in_a_pass(plain: Footprint, alone: Footprint, member: Member, patterns: Patterns) -> Footprint:
    """One of several operators fused into one pass, which has no temporaries.

    Saved tensors of its own size are recomputed from what the pass saves; rows and channels, a few
    numbers each, are saved.
    """
    elements = patterns.graph.tensors[member.operator.inputs[0]].elements
    few = tuple(size for size in alone.kept if _elements(size, member, patterns) < elements)
    return replace(
        alone,
        saves_inputs=plain.saves_inputs,
        saves_outputs=plain.saves_outputs,
        kept=few,
        forward=(),
        backward=(),
    )


def _elements(size: Size, member: Member, patterns: Patterns) -> int:
    """Returns how many elements a buffer of an operator has."""
    count, op, tensors = 1, member.operator, patterns.graph.tensors
    for span in size.spans:
        shape = tensors[(op.outputs if span.output else op.inputs)[span.position]].shape
        dims = range(len(shape)) if span.dims is None else span.dims
        count *= prod(shape[dim] for dim in dims)
    return count


def _addition(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """Both gradients are the result's, if nothing is broadcast, scaled or converted."""
    op, graph = subject.operator, subject.graph
    out = graph.tensors[op.outputs[0]]
    negated = op.kind == "aten.sub.Tensor"
    shares = tuple(
        graph.tensors[name].shape == out.shape
        and graph.tensors[name].dtype == out.dtype
        and (i == 0 or (subject.attribute("alpha", 1) == 1 and not negated))
        for i, name in enumerate(op.inputs)
    )
    return replace(plain, shares=shares)


def _conversion(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """Converting a tensor to the type that it already has does nothing."""
    op, graph = subject.operator, subject.graph
    if graph.tensors[op.inputs[0]].dtype != graph.tensors[op.outputs[0]].dtype:
        return replace(plain, alias=False, shares=(False,) * len(op.inputs))
    return replace(plain, alias=True, shares=(True,) + (False,) * (len(op.inputs) - 1))


def _dropout(subject: FootprintSubject, plain: Footprint) -> Footprint:
    nothing = replace(plain, saves_inputs=(False,), saves_outputs=(False,))
    if float(subject.attribute("p", 0.5)) == 0.0 or not subject.attribute("train", True):
        return replace(nothing, shares=(True,), alias=True)
    # CUDA keeps a mask of bytes; elsewhere the scaled noise is made and kept.
    mask = subject.like(0, 1 if subject.device == CUDA else None)
    return replace(nothing, kept=(mask,))


def _cross_entropy(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """log_softmax and nll_loss: the logarithms are kept, the gradient passes through a copy.

    Megatron-LM's loss of float32 scores turns them into probabilities in place, and these into the
    gradient.
    """
    if subject.loss == IN_PLACE and subject.item(0) == 4:
        return replace(plain, in_place=True)
    scores = subject.like(0)
    saves = (False, *plain.saves_inputs[1:])
    return replace(plain, saves_inputs=saves, kept=(scores,), backward=(scores,))


def _power(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """gradient · (n · x^(n - 1)): both factors exist while the product is computed."""
    if subject.attribute("exponent", 2) in (0, 1):
        return plain
    return replace(plain, backward=(subject.like(0), subject.like(0)))


def _layer_norm(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """Mean and deviation of every row are kept in float32."""
    rank = len(subject.shape(0)) - len(subject.attribute("normalized_shape", (1,)))
    rows = Size(4, (Dims(False, 0, tuple(range(rank))),))
    return replace(plain, kept=(rows, rows))


def _batch_norm(subject: FootprintSubject, plain: Footprint) -> Footprint:
    channels = Size(4, (Dims(False, 0, (1,)),))
    return replace(plain, kept=(channels, channels))


def _max_pool(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """The positions of the maxima are kept as 64-bit numbers, besides the argument."""
    places = Size(8, (Dims(True, 0),))
    return replace(plain, saves_outputs=(False,) * len(plain.saves_outputs), kept=(places,))


def _linear(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """The weight is read transposed, more than two dimensions are merged: gradients are views."""
    many = len(subject.shape(0)) > 2
    views = tuple(i == 1 or (i == 0 and many) for i in range(len(plain.saves_inputs)))
    return replace(plain, views=views)


def _product(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """Products of stacks of matrices merge the stack's dimensions."""
    return replace(plain, views=tuple(len(subject.shape(i)) > 2 for i in range(2)))


def _attention(subject: FootprintSubject, plain: Footprint) -> Footprint:
    """Fused kernels keep the argument, the result and the logarithm of every row's sum.

    CPUs have none with dropout: then copies of the arguments, the probabilities, the noise and the
    dropped probabilities are kept, in float32 at least, and gradients of probabilities are made in
    two steps.
    """
    shape = tuple(range(len(subject.shape(0)) - 1))
    rows = Dims(False, 0, shape)
    views = (True,) * 3 + (False,) * (len(plain.saves_inputs) - 3)
    if subject.device != CPU or float(subject.attribute("dropout_p", 0.0)) == 0.0:
        return replace(plain, kept=(Size(4, (rows,)),), views=views)
    item = max(subject.item(0), 4)
    keys = Dims(False, 1, (len(subject.shape(1)) - 2,))
    scores = Size(item, (rows, keys))
    copies = tuple(subject.like(i, item) for i in range(3))
    return replace(
        plain,
        saves_inputs=(False,) * len(plain.saves_inputs),
        saves_outputs=(False,) * len(plain.saves_outputs),
        kept=(*copies, scores, scores, scores),
        backward=(scores, scores),
        views=views,
    )


_RULES: Mapping[str, Rule] = {
    "aten.add.Tensor": _addition,
    "aten.sub.Tensor": _addition,
    "aten.to.dtype": _conversion,
    "aten._to_copy.default": _conversion,
    "aten.dropout.default": _dropout,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.pow.Tensor_Scalar": _power,
    "aten.layer_norm.default": _layer_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.max_pool2d.default": _max_pool,
    "aten.linear.default": _linear,
    "aten.matmul.default": _product,
    "aten.bmm.default": _product,
    "aten.scaled_dot_product_attention.default": _attention,
    "shardwise.sink_attention.default": _attention,
}
"""By operator kind; whatever is not here allocates as its description says."""
