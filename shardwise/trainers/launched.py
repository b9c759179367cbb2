"""How many devices a file says that it launches, beside those that are asked about."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardwise.errors import BadInput
from shardwise.hardware import Hardware
from shardwise.trainers.configuration import LARGEST, Configuration, Launched, Section
from shardwise.trainers.megatron_flags import split_words
from shardwise.trainers.shell import Commands

_NODES = ("nnodes", "num_nodes", "nodes", "N")
_EACH = ("nproc_per_node", "num_gpus", "gpus_per_node")
_ALL = "WORLD_SIZE"
_SBATCH = re.compile(r"(?m)^[ \t]*#SBATCH[ \t]+(-{1,2}\S.{0,100}?)[ \t]*$")
_GRES = re.compile(r"gpu:(?:[\w.-]+:)?(\d{1,7})(?![\w:])")
_SHORT = "-N"


class _Option(NamedTuple):
    """An option as a command has it, and what is behind it."""

    name: str
    value: str


def launched_by(script: Commands, text: str) -> Launched | None:
    """Returns what the commands of a launch script, its `#SBATCH` lines and `WORLD_SIZE` say,
    None where they say nothing or leave it open."""
    given = dict(_options([line.split() for line in _SBATCH.findall(text)]))
    given.update(_options([split_words(words) for words in script.commands]))
    nodes, each = _first(given, _NODES), _first(given, _EACH)
    if each is not None and nodes is None and not any(name in given for name in _NODES):
        nodes = ("", 1)
    if nodes is not None and each is not None:
        fields = " × ".join(filter(None, (nodes[0], each[0])))
        return Launched(nodes[1] * each[1], nodes[1] if nodes[0] else None, fields)
    whole = _number(script.variables.get(_ALL))
    if whole is not None:
        return Launched(whole, None, f"{_ALL} {whole}")
    return None


def launched_on(machines: int | None, section: Section, key: str, gpus: int) -> Launched | None:
    """Returns what a number of machines says; raises `BadInput` where the GPUs do not divide."""
    if machines is None:
        return None
    if gpus % machines:
        raise BadInput(
            f"got {machines} for {gpus} GPUs",
            field=section.path(key),
            expected="a divisor of the GPUs that are asked about",
        )
    return Launched(gpus, machines, f"{section.path(key)} {machines}")


def devices_of_trainer(trainer: Mapping[str, Any]) -> Launched | None:
    """Returns the devices of Lightning's trainer, which NeMo's files have: a number or a list of
    each node's; None where it leaves them open (`auto`, -1)."""
    devices = trainer.get("devices")
    each = len(devices) if isinstance(devices, list) else _number(devices)
    nodes = _number(trainer.get("num_nodes", 1))
    if each is None or nodes is None:
        return None
    return Launched(each * nodes, nodes, f"trainer.num_nodes {nodes} × trainer.devices {each}")


def differing(configuration: Configuration, hardware: Hardware, gpus: int) -> list[str]:
    """Returns in what the devices that a file launches differ from those that are priced."""
    launched = configuration.launched
    if launched is None:
        return []
    if launched.devices != gpus:
        return [
            f"the file launches {launched.devices} GPUs ({launched.fields}); priced on {gpus}, as "
            "asked"
        ]
    if launched.nodes is None or hardware.groups:
        return []
    nodes = -(-gpus // hardware.per_node)
    if nodes == launched.nodes:
        return []
    return [
        f"the file launches {launched.nodes} node{'s' * (launched.nodes > 1)} ({launched.fields}); "
        f"priced on {nodes} node{'s' * (nodes > 1)} of {hardware.name}"
    ]


def _options(commands: Collection[Sequence[str]]) -> Iterator[tuple[str, _Option]]:
    """Yields the options of launchers and what they have behind them, by one spelling."""
    for words in commands:
        for place, word in enumerate(words):
            name, equals, value = word.partition("=")
            plain = name.lstrip("-").replace("-", "_")
            if not name.startswith("-") or plain not in (*_NODES, *_EACH, "gres"):
                continue
            if name == _SHORT and not words[0].startswith(("srun", "-")):
                continue
            follows = words[place + 1] if place + 1 < len(words) else ""
            value = value if equals else follows
            if plain == "gres":
                match = _GRES.search(value)
                plain, value = "gpus_per_node", match[1] if match else ""
            value = value.rpartition(":")[2] if plain == "gpus_per_node" else value
            yield plain, _Option(name, value)


def _first(given: Mapping[str, _Option], names: Sequence[str]) -> tuple[str, int] | None:
    """Returns the first of the options that is a number, as it is written, and the number."""
    for name in names:
        option = given.get(name)
        number = None if option is None else _number(option.value)
        if option is not None and number is not None:
            return f"{option.name} {number}", number
    return None


def _number(value: Any) -> int | None:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip(), re.ASCII):
        return None
    return int(text) if 1 <= int(text) <= LARGEST else None
