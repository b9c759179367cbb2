"""Fuses attention that an exporter wrote out into one operator.

    P = softmax(√s·q @ (√s·k)ᵀ [+ mask])    [guarded against fully masked rows]
    y = dropout(P) @ v

The mask becomes the boolean one that `where(mask, 0, -inf)` was made from, if it was; a mask known
to be the lower triangle becomes the causal flag instead.
"""

from __future__ import annotations

import numpy as np

from shardwise.capture.onnx.fold import dropout_ratio
from shardwise.capture.onnx.matching import (
    close,
    made_by,
    number,
    other_input,
    peek,
    replace,
    scaled,
)
from shardwise.capture.onnx.program import OWN_DOMAIN, Array, Node, Program, Value

TYPE = "Attention"


def fuse_attention(program: Program) -> None:
    """Makes one node of the shardwise domain for each attention that was written out."""
    for node in list(program.nodes):
        if node.is_standard and node.type == "Softmax":
            _fuse_one(program, node)


def _fuse_one(program: Program, softmax: Node) -> None:
    rank = len(program.shape(softmax.inputs[0]))
    if softmax.attributes.get("axis", -1) not in (-1, rank - 1):
        return
    scores = _scores(program, softmax.inputs[0])
    weighted = _weighted_values(program, softmax)
    if scores is None or weighted is None:
        return
    query, key, mask, heads_last = scores
    product, dropout = weighted
    value = product.inputs[1]
    if heads_last is not None:
        key = _transposed(program, heads_last, softmax)
    key, value = _grouped(program, query, key, value)
    attributes: dict[str, object] = {"is_causal": False, "dropout_p": dropout}
    if mask is not None and _is_causal(program, mask):
        mask, attributes["is_causal"] = None, True
    elif mask is not None:
        mask = _boolean(program, mask)
    inputs = [query, key, value, *([mask] if mask is not None else [])]
    new = Node(
        product.name, OWN_DOMAIN, TYPE, inputs, [product.outputs[0]], attributes, product.scope
    )
    replace(program, new, [product])


def _scores(program: Program, name: str) -> tuple[str, str, str | None, str | None] | None:
    """Returns (query, key, mask, transposed key) of scaled scores; one key is empty or None."""
    mask: str | None = None
    product = made_by(program, name, "MatMul")
    added = made_by(program, name, "Add")
    if product is None and added is not None:
        for candidate in added.inputs:
            product = made_by(program, candidate, "MatMul")
            if product is not None and program.sole_consumer(candidate) is added:
                mask = other_input(added, candidate)
                break
    if product is None:
        return None
    query, scale = scaled(program, product.inputs[0])
    flipped, other = scaled(program, product.inputs[1])
    if query == product.inputs[0] or flipped == product.inputs[1] or not close(scale, other):
        return None
    key = _untransposed(program, flipped)
    return (query, key, mask, None) if key is not None else (query, "", mask, flipped)


def _untransposed(program: Program, name: str) -> str | None:
    """Returns the tensor of which `name` exchanges the last two dimensions, or None."""
    shape = program.shape(name)
    wanted = (*shape[:-2], shape[-1], shape[-2])
    reshape = made_by(program, name, "Reshape")
    transpose = made_by(program, reshape.inputs[0] if reshape else name, "Transpose")
    if transpose is None:
        return None
    source = transpose.inputs[0]
    rank = len(program.shape(source))
    swap = [*range(rank - 2), rank - 1, rank - 2]
    if list(transpose.attributes.get("perm", range(rank)[::-1])) != swap:
        return None
    if reshape is not None:
        folded = made_by(program, source, "Reshape")
        if folded is None:
            return None
        source = folded.inputs[0]
    return source if program.shape(source) == wanted else None


def _transposed(program: Program, name: str, at: Node) -> str:
    """Adds a node that exchanges the last two dimensions; returns its result."""
    shape = program.shape(name)
    transposed = f"{name}.transposed"
    if transposed not in program.values:
        rank = len(shape)
        perm = [*range(rank - 2), rank - 1, rank - 2]
        node = Node(
            f"{at.name}.key", "", "Transpose", [name], [transposed], {"perm": perm}, at.scope
        )
        flipped = (*shape[:-2], shape[-1], shape[-2])
        program.values[transposed] = Value(transposed, flipped, program.values[name].dtype)
        program.nodes.insert(program.nodes.index(at), node)
        program.link()
    return transposed


