"""`/mcp` of a running service, asked with the SDK's own client."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import httpx
import httpx2
import jsonschema
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from harness.assistant import document_of, text_of
from harness.service.service_harness import Service, System, wait_until
from harness.service.steps import HARDWARE, check, keys, mlp, upload
from shardwise.graph import Graph, graph_id

A = TypeVar("A")
QUICK = {"micro_batches": [1], "zero": [0, 1]}
ZERO_1 = '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}'
LONG = {"graph": "shipped:llama-8b", "max_instances": 16}
"""A quote that takes minutes."""
ACCEPT = {"Accept": "application/json, text/event-stream"}
TOOLS = {
    "plan", "curve", "quote", "frontier", "compare", "price_configuration", "explain", "export",
    "list_graphs", "list_hardware",
}  # fmt: skip
OLD = {"MCP-Protocol-Version": "2025-06-18"}


def with_client(url: str, key: str | None, talk: Callable[[Client], Awaitable[A]]) -> A:
    """Returns what a conversation with a service's `/mcp` returns."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def converse() -> A:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            return await talk(client)

    return anyio.run(converse)


async def refusal_of(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is None
    return text_of(result)


def call(tool: str, arguments: dict[str, Any], **params: Any) -> dict[str, Any]:
    """Returns a call of a tool as an earlier protocol's client posts it."""
    whole = {"name": tool, "arguments": arguments, **params}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": whole}


class Guarded:
    """A service with keys of two tenants; `alpha` has a graph."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Service(folder, "--migrate")
        self.keys = {name: self.key(name, "read", "submit") for name in ("alpha", "beta")}
        self.graph: Graph = mlp(24, "of-alpha")
        upload(self.service, self.graph, Authorization=f"Bearer {self.keys['alpha']}")

    def key(self, tenant: str, *scopes: str) -> str:
        chosen = [word for scope in scopes for word in ("--scope", scope)]
        whole = keys(self.folder, "create", "--tenant", tenant, *chosen, "--json")
        return str(json.loads(whole)["key"])

    def talk(self, tenant: str, talk: Callable[[Client], Awaitable[A]]) -> A:
        return with_client(self.service.url, self.keys[tenant], talk)

    def http(self, tenant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[tenant]}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    running = Guarded(tmp_path_factory.mktemp("guarded"))
    yield running
    running.service.stop()


def test_answers_are_those_over_http(system: System) -> None:
    graph = mlp(40, "asked")
    upload(system.service, graph)
    plan = {"graph": graph_id(graph), "hardware": HARDWARE, "gpus": 2, "options": QUICK}
    curve = {"graph": graph_id(graph), "hardware": HARDWARE, "max_gpus": 2, "options": QUICK}

    async def talk(client: Client) -> Any:
        return (
            await document_of(client, "plan", **plan),
            await document_of(client, "curve", **curve),
        )

    made = with_client(system.service.url, None, talk)
    for path, body, document in (("plans", plan, made[0]), ("curves", curve, made[1])):
        answer = system.client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, "the tool's answer is stored"
        assert answer.json()["result"] == document
    # And the other way round: what HTTP has computed the tool returns without a job.
    body = {**plan, "gpus": 4}
    location = system.client.post("/v1/plans", json=body).headers["Location"]
    job = system.service.ended(location)

    async def once_more(client: Client) -> Any:
        return await document_of(client, "plan", **body)

    assert with_client(system.service.url, None, once_more) == job["result"]
    assert system.client.get(location).json()["id"] == job["id"]


def test_tools_are_listed_with_schemas_that_their_answers_meet(guarded: Guarded) -> None:
    async def talk(client: Client) -> Any:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        for tool in tools.values():
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            assert tool.input_schema["additionalProperties"] is False
        properties = tools["plan"].input_schema["properties"]
        assert "mini-memory" in properties["objective"]["enum"]
        assert "uploaded" in properties["graph"]["description"]
        ask = {"graph": graph_id(guarded.graph), "hardware": HARDWARE, "options": QUICK}
        plan = await document_of(client, "plan", gpus=2, **ask)
        answers = {
            "plan": plan,
            "frontier": await document_of(client, "frontier", gpus=2, **ask),
            "compare": await document_of(client, "compare", gpus=2, proposals=100, **ask),
            "explain": await document_of(client, "explain", plan=plan["id"]),
            "price_configuration": await document_of(
                client, "price_configuration", gpus=2, configuration=ZERO_1, **ask
            ),
            "export": await document_of(client, "export", plan=plan["id"], format="sbatch"),
            "list_graphs": await document_of(client, "list_graphs"),
            "list_hardware": await document_of(client, "list_hardware"),
        }
        for name, answer in answers.items():
            jsonschema.Draft202012Validator(tools[name].output_schema).validate(answer)
        return answers

    answers = guarded.talk("alpha", talk)
    assert answers["explain"]["plan"] == answers["plan"]["id"]
    assert "#SBATCH" in answers["export"]["text"]
    assert graph_id(guarded.graph) in {one["id"] for one in answers["list_graphs"]["items"]}
    assert "shipped:gpt2" in {one["graph"] for one in answers["list_graphs"]["shipped"]}
    assert HARDWARE in {one["name"] for one in answers["list_hardware"]["builtin"]}


def test_a_pipeline_is_a_plan_s_answer_and_beside_others(guarded: Guarded) -> None:
    ask = {"graph": "shipped:gpt2", "hardware": "l4", "options": {"micro_batches": [8]}}
    offers = "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Provider\nx,L4,3,1,a,b\n"
    quote = {"graph": ask["graph"], "options": ask["options"], "offers_csv": offers}

    async def talk(client: Client) -> Any:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        pipeline = await document_of(client, "plan", gpus=3, stages=[3], **ask)
        curve = await document_of(client, "curve", max_gpus=3, stages=[3], **ask)
        quoted = await document_of(client, "quote", max_instances=1, stages="auto", **quote)
        for name, answer in (("plan", pipeline), ("curve", curve), ("quote", quoted)):
            jsonschema.Draft202012Validator(tools[name].output_schema).validate(answer)
        explained = await document_of(client, "explain", plan=pipeline["id"])
        jsonschema.Draft202012Validator(tools["explain"].output_schema).validate(explained)
        refused = await refusal_of(client, "export", plan=pipeline["id"], to="megatron")
        sbatch = await document_of(client, "export", plan=pipeline["id"], format="sbatch")
        return pipeline, curve, quoted, explained, refused, sbatch

    pipeline, curve, quoted, explained, refused, sbatch = guarded.talk("alpha", talk)
    assert pipeline["schema"] == "shardwise.pipeline/1"
    assert curve["points"][2]["pipeline"]["id"] == pipeline["id"]
    assert quoted["offers"][0]["pipeline"]["stages"] == 3
    assert explained["schema"] == "shardwise.pipeline-explanation/1"
    assert explained["pipeline"] == pipeline["id"] and len(explained["stages"]) == 3
    assert "cuts and splits of its own" in refused and "defect" not in refused
    assert "srun" in sbatch["text"] and pipeline["id"] in sbatch["text"]


def test_a_plan_for_a_trainer_is_exported(guarded: Guarded) -> None:
    ask = {"graph": graph_id(guarded.graph), "hardware": HARDWARE, "gpus": 2, "options": QUICK}
    body = {**ask, "space": "deepspeed"}

    async def talk(client: Client) -> Any:
        plan = await document_of(client, "plan", **body)
        export = await document_of(client, "export", plan=plan["id"], to="deepspeed")
        refused = (
            await refusal_of(client, "export", plan=plan["id"]),
            await refusal_of(client, "export", plan=plan["id"], to="abacus"),
            await refusal_of(client, "plan", **{**ask, "space": "abacus"}),
            await refusal_of(
                client, "price_configuration", configuration="a: 1", file="a.yaml", **ask
            ),
        )
        return plan, export, refused

    plan, export, refused = guarded.talk("alpha", talk)
    assert plan["trainer"]["name"] == "deepspeed"
    where = f"/v1/plans/{plan['id']}/export?to=deepspeed"
    assert guarded.service.client.get(where, headers=guarded.http("alpha")).json() == export
    for text, part in zip(refused, ("to", "abacus", "torchtitan", "a.yaml"), strict=True):
        assert part in text and "\n" not in text and "defect" not in text, text


def test_a_call_needs_a_key_with_the_scope(guarded: Guarded) -> None:
    asked = call("list_graphs", {})
    where = f"{guarded.service.url}/mcp"
    answer = httpx.post(where, json=asked, headers=ACCEPT)
    check(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    wrong = {**ACCEPT, "Authorization": "Bearer sw_nothing"}
    check(httpx.post(where, json=asked, headers=wrong), 401, "unauthenticated")
    agents = {**ACCEPT, "Authorization": f"Bearer {guarded.key('alpha', 'agent')}"}
    check(httpx.post(where, json=asked, headers=agents), 403, "forbidden")

    async def talk(client: Client) -> str:
        await document_of(client, "list_graphs")
        return await refusal_of(
            client, "plan", graph=graph_id(guarded.graph), hardware=HARDWARE, gpus=1
        )

    reader = guarded.key("alpha", "read")
    assert "scope submit" in with_client(guarded.service.url, reader, talk)


def test_what_another_tenant_has_is_not_there(guarded: Guarded) -> None:
    ask = {"graph": graph_id(guarded.graph), "hardware": HARDWARE, "gpus": 1, "options": QUICK}

    async def owner(client: Client) -> str:
        return str((await document_of(client, "plan", **ask))["id"])

    plan = guarded.talk("alpha", owner)

    async def other(client: Client) -> Any:
        nothing = f"sha256:{'0' * 64}"
        listed = await document_of(client, "list_graphs")
        return (
            [one["id"] for one in listed["items"]],
            (await refusal_of(client, "plan", **ask), graph_id(guarded.graph)),
            (await refusal_of(client, "plan", **{**ask, "graph": nothing}), nothing),
            (await refusal_of(client, "explain", plan=plan), plan),
            (await refusal_of(client, "explain", plan=nothing), nothing),
        )

    listed, *refusals = guarded.talk("beta", other)
    assert graph_id(guarded.graph) not in listed
    theirs, none, their_plan, no_plan = [text.replace(of, "ID") for text, of in refusals]
    assert theirs == none and theirs.startswith("there is no graph")
    assert their_plan == no_plan and their_plan.startswith("there is no plan")


def test_calls_are_in_the_audit_of_their_tenant(guarded: Guarded) -> None:
    ask = {"graph": graph_id(guarded.graph), "hardware": HARDWARE, "gpus": 3, "options": QUICK}

    async def talk(client: Client) -> Any:
        return await document_of(client, "plan", **ask)

    guarded.talk("alpha", talk)
    admin = {"Authorization": f"Bearer {guarded.key('alpha', 'admin')}"}
    page = guarded.service.client.get("/v1/audit", headers=admin).json()
    line = next(line for line in page["items"] if line["action"] == "plans.create")
    job = guarded.service.client.get(line["target"], headers=guarded.http("alpha")).json()
    assert job["question"]["gpus"] == 3 and job["request_id"] == line["request_id"]
    assert line["key"] and line["request_id"]


def test_what_is_refused_says_which_argument(guarded: Guarded) -> None:
    ask = {"graph": graph_id(guarded.graph), "hardware": HARDWARE, "gpus": 1}

    async def talk(client: Client) -> list[str]:
        return [
            await refusal_of(client, "plan", **{**ask, "gpus": 0}),
            await refusal_of(client, "plan", **ask, colour=1),
            await refusal_of(client, "plan", **ask, stages=[2], order="rank"),
            await refusal_of(client, "curve", graph="shipped:gpt2", hardware=HARDWARE, stages=[0]),
            await refusal_of(client, "plan", **ask, options={"memory_limit_bytes": 1.0}),
            await refusal_of(client, "quote", graph="shipped:gpt2", deadline_s=5.0),
            await refusal_of(client, "curve", graph="shipped:gpt2", hardware=HARDWARE),
        ]

    parts = ("gpus", "colour", "order", "stages", "needs", "steps", "max_gpus")
    for text, part in zip(guarded.talk("alpha", talk), parts, strict=True):
        assert part in text and "\n" not in text and "defect" not in text, text


def test_a_body_that_is_too_large_is_refused(guarded: Guarded) -> None:
    where, headers = f"{guarded.service.url}/mcp", {**ACCEPT, **guarded.http("alpha")}
    large = call("quote", {"graph": "shipped:gpt2", "offers_csv": "x" * (4 * 2**20)})
    check(httpx.post(where, json=large, headers=headers), 413, "too-large")

    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            yield b" " * 2**20

    check(httpx.post(where, content=pieces(), headers=headers), 413, "too-large")


def test_a_large_body_is_a_long_text_and_little_else(guarded: Guarded) -> None:
    where, headers = f"{guarded.service.url}/mcp", {**ACCEPT, **OLD, **guarded.http("alpha")}
    asked = {"graph": "shipped:gpt2", "offers_csv": "no,offers\n" * 20_000}
    answer = httpx.post(where, json=call("quote", asked), headers=headers)
    assert answer.status_code == 200, answer.text
    assert "offers_csv" in answer.text and len(answer.content) < 2000
    for tool, arguments in (("quote", {**asked, "hardware": [0] * 40_000}), ("plan", asked)):
        answer = httpx.post(where, json=call(tool, arguments), headers=headers)
        check(answer, 413, "too-large")


def test_a_web_page_elsewhere_cannot_ask_an_open_service(system: System) -> None:
    asked = call("list_graphs", {})
    for headers in ({"Origin": "http://elsewhere.example"}, {"Host": "elsewhere.example"}):
        answer = system.client.post("/mcp", json=asked, headers={**ACCEPT, **OLD, **headers})
        check(answer, 403, "foreign-origin")
    assert system.client.post("/mcp", json=asked, headers={**ACCEPT, **OLD}).status_code == 200


def test_only_posts_are_taken(guarded: Guarded) -> None:
    for method in ("GET", "DELETE"):
        answer = httpx.request(
            method, f"{guarded.service.url}/mcp", headers={**ACCEPT, **guarded.http("alpha")}
        )
        check(answer, 405, "method-not-allowed")
        assert "POST" in answer.headers["Allow"]


def jobs_in(guarded: Guarded, state: str) -> list[dict[str, Any]]:
    answer = guarded.service.client.get(
        "/v1/jobs", params={"state": state, "kind": "quote"}, headers=guarded.http("alpha")
    )
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def cancel_quote_once(
    client: Client, asked: dict[str, Any], holds: Callable[[list[float]], Any]
) -> None:
    """Asks for a quote and cancels the call once `holds` of the progress that was heard."""
    heard: list[float] = []

    async def hear(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    async def ask() -> None:
        await client.call_tool("quote", asked, progress_callback=hear)
        raise AssertionError("the quote was answered")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.to_thread.run_sync(wait_until, lambda: holds(heard), "it may be cancelled")
        tasks.cancel_scope.cancel()
    assert heard == sorted(set(heard))


def test_a_cancelled_call_cancels_its_job(guarded: Guarded) -> None:
    async def talk(client: Client) -> None:
        await cancel_quote_once(client, LONG, lambda heard: len(heard) > 1)

    guarded.talk("alpha", talk)
    wait_until(lambda: jobs_in(guarded, "cancelled"), "the job is cancelled")
    assert not jobs_in(guarded, "running") and not jobs_in(guarded, "queued")


def test_a_client_of_an_earlier_protocol_cancels_by_going_away(guarded: Guarded) -> None:
    before = len(jobs_in(guarded, "cancelled"))
    headers = {**ACCEPT, **OLD, **guarded.http("alpha")}
    asked = call("quote", {**LONG, "max_instances": 15}, _meta={"progressToken": "p"})
    with httpx.stream(
        "POST", f"{guarded.service.url}/mcp", json=asked, headers=headers, timeout=60
    ) as stream:
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if "notifications/progress" in line:
                break
    wait_until(lambda: len(jobs_in(guarded, "cancelled")) > before, "the job is cancelled")


def test_a_job_that_another_call_made_goes_on(guarded: Guarded) -> None:
    body = {**LONG, "max_instances": 14}
    made = guarded.service.client.post("/v1/quotes", json=body, headers=guarded.http("alpha"))
    location = made.headers["Location"]
    before = len(jobs_in(guarded, "cancelled"))

    def another(_: list[float]) -> bool:
        return len(jobs_in(guarded, "running")) + len(jobs_in(guarded, "queued")) > 1

    async def talk(client: Client) -> None:
        await cancel_quote_once(client, body, lambda heard: heard)
        await cancel_quote_once(client, {**LONG, "max_instances": 13}, another)

    guarded.talk("alpha", talk)
    # The call that was cancelled first would have cancelled its job by then.
    wait_until(lambda: len(jobs_in(guarded, "cancelled")) > before, "the second is cancelled")
    read = guarded.service.client.get(location, headers=guarded.http("alpha")).json()
    assert read["state"] in ("queued", "running") and not read["cancel_requested"]
    guarded.service.client.delete(location, headers=guarded.http("alpha"))
    guarded.service.ended(location, headers=guarded.http("alpha"))


def test_rates_are_those_of_keys(tmp_path: Path) -> None:
    service = Service(tmp_path, "--migrate", rate_per_s="0.01", rate_burst="3")
    try:
        key = json.loads(keys(tmp_path, "create", "--tenant", "alpha", "--json"))["key"]
        headers = {**ACCEPT, **OLD, "Authorization": f"Bearer {key}"}
        answers = [
            httpx.post(f"{service.url}/mcp", json=call("none", {}), headers=headers)
            for _ in range(4)
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        check(answers[-1], 429, "rate-limited")
    finally:
        service.stop()


def test_without_the_extra_the_service_says_which_one(tmp_path: Path) -> None:
    class Without(Service):
        python_path = (str(tmp_path / "blocked"), *Service.python_path)

    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(
        "import sys\nsys.modules['mcp'] = None\n"
    )
    service = Without(tmp_path, "--migrate")
    try:
        assert service.client.get("/healthz").status_code == 200
        problem = check(service.client.post("/mcp", json=call("plan", {})), 404, "not-found")
        assert "mcp" in problem["detail"] and "shardwise[service,mcp]" in problem["expected"]
    finally:
        service.stop()
