"""`shardwise mcp` as an assistant meets it: a real process, and the SDK's own client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import jsonschema
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import MCPError
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, Tool

import shardwise
from harness.assistant import document_of, text_of
from shardwise.answers import Options, pipeline_or_plan
from shardwise.answers.explain import explain
from shardwise.capture.shipped import load_graph
from shardwise.documents import Pipeline, Plan, json_schema, read
from shardwise.hardware import load_hardware
from shardwise.schedulers.formats import export_plan
from shardwise.trainers.formats import write_for

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "shardwise.cli.main", "mcp"]
SMALL = str(Path(__file__).parents[1] / "golden" / "answers" / "gpt.json.gz")
"""A GPT of two layers, as a file."""
QUICK = {"micro_batches": [1], "zero": [0, 1]}
VGG = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 2, "options": QUICK}
LONG = {"graph": "shipped:llama-8b"}
"""A quote that takes minutes."""
TOOLS = {
    "plan": "plan",
    "curve": "curve",
    "quote": "quote",
    "frontier": "frontier",
    "compare": "compare",
    "explain": "explanation",
    "export": "export",
    "price_configuration": "pricing",
}
"""Tools by the document that they return."""
PIPED_TOO = {"plan": "pipeline", "explain": "pipeline-explanation"}
"""What tools return for pipelines."""
LISTS = {"list_graphs", "list_hardware"}
A = TypeVar("A")


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """A client of a `shardwise mcp` of its own."""
    server = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env={**os.environ}, cwd=ROOT
    )
    async with Client(stdio_client(server)) as client:
        yield client


def with_client(talk: Callable[[Client], Awaitable[A]]) -> A:
    """Returns what a conversation with a `shardwise mcp` of its own returns."""

    async def converse() -> A:
        async with connected() as client:
            return await talk(client)

    return anyio.run(converse)


class Assistant(Protocol):
    """Returns what a conversation returns."""

    def __call__(self, talk: Callable[[Client], Awaitable[A]]) -> A: ...


@pytest.fixture(scope="module")
def assistant() -> Iterator[Assistant]:
    """Conversations with one `shardwise mcp`, one after the other."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(connected()) as client,
    ):

        def converse(talk: Callable[[Client], Awaitable[A]]) -> A:
            return portal.call(talk, client)

        yield converse


@pytest.fixture(scope="module")
def tools(assistant: Assistant) -> dict[str, Tool]:
    """Returns the tools that are listed, by name."""

    async def talk(client: Client) -> list[Tool]:
        return (await client.list_tools()).tools

    return {tool.name: tool for tool in assistant(talk)}


def test_tools_are_listed_with_the_schemas_of_the_documents(tools: dict[str, Tool]) -> None:
    assert tools.keys() == TOOLS.keys() | LISTS
    for name, tool in tools.items():
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None and schema["type"] == "object", name
            jsonschema.Draft202012Validator.check_schema(schema)
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description
    for name, kind in TOOLS.items():
        published = json_schema(kind)
        root = published["$ref"].removeprefix("#/$defs/")
        schema = tools[name].output_schema
        assert schema is not None
        if name in PIPED_TOO:
            kinds = (published, json_schema(PIPED_TOO[name]))
            assert {one["$ref"] for one in schema["anyOf"]} == {one["$ref"] for one in kinds}
            assert schema["$defs"] == {**kinds[0]["$defs"], **kinds[1]["$defs"]}
            continue
        assert schema["properties"] == published["$defs"].pop(root)["properties"]
        assert schema.get("$defs", {}) == published["$defs"]
    options = tools["plan"].input_schema["properties"]["options"]["properties"]
    assert options["recompute"]["enum"] == ["never", "auto", "always", None]
    assert options["step"]["properties"]["update"]["enum"] == ["foreach", "for-loop", "fused", None]
    assert "threads" not in options and "policy" not in options


def test_input_schemas_take_what_the_tools_take_and_no_more(tools: dict[str, Tool]) -> None:
    check = jsonschema.Draft202012Validator(tools["plan"].input_schema)
    assert check.is_valid(VGG)
    assert check.is_valid({**VGG, "gpus": "v100=2,1080ti=4", "objective": "mini-memory"})
    assert check.is_valid({**VGG, "stages": [1, 2], "schedules": ["gpipe"]})
    compared = tools["compare"].input_schema["properties"]
    assert "stages" in compared and "schedules" in compared
    for wrong in (
        {"gpus": 0},
        {"gpus": 2**40},
        {"graph": "x" * 5000},
        {"objective": "cheap"},
        {"options": {"zero": [9]}},
        {"options": {"threads": 1}},
        {"priority": 1},
        {"stages": [0]},
        {"stages": "two"},
    ):
        assert not check.is_valid({**VGG, **wrong}), wrong


