"""Every kind of answer by every way out of a service: the same document, printed as it is here.

The answers are kept (harness/stored.py): nothing searches. That ways carry every question is the
law of tests/property/test_question_codecs.py.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from harness.assistant import document_of
from harness.service.answered import Answered
from harness.stored import STORED, content, stored
from harness.transports import answering, command, inside, words_of
from shardwise.answers import Infeasible
from shardwise.client import AsyncClient, Client
from shardwise.cost.named_options import options_from_request
from shardwise.documents.questions import COLLECTIONS

TOOLS = {"pricing": "price_configuration"}
every = pytest.mark.parametrize("name", STORED)
fitting = pytest.mark.parametrize("name", [name for name in STORED if name != "infeasible"])


def document(name: str) -> Any:
    """Returns an answer as JSON has it."""
    return msgspec.json.decode(content(name))


@every
def test_over_http_a_known_question_has_its_answer(answered: Answered, name: str) -> None:
    asked = STORED[name]
    answer = answered.client.post(f"/v1/{COLLECTIONS[asked.kind]}", json=asked.body)
    job = answer.json()
    assert (answer.status_code, job["id"]) == (200, answered.jobs[name])
    assert job["result"] == document(name)
    again = {"If-None-Match": answer.headers["ETag"]}
    assert answered.client.get(job["location"], headers=again).status_code == 304
    if answer_id := getattr(stored(name), "id", None):
        assert answered.client.get(f"/v1/plans/{answer_id}").json()["result"] == document(name)


def arguments_of(name: str) -> dict[str, Any]:
    """Returns the arguments of a client's `submit`."""
    body = dict(STORED[name].body)
    options = options_from_request(body.pop("options", {}))
    return {"kind": STORED[name].kind, "options": options, **body}


@fitting
def test_both_clients_return_it(answered: Answered, name: str) -> None:
    async def ask() -> Any:
        async with AsyncClient(answered.service.url) as client:
            return (await client.wait(await client.submit(**arguments_of(name)))).answer()

    with Client(answered.service.url) as client:
        assert client.wait(client.submit(**arguments_of(name))).answer() == stored(name)
    assert asyncio.run(ask()) == stored(name)


def test_clients_raise_that_nothing_fits(answered: Answered) -> None:
    with Client(answered.service.url) as client:
        job = client.wait(client.submit(**arguments_of("infeasible")))
        with pytest.raises(Infeasible, match="GiB"):
            job.answer()


def test_tools_of_assistants_return_it(answered: Answered) -> None:
    async def converse() -> dict[str, Any]:
        url = f"{answered.service.url}/mcp"
        async with (
            httpx2.AsyncClient(timeout=60) as http,
            McpClient(streamable_http_client(url, http_client=http)) as client,
        ):
            return {
                name: await document_of(client, TOOLS.get(one.kind, one.kind), **one.body)
                for name, one in STORED.items()
                if name != "infeasible"
            }

    found = anyio.run(converse)
    assert found == {name: document(name) for name in found}


def shown_command(answered: Answered, name: str, folder: Path) -> list[str]:
    """Returns the words of the command that an answer's page shows; saves the files it names."""
    page = answered.client.get(answered.page(name)).text
    for file in set(re.findall(rf"{answered.page(name)}/files/([\w.-]+)", page)):
        found = answered.client.get(f"{answered.page(name)}/files/{file}")
        (folder / file).write_bytes(found.content)
    text = re.search(r'id="command-text"[^>]*>(.*?)</pre>', page, re.DOTALL)
    assert text, "the page shows a command"
    return words_of(re.sub(r"<[^>]+>", "", html.unescape(text[1])))


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Returns how a command ends, and its output."""
    capsys.readouterr()
    try:
        status = command(words)
    except Infeasible as error:
        status = str(error)
    return status or 0, capsys.readouterr().out


@every
def test_commands_print_it_as_they_do_here(
    answered: Answered, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*shown_command(answered, name, tmp_path), "--quiet"]
    answer = Infeasible(stored(name).reason) if name == "infeasible" else stored(name)
    server = ["--server", answered.service.url]
    with inside(tmp_path):
        there = [printed([*words, *more, *server], capsys) for more in ([], ["--json"])]
        with answering(answer):
            here = [printed([*words, *more], capsys) for more in ([], ["--json"])]
    assert there == here
    if name != "infeasible":
        assert json.loads(there[1][1]) == document(name) and there[0][1].strip()
