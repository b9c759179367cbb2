"""What to measure and how much it may take."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.hardware.bandwidth import OPERATIONS

TIME_LIMIT_S = 120.0
CPU_MEMORY_SHARE = 0.10
GPU_MEMORY_SHARE = 0.25
"""Of the free memory of a host (shared by its ranks) and of a device (one rank's): the default."""

SMALLEST_BYTES = 1024
COLLECTIVES_SHARE, DEVICE_SHARE, OVERLAP_SHARE, WAITING_SHARE = 0.70, 0.10, 0.10, 0.10
"""How the time limit is split."""


@dataclass(frozen=True)
class MeasureOptions:
    """`memory_bytes` is what one rank's buffers may take, None for the stated share of what is
    free; `time_limit_s` what measuring may take, without the start of the processes. Sizes are
    min_bytes · step^i.

    `backend` is `auto` (NCCL where every rank has a GPU of its own, else gloo), `gloo` or `nccl`.
    """

    collectives: bool = True
    overlap: bool = True
    operations: tuple[str, ...] = OPERATIONS
    memory_bytes: float | None = None
    time_limit_s: float = TIME_LIMIT_S
    min_bytes: int = SMALLEST_BYTES
    step: float = 2.0
    max_bytes: float | None = None
    backend: str = "auto"
    allow_busy: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise BadInput(
                    f"unknown operation {operation!r}",
                    field="operations",
                    expected=f"some of {', '.join(OPERATIONS)}",
                )
        if not 0 < self.time_limit_s < float("inf"):
            raise BadInput(f"{self.time_limit_s}", field="time-limit", expected="seconds above 0")
        if self.backend not in ("auto", "gloo", "nccl"):
            raise BadInput(f"{self.backend!r}", field="backend", expected="one of auto, gloo, nccl")
        for field, value in (("memory", self.memory_bytes), ("max-size", self.max_bytes)):
            if value is not None and value < 4 * self.min_bytes:
                raise BadInput(
                    f"{value:g} bytes", field=field, expected=f"at least {4 * self.min_bytes}"
                )
        if not 1.1 <= self.step <= 16:
            raise BadInput(f"{self.step}", field="step", expected="a factor from 1.1 to 16")
        if self.min_bytes < 4:
            raise BadInput(f"{self.min_bytes} bytes", field="min-size", expected="at least 4")