KINDS = {
    "graph": SMALL, "hardware": "heterog-8", "gpus": "v100=2,p100=2",
    "options": {"micro_batches": [8]},
}  # fmt: skip
PIPED = {"graph": SMALL, "hardware": "l4", "options": {"micro_batches": [8]}}


def test_stages_are_asked_of_the_tools(tools: dict[str, Tool], assistant: Assistant) -> None:
    async def talk(client: Client) -> Any:
        made = await client.call_tool("plan", {**PIPED, "gpus": 4, "stages": [2]})
        pipeline = made.structured_content
        assert not made.is_error and pipeline is not None, text_of(made)
        curve = await client.call_tool("curve", {**PIPED, "max_gpus": 2, "stages": [2]})
        plan = {**PIPED, "gpus": 2}
        refused = [
            await client.call_tool(tool, arguments)
            for tool, arguments in (
                ("export", {"plan": pipeline["id"], "to": "megatron"}),
                ("plan", {**plan, "stages": [2], "order": "rank"}),
                ("plan", {**plan, "schedules": ["gpipe"]}),
                ("plan", {**plan, "stages": [2], "schedules": ["dualpipe"]}),
                ("frontier", {**plan, "stages": [2], "options": {"overlap": False}}),
                ("compare", {**plan, "stages": [2], "schedules": ["zb-h2"]}),
                ("plan", {**KINDS, "stages": [2], "schedules": ["zbv"]}),
            )
        ]
        of_kinds = await document_of(client, "plan", **KINDS, stages=[2])
        assert [stage["group"] for stage in of_kinds["stages"]] in (
            ["v100", "p100"],
            ["p100", "v100"],
        )
        assert of_kinds["bundle"] == "v100=2,p100=2"
        by_id = await document_of(client, "explain", plan=pipeline["id"])
        by_document = await document_of(client, "explain", plan=pipeline)
        sbatch = await document_of(client, "export", plan=pipeline["id"], format="sbatch")
        none = await client.call_tool("explain", {"plan": {**pipeline, "stages": []}})
        return made, curve, refused, (by_id, by_document, none), sbatch

    made, curve, refused, (by_id, by_document, none), sbatch = assistant(talk)
    jsonschema.validate(made.structured_content, tools["plan"].output_schema)
    pipeline = read(made.structured_content, Pipeline)
    graph, l4 = load_graph(SMALL), load_hardware("l4")
    here = pipeline_or_plan(graph, l4, 4, stages=[2], options=Options(micro_batches=(8,)))
    assert pipeline.id == here.id and pipeline.id in text_of(made)
    assert by_id == by_document == msgspec.to_builtins(explain(pipeline))
    jsonschema.validate(by_id, tools["explain"].output_schema)
    assert none.is_error and "stages" in text_of(none)
    assert "--nodes=1" in sbatch["text"] and pipeline.id in sbatch["text"]
    point = curve.structured_content["points"][1]["pipeline"]
    assert f"2 stages, {point['schedule']}, 8 micro-batches" in text_of(curve)
    parts = (
        "cuts and splits of its own",
        "order",
        "schedules",
        "dualpipe",
        "options.overlap",
        "zb-h2",
        "zbv: no answer for split or interleaved schedules on devices of several kinds",
    )
    for result, part in zip(refused, parts, strict=True):
        assert result.is_error and part in text_of(result), text_of(result)


def test_a_plan_is_the_library_s_and_can_be_explained_and_exported_by_its_id(
    assistant: Assistant,
) -> None:
    async def talk(client: Client) -> Any:
        made = await client.call_tool("plan", VGG)
        plan = made.structured_content
        assert not made.is_error and plan is not None, text_of(made)
        by_id = await document_of(client, "explain", plan=plan["id"])
        by_document = await document_of(client, "explain", plan=plan)
        sbatch = await document_of(client, "export", plan=plan["id"], format="sbatch")
        return text_of(made), plan, by_id, by_document, sbatch

    text, document, by_id, by_document, sbatch = assistant(talk)
    plan = read(document, Plan)
    here = shardwise.plan("shipped:vgg16", "dgx-v100-16gb", 2, micro_batches=(1,), zero=(0, 1))
    assert plan.id == here.id and plan.predicted == here.predicted
    assert plan.id in text and "vgg16 on 2 GPUs of dgx-v100-16gb" in text
    assert len(text.splitlines()) < 20
    assert by_id == by_document == json.loads(json.dumps(here.explain().to_dict()))
    assert sbatch["text"] == export_plan(here, "sbatch")


