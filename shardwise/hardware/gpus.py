"""The table of GPUs and other accelerators that `shardwise hardware new` makes profiles of.

`data/hardware/gpus.toml` has a row for each: its data sheet's figures, or the built-in profile that
has them already. `new_profile.py` makes profiles of rows.
"""

from __future__ import annotations

from functools import cache

import msgspec

from shardwise.errors import BadInput
from shardwise.files import DATA
from shardwise.near import MOST, did_you_mean, near, plain

LIST = "shardwise hardware new --list"
"""The command that lists the table."""

MAKERS = ("nvidia", "tesla", "amd", "instinct", "google", "cloud", "intel", "aws")
"""Words that drivers put before a GPU's name."""


class Bridge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An NVLink bridge between cards: how many it joins; bytes/s one way of one card."""

    devices: int
    bytes_per_s: float


class Pcie(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A generation of PCI Express, 16 lanes: bytes/s one way, of its own or those of the innermost
    level of the built-in profile `like`."""

    generation: int
    source: str
    bytes_per_s: float | None = None
    like: str | None = None


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Watts of one device: its data sheet's, `profile_w` where the figures are at less, and the
    least that its driver takes as a limit, where that was published."""

    full_w: float
    source: str
    profile_w: float | None = None
    least_w: float | None = None


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; its head says what each member is.

    Exactly one of `device` and `like` is given. With `like` there are `kind`, `per_node`,
    `memory_bytes`, `memory_bandwidth_bytes_per_s`, `peak_flops_per_s` (dense, by dtype), and
    `sources` for `peak`, `memory` and those links that are not as in `links`. With
    `best_products_flops_per_s`, the most that 16-bit products of any size were measured to reach,
    `sources` has `products`.
    """

    name: str
    fabric: str
    source: str
    date: str
    aliases: tuple[str, ...] = ()
    device: str | None = None
    like: str | None = None
    links: str | None = None
    kind: str = ""
    per_node: int | None = None
    memory_bytes: float = 0.0
    memory_bandwidth_bytes_per_s: float = 0.0
    peak_flops_per_s: dict[str, float] = {}
    pcie: int | None = None
    bridge: Bridge | None = None
    inside_bytes_per_s: float | None = None
    domain: int | None = None
    network_gbit_per_s: float | None = None
    power: Power | None = None
    best_products_flops_per_s: float | None = None
    host: bool = True
    data_sheet: bool = True
    sources: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names that the GPU is found by."""
        return (self.name, *self.aliases, *([self.kind] if self.kind else []))


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    pcie: list[Pcie]
    gpu: list[Gpu]


@cache
def _table() -> _Table:
    text = (DATA / "hardware" / "gpus.toml").read_text("utf-8")
    return msgspec.toml.decode(text, type=_Table)


def gpu_table() -> tuple[Gpu, ...]:
    """Returns the rows of the table, in its order."""
    return tuple(_table().gpu)


def pcie_of(generation: int) -> Pcie:
    """Returns a generation of PCI Express that the table has."""
    return next(row for row in _table().pcie if row.generation == generation)


@cache
def _by_name() -> dict[str, Gpu]:
    return {plain(name): gpu for gpu in gpu_table() for name in gpu.names}


def find_gpu(name: str) -> Gpu:
    """Returns the GPU of this name: `H100`, `h100-pcie`, or `NVIDIA A100-SXM4-80GB` as drivers say.

    Case, spaces and punctuation do not count. Raises `BadInput`, which says what is near.
    """
    found = _by_name().get(plain(_without_maker(name)))
    if found is not None:
        return found
    wanted = _without_maker(name)
    aliases = [alias for gpu in gpu_table() for alias in gpu.names]
    close = near(wanted, aliases, most=len(aliases))
    names = list(dict.fromkeys(_by_name()[plain(alias)].name for alias in close))[:MOST]
    raise BadInput(
        f"unknown GPU {name[:60]!r}{did_you_mean(names)}",
        field="gpu",
        expected=f"a GPU of '{LIST}'",
    )


def gpu_within(text: str) -> Gpu | None:
    """Returns the GPU whose name a text has in it, such as H100 in `my-h100-8`: that of the longest
    such name. None if there is none."""
    wanted = plain(text)
    within = [name for name in _by_name() if name in wanted]
    return _by_name()[max(within, key=len)] if within else None


def _without_maker(name: str) -> str:
    """Returns a name without the words of its maker before it."""
    words = name[:200].replace("-", " ").split()
    while len(words) > 1 and words[0].lower() in MAKERS:
        words = words[1:]
    return " ".join(words)
