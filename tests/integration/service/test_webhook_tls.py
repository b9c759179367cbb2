"""Webhooks to receivers with real TLS: of a trusted authority, of an unknown one, other names."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from harness.service.service_harness import System, wait_until
from harness.service.steps import QUICK, ended, openssl
from service.base.public_address import Reach
from shardwise.client import Client, verify_webhook
from worker.webhook_post import Outcome, Poster

pytestmark = pytest.mark.needs("openssl")

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
UNKNOWN = "its certificate is not valid: unable to get local issuer certificate"
OTHER_NAME = (
    "its certificate is not valid: Hostname mismatch, certificate is not valid for 'localhost'."
)
OTHER_ADDRESS = (
    "its certificate is not valid: IP address mismatch, certificate is not valid for '127.0.0.1'."
)


class Authority:
    """Signs certificates, as a cluster's own does."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        openssl(
            "req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
            "-keyout", self._key, "-out", self.cert,
        )  # fmt: skip

    def certificate(self, *names: str) -> tuple[Path, Path]:
        """A receiver's certificate for these names (`DNS:…`, `IP:…`), and its key."""
        stem = self._folder / "-".join((self._name, *(n.replace(":", "_") for n in names)))
        cert, key, asked = (stem.with_suffix(f".{end}") for end in ("pem", "key", "csr"))
        openssl("req", *NEW_KEY, "-subj", "/CN=receiver", "-keyout", key, "-out", asked)
        extensions = stem.with_suffix(".ext")
        # The last line is for Python 3.13, which is strict about RFC 5280.
        extensions.write_text(f"subjectAltName={','.join(names)}\nauthorityKeyIdentifier=keyid\n")
        openssl(
            "x509", "-req", "-in", asked, "-CA", self.cert, "-CAkey", self._key, "-days", "2",
            "-extfile", extensions, "-out", cert,
        )  # fmt: skip
        return cert, key


