"""The software that runs a step, with its effects on time and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.cost.step_settings import FOREACH
from shardwise.cost.step_settings import FUSED as FUSED_UPDATE
from shardwise.sharding.fusion import ALONE, CONVERTED, GROUP, IN_PLACE, MODULE

EAGER, COMPILED, GRAPHS = "eager", "compiled", "graphs"
MEGATRON, MEGATRON_TESTS = "megatron-core", "megatron-tests"
FUSED = "fused"

KERNELS = (EAGER, COMPILED, FUSED)
"""How light operators run: one by one; connected ones as one pass, as torch.compile writes them;
those of one module as one pass, as Megatron, Transformer Engine and Apex have them."""


JOINS: Mapping[str, str | None] = {EAGER: None, COMPILED: GROUP, FUSED: MODULE}
"""The operators that each kind of kernels joins in a pass (`sharding/fusion.py`)."""

LOSS_OF: Mapping[str, str] = {EAGER: ALONE, COMPILED: CONVERTED, FUSED: IN_PLACE}
"""Default form of a cross entropy for each kind of kernels."""

NEEDED, WHOLE = "needed", "whole"
RERUNS = (NEEDED, WHOLE)
"""Of a segment of recomputation there runs again what backward needs (torch's checkpoint stops
early, `sharding/rerun.py`), or all of it (Megatron-LM and other checkpoints that re-enter
autograd)."""


@dataclass(frozen=True)
class Framework:
    """How much of a host's eager time a framework takes, per operator and per collective, and the
    kernels that it runs (`KERNELS`), how much of a segment runs again in backward (`RERUNS`) and
    how its optimizer goes over the parameters (`UPDATES`) unless others are asked for. Its layers
    of 8 and 4 bits are those of `torchao`, or of TransformerEngine."""

    operator: float
    collective: float
    kernels: str
    rerun: str = NEEDED
    update: str = FOREACH
    torchao: bool = True


FRAMEWORKS: Mapping[str, Framework] = {
    # Every operator and collective is launched by Python.
    EAGER: Framework(1.0, 1.0, EAGER),
    # torch.compile: the code that it has written launches fewer kernels, and each in less time.
    # Those who compile take torch's fused optimizers, as torchtitan does unless told otherwise.
    COMPILED: Framework(0.2, 1.0, COMPILED, update=FUSED_UPDATE),
    # CUDA graphs: one launch replays them all.
    GRAPHS: Framework(0.01, 0.01, EAGER),
    # Megatron-core as people train with it: its fused kernels, launched as eager ones are, and the
    # fused Adam of Apex or Transformer Engine, which it takes where they are installed. The
    # published runs of Megatron (Calculon, vTrain, Megatron's papers) are predicted with this.
    MEGATRON: Framework(1.0, 1.0, FUSED, WHOLE, FUSED_UPDATE, torchao=False),
    # The same with the checks and the logging that its own tests run with.
    MEGATRON_TESTS: Framework(2.5, 2.5, FUSED, WHOLE, FUSED_UPDATE, torchao=False),
}
"""Eager PyTorch; docs/accuracy.md has the sources of the figures."""
