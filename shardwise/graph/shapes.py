"""Shapes that operators of well-known kinds must have; other kinds are not checked here.

This is a check of files from outside, not a description of operators: it knows the shapes of the
results, and nothing about how they may be split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shardwise.graph.graph import Operator, Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeProblem:
    """What is wrong, at which field of the operator, and what was expected."""

    problem: str
    field: str
    expected: str | None = None


class _Wrong(Exception):
    def __init__(self, problem: str, field: str, expected: str | None = None) -> None:
        self.details = ShapeProblem(problem, field, expected)


def shape_problem(op: Operator, tensors: Mapping[str, Tensor]) -> ShapeProblem | None:
    """Returns the first impossible shape of `op`, or None. All its tensor names must exist."""
    try:
        _check(op, tensors)
    except _Wrong as wrong:
        return wrong.details
    return None


def _check(op: Operator, tensors: Mapping[str, Tensor]) -> None:
    roles = op.attributes.get("tensor_arguments")
    if roles is not None and (
        not isinstance(roles, list | tuple)
        or len(roles) != len(op.inputs)
        or not all(isinstance(role, str) for role in roles)
    ):
        raise _Wrong(
            "tensor_arguments does not name the inputs",
            "attributes.tensor_arguments",
            f"{len(op.inputs)} names",
        )
    namespace, _, rest = op.kind.partition(".")
    packet = rest.partition(".")[0]
    rule = _RULES.get(packet) if namespace == "aten" else None
    if rule is not None:
        names, check = rule
        check(_Shapes(op, tensors, tuple(roles) if roles is not None else names))


class _Shapes:
    """The shapes of an operator's tensors, by the schema name of each."""

    def __init__(self, op: Operator, tensors: Mapping[str, Tensor], roles: Shape | Any) -> None:
        self._op = op
        self._places = {role: place for place, role in enumerate(roles[: len(op.inputs)])}
        self.inputs = [tensors[name].shape for name in op.inputs]
        self.output = tensors[op.outputs[0]].shape

    def has(self, role: str) -> bool:
        return role in self._places

    def __getitem__(self, role: str) -> Shape:
        if role not in self._places:
            raise _Wrong(f"no tensor {role!r}", "inputs", f"an input called {role}")
        return self.inputs[self._places[role]]

    def field(self, role: str) -> str:
        return f"inputs[{self._places[role]}]"

    def need(self, role: str, fits: bool, expected: str) -> None:
        """Refuses the input called `role` unless it fits."""
        if not fits:
            raise _Wrong(f"{role} has shape {list(self[role])}", self.field(role), expected)

    def makes(self, expected: Shape) -> None:
        """Refuses any other shape of the first output."""
        if self.output != tuple(expected):
            raise _Wrong(
                f"the result has shape {list(self.output)}", "outputs[0]", str(list(expected))
            )

    def numbers(self, name: str, count: int, default: int) -> list[int]:
        """Returns an attribute that holds one whole number for each of `count` dimensions."""
        value = self._op.attributes.get(name, default)
        values = list(value) if isinstance(value, list | tuple) else [value]
        values = values * count if len(values) == 1 else values
        whole = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
        if len(values) != count or not whole:
            raise _Wrong(f"{name} is {value!r}", f"attributes.{name}", f"{count} whole numbers")
        return values

    def attribute(self, name: str) -> object:
        """Returns an attribute as it is, None where it is missing."""
        return self._op.attributes.get(name)

    def dim(self, name: str, rank: int) -> int:
        (value,) = self.numbers(name, 1, 0)
        if not -rank <= value < rank:
            raise _Wrong(f"{name} is {value}", f"attributes.{name}", f"a dimension of {rank}")
        return value % rank


def _linear(s: _Shapes) -> None:
    x, weight = s["input"], s["weight"]
    s.need("weight", len(weight) in (1, 2), "[features out, features in]")
    s.need("input", len(x) >= 1 and x[-1] == weight[-1], f"[…, {weight[-1]}]")
    if s.has("bias"):
        s.need("bias", s["bias"] == weight[:-1], str(list(weight[:-1])))
    s.makes((*x[:-1], *weight[:-1]))


