"""Products: linear layers, matrix products, convolutions, attention.

A product with a weight and the addition of a bias after it are one linear layer, as they were in
PyTorch. ONNX's MatMul takes the weight as [in, out]; the graph stores it as a linear layer does,
[out, in], unless something else reads it too.
"""

from __future__ import annotations

from typing import Any

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.matching import made_by, other_input
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _matmul(b: Builder, n: Node) -> None:
    x, factor = n.inputs
    weight = _linear_weight(b, factor) if b.rank(x) > 0 else None
    if weight is None:
        b.emit("aten.matmul.default", [("self", x), ("other", factor)], {}, n.outputs, n)
        return
    arguments: list[Argument] = [("input", x), ("weight", weight)]
    out = n.outputs[0]
    adding = b.program.sole_consumer(out)
    if adding is not None and adding.is_standard and adding.type == "Add":
        bias = other_input(adding, out)
        if bias is not None and _is_bias(b, bias, b.shape(out)[-1]):
            arguments.append(("bias", bias))
            out = adding.outputs[0]
            b.absorbed.add(id(adding))
    b.emit("aten.linear.default", arguments, {}, [out], n)


def _linear_weight(b: Builder, name: str) -> str | None:
    """Returns the [out, in] weight that an [in, out] factor is, or is the transpose of."""
    if b.rank(name) != 2:
        return None
    transpose = made_by(b.program, name, "Transpose")
    if transpose is not None and b.is_weight(transpose.inputs[0]):
        return transpose.inputs[0]
    if not b.is_weight(name):
        return None
    for reader in b.program.consumers[name]:
        if reader.type != "MatMul" or reader.inputs[0] == name:
            return None
    return b.store(name, (b.shape(name)[1], b.shape(name)[0]))


def _is_bias(b: Builder, name: str, features: int) -> bool:
    return b.is_weight(name) and b.shape(name) == (features,)


def _gemm(b: Builder, n: Node) -> None:
    x, y, bias = n.inputs[0], n.inputs[1], n.input(2)
    attributes = n.attributes
    if attributes.get("transA", 0):
        rows, columns = b.shape(x)
        turned = b.temporary((columns, rows), b.dtype(x))
        b.emit("aten.t.default", [("self", x)], {}, [turned], n)
        x = turned
    if bias and b.number(bias) == 0:
        bias = ""
    scaled = attributes.get("alpha", 1.0) != 1.0 or (bias and attributes.get("beta", 1.0) != 1.0)
    fits = not bias or b.shape(bias) == b.shape(n.outputs[0])[-1:]
    if attributes.get("transB", 0):
        if fits and not scaled:
            given = [("input", x), ("weight", y), *([("bias", bias)] if bias else [])]
            b.emit("aten.linear.default", given, {}, n.outputs, n)
            return
        rows, columns = b.shape(y)
        turned = b.temporary((columns, rows), b.dtype(y))
        b.emit("aten.t.default", [("self", y)], {}, [turned], n)
        y = turned
    if not bias:
        b.emit("aten.mm.default", [("self", x), ("mat2", y)], {}, n.outputs, n)
        return
    factors = {"beta": attributes.get("beta", 1.0), "alpha": attributes.get("alpha", 1.0)}
    given = [("self", bias), ("mat1", x), ("mat2", y)]
    b.emit("aten.addmm.default", given, factors, n.outputs, n)


def _einsum(b: Builder, n: Node) -> None:
    arguments = [(f"tensors.{place}", name) for place, name in enumerate(n.inputs)]
    b.emit("aten.einsum.default", arguments, {"equation": n.attributes["equation"]}, n.outputs, n)


def _attention(b: Builder, n: Node) -> None:
    """Emits the fused form: query, key, value and perhaps a mask, heads separate."""
    query, key, value, *mask = n.inputs
    _emit_attention(b, n, (query, key, value), mask[0] if mask else "", n.attributes, n.outputs[0])


def _emit_attention(
    b: Builder,
    n: Node,
    factors: tuple[str, str, str],
    mask: str,
    attributes: dict[str, Any],
    out: str,
) -> None:
    query, key, _ = factors
    given: list[Argument] = list(zip(("query", "key", "value"), factors, strict=True))
    if mask:
        given.append(("attn_mask", mask))
    heads = b.rank(query) > 2 and b.shape(query)[-3] != b.shape(key)[-3]
    b.emit(
        "aten.scaled_dot_product_attention.default",
        given,
        {
            "dropout_p": float(attributes.get("dropout_p", 0.0)),
            "is_causal": bool(attributes.get("is_causal", False)),
            "scale": attributes.get("scale"),
            "enable_gqa": heads,
        },
        [out],
        n,
    )


def _onnx_attention(b: Builder, n: Node) -> None:
    """Emits ONNX's own Attention; [batch, time, features] inputs are split into heads first."""
    if n.input(4) or n.input(5) or n.input(6) or any(n.outputs[1:]):
        raise NotTranslated("attention with a cache, lengths or visible scores")
    attributes = n.attributes
    if attributes.get("softcap") or attributes.get("qk_matmul_output_mode"):
        raise NotTranslated("attention with a soft cap")
    given = {"is_causal": attributes.get("is_causal", 0), "scale": attributes.get("scale")}
    mask = n.input(3)
    if b.rank(n.inputs[0]) == 4:
        factors = (n.inputs[0], n.inputs[1], n.inputs[2])
        _emit_attention(b, n, factors, mask, given, n.outputs[0])
        return
    counts = [attributes.get(k) for k in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    parts = []
    for name, heads in zip(n.inputs[:3], counts, strict=True):
        batch, time, features = b.shape(name)
        if not heads or features % heads:
            raise NotTranslated("attention without a number of heads")
        split = (batch, time, heads, features // heads)
        apart = b.temporary(split, b.dtype(name))
        b.emit("aten.view.default", [("self", name)], {"size": list(split)}, [apart], n)
        turned = b.temporary((batch, heads, time, split[3]), b.dtype(name))
        b.emit("aten.transpose.int", [("self", apart)], {"dim0": 1, "dim1": 2}, [turned], n)
        parts.append(turned)
    batch, heads, time, _ = b.shape(parts[0])
    width = b.shape(parts[2])[3]
    attended = b.temporary((batch, heads, time, width), b.dtype(n.outputs[0]))
    _emit_attention(b, n, (parts[0], parts[1], parts[2]), mask, given, attended)
    back = b.temporary((batch, time, heads, width), b.dtype(n.outputs[0]))
    b.emit("aten.transpose.int", [("self", attended)], {"dim0": 1, "dim1": 2}, [back], n)
    size = {"size": list(b.shape(n.outputs[0]))}
    b.emit("aten.view.default", [("self", back)], size, n.outputs[:1], n)


RULES: dict[str, Rule] = {
    "MatMul": Rule(_matmul, "aten.linear.default (with a weight), aten.matmul.default"),
    "Gemm": Rule(_gemm, "aten.linear.default, aten.addmm.default, aten.mm.default"),
    "Einsum": Rule(_einsum, "aten.einsum.default"),
    "Attention": Rule(_onnx_attention, "aten.scaled_dot_product_attention.default"),
}

FUSED: dict[str, Rule] = {
    "Attention": Rule(_attention, "aten.scaled_dot_product_attention.default"),
}
