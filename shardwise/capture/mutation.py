"""In-place operators in an exported graph.

`relu_` becomes `relu`, and later readers of the tensor read the result. That is correct only if no
view shares the tensor's memory; the rest is left to torch's own functionalisation.
"""

from __future__ import annotations

from typing import Any


def written_arguments(target: Any) -> list[int]:
    """Returns the positions of the schema arguments that an operator writes to."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return []
    return [
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def functional_twin(target: Any) -> Any | None:
    """Returns `aten.relu.default` for `aten.relu_.default`; None if there is no such twin."""
    import torch

    name = str(target._schema.name).removeprefix("aten::")
    if not name.endswith("_") or target.namespace != "aten":
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overload = target._overloadname
    return getattr(packet, overload, None) if packet is not None else None


def mutates_views(module: Any) -> bool:
    """Returns whether some in-place operator needs more than a change of name."""
    for graph_module in _graph_modules(module):
        for node in graph_module.graph.nodes:
            written = written_arguments(node.target) if node.op == "call_function" else []
            if not written:
                continue
            target = node.args[0] if node.args else None
            if written != [0] or functional_twin(node.target) is None or target is None:
                return True
            if graph_module is not module and target.op == "placeholder":
                return True
            if _is_view(target) or any(_is_view(user) for user in target.users):
                return True
    return False


def _graph_modules(module: Any) -> list[Any]:
    import torch

    return [m for m in module.modules() if isinstance(m, torch.fx.GraphModule)]


def _is_view(node: Any) -> bool:
    """Returns whether the output shares memory with an input that is not written to."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        # getitem of a split is a view of the tensor that was split.
        return node.op == "call_function" and _is_view(node.args[0])
    returned = [value.alias_info for value in schema.returns]
    return any(info is not None and not info.is_write for info in returned)
