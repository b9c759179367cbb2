"""Collects ATen operators and makes a graph of them.

What is a parameter is decided at the end, from how each initialiser is used, because ONNX does not
say. PyTorch's exporter does, in its notes, which take precedence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.capture.naming import Names, short_kind
from shardwise.capture.onnx.matching import number
from shardwise.capture.onnx.program import Array, Node, Program, Shape, Value
from shardwise.errors import CaptureError
from shardwise.graph.graph import FLOAT_DTYPES, Graph, Operator, Role, Tensor

Argument = tuple[str, str]
"""(schema name, tensor name)."""

_WEIGHT_KINDS = frozenset(
    {"linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "embedding", "layer_norm", "rms_norm",
     "batch_norm", "group_norm", "lstm", "gru", "rnn_tanh", "rnn_relu", "prelu", "conv1d",
     "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)  # fmt: skip
"""Operators whose initialisers are weights."""

_VIEW_KINDS = frozenset(
    {"view", "transpose", "permute", "expand", "slice", "select", "split_with_sizes", "cat",
     "index_select", "index", "pad", "flip", "repeat", "to", "t"}
)  # fmt: skip
"""Operators that return what they read: a weight stays a weight."""

_NEVER = frozenset({"running_mean", "running_var", "attn_mask", "condition", "hx.0", "hx.1", "hx"})


class NotTranslated(Exception):
    """A node that no rule covers; it becomes an undescribed operator."""


@dataclass
class _Emitted:
    kind: str
    arguments: list[Argument]
    attributes: dict[str, Any]
    outputs: list[str]
    scope: str


class Builder:
    """What translation rules work with; `absorbed` has the ids of nodes merged into others."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.absorbed: set[int] = set()
        self._emitted: list[_Emitted] = []
        self._alias: dict[str, str] = {}
        self._stored: dict[str, Shape] = {}
        self._temporary = 0

    # What rules ask

    def shape(self, name: str) -> Shape:
        return self.program.shape(name)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def dtype(self, name: str) -> str:
        dtype = self.program.values[name].dtype
        if dtype is None:
            raise CaptureError(f"the type of {name!r} is unknown", field=f"graph.value_info {name}")
        return dtype

    def constant(self, name: str) -> Array | None:
        return self.program.constant(name)

    def constants(self, node: Node) -> list[Array | None]:
        return [self.constant(name) for name in node.inputs]

    def number(self, name: str) -> float | int | None:
        """Returns the one number that a constant holds, or None."""
        value = number(self.program, name) if name else None
        if value is None:
            return None
        return int(value) if not self.program.values[name].is_float else value

    def is_weight(self, name: str) -> bool:
        """Returns whether a tensor is an initialiser that may be trained."""
        value = self.program.values[name]
        return value.origin == "initialiser" and value.is_float and value.constant is None

    # what rules do

    def emit(
        self,
        kind: str,
        arguments: Sequence[Argument],
        attributes: Mapping[str, Any],
        outputs: Sequence[str],
        node: Node,
    ) -> None:
        """Adds an operator; `attributes` are the schema's, in JSON's types."""
        self._emitted.append(
            _Emitted(
                kind,
                [(role, self.resolve(name)) for role, name in arguments],
                {key: plain(value) for key, value in attributes.items()},
                list(outputs),
                node.scope,
            )
        )

    def temporary(self, shape: Sequence[int], dtype: str) -> str:
        """Returns a new tensor between two operators of one node."""
        self._temporary += 1
        name = f"shardwise::{self._temporary}"
        self.program.values[name] = Value(name, tuple(shape), dtype)
        return name

    def rename(self, name: str, source: str) -> None:
        """Makes `name` just another name of `source`."""
        self._alias[name] = self.resolve(source)

    def resolve(self, name: str) -> str:
        return self._alias.get(name, name)

    def store(self, name: str, shape: Shape, source: str = "") -> str:
        """Stores a weight in another shape (transposed, without leading ones), or a part of one."""
        if name != source and source:
            origin = self.program.values[source]
            self.program.values[name] = Value(name, shape, origin.dtype, "initialiser")
            role = self.program.exporter_roles.get(source)
            if role:
                self.program.exporter_roles[name] = role
        self._stored[name] = shape
        return name

    def mark(self) -> tuple[int, frozenset[int]]:
        return len(self._emitted), frozenset(self.absorbed)

    def reset(self, mark: tuple[int, frozenset[int]]) -> None:
        """Forgets what was emitted since `mark`."""
        del self._emitted[mark[0] :]
        self.absorbed = set(mark[1])

    # the graph

    def finish(self, name: str) -> Graph:
        """Returns the graph of what the outputs need, with every input."""
        outputs = [self.resolve(o) for o in self.program.outputs]
        produced = {o for e in self._emitted for o in e.outputs}
        if not produced & set(outputs):
            raise CaptureError(
                "the graph computes nothing", field="graph.output", expected="a model"
            )
        kept = self._live(set(outputs))
        roles = self._initialiser_roles(kept)
        names = Names()
        tensors: dict[str, Tensor] = {}
        called: dict[str, str] = {}
        used = {n for e in kept for _, n in e.arguments}
        for source in (*roles, *self.program.inputs):
            if source in used or source in self.program.inputs:
                called[source] = names.unique(source)
                tensors[called[source]] = self._given(source, called[source], roles.get(source))
        operator_names = Names()
        operators = []
        for e in kept:
            scope = e.scope or self._scope_of_weight(e, roles)
            base = f"{scope}.{short_kind(e.kind)}" if scope else short_kind(e.kind)
            op_name = operator_names.unique(base)
            for place, out in enumerate(e.outputs):
                shown = names.unique(f"{op_name}.{place}" if len(e.outputs) > 1 else op_name)
                role: Role = "output" if out in outputs else "activation"
                called[out] = shown
                tensors[shown] = Tensor(shown, self.shape(out), self.dtype(out), role)
            e.attributes["tensor_arguments"] = [role for role, _ in e.arguments]
            inputs = tuple(called[n] for _, n in e.arguments)
            operator = Operator(
                op_name, e.kind, inputs, tuple(called[o] for o in e.outputs), e.attributes, scope
            )
            operators.append(operator)
        return Graph(name, tensors, tuple(operators))

    def _live(self, needed: set[str]) -> list[_Emitted]:
        kept = []
        for emitted in reversed(self._emitted):
            if any(o in needed for o in emitted.outputs):
                needed.update(n for _, n in emitted.arguments)
                kept.append(emitted)
        return kept[::-1]

    def _given(self, source: str, name: str, role: Role | None) -> Tensor:
        shape = self._stored.get(source, self.shape(source))
        if role is not None:
            return Tensor(name, shape, self.dtype(source), role)
        first = next((self.shape(i) for i in self.program.inputs if self.shape(i)), ())
        batched = bool(shape) and bool(first) and shape[0] == first[0]
        return Tensor(name, shape, self.dtype(source), "input", 0 if batched else None)

    def _initialiser_roles(self, kept: list[_Emitted]) -> dict[str, Role]:
        """Returns parameter or buffer for everything that is read and never made."""
        produced = {o for e in kept for o in e.outputs} | set(self.program.inputs)
        uses: dict[str, list[tuple[str, str]]] = {}
        views: dict[str, list[str]] = {}
        for e in kept:
            packet = e.kind.split(".")[1] if "." in e.kind else e.kind
            for role, name in e.arguments:
                uses.setdefault(name, []).append((packet, role))
                if packet in _VIEW_KINDS:
                    views.setdefault(name, []).extend(e.outputs)

        def trained(name: str, strict: bool) -> bool:
            if any(trained(out, strict) for out in views.get(name, ())):
                return True
            for packet, role in uses.get(name, ()):
                if role in _NEVER or packet in _VIEW_KINDS:
                    continue
                if packet in _WEIGHT_KINDS or (not strict and packet in ("add", "mul")):
                    return True
            return False

        roles: dict[str, Role] = {}
        noted = bool(self.program.exporter_roles)
        for name in uses:
            if name in produced:
                continue
            value = self.program.values[name]
            recorded = self.program.exporter_roles.get(name)
            is_weight = value.dtype in FLOAT_DTYPES and value.constant is None
            # If the exporter names its parameters, only folded weights are left unnamed.
            roles[name] = recorded or (
                "parameter" if is_weight and trained(name, strict=noted) else "buffer"
            )
        return roles

    def _scope_of_weight(self, emitted: _Emitted, roles: Mapping[str, Role]) -> str:
        for _, name in emitted.arguments:
            if roles.get(name) == "parameter" and "." in name:
                return name.rpartition(".")[0]
        return ""


def plain(value: Any) -> Any:
    """Returns a JSON value, as in other captured graphs: non-finite numbers as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