def _grouped(program: Program, query: str, key: str, value: str) -> tuple[str, str]:
    """Returns the key and value heads before each was repeated for its group of query heads."""
    single = _unrepeated(program, key), _unrepeated(program, value)
    if single[0] is None or single[1] is None:
        return key, value
    heads = [program.shape(name)[-3] for name in (query, single[0], single[1])]
    return (single[0], single[1]) if heads[1] == heads[2] < heads[0] else (key, value)


def _unrepeated(program: Program, name: str) -> str | None:
    """Returns x if a tensor is reshape(expand(x[:, :, None])), which repeats each of its heads."""
    merged = made_by(program, name, "Reshape")
    expanded = made_by(program, merged.inputs[0], "Expand") if merged else None
    opened = made_by(program, expanded.inputs[0], "Unsqueeze", "Reshape") if expanded else None
    if merged is None or expanded is None or opened is None:
        return None
    if expanded.origin and not expanded.origin.startswith("scaled_dot_product_attention"):
        return None  # the model itself repeats them
    source = opened.inputs[0]
    before, wide = program.shape(source), program.shape(expanded.outputs[0])
    if len(before) != 4 or len(wide) != 5:
        return None
    batch, heads, time, width = before
    fits = wide == (batch, heads, wide[2], time, width)
    fits = fits and program.shape(opened.outputs[0]) == (batch, heads, 1, time, width)
    return source if fits and program.shape(name) == (batch, heads * wide[2], time, width) else None


def _weighted_values(program: Program, softmax: Node) -> tuple[Node, float] | None:
    """Returns (the product with the values, fraction dropped), past the guard and the dropout."""
    name, dropout = softmax.outputs[0], 0.0
    guarded = _guard(program, name)
    name = guarded.outputs[0] if guarded is not None else name
    reader = program.sole_consumer(name)
    if reader is not None and reader.is_standard and reader.type == "Dropout":
        if any(program.consumers.get(n) for n in reader.outputs[1:]):
            return None
        dropout = dropout_ratio(reader, program)
        name = reader.outputs[0]
        reader = program.sole_consumer(name)
    if reader is None or reader.type != "MatMul" or not reader.is_standard:
        return None
    return (reader, dropout) if reader.inputs[0] == name else None


def _guard(program: Program, name: str) -> Node | None:
    """Returns `where(isnan(p), 0, p)`, which turns fully masked rows to zero, or None."""
    readers = program.consumers[name]
    tests = [n for n in readers if n.type == "IsNaN"]
    choices = [n for n in readers if n.type == "Where" and n.inputs[2] == name]
    if len(readers) != 2 or len(tests) != 1 or len(choices) != 1:
        return None
    return choices[0] if choices[0].inputs[0] == tests[0].outputs[0] else None


def _boolean(program: Program, mask: str) -> str:
    """Returns the mask as PyTorch takes it, true where a position is seen; else the mask itself."""
    array = program.constant(mask)
    if array is not None and array.dtype != np.bool_:
        seen = array == 0
        if not bool(np.all(array[~seen] < -1e4)):
            return mask
        seen_name = f"{mask}.seen"
        program.values[seen_name] = Value(seen_name, array.shape, "bool", "initialiser", seen, seen)
        return seen_name
    choice = made_by(program, mask, "Where")
    if choice is None:
        return mask
    kept, masked = (number(program, name) for name in choice.inputs[1:])
    return choice.inputs[0] if kept == 0.0 and masked is not None and masked < -1e4 else mask


def _is_causal(program: Program, mask: str) -> bool:
    """Returns whether a constant mask lets each row see itself and what precedes it."""
    array = peek(program, mask)
    if array is None or array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return False
    if any(extent != 1 for extent in array.shape[:-2]) or array.shape[-1] < 2:
        return False
    return _lower_triangle(array.reshape(array.shape[-2:]))


def _lower_triangle(array: Array) -> bool:
    seen = array if array.dtype == np.bool_ else array == 0
    if array.dtype != np.bool_ and not bool(np.all(array[~seen] < -1e4)):
        return False
    return bool(np.array_equal(seen, np.tri(array.shape[0], dtype=bool)))
