"""What is timed for an item: the operator forward, its gradients, or an optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.measure.operators.needed import OperatorItem
from shardwise.measure.operators.operands import operands
from shardwise.sharding.fusion import CROSS_ENTROPY
from shardwise.torch_operators import bind, by_rows, overload, tensors_of

UPDATED_TOGETHER = 8
"""Parameters of one optimizer step, which share the step's own overhead."""

OPTIMIZER_STEPS = {
    "adam": lambda torch, parameters: torch.optim.Adam(parameters, lr=1e-4),
    "momentum": lambda torch, parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "sgd": lambda torch, parameters: torch.optim.SGD(parameters, lr=1e-4),
}
"""The optimizers of `Options`, as torch runs them by default."""


class NotMeasurable(ShardwiseError):
    """A call that cannot be made on these shapes; the message says why."""


@dataclass(frozen=True)
class Call:
    """Something to time; `touched` is what the operator before has just made.

    One run does the item `count` times and starts the autograd engine `engine_starts` times.
    """

    run: Callable[[], object]
    touched: Sequence[Any]
    count: int = 1
    engine_starts: int = 0


def prepare(torch: Any, item: OperatorItem, device: Any) -> Call:
    """Returns the call with its operands; raises `NotMeasurable`."""
    torch.manual_seed(0)
    try:
        if item.family.direction == "update":
            return _update(torch, item, device)
        return _operator(torch, item, device)
    except NotMeasurable:
        raise
    # This may be any operator of any library, and each fails in its own way.
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, ShardwiseError) as error:
        raise NotMeasurable(str(error).strip().partition("\n")[0][:200]) from None


def _operator(torch: Any, item: OperatorItem, device: Any) -> Call:
    target = overload(item.family.kind)
    tensors = operands(torch, item, device)
    attributes = dict(item.attributes)
    if "device" in attributes:
        attributes["device"] = str(device)
    positional, named = bind(target, tensors, attributes)
    if item.family.kind == CROSS_ENTROPY and attributes.get("reduction"):  # as programs run it
        positional[:2] = by_rows(*positional[:2])

    def forward() -> Any:
        return target(*positional, **named)

    results = tensors_of(forward())
    shapes = tuple(tuple(tensor.shape) for tensor in results)
    wanted = item.shapes[len(item.family.arguments) :]
    if shapes[: len(wanted)] != wanted:
        raise NotMeasurable("on local shapes its result does not have the share's shapes")
    if item.family.direction == "forward":
        return Call(forward, _just_made(list(tensors.values())))
    outputs = [tensor for tensor in results if tensor.requires_grad]
    inputs = [tensor for tensor in tensors.values() if tensor.requires_grad]
    if not outputs or not inputs:
        raise NotMeasurable("torch computes no gradient for it")
    gradients = [torch.rand_like(tensor) for tensor in outputs]

    def backward() -> Any:
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True, allow_unused=True)

    return Call(backward, gradients, engine_starts=1)


def _just_made(tensors: list[Any]) -> list[Any]:
    """Returns the first operand, which was just made; the others, weights, were made long ago."""
    return tensors[:1]


def _update(torch: Any, item: OperatorItem, device: Any) -> Call:
    optimizer = item.family.kind.partition(".")[2]
    ((elements,),) = item.shapes
    dtype = getattr(torch, item.family.dtypes[0])
    parameters = [
        torch.nn.Parameter(torch.rand(elements, dtype=dtype, device=device))
        for _ in range(UPDATED_TOGETHER)
    ]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    stepping = OPTIMIZER_STEPS[optimizer](torch, parameters)
    return Call(stepping.step, (), count=UPDATED_TOGETHER)


def engine_overhead(
    torch: Any, device: Any, once: Callable[[Callable[[], object]], float]
) -> float:
    """Returns the seconds to start the autograd engine, paid once per whole backward."""
    one = torch.ones(1, device=device, requires_grad=True)
    output = one.view(1)
    ones = torch.ones_like(output)
    times = [
        once(lambda: torch.autograd.grad([output], [one], [ones], retain_graph=True))
        for _ in range(100)
    ]
    return float(sorted(times)[len(times) // 2])
