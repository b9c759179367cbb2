"""Views, slices, joins: operators that only move data."""

from __future__ import annotations

from shardwise.capture.onnx.builder import Builder, NotTranslated
from shardwise.capture.onnx.constants import slice_places, split_sizes
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule


def _view(b: Builder, n: Node) -> None:
    size = {"size": list(b.shape(n.outputs[0]))}
    b.emit("aten.view.default", [("self", n.inputs[0])], size, n.outputs, n)


def _expand(b: Builder, n: Node) -> None:
    attributes = {"size": list(b.shape(n.outputs[0])), "implicit": False}
    b.emit("aten.expand.default", [("self", n.inputs[0])], attributes, n.outputs, n)


def _transpose(b: Builder, n: Node) -> None:
    rank = b.rank(n.inputs[0])
    order = list(n.attributes.get("perm", range(rank)[::-1]))
    moved = [d for d in range(rank) if order[d] != d]
    if len(moved) == 2:
        attributes = {"dim0": moved[0], "dim1": moved[1]}
        b.emit("aten.transpose.int", [("self", n.inputs[0])], attributes, n.outputs, n)
    else:
        b.emit("aten.permute.default", [("self", n.inputs[0])], {"dims": order}, n.outputs, n)


def _slice(b: Builder, n: Node) -> None:
    for place in range(1, 5):
        if n.input(place) and b.constant(n.input(place)) is None:
            raise NotTranslated("a slice at computed places")
    inputs = [b.constant(name) if name and i else None for i, name in enumerate(n.inputs)]
    name, out = n.inputs[0], n.outputs[0]
    shape = list(b.shape(name))
    cuts = [c for c in slice_places(n, inputs, shape) if c[1:] != (0, shape[c[0]], 1)]
    for place, (axis, start, stop, step) in enumerate(cuts):
        extent = len(range(start, stop, step))
        backwards = step == -1 and extent == shape[axis]
        if step < 0 and not backwards:
            raise NotTranslated("a slice backwards")
        shape[axis] = extent
        target = out if place == len(cuts) - 1 else b.temporary(shape, b.dtype(out))
        if backwards:
            b.emit("aten.flip.default", [("self", name)], {"dims": [axis]}, [target], n)
        else:
            attributes = {"dim": axis, "start": start, "end": stop, "step": step}
            b.emit("aten.slice.Tensor", [("self", name)], attributes, [target], n)
        name = target
    if not cuts:
        b.rename(out, name)


def _split(b: Builder, n: Node) -> None:
    axis = n.attributes.get("axis", 0) % b.rank(n.inputs[0])
    if n.input(1) and b.constant(n.input(1)) is None:
        raise NotTranslated("a split into computed pieces")
    sizes = split_sizes(n, b.constants(n), b.shape(n.inputs[0])[axis])
    attributes = {"split_sizes": sizes, "dim": axis}
    outputs = [
        name or b.temporary(_with(b.shape(n.inputs[0]), axis, size), b.dtype(n.inputs[0]))
        for name, size in zip(n.outputs, sizes, strict=True)
    ]
    kind = "aten.split_with_sizes.default"
    b.emit(kind, [("self", n.inputs[0])], attributes, outputs, n)


def _with(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _concat(b: Builder, n: Node) -> None:
    given = [(f"tensors.{place}", name) for place, name in enumerate(n.inputs)]
    axis = n.attributes["axis"] % b.rank(n.outputs[0])
    b.emit("aten.cat.default", given, {"dim": axis}, n.outputs, n)


def _tile(b: Builder, n: Node) -> None:
    repeats = b.constant(n.inputs[1])
    if repeats is None:
        raise NotTranslated("a computed number of repeats")
    attributes = {"repeats": [int(r) for r in repeats.reshape(-1)]}
    b.emit("aten.repeat.default", [("self", n.inputs[0])], attributes, n.outputs, n)


def _shuffle(b: Builder, n: Node) -> None:
    block = n.attributes["blocksize"]
    if n.type == "DepthToSpace" and n.attributes.get("mode", "DCR") != "CRD":
        raise NotTranslated("depth to space in depth-first order")
    down = n.type == "SpaceToDepth"
    name, factor = (
        ("pixel_unshuffle", "downscale_factor")
        if down
        else (
            "pixel_shuffle",
            "upscale_factor",
        )
    )
    b.emit(f"aten.{name}.default", [("self", n.inputs[0])], {factor: block}, n.outputs, n)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze"), Rule(_view, "aten.view.default")
    ),
    "Expand": Rule(_expand, "aten.expand.default"),
    "Transpose": Rule(_transpose, "aten.transpose.int, aten.permute.default"),
    "Slice": Rule(_slice, "aten.slice.Tensor, aten.flip.default"),
    "Split": Rule(_split, "aten.split_with_sizes.default"),
    "Concat": Rule(_concat, "aten.cat.default"),
    "Tile": Rule(_tile, "aten.repeat.default"),
    "DepthToSpace": Rule(_shuffle, "aten.pixel_shuffle.default"),
    "SpaceToDepth": Rule(_shuffle, "aten.pixel_unshuffle.default"),
}
