"""What to measure, and how much time and memory it may take."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.hardware.bandwidth import OPERATIONS

TIME_LIMIT_S = 120.0
CPU_MEMORY_SHARE = 0.10
GPU_MEMORY_SHARE = 0.25
"""Default shares of the free memory of a host (split among its ranks) and of one rank's device."""

SMALLEST_BYTES = 1024
COLLECTIVES_SHARE = 0.60
DEVICE_SHARE, HOST_SHARE, OVERLAP_SHARE, WAITING_SHARE = 0.10, 0.10, 0.10, 0.10
"""How the time limit is split; collectives also have the shares of what is not measured."""


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement.

    `memory_bytes` is what one rank's buffers may take; None means the share of free memory above.
    `time_limit_s` is what measuring may take, not counting the start of the processes. Sizes are
    min_bytes · step^i. With `nodes_per_rack`, nodes are numbered rack by rack, and the way
    between racks is a level of its own. `backend` is `auto` (NCCL if every rank has its own GPU,
    else gloo), `gloo` or `nccl`.
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
    nodes_per_rack: int | None = None

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS:
                raise BadInput(
                    f"unknown operation {operation!r}",
                    field="operations",
                    expected=f"some of {', '.join(OPERATIONS)}",
                )
        if not 0 < self.time_limit_s < float("inf"):
            raise BadInput(
                f"got {self.time_limit_s}", field="time-limit", expected="seconds above 0"
            )
        if self.backend not in ("auto", "gloo", "nccl"):
            raise BadInput(
                f"got {self.backend!r}", field="backend", expected="one of auto, gloo, nccl"
            )
        for field, value in (("memory", self.memory_bytes), ("max-size", self.max_bytes)):
            if value is not None and value < 4 * self.min_bytes:
                raise BadInput(
                    f"got {value:g} bytes", field=field, expected=f"at least {4 * self.min_bytes}"
                )
        if not 1.1 <= self.step <= 16:
            raise BadInput(f"got {self.step}", field="step", expected="a factor from 1.1 to 16")
        if self.min_bytes < 4:
            raise BadInput(f"got {self.min_bytes} bytes", field="min-size", expected="at least 4")

    def check_racks(self, nodes: int) -> None:
        """Raises `BadInput` unless this many nodes fill two racks or more, of two nodes or more."""
        size = self.nodes_per_rack
        if size is not None and (size < 2 or nodes < 2 * size or nodes % size):
            raise BadInput(
                f"got {size} with {nodes} nodes",
                field="nodes-per-rack",
                expected="at least 2, and nodes that fill two racks or more",
            )

    def require_no_racks(self) -> None:
        """Raises `BadInput` if nodes are in racks: groups of devices have no such levels."""
        if self.nodes_per_rack is not None:
            raise BadInput(
                f"got {self.nodes_per_rack}",
                field="nodes-per-rack",
                expected="none where ranks have devices of several kinds",
            )