def test_a_plan_for_a_trainer_is_exported_and_its_configuration_priced(
    assistant: Assistant,
) -> None:
    async def talk(client: Client) -> Any:
        plan = await document_of(client, "plan", **VGG, space="deepspeed")
        written = await client.call_tool("export", {"plan": plan["id"], "to": "deepspeed"})
        export = written.structured_content
        assert not written.is_error and export is not None, text_of(written)
        assert f"Not in the text: {export['unsaid'][0]}" in text_of(written)
        asked = {**VGG, "configuration": export["text"], "file": export["filename"]}
        priced = await client.call_tool("price_configuration", asked)
        assert not priced.is_error, text_of(priced)
        return plan, export, priced.structured_content, text_of(priced)

    document, export, priced, text = assistant(talk)
    plan = read(document, Plan)
    here = shardwise.plan(
        "shipped:vgg16", "dgx-v100-16gb", 2, micro_batches=(1,), zero=(0, 1), space="deepspeed"
    )
    assert plan.id == here.id
    written = write_for(here, "deepspeed")
    assert (export["text"], export["unsaid"]) == (written.text, written.unsaid)
    assert priced["trainer"] == "deepspeed" and priced["fits"]
    same = priced["plan"]["predicted"]["replayed_time_s"]
    assert same == pytest.approx(here.predicted.replayed_time_s), "the way back is the way out"
    assert text.startswith("deepspeed: ") and len(text.splitlines()) < 40


def test_what_is_listed_may_be_asked_for(assistant: Assistant) -> None:
    async def talk(client: Client) -> Any:
        graphs = (await document_of(client, "list_graphs"))["graphs"]
        profiles = (await document_of(client, "list_hardware"))["profiles"]
        assert {"shipped:gpt2", "shipped:vgg16"} <= {one["graph"] for one in graphs}
        names = {one["hardware"]: one for one in profiles}
        assert names["dgx-v100-16gb"]["devices"][0]["per_node"] == 8
        assert {of["group"] for of in names["heterog-8"]["devices"]} == {"v100", "1080ti", "p100"}
        few = {"micro_batches": [1], "zero": [0]}
        vgg = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "options": few}
        curve = await document_of(client, "curve", max_gpus=2, **vgg)
        assert [point["feasible"] for point in curve["points"]] == [False, True]
        frontier = await document_of(client, "frontier", gpus=2, **vgg)
        times = [point["replayed_time_s"] for point in frontier["points"]]
        assert times and times == sorted(times, reverse=True)
        columns = "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware"
        offer = f"{columns}\na,two,V100,2,3.0,r,dgx-v100-16gb\n"
        quote = await document_of(
            client,
            "quote",
            graph="shipped:vgg16",
            offers_csv=offer,
            max_instances=1,
            steps=100,
            options=few,
        )
        (row,) = quote["offers"]
        seconds = 100 * row["replayed_time_s"]
        assert row["usd_total"] == pytest.approx(3.0 * seconds / 3600)
        compared = await document_of(client, "compare", gpus=2, proposals=10, **vgg)
        assert "shardwise" in compared["ranking"]

    assistant(talk)


OTHER_BATCH = '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}'
REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("plan", {**VGG, "gpus": 0}, ("gpus", ">= 1")),
    ("plan", {**VGG, "gpus": "many"}, ("gpus", "expected")),
    ("plan", {**VGG, "hardware": "abacus"}, ("abacus", "dgx-h100")),
    ("plan", {**VGG, "graph": "shipped:none"}, ("none", "gpt2")),
    ("plan", {**VGG, "graph": "missing.json"}, ("missing.json", "no such file")),
    ("plan", {**VGG, "colour": 1}, ("colour", "unknown field")),
    ("plan", {"graph": "shipped:gpt2"}, ("hardware", "missing")),
    ("plan", {**VGG, "objective": "cheap"}, ("objective", "mini-time")),
    ("plan", {**VGG, "options": {"zero": [9]}}, ("options.zero", "0, 1, 2, 3")),
    ("plan", {**VGG, "options": {"colour": 1}}, ("options.colour", "epsilon")),
    ("plan", {**VGG, "graph": SMALL, "options": {**QUICK, "memory_limit_bytes": 1e4}}, ("needs",)),
    ("plan", {**VGG, "space": "abacus"}, ("space", "torchtitan")),
    ("plan", {**VGG, "space": "fsdp2", "order": "rank"}, ("order", "program")),
    ("plan", {**VGG, "space": "fsdp2", "point": f"sha256:{'0' * 64}"}, ("point", "none")),
    ("price_configuration", VGG, ("configuration", "missing")),
    ("price_configuration", {**VGG, "configuration": "x" * 70_000}, ("configuration", "65536")),
    ("price_configuration", {**VGG, "configuration": "a: 1", "file": "a.txt"}, ("a.txt", "not a")),
    ("price_configuration", {**VGG, "configuration": OTHER_BATCH}, ("global batch", "--batch")),
    ("export", {"plan": "x.json"}, ("x.json", "no such file")),
    ("curve", {"graph": "shipped:gpt2", "hardware": "l4"}, ("max_gpus", "whole number")),
    ("quote", {"graph": "shipped:gpt2", "deadline_s": 5}, ("steps", "number")),
    ("quote", {"graph": "shipped:gpt2", "offers_csv": "a"}, ("offers_csv",)),
    ("explain", {}, ("graph", "plan, or graph, hardware and gpus")),
    ("explain", {"plan": f"sha256:{'0' * 64}"}, ("plan", "no plan")),
    ("explain", {"plan": {"schema": "shardwise.graph/1"}}, ("plan.schema", "shardwise.plan/1")),
    ("export", {"plan": "x.json", "format": "sbatch"}, ("x.json", "no such file")),
]  # fmt: skip
"""Calls, and what their errors say."""


