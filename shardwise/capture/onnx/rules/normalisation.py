"""Normalisations, softmax, losses.

Batch normalisation takes its statistics from the batch: the graph is of a training step, and
exporters do not keep the flag that would distinguish training from inference.
"""

from __future__ import annotations

from shardwise.capture.onnx.builder import Argument, Builder, NotTranslated
from shardwise.capture.onnx.program import Node
from shardwise.capture.onnx.rules.rule import Rule

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _scaled(n: Node) -> list[Argument]:
    named = (("input", 0), ("weight", 1), ("bias", 2))
    return [(role, n.input(place)) for role, place in named if n.input(place)]


def _no_more_outputs(b: Builder, n: Node) -> None:
    if any(b.program.consumers.get(name) for name in n.outputs[1:] if name):
        raise NotTranslated("statistics that are read")


def _layer_norm(kind: str) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        _no_more_outputs(b, n)
        shape = b.shape(n.inputs[0])
        axis = n.attributes.get("axis", -1) % len(shape)
        attributes = {
            "normalized_shape": list(shape[axis:]),
            "eps": n.attributes.get("epsilon", 1e-5),
        }
        b.emit(kind, _scaled(n), attributes, n.outputs[:1], n)

    return Rule(translate, kind)


def _batch_norm(b: Builder, n: Node) -> None:
    if b.rank(n.inputs[0]) < 2:
        raise NotTranslated("batch normalisation without channels")
    given = [*_scaled(n), ("running_mean", n.inputs[3]), ("running_var", n.inputs[4])]
    attributes = {
        "training": True,
        "momentum": 1.0 - n.attributes.get("momentum", 0.9),
        "eps": n.attributes.get("epsilon", 1e-5),
        "cudnn_enabled": True,
    }
    b.emit("aten.batch_norm.default", given, attributes, n.outputs[:1], n)


def _group_norm(b: Builder, n: Node) -> None:
    groups = n.attributes.get("num_groups", b.shape(n.inputs[0])[1])
    if b.shape(n.inputs[1]) != b.shape(n.inputs[0])[1:2]:
        raise NotTranslated("one scale for a whole group")
    attributes = {"num_groups": groups, "eps": n.attributes.get("epsilon", 1e-5)}
    b.emit("aten.group_norm.default", _scaled(n), attributes, n.outputs, n)


def _softmax(name: str) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        rank = b.rank(n.inputs[0])
        old = b.program.opset.get("", 13) < 13
        axis = n.attributes.get("axis", 1 if old else -1) % rank
        if old and axis != rank - 1:
            raise NotTranslated("a softmax over several dimensions")
        b.emit(f"aten.{name}.int", [("self", n.inputs[0])], {"dim": axis}, n.outputs, n)

    return Rule(translate, f"aten.{name}.int")


def _loss(kind: str) -> Rule:
    def translate(b: Builder, n: Node) -> None:
        _no_more_outputs(b, n)
        given = [("self", n.inputs[0]), ("target", n.inputs[1])]
        if n.input(2):
            given.append(("weight", n.input(2)))
        attributes = {
            "reduction": _REDUCTIONS[n.attributes.get("reduction", "mean")],
            "ignore_index": n.attributes.get("ignore_index", -100),
        }
        if "cross_entropy" in kind:
            attributes["label_smoothing"] = 0.0
        b.emit(kind, given, attributes, n.outputs[:1], n)

    return Rule(translate, kind)


RULES: dict[str, Rule] = {
    "LayerNormalization": _layer_norm("aten.layer_norm.default"),
    "RMSNormalization": _layer_norm("aten.rms_norm.default"),
    "BatchNormalization": Rule(_batch_norm, "aten.batch_norm.default"),
    "GroupNormalization": Rule(_group_norm, "aten.group_norm.default"),
    "InstanceNormalization": Rule(_group_norm, "aten.group_norm.default"),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "SoftmaxCrossEntropyLoss": _loss("aten.cross_entropy_loss.default"),
    "NegativeLogLikelihoodLoss": _loss("aten.nll_loss_nd.default"),
}
