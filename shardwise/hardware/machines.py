"""Built-in profiles without a file of their own: nodes of GPUs of the table, and rented machines.

`data/hardware/machines.toml` has a row for each. A rented machine has the devices, and the links
inside a node, of another built-in profile, and the network that its cloud states.
"""

from __future__ import annotations

from functools import cache

import msgspec

from shardwise.files import DATA


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table; its head says what each member is.

    Either `gpu` is given, or `like` with `instance`, `network_gbit_per_s`, `source` and `date`.
    """

    name: str
    gpu: str = ""
    like: str = ""
    instance: str = ""
    network_gbit_per_s: float = 0.0
    host_memory_gib: float = 0.0
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
