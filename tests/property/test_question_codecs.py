"""Every question survives every way to the library: what a function hears is what was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs shardwise[service]")

from harness.questions import EVERY, GRAPH, OWN, Asked, normal, unknown_fields
from harness.transports import (
    SERVER,
    Heard,
    InOneProcess,
    command,
    heard_of,
    inside,
    listening,
    posted_by,
    words_of,
)
from service.mcp.tools import TOOLS as SERVICE_TOOLS
from service.page.forms import OPTION_FIELDS
from shardwise import validation
from shardwise.answers import Options
from shardwise.client.questions import offers_csv, options_document
from shardwise.cost.options import quiet
from shardwise.cost.step_settings import StepSettings
from shardwise.documents import request_body
from shardwise.graph import graph_id, write_graph
from shardwise.hardware import Offer, hardware_document
from shardwise.mcp.local import Desk
from shardwise.mcp.tools import TOOLS as LOCAL_TOOLS
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, NO_STAGES

METHODS = {"plan": "solve"}
TOOLS = {"pricing": "price_configuration"}
kinds = pytest.mark.parametrize("kind", EVERY)
law = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InOneProcess]:
    """A service that has the graph and the profile, and what hears in place of every search."""
    with listening(), InOneProcess(tmp_path_factory.mktemp("codecs")) as running:
        with running.client(SERVER) as client:
            client.upload_graph(GRAPH)
            client.upload_hardware(OWN)
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that commands are given."""
    made = tmp_path_factory.mktemp("files")
    write_graph(GRAPH, made / "graph.json")
    (made / "own.json").write_text(json.dumps(hardware_document(OWN)))
    return made


def same(asked: Asked, heard: Heard) -> None:
    """Fails unless what was heard is what was asked."""
    arguments = {name: value for name, value in heard.arguments.items() if name != "graph"}
    assert heard.kind == asked.kind
    assert graph_id(heard.arguments["graph"]) == graph_id(GRAPH)
    expected, found = normal(asked.kind, asked.given), normal(asked.kind, arguments)
    assert {name: found.get(name) for name in expected} == expected


def called(client: Any, asked: Asked) -> Any:
    """Returns what the method of a client returns for a question."""
    arguments = asked.given
    return getattr(client, METHODS.get(asked.kind, asked.kind))(GRAPH, **arguments)


def sent(service: InOneProcess, asked: Asked) -> str:
    """Returns the job of a question that a client sends."""
    with service.client(SERVER) as client:
        return posted_by(lambda: called(client, asked))


def sent_by_async(service: InOneProcess, asked: Asked) -> str:
    async def ask() -> None:
        async with service.async_client(SERVER) as client:
            await called(client, asked)

    return posted_by(lambda: asyncio.run(ask()))


def body_of(asked: Asked, hardware: str | None) -> dict[str, Any]:
    """Returns the members of a request or of a tool's arguments, but for the graph."""
    members = dict(asked.arguments)
    members["options"] = options_document(members["options"])
    if members.pop("hardware", None) is not None:
        members["hardware"] = hardware
    if "offers" in members:
        members["offers_csv"] = offers_csv(members.pop("offers"))
    if "stages" in members:
        members["stages"] = "auto" if members["stages"] is None else members["stages"]
        if members["stages"] == NO_STAGES:
            del members["stages"], members["schedules"]
        elif members["schedules"] is None:
            del members["schedules"]
    found: dict[str, Any] = json.loads(json.dumps(members))
    return found


def hardware_name(asked: Asked, own: str) -> str | None:
    """Returns how a question names its profile, its own one like this."""
    hardware: str | None = asked.arguments.get("hardware")
    return own if hardware == "own" else hardware


def test_every_option_is_drawn() -> None:
    assert unknown_fields() == set()


@kinds
@law
@given(data=st.data())
def test_both_clients_ask_the_service_the_same(
    service: InOneProcess, kind: str, data: st.DataObject
) -> None:
    asked = data.draw(EVERY[kind])
    job = sent(service, asked)
    same(asked, service.worked(job))
    assert sent_by_async(service, asked) == job


@kinds
@law
@given(data=st.data())
def test_a_body_asks_the_same(service: InOneProcess, kind: str, data: st.DataObject) -> None:
    """As programs write it that are no client of ours, of curves too."""
    asked = data.draw(EVERY[kind])
    body = {"graph": graph_id(GRAPH), **body_of(asked, hardware_name(asked, OWN.id))}
    assert service.post(kind, body) == sent(service, asked)


