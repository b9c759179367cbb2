"""Webhooks over HTTP with a real receiver and real workers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.service.service_harness import Service, System, variables_of, wait_until
from harness.service.steps import HARDWARE, QUICK, ended, mlp, upload
from shardwise.client import BadInput, Client, Missing, verify_webhook
from shardwise.graph import graph_id

ASK = {"graph": graph_id(mlp()), "hardware": HARDWARE}


class Receiver:
    """Keeps what arrives by path; answers as `statuses` says, and holds while `held` is set."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[dict[str, str], bytes]]] = {}
        self.statuses: dict[str, list[int]] = {}
        self.hold: dict[str, threading.Event] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                seen = outer.seen.setdefault(self.path, [])
                seen.append((dict(self.headers.items()), body))
                if self.path in outer.hold:
                    outer.hold[self.path].wait(60)
                statuses = outer.statuses.get(self.path, [])
                self.send_response(statuses.pop(0) if statuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def at(self, path: str, count: int = 1) -> list[tuple[dict[str, str], bytes]]:
        """What has arrived there, once it is `count` requests."""
        wait_until(lambda: len(self.seen.get(path, [])) >= count, f"{count} at {path}")
        return self.seen[path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


@pytest.fixture(scope="module")
def hooked(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[System]:
    # A receiver that is slow because the machine is does not cause another attempt.
    patient = {"webhook_timeout_s": "6"}
    with variables_of(backend, request) as variables:
        folder = tmp_path_factory.mktemp(f"webhooks-{backend}")
        running = System(folder, backend, {**variables, **QUICK, **patient})
        yield running
        running.stop()


@pytest.fixture
def client(hooked: System) -> Iterator[Client]:
    with Client(hooked.service.url) as opened:
        yield opened


@pytest.fixture
def path(request: pytest.FixtureRequest, hooked: System) -> str:
    return f"/{request.node.originalname}-{hooked.kind}"


def test_the_end_of_a_job_arrives_signed(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    webhook = client.make_webhook(receiver.url(path), ["job.ended"], name="chat")
    upload(hooked.service, mlp())
    job = hooked.client.post("/v1/frontiers", json={**ASK, "gpus": 1}).json()
    done = hooked.service.ended(job["location"])
    [(headers, body)] = receiver.at(path)
    message = verify_webhook(webhook["secret"], headers, body)
    with pytest.raises(BadInput):
        verify_webhook(webhook["secret"], headers, body + b" ")
    event = json.loads(body)
    assert event["data"]["id"] == job["id"]
    assert event["data"]["state"] == done["state"] == "done"
    delivery = ended(client, webhook["id"], "delivered")
    assert (delivery["id"], delivery["status"], delivery["attempts"]) == (message, 204, 1)
    assert "secret" not in client.webhook(webhook["id"])
    assert all("secret" not in item for item in client.webhooks())
    client.delete_webhook(webhook["id"])
    with pytest.raises(Missing):
        client.webhook(webhook["id"])


def test_the_end_of_a_launch_arrives(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    webhook = client.make_webhook(receiver.url(path), ["launch.ended"])
    launch = client.start_launch(kind="measure", agents=9)
    client.stop_launch(launch["id"])
    [(headers, body)] = receiver.at(path)
    verify_webhook(webhook["secret"], headers, body)
    assert json.loads(body)["data"]["id"] == launch["id"]
    assert json.loads(body)["data"]["state"] == "stopped"
    client.delete_webhook(webhook["id"])


def test_an_error_is_tried_again_and_then_given_up(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    receiver.statuses[path] = [500, 503, 204]
    receiver.statuses[path + "-never"] = [500] * 3
    good = client.make_webhook(receiver.url(path), ["launch.ended"])
    bad = client.make_webhook(receiver.url(path + "-never"), ["launch.ended"])
    client.stop_launch(client.start_launch(kind="measure", agents=9)["id"])
    assert ended(client, good["id"], "delivered")["attempts"] == 3
    failed = ended(client, bad["id"], "failed")
    assert (failed["attempts"], failed["status"]) == (3, 500)
    assert failed["reason"] == "answered 500"
    for name, secret in ((path, good["secret"]), (path + "-never", bad["secret"])):
        seen = receiver.seen[name]
        assert len({verify_webhook(secret, headers, body) for headers, body in seen}) == 1
        assert len(seen) == 3
    assert client.webhook(good["id"])["state"] == "active"
    assert client.webhook(bad["id"])["state"] == "failing"
    for webhook in (good, bad):
        client.delete_webhook(webhook["id"])


def test_a_worker_killed_after_sending_sends_it_again_with_the_same_id(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    webhook = client.make_webhook(receiver.url(path), ["launch.ended"])
    receiver.hold[path] = threading.Event()
    client.stop_launch(client.start_launch(kind="measure", agents=9)["id"])
    receiver.at(path)
    for pid in hooked.worker_pids():
        os.kill(pid, signal.SIGKILL)
    receiver.hold.pop(path).set()
    if hooked.kind != "embedded":
        hooked.start_worker()
    ended(client, webhook["id"], "delivered")
    first, second = receiver.at(path, 2)[:2]
    ids = {verify_webhook(webhook["secret"], headers, body) for headers, body in (first, second)}
    assert len(ids) == 1
    client.delete_webhook(webhook["id"])


def test_a_test_event_is_sent_once(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    receiver.statuses[path] = [500]
    webhook = client.make_webhook(receiver.url(path), ["job.ended"])
    delivery = client.test_webhook(webhook["id"])
    failed = ended(client, webhook["id"], "failed")
    assert (failed["id"], failed["event"], failed["attempts"]) == (
        delivery["id"],
        "webhook.test",
        1,
    )
    client.delete_webhook(webhook["id"])


def test_a_repeat_of_the_request_shows_the_same_secret(hooked: System, receiver: Receiver) -> None:
    ask = {"url": receiver.url("/repeat"), "events": ["launch.ended"], "states": ["lost"]}
    headers = {"Idempotency-Key": "once"}
    first, again = (hooked.client.post("/v1/webhooks", json=ask, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = hooked.client.post("/v1/webhooks", json=ask)
    assert other.json()["secret"] != first.json()["secret"]
    for response in (first, other):
        assert hooked.client.delete(response.headers["location"]).status_code == 204


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/", "https://[::1]/", "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest/meta-data", "https://2130706433/", "https://0x7f.1/",
        "https://[64:ff9b::a00:1]/", "http://1.1.1.1/", "ftp://1.1.1.1/", "https://user@1.1.1.1/",
        "https://nowhere.invalid/",
    ],
)  # fmt: skip
def test_receivers_that_are_refused(hooked: System, url: str) -> None:
    answer = hooked.client.post("/v1/webhooks", json={"url": url, "events": ["job.ended"]})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == "url"


def test_without_networks_allowed_loopback_is_refused_in_every_spelling(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        for url in ("https://127.0.0.1/", "https://localhost/", "http://localhost:8000/"):
            answer = service.client.post("/v1/webhooks", json={"url": url, "events": ["job.ended"]})
            assert answer.status_code == 422, answer.text
            assert answer.json()["field"] == "url"
        assert service.client.get("/v1/webhooks").json()["items"] == []
    finally:
        service.stop()


def test_a_receiver_refused_by_now_is_not_connected_to(
    hooked: System, client: Client, receiver: Receiver, path: str
) -> None:
    """As when its name leads elsewhere since the webhook was made."""
    from sqlalchemy import update

    from service.store.webhook_tables import Webhook

    webhook = client.make_webhook(receiver.url(path), ["launch.ended"])
    database = hooked.database()
    with database.write() as session:
        change = update(Webhook).where(Webhook.id == webhook["id"])
        session.execute(change.values(url="https://10.0.0.1/"))
    database.close()
    client.test_webhook(webhook["id"])
    failed = ended(client, webhook["id"], "failed")
    assert failed["reason"] == "its name leads to an address that is not public"
    client.delete_webhook(webhook["id"])
