"""Translates a folded and fused program to a graph of ATen operators.

Each node is translated by the rule of its type (`rules`). A node without a rule, or whose form its
rule does not cover, becomes an operator of its own kind, `onnx.Type` or `onnx.domain.Type`: nothing
describes it, so it is replicated and named in every answer. Nothing is guessed.
"""

from __future__ import annotations

from shardwise.capture.onnx.builder import Builder, NotTranslated
from shardwise.capture.onnx.program import OWN_DOMAIN, Node, Program
from shardwise.capture.onnx.rules import rule_of
from shardwise.errors import CaptureError
from shardwise.graph.graph import Graph

UNFIT = (TypeError, ValueError, LookupError, ArithmeticError)
"""What a rule raises on shapes and attributes that do not fit its operator."""


def translate(program: Program, name: str) -> Graph:
    """Returns a program's graph; raises CaptureError for an output without shape or type."""
    builder = Builder(program)
    for node in program.nodes:
        if id(node) in builder.absorbed:
            continue
        rule = rule_of(node)
        mark = builder.mark()
        try:
            if rule is None:
                raise NotTranslated(node.type)
            _check_known(program, node)
            rule(builder, node)
        except NotTranslated:
            builder.reset(mark)
            _as_itself(builder, node)
        except UNFIT as error:
            raise CaptureError(
                f"{node.name} ({node.type}) has arguments that do not fit: {error}",
                field=node.field,
            ) from None
    return builder.finish(name)


def _check_known(program: Program, node: Node) -> None:
    for name in filter(None, (*node.inputs, *node.outputs)):
        program.shape(name)


def _as_itself(builder: Builder, node: Node) -> None:
    domain = "" if node.is_standard or node.domain == OWN_DOMAIN else f"{node.domain}."
    inputs = [(f"inputs.{place}", name) for place, name in enumerate(node.inputs) if name]
    attributes = {k: v for k, v in node.attributes.items() if _is_plain(v)}
    for name in filter(None, node.outputs):
        if builder.program.values[name].dtype is None:
            raise CaptureError(
                f"the shape and type of {name!r} are not known: "
                f"{node.domain or 'ai.onnx'}.{node.type} is an unknown operator",
                field=f"{node.field}.output",
                expected="a file that gives them in graph.value_info",
            )
    builder.emit(
        f"onnx.{domain}{node.type}", inputs, attributes, [o for o in node.outputs if o], node
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(v, str | int | float) for v in value)
    return isinstance(value, str | int | float)