class TlsReceiver:
    """Keeps what arrives by path, under a certificate that may change."""

    def __init__(self, certificate: tuple[Path, Path]) -> None:
        self.seen: dict[str, list[tuple[dict[str, str], bytes]]] = {}
        self.on_accept: Callable[[], None] = lambda: None
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.show(certificate)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.seen.setdefault(self.path, []).append((dict(self.headers.items()), body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> Any:
                accepted = super().get_request()
                outer.on_accept()
                return accepted

            def handle_error(self, *_: Any) -> None:
                return

        self._server = Server(("127.0.0.1", 0), Handler)
        # The handshake is the handler's: one that fails or hangs delays no other.
        self._server.socket = self._tls.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def show(self, certificate: tuple[Path, Path]) -> None:
        """Shows new connections this certificate."""
        self._tls.load_cert_chain(*certificate)

    def url(self, path: str, host: str = "localhost") -> str:
        return f"https://{host}:{self._server.server_port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("trusted"), "cluster")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def good(trusted: Authority) -> tuple[Path, Path]:
    return trusted.certificate("DNS:localhost", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def wrong(trusted: Authority, stranger: Authority) -> dict[str, tuple[Path, Path]]:
    return {
        UNKNOWN: stranger.certificate("DNS:localhost", "IP:127.0.0.1"),
        OTHER_NAME: trusted.certificate("DNS:receiver.example", "IP:127.0.0.1"),
        OTHER_ADDRESS: trusted.certificate("DNS:localhost"),
    }


@pytest.fixture
def receiver(good: tuple[Path, Path]) -> Iterator[TlsReceiver]:
    started = TlsReceiver(good)
    yield started
    started.close()


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory, trusted: Authority) -> Iterator[System]:
    """A service whose operator has named the cluster's authority, as docs/how-to/webhooks.md says.

    The timeout is long, so that a loaded machine does not cause another attempt.
    """
    networks = {"webhook_allow_networks": "127.0.0.0/8,::1/128", "webhook_timeout_s": "60"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(trusted.cert))
        running = System(tmp_path_factory.mktemp("hooked"), "embedded", {**QUICK, **networks})
    yield running
    running.stop()


@pytest.fixture
def client(hooked: System) -> Iterator[Client]:
    with Client(hooked.service.url) as opened:
        yield opened


def launch_ended(client: Client) -> None:
    client.stop_launch(client.start_launch(kind="measure", agents=9)["id"])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_it_arrives_where_the_certificate_is_of_the_named_authority(
    client: Client, receiver: TlsReceiver, host: str
) -> None:
    webhook = client.make_webhook(receiver.url(f"/{host}", host), ["launch.ended"])
    launch_ended(client)
    delivery = ended(client, webhook["id"], "delivered")
    assert (delivery["status"], delivery["attempts"]) == (204, 1)
    [(headers, body)] = receiver.seen[f"/{host}"]
    assert verify_webhook(webhook["secret"], headers, body) == delivery["id"]
    assert json.loads(body)["type"] == "launch.ended"
    client.delete_webhook(webhook["id"])


@pytest.mark.parametrize(
    ("reason", "host"),
    [(UNKNOWN, "localhost"), (OTHER_NAME, "localhost"), (OTHER_ADDRESS, "127.0.0.1")],
    ids=["authority", "name", "address"],
)
def test_nothing_is_sent_under_another_certificate_and_the_reason_is_shown(
    client: Client,
    receiver: TlsReceiver,
    wrong: dict[str, tuple[Path, Path]],
    reason: str,
    host: str,
) -> None:
    receiver.show(wrong[reason])
    webhook = client.make_webhook(receiver.url("/", host), ["launch.ended"])
    launch_ended(client)
    failed = ended(client, webhook["id"], "failed")
    assert (failed["reason"], failed["status"], failed["attempts"]) == (reason, None, 3)
    assert client.webhook(webhook["id"])["state"] == "failing"
    assert receiver.seen == {}
    client.delete_webhook(webhook["id"])


def test_a_receiver_that_mends_its_certificate_gets_what_it_missed(
    client: Client,
    receiver: TlsReceiver,
    good: tuple[Path, Path],
    wrong: dict[str, tuple[Path, Path]],
) -> None:
    receiver.show(wrong[UNKNOWN])
    # A connection keeps the certificate of its beginning: the first is refused, the next is not.
    receiver.on_accept = lambda: receiver.show(good)
    webhook = client.make_webhook(receiver.url("/mended"), ["launch.ended"])
    launch_ended(client)
    delivery = ended(client, webhook["id"], "delivered")
    assert delivery["attempts"] > 1
    assert len(receiver.seen["/mended"]) == 1
    wait_until(
        lambda: client.webhook(webhook["id"])["state"] == "active", "it is no longer failing"
    )
    client.delete_webhook(webhook["id"])


def post(url: str, timeout_s: float = 60.0) -> Outcome:
    return Poster(Reach(allow=(ip_network("127.0.0.0/8"),)), timeout_s).post(url, "t", {}, b"{}")


def test_the_systems_authorities_do_not_know_the_clusters(
    receiver: TlsReceiver, trusted: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = receiver.url("/", "127.0.0.1")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert post(url) == Outcome(None, UNKNOWN)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.cert))
    assert post(url) == Outcome(204, "")


def test_a_receiver_without_tls_or_that_shakes_no_hands() -> None:
    def serve(listening: socket.socket, says: bytes) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(connection)
            if says:
                connection.sendall(says)

    connections: list[socket.socket] = []
    outcomes = []
    for says, timeout_s in ((b"HTTP/1.1 200 OK\r\n\r\n", 60.0), (b"", 0.5)):
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            thread = threading.Thread(target=serve, args=(listening, says), daemon=True)
            thread.start()
            outcomes.append(post(f"https://127.0.0.1:{listening.getsockname()[1]}/", timeout_s))
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    for connection in connections:
        connection.close()
    assert outcomes == [Outcome(None, "TLS failed"), Outcome(None, "no answer within 0.5 s")]
