"""One region: local operators that torch.compile makes one program, forward and backward.

Autograd runs the backward of a region as one function, when its turn comes: last made, first run.
So the collectives before and after it keep their order, on all ranks the same, whatever torch makes
of the region on each of them.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shardwise.errors import BadInput, InternalError
from shardwise.execute.instruction import Instruction
from shardwise.execute.local import LocalOperator
from shardwise.execute.local.calling import Run


class Region:
    """Maps the tensors of the slots `inputs` to those of `outputs`, as the instructions would.

    torch compiles it when it is first called, and once more if it is called without gradients.
    What torch cannot trace runs eagerly from then on, after a warning; `refused` says why.
    """

    def __init__(
        self,
        name: str,
        instructions: Sequence[Instruction],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        self.operators = tuple(instruction.name for instruction in instructions)
        self.refused: str | None = None
        self._eager = _function(name, instructions, inputs, outputs)
        self._compiled = torch.compile(self._eager, fullgraph=True, dynamic=False)

    def __call__(self, *tensors: Any) -> Sequence[Any]:
        if self.refused is not None:
            return self._eager(*tensors)
        # Late: only compiled plans wait for this import, which takes seconds.
        from torch._dynamo.exc import TorchDynamoException

        try:
            results: Sequence[Any] = self._compiled(*tensors)
        except TorchDynamoException as error:
            self.refused = (str(error).splitlines() or [type(error).__name__])[0]
            first, last = self.operators[0], self.operators[-1]
            warnings.warn(
                f"torch.compile refuses the operators from {first} to {last}, which run eagerly: "
                f"{self.refused}",
                stacklevel=2,
            )
            return self._eager(*tensors)
        return results


def require_compiler(device: torch.device) -> None:
    """Raises `BadInput` if torch.compile has no compiler to make programs of this device with."""
    if device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise BadInput(
            "torch.compile finds no C++ compiler",
            field="compile",
            expected="g++ or clang++ (or its path in CXX), or compile=False",
        ) from error


def _function(
    name: str, instructions: Sequence[Instruction], inputs: Sequence[int], outputs: Sequence[int]
) -> Callable[..., list[Any]]:
    """Returns the region as one function.

    Its code is its own: torch keeps what it compiled by code, and no more than a few of each.
    """
    kept = set(outputs)
    steps = [
        (_traced(i), i.inputs, i.outputs, [s for s in i.dead if s not in kept])
        for i in instructions
    ]

    def region(*tensors: Any) -> list[Any]:
        slots = dict(zip(inputs, tensors, strict=True))
        for run, read, made, dead in steps:
            slots.update(zip(made, run(*[slots[s] for s in read]), strict=False))
            for slot in dead:
                slots.pop(slot, None)
        return [slots[s] for s in outputs]

    code = region.__code__.replace(co_name=name)
    return types.FunctionType(code, region.__globals__, name, None, region.__closure__)


def _traced(instruction: Instruction) -> Run:
    """Returns the function of an operator, which torch traces without the class around it."""
    run = instruction.run
    if not isinstance(run, LocalOperator):
        raise InternalError(f"{run} is compiled, and is no operator that computes here alone")
    return run.run