@kinds
@law
@given(data=st.data())
def test_tools_of_assistants_ask_the_same(
    service: InOneProcess, folder: Path, kind: str, data: st.DataObject
) -> None:
    """Of `/mcp` as a request, of `shardwise mcp` in its own process."""
    asked = data.draw(EVERY[kind])
    name = TOOLS.get(asked.kind, asked.kind)
    there = {"graph": graph_id(GRAPH), **body_of(asked, hardware_name(asked, OWN.id))}
    request = validation.convert(there, SERVICE_TOOLS[name].arguments)
    assert service.post(kind, request_body(request)) == sent(service, asked)
    here = {"graph": str(folder / "graph.json")}
    here |= body_of(asked, hardware_name(asked, str(folder / "own.json")))
    tool = LOCAL_TOOLS[name]
    arguments = validation.convert(here, tool.arguments)
    same(asked, heard_of(lambda: tool.answer(Desk(), arguments, quiet)))


FLAGS = {
    "memory_limit_bytes": "memory", "memory_room_bytes": "room", "time_limit_s": "time-limit",
    "search_memory_bytes": "search-memory", "deadline_s": "deadline", "budget_usd": "budget",
    "accumulation": "accumulate", "power_limit_w": "power-limit",
}  # fmt: skip


def with_flags(asked: Asked) -> Asked:
    """Returns the question with those options that the command line has, which takes schedules of
    pipelines alone."""
    options: Options = asked.arguments["options"]
    if set(asked.arguments.get("stages") or ()) == set(NO_STAGES):
        asked = asked.with_(schedules=DEFAULT_SCHEDULES)
    step = replace(options.step, device="cuda", block_bytes=512)
    plain = replace(options, step=step, memory_headroom=1.1, gradients_applied_at_once=False)
    if asked.kind == "plan" and not plain.overlap:
        return asked.with_(options=plain, objective="mini-time")
    return asked.with_(options=plain)


def flags_of(asked: Asked, folder: Path) -> list[str]:
    """Returns the words of the command that asks this."""
    members = dict(asked.arguments)
    options = members.pop("options")
    words = [asked.kind if asked.kind in ("frontier", "curve", "quote", "compare") else "plan"]
    if asked.kind == "pricing":
        (folder / members["file"].rpartition("/")[2]).write_text(members["configuration"])
        words = ["explain", "--like", members.pop("file").rpartition("/")[2]]
        del members["configuration"]
    if asked.kind == "quote":
        (folder / "offers.csv").write_text(offers_csv(members.pop("offers")) or "")
        words += ["--offers", "offers.csv"]
    if (hardware := hardware_name(asked, "own.json")) is not None:
        words += ["--hardware", hardware]
    members.pop("hardware", None)
    words += [word for bundle in members.pop("bundles", ()) for word in ("--bundle", bundle)]
    prices = members.pop("prices", {})
    words += [word for group, usd in prices.items() for word in ("--price", f"{group}={usd!r}")]
    if not options.overlap:
        members["objective"] = "sum"
    chosen = options_document(replace(options, overlap=True))
    words += [word for rule in chosen.pop("pins", ()) for word in ("--pin", rule)]
    members |= {**chosen.pop("step", {}), **chosen}
    members.pop("device", None), members.pop("block_bytes", None)
    if members.get("stages", 0) is None:
        members["stages"] = "auto"
    for name, value in members.items():
        if value is not None:
            several = isinstance(value, list | tuple)
            text = ",".join(map(str, value)) if several else str(value)
            text += "W" if name == "power_limit_w" else ""
            words += [f"--{FLAGS.get(name, name).replace('_', '-')}", text]
    return [words[0], "graph.json", *words[1:]]


@kinds
@law
@given(data=st.data())
def test_a_command_asks_the_same(
    service: InOneProcess, folder: Path, kind: str, data: st.DataObject
) -> None:
    """Here, and with a server."""
    asked = with_flags(data.draw(EVERY[kind]))
    words = [*flags_of(asked, folder), "--quiet"]
    with inside(folder), pytest.MonkeyPatch.context() as patch:
        heard = heard_of(lambda: command(words))
        patch.setattr("shardwise.client.Client", service.client)
        job = posted_by(lambda: command([*words, "--server", SERVER]))
    if kind == "pricing":
        asked = asked.with_(file=asked.arguments["file"].rpartition("/")[2])
    same(asked, heard)
    same(asked, service.worked(job))


