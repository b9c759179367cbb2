"""One operator of `torch.ops`, called by the names of its schema's arguments."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput, ShardwiseError

LOADED_BY = {
    "transformers": ("transformers", "transformers.integrations.moe", None),
    "shardwise": ("torch", "shardwise.capture.fused", "operators"),
}
"""Per namespace what it needs, the module whose import registers its operators, and a call."""


def overload(kind: str) -> Any:
    """Returns `torch.ops.aten.linear.default` for `aten.linear.default`.

    Raises `BadInput` if `torch.ops` does not have it.
    """
    torch = load_torch()
    parts = kind.split(".")
    needs, module, register = LOADED_BY.get(parts[0], (None, "", None))
    if needs is not None and importlib.util.find_spec(needs):
        loaded = importlib.import_module(module)
        if register is not None:
            getattr(loaded, register)()
    operator = torch.ops
    try:
        for part in parts:
            operator = getattr(operator, part)
    except (AttributeError, RuntimeError):
        operator = None
    if len(parts) != 3 or operator is None or not hasattr(operator, "_schema"):
        raise BadInput(
            f"torch.ops has no operator {kind!r}",
            expected="namespace.name.overload of an operator that is loaded",
        )
    return operator


def call(target: Any, tensors: Mapping[str, Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Returns every tensor that the operator gives; None and numbers are left out."""
    positional, named = bind(target, tensors, attributes)
    return tensors_of(target(*positional, **named))


def bind(
    target: Any, tensors: Mapping[str, Any], attributes: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a call, positional and by keyword.

    Raises `BadInput` where they do not fit.
    """
    torch = load_torch()
    values = {
        name: _value(torch, str(argument.type), attributes[name])
        for argument in target._schema.arguments
        if (name := argument.name) in attributes
    }
    unknown = set(attributes) - set(values)
    for argument, tensor in tensors.items():
        base, _, place = argument.partition(".")
        if place:
            listed = values.setdefault(base, [])
            listed += [None] * (int(place) - len(listed)) + [tensor]
        else:
            values[base] = tensor
    positional, named = [], {}
    for argument in target._schema.arguments:
        if argument.name not in values and not argument.has_default_value():
            if "Optional" in str(argument.type):
                values[argument.name] = None
            else:
                raise BadInput("is missing", field=argument.name, expected=f"a value for {target}")
        value = values.pop(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    if unknown | set(values):
        raise BadInput(
            f"{target} has no argument {sorted(unknown | set(values))}",
            expected=", ".join(argument.name for argument in target._schema.arguments),
        )
    return positional, named


def by_rows(scores: Any, labels: Any, *others: Any) -> tuple[Any, ...]:
    """Returns the arguments of a cross entropy with a row of scores for each label, if that is a
    view: (b, …) labels and (b, classes, …) scores whose classes lie next to each other in memory.

    torch's kernels for classes in between take 2 (CPUs) to 30 times (GPUs) as long.
    """
    if scores.dim() < 3 or labels.dim() != scores.dim() - 1:
        return scores, labels, *others
    last = scores.movedim(1, -1)
    if not last.is_contiguous():
        return scores, labels, *others
    return last.reshape(-1, last.shape[-1]), labels.reshape(-1), *others


def tensors_of(result: Any) -> list[Any]:
    """Returns the tensors that an operator gave, those in lists one after another."""
    torch = load_torch()
    listed = result if isinstance(result, tuple | list) else (result,)
    flat = [t for item in listed for t in (item if isinstance(item, tuple | list) else (item,))]
    return [t for t in flat if isinstance(t, torch.Tensor)]


def _value(torch: Any, type_name: str, value: Any) -> Any:
    """Returns an attribute of a graph file as torch expects it: files have dtypes by name."""
    if isinstance(value, str) and ("ScalarType" in type_name or hasattr(torch, value)):
        named = getattr(torch, value, None)
        return named if isinstance(named, torch.dtype) else value
    return value


def run_on_arrays(
    kind: str,
    names: Sequence[str],
    attributes: Mapping[str, Any],
    arrays: Sequence[NDArray[Any]],
    *,
    dtype: str = "float64",
    device: str = "cpu",
) -> list[NDArray[Any]]:
    """Runs the operator on copies of these arrays, floats computed in `dtype`.

    Random operators draw the same numbers at every call: what they compute from them is compared.
    """
    torch = load_torch()
    # As torch.manual_seed, which records where it was called from and takes longer than most calls.
    torch.default_generator.manual_seed(0)
    if device == "cuda":
        torch.cuda.manual_seed_all(0)
    inputs = _tensors(names, arrays, dtype, device)
    with torch.no_grad():
        outputs = call(overload(kind), inputs, attributes)
    return [_array(torch, tensor) for tensor in outputs]


def shapes_of_outputs(
    kind: str,
    names: Sequence[str],
    attributes: Mapping[str, Any],
    arrays: Sequence[NDArray[Any]],
    *,
    dtype: str = "float64",
) -> list[tuple[int, ...]]:
    """Returns the shapes of the operator's outputs; nothing is computed, so no GPU is needed."""
    with load_torch().no_grad():
        outputs = call(overload(kind), _tensors(names, arrays, dtype, "meta"), attributes)
    return [tuple(tensor.shape) for tensor in outputs]


def _tensors(
    names: Sequence[str], arrays: Sequence[NDArray[Any]], dtype: str, device: str
) -> dict[str, Any]:
    torch = load_torch()
    inputs = {}
    for name, array in zip(names, arrays, strict=True):
        tensor = torch.from_numpy(np.array(array))
        if tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, dtype))
        inputs[name] = tensor.to(device)
    return inputs


def _array(torch: Any, tensor: Any) -> NDArray[Any]:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.is_floating_point():
        tensor = tensor.double()
    array: NDArray[Any] = tensor.numpy()
    return array


def has_cuda() -> bool:
    """Returns whether operators that only GPUs implement can run here."""
    return bool(load_torch().cuda.is_available())


def core_kinds() -> list[str]:
    """Returns torch's core ATen list: every overload with the tag `torch.Tag.core`, sorted."""
    torch = load_torch()
    kinds = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, form = rest.partition(".")
        if namespace != "aten":
            continue
        # Some registered operators are not exposed to Python.
        target = getattr(getattr(torch.ops.aten, packet, None), form or "default", None)
        if target is not None and torch.Tag.core in target.tags:
            kinds.append(f"aten.{packet}.{form or 'default'}")
    return sorted(kinds)


def version() -> str:
    """Returns torch's version without its build, `2.8.0`."""
    return str(load_torch().__version__).partition("+")[0]


def load_torch() -> Any:
    """Returns torch. Raises `ShardwiseError`, which says how to install it, if it is missing."""
    try:
        import torch
    except ImportError as error:
        raise ShardwiseError(
            "running real operators needs PyTorch: pip install 'shardwise[torch]'"
        ) from error
    return torch
