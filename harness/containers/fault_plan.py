"""Which faults a seed gives: a shuffled deck of every kind on every target, dealt again."""

from __future__ import annotations

import random
from dataclasses import dataclass

TARGETS = ("service", "worker", "redis", "postgres", "agent")
KINDS = {
    "kill": "SIGKILL to the container's first process",
    "pause": "all processes frozen: a host that hangs",
    "cut": "a network taken away, with its interface",
    "silent": "each packet dropped, on every interface: a partition",
    "slow": "1 Mbit/s and a tenth of the packets dropped",
    "late": "each packet sent 0.1 s later",
    "full": "no room: /tmp, the data's volume, or the broker's memory",
    "memory": "too little memory, until the kernel kills",
}
AT_ONCE = ("kill", "memory")
"""Kinds that are over when they have happened."""
OUTER = ("service", "worker")
"""Targets on the network that leads out, too."""
LONG_S, SHORT_S = 12.0, (1.0, 3.0)
"""Longer than each lease of tests/containers/faults.yml; shorter than any."""
LONG_EVERY = 7


@dataclass(frozen=True)
class Fault:
    """One fault: what happens to which container, and for how long."""

    kind: str
    target: str
    replica: int = 0
    network: str = "inner"
    hold_s: float = 0.0

    def __str__(self) -> str:
        where = f" {self.network}" if self.kind == "cut" else ""
        held = f" for {self.hold_s:.0f} s" if self.hold_s else ""
        return f"{self.kind}{where} {self.target}{held}"


def plan(seed: int, faults: int) -> list[Fault]:
    """Returns the faults of a seed, in order; the first ones are the same however many follow."""
    dice = random.Random(seed)
    dealt: list[Fault] = []
    while len(dealt) < faults:
        deck = [(kind, target) for kind in KINDS for target in TARGETS]
        dice.shuffle(deck)
        for place, (kind, target) in enumerate(deck):
            held = LONG_S if place % LONG_EVERY == 0 else round(dice.uniform(*SHORT_S), 1)
            replica = dice.randrange(2) if target == "worker" else 0
            network = dice.choice(("inner", "outer")) if target in OUTER else "inner"
            hold_s = 0.0 if kind in AT_ONCE else held
            dealt.append(Fault(kind, target, replica, network, hold_s))
    return dealt[:faults]
