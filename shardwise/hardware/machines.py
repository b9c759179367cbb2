"""Built-in profiles without a file of their own: nodes of GPUs of the table, and rented machines.

`data/hardware/machines.toml` has a row for each. A rented machine has the devices, and the links
inside a node, of another built-in profile, and the network that its cloud states.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec

from shardwise.files import DATA
from shardwise.hardware.hardware import Hardware


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; its head says what each member is.

    Either `gpu` is given, or `like` with `instance`, `network_gbit_per_s`, `source` and `date`.
    """

    name: str
    gpu: str = ""
    like: str = ""
    instance: str = ""
    network_gbit_per_s: float = 0.0
    source: str = ""
    date: str = ""

    @property
    def is_rented(self) -> bool:
        """Whether a cloud rents it, rather than that it is a GPU's usual node."""
        return bool(self.like)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    machine: list[Machine]


@cache
def machines() -> dict[str, Machine]:
    """Returns the rows of the table by name, in its order."""
    text = (DATA / "hardware" / "machines.toml").read_text("utf-8")
    return {row.name: row for row in msgspec.toml.decode(text, type=_Table).machine}


@cache
def by_instance() -> dict[str, str]:
    """Returns the rented machines' names by what their clouds call them, in lower case."""
    return {row.instance.lower(): row.name for row in machines().values() if row.is_rented}


def machine_profile(name: str) -> Hardware:
    """Returns the profile of a row, built of other profiles."""
    from shardwise.hardware.new_profile import new_profile
    from shardwise.hardware.profiles import load_hardware

    row = machines()[name]
    if not row.is_rented:
        return replace(new_profile(row.gpu), name=name)
    like = load_hardware(row.like)
    stated = like.with_network(row.network_gbit_per_s * 1e9 / 8)
    sources = {figure: source for figure, source in like.sources.items() if not _of_network(figure)}
    sources["levels.between"] = (
        f"{row.source}, {row.date}; its latency and what collectives reach of it are assumed, as "
        f"in {row.like}"
    )
    return replace(
        stated,
        name=name,
        provenance=f"{row.instance}: as {row.like}, with the network that the cloud states; "
        f"{like.provenance}",
        sources=sources,
    )


def _of_network(figure: str) -> bool:
    return figure in ("levels.between", "levels.between.rails")