def _mm(s: _Shapes, a: str = "self", b: str = "mat2", batched: bool = False) -> None:
    left, right = s[a], s[b]
    rank = 3 if batched else 2
    s.need(a, len(left) == rank, f"{rank} dimensions")
    s.need(b, len(right) == rank, f"{rank} dimensions")
    s.need(b, right[-2] == left[-1], f"{left[-1]} rows")
    s.need(b, right[:-2] == left[:-2], f"batch {list(left[:-2])}")
    result = (*left[:-1], right[-1])
    if s.has("self") and a != "self":
        s.need("self", _broadcast(s["self"], result) == result, f"broadcast to {list(result)}")
    s.makes(result)


def _matmul(s: _Shapes) -> None:
    left, right = s["self"], s["other"]
    s.need("self", len(left) >= 1, "at least 1 dimension")
    s.need("other", len(right) >= 1, "at least 1 dimension")
    inner = right[-2] if len(right) > 1 else right[0]
    s.need("other", inner == left[-1], f"{left[-1]} rows")
    batch = _broadcast(left[:-2], right[:-2])
    s.need("other", batch is not None, f"batch that broadcasts with {list(left[:-2])}")
    rows = left[-2:-1] if len(left) > 1 else ()
    columns = right[-1:] if len(right) > 1 else ()
    s.makes((*(batch or ()), *rows, *columns))


