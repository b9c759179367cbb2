"""`docker compose up` from built images: questions from outside, what the kernel says of the
containers, secrets, and what happens when things are killed and stopped."""

from __future__ import annotations

import os
import socket
import time
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import pytest

from harness.containers import layers
from harness.containers.composed import BUILT, Composed, inspect, logs
from harness.containers.debian_archive import archive
from harness.containers.engine import run
from harness.service.service_harness import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

UP_S, ANSWER_S = 20.0, 5.0
"""Targets: all healthy from built images; a killed service's first answer."""
CURVE = "/v1/curves?graph=shipped:gpt2&hardware=dgx-v100-16gb&max_gpus=4"
KEYS = ("admin.key", "prometheus.key", "agent.token", "webhook.key", "database.url",
        "postgres.password", "grafana.password")  # fmt: skip


def allowed_s(target_s: float) -> float:
    """Returns a target as a limit: with a margin, and for this machine's share of its cores."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"load {load:.1f} per core, target {target_s:g} s: ", end="")
    return 1.5 * target_s * max(1.0, load)


def answered(composed: Composed, path: str) -> Any:
    """Returns the answer, or None while there is none."""
    try:
        status, document = composed.ask(path)
    except (URLError, ConnectionError):
        return None
    return document if status == 200 else None


def users(container: str, program: str | None = None) -> set[str]:
    """Returns the user ids of a container's processes, or of a program's; there is one at least."""
    rows = run("docker", "top", container, "-eo", "pid,uid,comm").splitlines()[1:]
    found = {row.split()[1] for row in rows if program in (None, row.split()[2])}
    assert found, rows
    return found


@pytest.fixture(scope="module")
def secrets(composed: Composed) -> dict[str, str]:
    """The content of each secret, and the password in the database's address."""
    ours = [composed.execute("service", "cat", f"/run/shardwise/{key}") for key in KEYS[:5]]
    # Grafana's and PostgreSQL's are not the service's to read.
    theirs = [composed.execute("postgres", "cat", f"/run/shardwise/{key}") for key in KEYS[5:]]
    return dict(zip(KEYS, [text.strip() for text in ours + theirs], strict=True))


def test_everything_is_up_soon(composed: Composed) -> None:
    limit = allowed_s(UP_S)
    print(f"up in {composed.up_s:.1f} s")
    assert composed.up_s <= limit


def test_workers_answer_questions_and_the_agent_enrols(composed: Composed) -> None:
    curve = wait_until(lambda: answered(composed, CURVE), "a worker has computed a curve")
    assert len(curve["points"]) == 4

    question = {"graph": "shipped:gpt2", "hardware": "dgx-v100-16gb", "gpus": 4}
    status, job = composed.ask("/v1/plans", question)
    assert status in (200, 202), job
    ended = wait_until(
        lambda: (j := answered(composed, f"/v1/jobs/{job['id']}")) and j["state"] == "done" and j,
        "a worker has computed a plan",
    )
    assert ended["error"] is None

    def live() -> Any:
        return [a for a in answered(composed, "/v1/agents")["items"] if a["state"] == "live"]

    assert len(wait_until(live, "the agent has enrolled")) == 1
    webhook = {"url": "https://1.1.1.1/", "events": ["job.ended"]}
    assert composed.ask("/v1/webhooks", webhook)[0] == 201


def test_an_onnx_file_is_read(composed: Composed) -> None:
    """Its package is slimmed, and a child process reads it below a read-only root."""
    onnx = pytest.importorskip("onnx")
    helper, proto = onnx.helper, onnx.TensorProto
    x = helper.make_tensor_value_info("x", proto.FLOAT, [8, 16])
    y = helper.make_tensor_value_info("y", proto.FLOAT, [8, 4])
    w = helper.make_tensor("w", proto.FLOAT, [16, 4], [0.5] * 64)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    body = model.SerializeToString()
    status, answer = composed.ask("/v1/graphs?name=tiny", body, "application/onnx")
    assert status == 201, answer


def test_the_manual_and_the_page_are_served(composed: Composed) -> None:
    wanted = {"/manual/": "Shardwise", "/manual/deploy.html": "compose",
              "/assets/plotly.min.js": "Plotly"}  # fmt: skip
    for path, text in wanted.items():
        status, page = composed.ask(path)
        assert status == 200
        assert text in page


def test_prometheus_scrapes_the_service_and_both_workers(composed: Composed) -> None:
    def up() -> bool:
        jobs = [t["labels"]["job"] for t in composed.scraped() if t["health"] == "up"]
        return {"shardwise", "shardwise-curves"} <= {*jobs} and jobs.count("shardwise-worker") == 2

    # Curves are scraped once a minute.
    wait_until(up, "both workers, the service and its curves are scraped", 100.0)


