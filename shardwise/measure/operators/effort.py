"""How much measuring operators may take, and how it is done."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.measure.slowed import NOT_SLOWED, Slowed


@dataclass(frozen=True)
class Effort:
    """`device` is torch's name of the device, `kind` the profile's.

    `threads` is the number per rank (0: the machine's cores shared evenly among the ranks); for
    `flushed` see `clock.py`. With `own_time` this process's processor time counts instead of the
    wall clock, for CPUs that others use at the same time. `time_limit_s` covers all calls,
    `memory_limit_bytes` one rank. `slowed` makes calls slower on purpose (`slowed.py`).
    """

    device: str = "cpu"
    kind: str = "cpu"
    time_limit_s: float = 120.0
    memory_limit_bytes: float = 2.0 * 2**30
    ranks: int = 1
    threads: int = 0
    flushed: bool = True
    own_time: bool = False
    allow_busy: bool = False
    slowed: Slowed = NOT_SLOWED

    def __post_init__(self) -> None:
        for name, value in (
            ("time-limit", self.time_limit_s),
            ("memory", self.memory_limit_bytes),
            ("ranks", self.ranks),
        ):
            if not 0 < value < float("inf"):
                raise BadInput(f"got {value}", field=name, expected="a number above 0")
        if self.own_time and self.device != "cpu":
            raise BadInput(f"own time on {self.device}", field="own-time", expected="a CPU")
        if self.ranks > 1 and self.device != "cpu":
            raise BadInput(
                f"{self.ranks} ranks on {self.device}",
                field="ranks",
                expected="1: a GPU is measured by one process",
            )
