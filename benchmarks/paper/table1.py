"""TensorOpt Table 1: parameters and memory of the models at batch 256 on one GPU."""

from __future__ import annotations

from paper.models import graph
from paper.result import Result, Table, against
from paper.setting import GIB, fastest
from shardwise.graph import Graph

THEIRS = {
    # parameters and memory, in GB as printed
    "rnn": (108.0, 126.0),
    "wide-resnet": (7.3, 83.0),
    "transformer": (9.7, 74.0),
    "vgg16": (0.52, 30.0),
}
CANDIDATES = (
    ("zoo:wrn:depth=46,width=55", "WRN-46-55 on 32 × 32 images (taken)"),
    ("zoo:wrn:depth=52,width=51", "WRN-52-51 on 32 × 32 images"),
    ("zoo:wide-resnet-50:width=9,image=112", "ResNet-50 widened 9 times, 112 × 112"),
    ("zoo:wide-resnet-101:width=7,image=96", "ResNet-101 widened 7 times, 96 × 96"),
    ("zoo:wide-resnet-152:width=6,image=96", "ResNet-152 widened 6 times, 96 × 96"),
    ("zoo:wide-resnet-101:width=4", "ResNet-101 widened 4 times, 224 × 224"),
)
"""Wide residual networks near Table 1's 7.3 GB, and the nearest of Tofu's (three copies there)."""


def parameter_gib(graph: Graph) -> float:
    """One copy of the parameters."""
    return sum(t.size_bytes for t in graph.tensors.values() if t.role == "parameter") / GIB


def all_outputs_gib(graph: Graph) -> float:
    """Parameters, inputs and the result of every operator, needed again or not."""
    outputs = sum(graph.tensors[o].size_bytes for op in graph.operators for o in op.outputs)
    given = sum(t.size_bytes for t in graph.tensors.values() if t.role == "input")
    return parameter_gib(graph) + (outputs + given) / GIB


def kept_gib(model: str) -> float:
    """Our peak on one GPU: parameters, and what backward needs kept."""
    return float(fastest(model, 1, limit_bytes=1e15).memory_bytes[0]) / GIB


def make() -> Result:
    result = Result("table1", "TensorOpt Table 1: parameters and memory (GB)")
    rows = []
    for model, (parameters, memory) in THEIRS.items():
        captured = graph(model)
        ours = parameter_gib(captured), kept_gib(model), all_outputs_gib(captured)
        result.data[model] = {
            "parameters_gib": ours[0],
            "kept_gib": ours[1],
            "all_outputs_gib": ours[2],
            "theirs": [parameters, memory],
        }
        rows.append(
            (
                model,
                f"{parameters:g}",
                f"{ours[0]:.3g}",
                against(ours[0], parameters),
                f"{memory:g}",
                f"{ours[1]:.3g}",
                against(ours[1], memory),
                f"{ours[2]:.3g}",
                against(ours[2], memory),
            )
        )
    headers = ("model", "parameters, paper", "ours", "", "memory, paper", "ours", "")
    result.tables.append(Table((*headers, "every result kept", ""), rows))
    result.tables.append(_candidates(result))
    return result


def _candidates(result: Result) -> Table:
    rows = []
    for source, name in CANDIDATES:
        captured = graph(source, 256)
        parameters, memory = parameter_gib(captured), all_outputs_gib(captured)
        theirs = THEIRS["wide-resnet"]
        result.data[source] = {"parameters_gib": parameters, "all_outputs_gib": memory}
        rows.append(
            (
                name,
                f"{parameters:.2f} ({against(parameters, theirs[0])})",
                f"{memory:.1f} ({against(memory, theirs[1])})",
            )
        )
    return Table(("WideResNet of 7.3 and 83 GB?", "parameters", "every result kept"), rows)
