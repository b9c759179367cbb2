"""What `shardwise hardware new` is told about links: `--inside` and `--network`, read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.sizes import parse_rate

NETWORK = (
    "a rate and whose it is: 400Gb/s-per-gpu, 3200Gb/s-per-node, or the cards of a node, 8x400Gb/s"
)

_CARDS = re.compile(r"(?P<cards>[0-9]{1,3})\s*[x×]\s*(?P<rate>.+)", re.DOTALL)
_WHOSE = re.compile(
    r"(?P<rate>.+?)[- ]per[- ](?P<whose>gpu|device|chip|node)", re.DOTALL | re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z][A-Za-z-]*")


@dataclass(frozen=True)
class Network:
    """The network of a node: bytes/s one way, of each of its devices or of all together."""

    bytes_per_s: float
    per_device: bool

    def of_node(self, devices: int) -> float:
        """Returns the bytes a second, one way, of a node with this many devices."""
        return self.bytes_per_s * devices if self.per_device else self.bytes_per_s


def parse_network(text: str) -> Network:
    """Returns the network of `--network`. Raises `BadInput` for what does not say whose rate it
    is, as `400Gb/s` alone."""
    text = text.strip()
    try:
        if match := _CARDS.fullmatch(text):
            cards = int(match["cards"])
            if cards:
                return Network(cards * parse_rate(match["rate"], "network"), per_device=False)
        elif match := _WHOSE.fullmatch(text):
            rate = parse_rate(match["rate"], "network")
            return Network(rate, per_device=match["whose"].lower() != "node")
    except BadInput:
        pass
    raise BadInput(f"got {text[:40]!r}", field="network", expected=NETWORK)


def parse_inside(text: str, ways: tuple[str, ...], gpu: str) -> str | float:
    """Returns one of `ways`, the names of what can join the devices of a node, or bytes a second
    one way of one device.

    Raises `BadInput`, naming the GPU, for a fabric that it does not have and what is no rate.
    """
    text = text.strip()
    expected = f"{', '.join(ways)}, or a rate one way of one device such as 450GB/s"
    if _WORD.fullmatch(text):
        if text.lower() in ways:
            return text.lower()
        raise BadInput(f"{gpu} has no {text[:40]!r}", field="inside", expected=expected)
    try:
        return parse_rate(text, "inside")
    except BadInput:
        raise BadInput(f"got {text[:40]!r}", field="inside", expected=expected) from None
