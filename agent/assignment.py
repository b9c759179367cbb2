"""An assignment as it comes from the service, read with suspicion."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from agent.names import safe_name, variable_name
from shardwise.errors import BadInput

MOST_ARGUMENTS = 256
LONGEST_ARGUMENT_BYTES = 16 * 2**10
ALL_ARGUMENTS_BYTES = 96 * 2**10
"""Below Linux's limit for one argument (128 KiB), and far below its limit for all of them."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a launch meet."""

    id: str
    host: str
    port: int


@dataclass(frozen=True)
class Assignment:
    """This agent's part of a launch. With a limit of 0 only the agent's own applies."""

    id: str
    launch: str
    token: str
    kind: str
    entry_point: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    plan: Any
    graph: Any
    nodes: int
    node_rank: int
    ranks_per_node: int
    rendezvous: Rendezvous
    memory_limit_bytes: int
    time_limit_s: float
    first_rank: int
    """The global rank of the first process here."""


def read_assignment(document: Any) -> Assignment:
    """Returns the assignment in a document of the service.

    Raises `BadInput` that names the field; a document without usable id and token cannot even be
    refused by name.
    """
    if not isinstance(document, dict):
        raise BadInput("got something else", field="assignment", expected="a JSON object")
    nodes = _whole(document, "nodes", 1, 65536)
    node_rank = _whole(document, "node_rank", 0, nodes - 1)
    ranks = _whole(document, "ranks_per_node", 1, 4096)
    # Hosts of several kinds may have unequal numbers of ranks; else it may be left out.
    first = {"first_rank": node_rank * ranks, **document}
    return Assignment(
        id=safe_name(document.get("id"), "id"),
        launch=safe_name(document.get("launch"), "launch"),
        token=_text(document, "token"),
        kind=_text(document, "kind"),
        entry_point=safe_name(document.get("entry_point"), "entry_point"),
        arguments=_arguments(document.get("arguments") or []),
        environment=_environment(document.get("environment") or {}),
        plan=document.get("plan"),
        graph=document.get("graph"),
        nodes=nodes,
        node_rank=node_rank,
        ranks_per_node=ranks,
        rendezvous=_rendezvous(document.get("rendezvous")),
        memory_limit_bytes=_limit(document, "memory_limit_bytes"),
        time_limit_s=_limit(document, "time_limit_s"),
        first_rank=_whole(first, "first_rank", 0, 65536 * 4096),
    )


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or not value or "\0" in value or len(value) > 4096:
        raise BadInput("missing or not a string", field=field, expected="a string")
    return value


def _whole(document: dict[str, Any], field: str, low: int, high: int) -> int:
    value = document.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"got {value!r:.80}", field=field, expected=f"{low} to {high}")
    return value


def _limit(document: dict[str, Any], field: str) -> Any:
    value = document.get(field)
    if value is None:
        return 0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise BadInput(f"got {value!r:.80}", field=field, expected="a number, 0 or more")
    return value


def _arguments(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadInput("not a list of strings", field="arguments", expected="a list of strings")
    if len(value) > MOST_ARGUMENTS:
        raise BadInput(f"got {len(value)}", field="arguments", expected=f"at most {MOST_ARGUMENTS}")
    total = 0
    for index, item in enumerate(value):
        size = _encoded_size(item, f"arguments[{index}]")
        total += size + 1
        if size > LONGEST_ARGUMENT_BYTES or total > ALL_ARGUMENTS_BYTES:
            raise BadInput(
                "too long",
                field=f"arguments[{index}]",
                expected=f"{LONGEST_ARGUMENT_BYTES} bytes each, {ALL_ARGUMENTS_BYTES} in all",
            )
    return tuple(value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MOST_ARGUMENTS:
        raise BadInput(
            "not an object, or too large", field="environment", expected="names and their strings"
        )
    for name, text in value.items():
        variable_name(name, "environment")
        if not isinstance(text, str):
            raise BadInput("not a string", field=f"environment.{name}", expected="a string")
        if _encoded_size(text, f"environment.{name}") > LONGEST_ARGUMENT_BYTES:
            raise BadInput(
                "too long",
                field=f"environment.{name}",
                expected=f"at most {LONGEST_ARGUMENT_BYTES} bytes",
            )
    return dict(value)


def _encoded_size(text: str, field: str) -> int:
    if "\0" in text:
        raise BadInput("contains a NUL character", field=field, expected="text without NUL")
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadInput(
            "contains an unpaired surrogate", field=field, expected="text that UTF-8 can encode"
        ) from None


def _rendezvous(value: Any) -> Rendezvous:
    if not isinstance(value, dict):
        raise BadInput("missing", field="rendezvous", expected="an address HOST:PORT")
    return Rendezvous(
        safe_name(value.get("id"), "rendezvous.id"),
        _host(value.get("host")),
        _whole({"rendezvous.port": value.get("port")}, "rendezvous.port", 1, 65535),
    )


def _host(value: Any) -> str:
    try:
        return str(ip_address(value)) if isinstance(value, str) else safe_name(value, "host")
    except ValueError:
        return safe_name(value, "rendezvous.host")