def test_what_is_refused_is_an_error_of_the_tool_that_names_the_argument(
    assistant: Assistant,
) -> None:
    async def talk(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(tool, arguments) for tool, arguments, _ in REFUSED]

    for (tool, arguments, parts), result in zip(REFUSED, assistant(talk), strict=True):
        text = text_of(result)
        assert result.is_error and result.structured_content is None, (tool, arguments)
        assert "\n" not in text and "Traceback" not in text and "defect" not in text, text
        for part in parts:
            assert part in text, text


def test_an_unknown_tool_is_an_error_of_the_protocol(assistant: Assistant) -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(MCPError, match="list_graphs"):
            await client.call_tool("abacus", {})

    assistant(talk)


def test_a_search_reports_progress_that_only_grows(assistant: Assistant) -> None:
    seen: list[tuple[float, str | None]] = []

    async def heard(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, message))

    async def talk(client: Client) -> None:
        asked = {"graph": SMALL, "hardware": "dgx-a100-80gb", "gpus": 16}
        result = await client.call_tool("plan", asked, progress_callback=heard)
        assert not result.is_error, text_of(result)

    assistant(talk)
    assert len(seen) > 2 and any(stage == "costs" for _, stage in seen)
    done = [fraction for fraction, _ in seen]
    assert done == sorted(set(done))


def test_a_cancelled_search_ends_and_the_next_call_is_answered() -> None:
    async def talk(client: Client) -> float:
        begun = anyio.Event()

        async def heard(done: float, total: float | None, message: str | None) -> None:
            begun.set()

        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                await client.call_tool("quote", LONG, progress_callback=heard)
                raise AssertionError("the quote was answered")

            tasks.start_soon(ask)
            await begun.wait()
            await anyio.sleep(1.0)
            tasks.cancel_scope.cancel()
        started = time.monotonic()
        with anyio.fail_after(120):
            plan = await document_of(client, "plan", **VGG)
        assert plan["graph_name"] == "vgg16"
        return time.monotonic() - started

    # The quote would take minutes, and one search runs at a time.
    assert with_client(talk) < 90


def message(method: str, params: dict[str, Any], number: int | None = None) -> str:
    numbered = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **numbered}) + "\n"


HELLO = message(
    "initialize",
    {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
    1,
) + message("notifications/initialized", {})


def started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_standard_output_has_nothing_but_the_protocol() -> None:
    """A client of an earlier protocol, without the SDK: each line is one message."""
    with started() as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(HELLO)
        process.stdin.write(message("tools/call", {"name": "plan", "arguments": VGG}, 2))
        process.stdin.write(message("tools/call", {"name": "list_graphs", "arguments": {}}, 3))
        process.stdin.flush()
        answers = {}
        while answers.keys() != {1, 2, 3}:
            said = json.loads(process.stdout.readline())
            assert said["jsonrpc"] == "2.0"
            answers[said["id"]] = said["result"]
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(30) == 0
    assert answers[1]["serverInfo"]["name"] == "shardwise"
    assert answers[2]["structuredContent"]["schema"] == "shardwise.plan/1"


def test_it_ends_when_its_input_ends_also_in_a_search() -> None:
    with started() as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(HELLO)
        asked = {"name": "quote", "arguments": LONG, "_meta": {"progressToken": "p"}}
        process.stdin.write(message("tools/call", asked, 2))
        process.stdin.flush()
        while "notifications/progress" not in process.stdout.readline():
            pass
        process.stdin.close()
        assert process.wait(30) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['mcp'] = None\n"
        "sys.argv = ['shardwise', 'mcp']\n"
        "from shardwise.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "pip install 'shardwise[mcp]'" in done.stderr