def called_by_command(asked: Asked) -> Asked:
    """Returns the question with a file's name that the page gives to a file."""
    if asked.kind != "pricing" or asked.arguments["file"].replace(".", "").isascii():
        return asked
    return asked.with_(file="configuration")


@kinds
@law
@given(data=st.data())
def test_what_a_page_shows_to_copy_asks_the_same(
    service: InOneProcess, tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    copied_as_asked(service, tmp_path_factory.mktemp("copied"), data.draw(EVERY[kind]), kind)


def copied_as_asked(service: InOneProcess, folder: Path, asked: Asked, kind: str) -> None:
    """Fails unless every text of an answer's page asks its question."""
    job = sent(service, asked)
    texts = service.texts(job, folder)
    lost = asked != with_flags(asked)
    with inside(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardwise.client.Client", service.client)
        if texts["command"] is not None:
            same(
                called_by_command(asked),
                heard_of(lambda: command(words_of(texts["command"] or ""))),
            )
        else:
            assert lost, "every other question has a command"
        program = compile(texts["python"] or "", "copied", "exec")
        if "Client(" in (texts["python"] or ""):
            assert posted_by(lambda: exec(program, {})) == job
        else:
            same(asked, heard_of(lambda: exec(program, {})))
    words = words_of(texts["curl"] or "")
    body = words[words.index("-d") + 1] if "hardware.json" not in words else words[-1]
    if body.startswith("@"):
        body = (folder / body[1:]).read_text()
    again = service.post(kind, json.loads(body))
    assert again == job, service.difference(again, job)


def with_fields(asked: Asked) -> Asked:
    """Returns the question with what the page's form can say of it."""
    options: Options = asked.arguments["options"]
    shown = OPTION_FIELDS.keys() - {"method"}
    kept: dict[str, Any] = {name: getattr(options, name) for name in shown}
    if kept["memory_limit_bytes"] is not None:
        kept["memory_limit_bytes"] = float(int(kept["memory_limit_bytes"]))
    kept["memory_room_bytes"] = float(int(kept["memory_room_bytes"]))
    asked = asked.with_(options=Options(**kept))
    if asked.kind == "plan":
        return asked.with_(point=None)
    if asked.kind == "quote":
        parts = {"max_instances": 16} if asked.arguments["hardware"] else {}
        return asked.with_(offers=None, **parts)
    return asked


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind != "pricing"])
@law
@given(data=st.data())
def test_a_form_filled_in_with_a_question_asks_it_again(
    service: InOneProcess, kind: str, data: st.DataObject
) -> None:
    filled_in_again(service, with_fields(data.draw(EVERY[kind])))


def filled_in_again(service: InOneProcess, asked: Asked) -> None:
    """Fails unless the form, filled in with a question, asks it."""
    job = sent(service, asked)
    again = service.form(job)
    assert again == job, service.difference(again, job)


USUAL: dict[str, Any] = {"hardware": "l4", "gpus": 2, "options": Options()}
STEP = Options(step=StepSettings(block_bytes=100))
OFFERS = [Offer("me", "large", 8, "V100", "here", False, 9.5, "2026-01-31", "mine", "l4")]
PARTS = {"hardware": "heterog-8", "prices": {"v100": 2.5, "1080ti": 0.4, "p100": 1.4}}
BUDGET: dict[str, Any] = {
    "offers": OFFERS, "steps": 10, "deadline_s": 0.98, "budget_usd": None, "max_instances": 16,
    "combine": 1, "hardware": None, "prices": {}, "options": Options(), "stages": NO_STAGES,
    "schedules": DEFAULT_SCHEDULES,
}  # fmt: skip
LOST: dict[str, Asked] = {
    "some settings of a step": Asked("plan", {**USUAL, "options": STEP, "objective": "mini-time",
                                              "point": None, "order": None, "space": "any",
                                              "stages": NO_STAGES, "schedules": None}),
    "pipelines of a comparison": Asked("compare", {**USUAL, "stages": [2], "schedules": ["zbv"],
                                                   "proposals": None, "seed": 0}),
    "offers beside a profile": Asked("quote", {**BUDGET, **PARTS}),
    "a deadline of few seconds": Asked("quote", BUDGET),
}  # fmt: skip
"""Questions that a way had changed before this law was written."""


@pytest.mark.parametrize("name", LOST)
def test_what_was_lost_once(service: InOneProcess, tmp_path: Path, name: str) -> None:
    asked = LOST[name]
    copied_as_asked(service, tmp_path, asked, asked.kind)
    if asked.kind != "plan":
        filled_in_again(service, with_fields(asked))
