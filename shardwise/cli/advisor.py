"""This process or the service that `--server` names: both return the same documents."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import click

from shardwise.documents import Curve, Frontier, Plan, Quote
from shardwise.errors import BadInput
from shardwise.files import read_bounded

Command = TypeVar("Command", bound=Callable[..., Any])
SERVER_VARIABLE = "SHARDWISE_SERVER"
KEY_VARIABLE = "SHARDWISE_KEY"
PLAN_ID = "sha256:"
PRIORITIES = (-10, 10)
"""The lowest and the highest priority that a service takes."""


class Advisor(Protocol):
    """The common interface of `shardwise.answers` and a client of the service."""

    @property
    def frontier(self) -> Callable[..., Frontier]: ...
    @property
    def curve(self) -> Callable[..., Curve]: ...
    @property
    def solve(self) -> Callable[..., Plan]: ...
    @property
    def quote(self) -> Callable[..., Quote]: ...


INSTEAD = "Ask this service, http://HOST:PORT, instead of computing here."


def server_options(command: Command, text: str = INSTEAD) -> Command:
    """Adds `--server` and `--key-file`."""
    for option in (
        click.option("--key-file", help=f"A file with the service's key; else {KEY_VARIABLE}."),
        click.option(
            "--server",
            envvar=SERVER_VARIABLE,
            show_envvar=True,
            help=text,
        ),
    ):
        command = option(command)
    return command


def question_options(command: Command) -> Command:
    """Adds `--server`, `--key-file` and `--priority`."""
    priority = click.option(
        "--priority",
        type=click.IntRange(*PRIORITIES),
        default=0,
        help="With --server: among your own questions, higher ones are computed first.",
    )
    return server_options(priority(command))


@contextmanager
def advisor(server: str | None, key_file: str | None, priority: int = 0) -> Iterator[Advisor]:
    """Yields the service's client, or without `server` the library."""
    if server:
        with service(server, key_file, priority) as client:
            yield client
        return
    from shardwise.cli import here

    yield cast(Advisor, here)


@contextmanager
def service(server: str, key_file: str | None, priority: int = 0) -> Iterator[Any]:
    """Yields a client of the service."""
    from shardwise.client import Client

    with Client(server, key=_key(key_file), priority=priority) as client:
        try:
            yield client
        except BadInput as error:
            raise _of_flag(error) from None


def given_plan(plan: str, server: str | None, key_file: str | None) -> Plan:
    """Returns the plan or the pipeline of a file, or of an id with a server."""
    from shardwise.answers import read_plan

    if server and plan.startswith(PLAN_ID):
        with service(server, key_file) as client:
            planned: Plan = client.plan_of(plan)
            return planned
    return read_plan(plan)


OPTIONS = "options."
FLAGS = {
    "pins": "pin",
    "memory_limit_bytes": "memory",
    "memory_room_bytes": "room",
    "time_limit_s": "time-limit",
    "search_memory_bytes": "search-memory",
    "power_limit_w": "power-limit",
}
"""Flags whose names differ from their option's."""


def _of_flag(error: BadInput) -> BadInput:
    """Returns the error with the flag's name instead of the service's option name."""
    field = error.field or ""
    if not field.startswith(OPTIONS):
        return error
    option = field.removeprefix(OPTIONS)
    flag = FLAGS.get(option, option.removeprefix("step.").replace("_", "-"))
    # A service's message already contains the field and what was expected.
    problem = error.problem.removeprefix(f"{field}: ")
    problem = problem.removesuffix(f" (expected {error.expected})")
    return BadInput(problem, field=flag, expected=error.expected)


def _key(path: str | None) -> str | None:
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        text = read_bounded(path, "a file with a key").decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text.split()) > 1:
        raise BadInput("holds no key", file=path, expected="one key on one line")
    return text