def _convolution(dims: int) -> Callable[[_Shapes], None]:
    def check(s: _Shapes) -> None:
        x, weight = s["input"], s["weight"]
        s.need("weight", len(weight) == dims + 2, f"{dims + 2} dimensions")
        s.need("input", len(x) == dims + 2, f"{dims + 2} dimensions")
        (groups,) = s.numbers("groups", 1, 1)
        fits = groups >= 1 and weight[0] % groups == 0 and x[1] == weight[1] * groups
        s.need("weight", fits, f"channels of {list(x)} in {groups} groups")
        if s.has("bias"):
            s.need("bias", s["bias"] == weight[:1], str([weight[0]]))
        stride, dilation = s.numbers("stride", dims, 1), s.numbers("dilation", dims, 1)
        reach = [dilation[d] * (weight[2 + d] - 1) + 1 for d in range(dims)]
        padded = _padded(s, reach, stride)
        sides = []
        for d in range(dims):
            if stride[d] < 1 or dilation[d] < 1 or padded[d] < 0:
                raise _Wrong("stride, dilation or padding is too small", "attributes")
            sides.append((x[2 + d] + padded[d] - reach[d]) // stride[d] + 1)
        s.makes((x[0], weight[0], *sides))

    return check


def _padded(s: _Shapes, reach: list[int], stride: list[int]) -> list[int]:
    """Returns how many zeros a convolution adds to each dimension, those of both ends."""
    word = s.attribute("padding")
    if word == "valid":
        return [0] * len(reach)
    if word == "same":
        if any(step != 1 for step in stride):
            raise _Wrong(f"padding is 'same', stride {stride}", "attributes.stride", "1")
        return [rows - 1 for rows in reach]
    return [2 * padding for padding in s.numbers("padding", len(reach), 0)]


def _embedding(s: _Shapes) -> None:
    s.need("weight", len(s["weight"]) == 2, "[rows, width]")
    s.makes((*s["indices"], s["weight"][1]))


def _elementwise(s: _Shapes) -> None:
    shape: Shape = ()
    for place, one in enumerate(s.inputs):
        wide = _broadcast(shape, one)
        if wide is None:
            raise _Wrong(
                f"shape {list(one)} does not broadcast with {list(shape)}", f"inputs[{place}]"
            )
        shape = wide
    s.makes(shape)


def _same(s: _Shapes) -> None:
    if not s.inputs:
        raise _Wrong("no inputs", "inputs", "at least one tensor")
    s.makes(s.inputs[0])


def _view(s: _Shapes) -> None:
    if not s.inputs:
        raise _Wrong("no inputs", "inputs", "a tensor")
    before, after = prod(s.inputs[0]), prod(s.output)
    if before != after:
        raise _Wrong(
            f"the result {list(s.output)} has {after} elements",
            "outputs[0]",
            f"the {before} of {list(s.inputs[0])}",
        )


def _transpose(s: _Shapes) -> None:
    shape = list(s["self"])
    a, b = s.dim("dim0", len(shape) or 1), s.dim("dim1", len(shape) or 1)
    if shape:
        shape[a], shape[b] = shape[b], shape[a]
    s.makes(tuple(shape))


def _permute(s: _Shapes) -> None:
    shape = s["self"]
    dims = s.numbers("dims", len(shape), 0)
    if sorted(d % max(len(shape), 1) for d in dims) != list(range(len(shape))):
        raise _Wrong(f"dims is {dims}", "attributes.dims", "each dimension once")
    s.makes(tuple(shape[d] for d in dims))


def _cat(s: _Shapes) -> None:
    if not s.inputs:
        raise _Wrong("no inputs", "inputs", "at least one tensor")
    first = s.inputs[0]
    dim = s.dim("dim", max(len(first), 1))
    total = 0
    for place, shape in enumerate(s.inputs):
        if len(shape) != len(first) or shape[:dim] + shape[dim + 1 :] != (
            first[:dim] + first[dim + 1 :]
        ):
            raise _Wrong(
                f"shape {list(shape)} cannot be joined with {list(first)}", f"inputs[{place}]"
            )
        total += shape[dim] if shape else 0
    s.makes((*first[:dim], total, *first[dim + 1 :]))


def _attention(s: _Shapes) -> None:
    query, key, value = s["query"], s["key"], s["value"]
    s.need("query", len(query) >= 2, "at least 2 dimensions")
    s.need("key", len(key) >= 2 and key[-1] == query[-1], f"[…, {query[-1]}]")
    s.need("value", len(value) >= 2 and value[-2] == key[-2], f"[…, {key[-2]}, width]")
    s.makes((*query[:-1], value[-1]))


def _cross_entropy(s: _Shapes) -> None:
    logits, target = s["self"], s["target"]
    s.need("self", len(logits) >= 1, "[batch, classes, …]")
    classes_at = 0 if len(logits) == 1 else 1
    plain = logits[:classes_at] + logits[classes_at + 1 :]
    s.need("target", target in (plain, logits), str(list(plain)))


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    """Returns the shape that two tensors broadcast to, aligned at the last dimension, or None."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    result = list(longer)
    for offset in range(1, len(shorter) + 1):
        x, y = longer[-offset], shorter[-offset]
        if x != y and 1 not in (x, y):
            return None
        result[-offset] = max(x, y)
    return tuple(result)


_Rule = tuple[tuple[str, ...], Callable[[_Shapes], None]]
_ELEMENTWISE = (
    "add sub mul div true_divide floor_divide rsub maximum minimum pow atan2 where eq ne lt le gt "
    "ge logical_and logical_or logical_xor __and__ __or__ masked_fill lerp addcmul addcdiv"
)
_SAME = (
    "relu gelu silu sigmoid tanh exp log sqrt rsqrt neg abs cos sin erf softplus leaky_relu elu "
    "hardtanh hardswish hardsigmoid mish reciprocal square dropout softmax _softmax log_softmax "
    "_log_softmax layer_norm rms_norm group_norm batch_norm clone detach alias lift_fresh_copy "
    "contiguous to type_as cumsum tril triu clamp zeros_like ones_like full_like empty_like "
    "logical_not bitwise_not"
)
_VIEWS = "view reshape _unsafe_view flatten unflatten squeeze unsqueeze"
_RULES: Mapping[str, _Rule] = {
    "linear": (("input", "weight", "bias"), _linear),
    "mm": (("self", "mat2"), _mm),
    "bmm": (("self", "mat2"), lambda s: _mm(s, batched=True)),
    "addmm": (("self", "mat1", "mat2"), lambda s: _mm(s, "mat1", "mat2")),
    "baddbmm": (
        ("self", "batch1", "batch2"),
        lambda s: _mm(s, "batch1", "batch2", batched=True),
    ),
    "matmul": (("self", "other"), _matmul),
    **{f"conv{d}d": (("input", "weight", "bias"), _convolution(d)) for d in (1, 2, 3)},
    "embedding": (("weight", "indices"), _embedding),
    "transpose": (("self",), _transpose),
    "permute": (("self",), _permute),
    "cat": ((), _cat),
    "scaled_dot_product_attention": (("query", "key", "value", "attn_mask"), _attention),
    "cross_entropy_loss": (("self", "target", "weight"), _cross_entropy),
    **dict.fromkeys(_ELEMENTWISE.split(), ((), _elementwise)),
    **dict.fromkeys(_SAME.split(), ((), _same)),
    **dict.fromkeys(_VIEWS.split(), ((), _view)),
}