@pytest.mark.parametrize("service", BUILT)
def test_a_container_has_no_rights_and_a_read_only_root(composed: Composed, service: str) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in composed.execute(service, "cat", "/proc/1/status").splitlines()
    )
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"10001"}
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    roots = [
        line.split()[3].split(",")
        for line in composed.execute(service, "cat", "/proc/mounts").splitlines()
        if line.split()[1] == "/"
    ]
    assert "ro" in roots[-1]
    tried = "for d in / /usr /var/lib /tmp; do touch $d/x 2>/dev/null && echo $d; done; exit 0"
    assert composed.execute(service, "sh", "-c", tried).split() == ["/tmp"]
    assert {user for c in composed.containers(service) for user in users(c)} == {"10001"}


def test_databases_run_as_their_own_users(composed: Composed) -> None:
    # Health checks of the first two run as root, as in the official images.
    servers = {"postgres": ("postgres", "999"), "redis": ("redis-server", "999"),
               "prometheus": ("prometheus", "65534")}  # fmt: skip
    for service, (program, user) in servers.items():
        (container,) = composed.containers(service)
        assert users(container, program) == {user}


def test_only_the_outer_network_has_a_way_out(composed: Composed) -> None:
    """Asked of a host that this machine reaches: the one that packages come from."""
    address = socket.gethostbyname(urlsplit(archive().main).hostname or "")
    connect = f"timeout 5 bash -c '</dev/tcp/{address}/80' 2>/dev/null && echo out; exit 0"
    services = ("postgres", "redis", "agent", "service", "worker", "prometheus")
    out = {s for s in services if composed.execute(s, "bash", "-c", connect).strip() == "out"}
    assert out == {"service", "worker", "prometheus"}
    (service,) = composed.containers("service")
    published = inspect(service)["NetworkSettings"]["Ports"]["8000/tcp"]
    assert [p["HostIp"] for p in published] == ["127.0.0.1"]


def test_secrets_are_in_no_environment_no_log_and_no_image(
    composed: Composed, secrets: dict[str, str]
) -> None:
    assert all(len(secret) >= 20 for secret in secrets.values())
    listings: dict[str, str] = {}
    for service in (*BUILT, "secrets", "setup", "postgres", "redis", "prometheus"):
        for container in composed.containers(service):
            listings[f"inspect {service}"] = str(inspect(container))
            listings[f"logs {service}"] = logs(container)
    assert "enrolled" in listings["logs agent"]
    # The first process' must be readable, or others' would be missed too; hence as its user.
    environments = (
        "cat /proc/1/environ >/dev/null && echo readable; "
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; exit 0"
    )
    others = {"postgres": "999", "redis": "999", "prometheus": "65534"}
    for service in (*BUILT, *others):
        shell = ("--user", others.get(service, "10001"), service, "sh", "-c", environments)
        listings[f"environment {service}"] = composed.compose("exec", "-T", *shell)
        assert "readable" in listings[f"environment {service}"]
    for target in BUILT:
        listings[f"configuration {target}"] = layers.configuration(f"shardwise-{target}:local")
    for where, text in listings.items():
        assert [name for name, secret in secrets.items() if secret in text] == [], where


def test_each_service_reads_its_own_secrets_alone(composed: Composed) -> None:
    readable = "cd /run/shardwise; for k in " + " ".join(KEYS)
    readable += "; do cat $k >/dev/null 2>&1 && echo $k; done; exit 0"
    read = {
        s: set(composed.execute(s, "sh", "-c", readable).split()) for s in ("service", "prometheus")
    }
    assert "grafana.password" not in read["service"]
    assert read["prometheus"] == {"prometheus.key"}


def test_a_killed_service_answers_again_soon(composed: Composed) -> None:
    (container,) = composed.containers("service")
    pid = int(run("docker", "top", container, "-C", "shardwise", "-o", "pid").split()[-1])
    begin = time.monotonic()
    run("kill", "-KILL", str(pid))
    wait_until(lambda: inspect(container)["RestartCount"] == 1, "it is started again")
    wait_until(lambda: answered(composed, CURVE), "it answers again")
    took = time.monotonic() - begin
    limit = allowed_s(ANSWER_S)
    print(f"first answer {took:.1f} s after the kill")
    assert took <= limit


def test_everything_stops_in_order_and_comes_back_with_what_it_had(composed: Composed) -> None:
    containers = {s: composed.containers(s) for s in (*BUILT, "postgres", "redis", "prometheus")}
    begin = time.monotonic()
    composed.compose("stop")
    print(f"stopped in {time.monotonic() - begin:.1f} s")
    codes = {s: [inspect(c)["State"]["ExitCode"] for c in ids] for s, ids in containers.items()}
    assert {code for ids in codes.values() for code in ids} == {0}, codes
    again = composed.up()
    print(f"up again in {again:.1f} s")
    # The key is the same, and the answer is the stored one: at once, without a worker.
    assert answered(composed, CURVE)
    assert len(answered(composed, "/v1/agents")["items"]) == 1
