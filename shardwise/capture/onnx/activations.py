"""Activations that exporters write as several nodes."""

from __future__ import annotations

from math import sqrt

from shardwise.capture.onnx.matching import close, made_by, number, other_input, replace, scaled
from shardwise.capture.onnx.program import OWN_DOMAIN, Node, Program


def fuse_activations(program: Program) -> None:
    """Fuses silu, gelu and rsqrt, each only if nothing else reads the intermediate tensors."""
    for node in list(program.nodes):
        if not node.is_standard or program.producer.get(node.outputs[0]) is not node:
            continue
        if node.type == "Mul":
            _silu(program, node) or _gelu(program, node)
        elif node.type in ("Reciprocal", "Div"):
            _rsqrt(program, node)


def _one(program: Program, kind: str, x: str, last: Node) -> bool:
    new = Node(last.name, OWN_DOMAIN, kind, [x], list(last.outputs), {}, last.scope, last.field)
    replace(program, new, [last])
    return True


def _silu(program: Program, product: Node) -> bool:
    for name in product.inputs:
        gate = made_by(program, name, "Sigmoid")
        if gate is not None and program.sole_consumer(name) is product:
            x = gate.inputs[0]
            if other_input(product, name) == x:
                return _one(program, "Silu", x, product)
    return False


def _gelu(program: Program, product: Node) -> bool:
    """Fuses x · (1 + erf(x / √2)) · ½ in the orders that exporters use."""
    factors = _factors(program, product)
    scale, tensors = 1.0, []
    for name in factors:
        value = number(program, name)
        if value is None:
            tensors.append(name)
        else:
            scale *= value
    if len(tensors) != 2 or not close(scale, 0.5):
        return False
    for x, grown in (tensors, tensors[::-1]):
        plus = made_by(program, grown, "Add")
        if plus is None or program.sole_consumer(grown) is None:
            continue
        for name in plus.inputs:
            erf = made_by(program, name, "Erf")
            one = other_input(plus, name)
            if erf is None or one is None or number(program, one) != 1.0:
                continue
            inside, factor = scaled(program, erf.inputs[0])
            if inside == x and close(factor, 1 / sqrt(2)):
                return _one(program, "Gelu", x, product)
    return False


def _factors(program: Program, product: Node) -> list[str]:
    """Returns the factors of a product and of the products that only it reads."""
    factors = []
    for name in product.inputs:
        inner = made_by(program, name, "Mul")
        if inner is not None and program.sole_consumer(name) is product:
            factors += inner.inputs
        else:
            factors.append(name)
    return factors


def _rsqrt(program: Program, node: Node) -> bool:
    if node.type == "Div" and number(program, node.inputs[0]) != 1.0:
        return False
    name = node.inputs[-1]
    root = made_by(program, name, "Sqrt")
    if root is None or program.sole_consumer(name) is not node:
        return False
    return _one(program, "Rsqrt", root.inputs[0], node)
