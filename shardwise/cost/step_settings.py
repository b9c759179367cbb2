"""How a training step is executed, with effects on its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwise.errors import BadInput

CUDA, CPU = "cuda", "cpu"
DEVICES = (CUDA, CPU)
FOREACH, ONE_BY_ONE, FUSED = UPDATES = ("foreach", "for-loop", "fused")
FLOAT32, CAPTURED, EIGHT_BITS = "float32", "captured", "8bit"
STATES = (FLOAT32, CAPTURED, EIGHT_BITS)
STATE_BITS = r"(?:0|16|32):(?:8|16|32):(?:8|16|32)"
"""The form of a state given in bits: of the main copy, the first and the second moment."""
GRADIENTS = (CAPTURED, FLOAT32)
SHARDS, WHOLE = ACCUMULATIONS = ("shards", "whole")
NONE, OFFLOADED_STATES = OFFLOADS = ("none", "states")
ROUNDED = "rounded"
WEIGHTS = (CAPTURED, ROUNDED)


@dataclass(frozen=True)
class StepSettings:
    """`device` says which kernels run, `update` how the optimizer goes over the parameters.

    `foreach`: all at once, torch's default on GPUs; `for-loop`: one by one, its default on CPUs;
    `fused`: without temporaries; None: as the framework has it (`software.py`), foreach without
    one. `block_bytes` is what the allocator rounds up to: 512 in the CUDA caching allocator.

    `state` is what the optimizer keeps: moments of `float32`, and for parameters in 16 bits a
    float32 copy of them (Micikevicius et al. 2018); moments in the dtype of the parameter
    (`captured`) or in 8 bits (Dettmers et al. 2022), both without a copy; or, as bits `16:16:8`,
    the copy of parameters in 16 bits (16 is float16, or what float32 has more than bfloat16, as
    Transformer Engine stores it), the first and the second moment. `gradients` are in the
    dtype of the parameter (`captured`) or add up in a `float32` buffer that lasts, as Megatron and
    nanotron have it. `accumulation` says what stays of gradients between micro-batches under
    ZeRO 2 and 3: `shards`, scattered in each, or `whole` ones that the last micro-batch scatters
    (FSDP's `no_sync`, as Accelerate uses it). `offload` says what is in the host's memory: `none`,
    or the optimizer's `states`, where the host updates too (Ren et al. 2021, ZeRO-Offload).
    `weights` says what is stored of parameters that products read in 8 or 4 bits: the 16 bits
    (`captured`), with the rounded copies beside them, or these alone (`rounded`), which the update
    makes from a float32 copy, as Transformer Engine's primary weights (Megatron's
    `--fp8-param-gather`).
    """

    device: str = CUDA
    update: str | None = None
    block_bytes: int = 512
    state: str = FLOAT32
    gradients: str = CAPTURED
    accumulation: str = SHARDS
    offload: str = NONE
    weights: str = CAPTURED

    def __post_init__(self) -> None:
        for field, value, known in (
            ("device", self.device, DEVICES),
            ("update", self.update or FOREACH, UPDATES),
            ("state", self.state, STATES),
            ("gradients", self.gradients, GRADIENTS),
            ("accumulation", self.accumulation, ACCUMULATIONS),
            ("offload", self.offload, OFFLOADS),
            ("weights", self.weights, WEIGHTS),
        ):
            in_bits = field == "state" and re.fullmatch(STATE_BITS, value)
            if value not in known and not in_bits:
                expected = ", ".join(known) + (
                    ", or bits of copy and moments, such as 16:16:8" if field == "state" else ""
                )
                raise BadInput(f"unknown {field} {value[:40]!r}", field=field, expected=expected)
        if self.block_bytes < 1:
            raise BadInput(
                f"blocks of {self.block_bytes} bytes", field="block_bytes", expected="at least 1"
            )

    @property
    def offloads_states(self) -> bool:
        """Whether the host keeps the optimizer's states and updates."""
        return self.offload == OFFLOADED_STATES

    @property
    def stores_rounded(self) -> bool:
        """Whether parameters that products read in 8 or 4 bits are stored in these alone."""
        return self.weights == ROUNDED

    @property
    def fused(self) -> bool:
        """Whether the optimizer needs no temporaries, as given or as its state requires."""
        return self.update == FUSED or self.state not in (FLOAT32, CAPTURED)

    def moments_bytes(self, parameter_bytes: int) -> tuple[int, int]:
        """Returns the bytes of one element of the first and the second moment, for a parameter of
        this many bytes."""
        if ":" in self.state:
            _, first, second = self._bits()
            return first // 8, second // 8
        each = {FLOAT32: 4, CAPTURED: parameter_bytes, EIGHT_BITS: 1}[self.state]
        return each, each

    def master_bytes(self, parameter_bytes: int) -> int:
        """Returns the bytes of one element of the copy that the optimizer keeps of a parameter."""
        if parameter_bytes >= 4:
            return 0
        if self.stores_rounded:
            return 4
        if ":" in self.state:
            return self._bits()[0] // 8
        return 4 if self.state == FLOAT32 else 0

    def has_master(self, parameter_bytes: int) -> bool:
        """Returns whether the optimizer keeps a copy of such a parameter."""
        return self.master_bytes(parameter_bytes) > 0

    def _bits(self) -> tuple[int, int, int]:
        copy, first, second = map(int, self.state.split(":"))
        return copy, first, second

    def gradient_bytes(self, parameter_bytes: int) -> int:
        """Returns the bytes of one element of the gradient that is kept and reduced."""
        return max(parameter_bytes, 4) if self.gradients == FLOAT32 else parameter_bytes

    def has_main_gradient(self, parameter_bytes: int) -> bool:
        """Returns whether gradients of such a parameter add up in a buffer that lasts."""
        return self.gradient_bytes(parameter_bytes) > parameter_bytes

    def scatters(self, stage: int, micro_batches: int) -> bool:
        """Returns whether every micro-batch scatters its gradients under a ZeRO stage."""
        return stage >= 2 and not (self.accumulation == WHOLE and micro_batches > 1)
