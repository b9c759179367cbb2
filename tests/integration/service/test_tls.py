"""TLS in the service itself: with real certificates, replaced while it runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from harness.service.service_harness import App, wait_until
from harness.service.steps import openssl
from service.base.settings import Settings
from service.host.certificates import Certificates, certificates_of
from shardwise.client import Client
from shardwise.errors import BadInput

pytestmark = pytest.mark.needs("openssl")


def make_certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """Makes a self-signed certificate and its key in new files and moves them into place."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    files = [folder / "new.pem", folder / "new.key"]
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", f"/CN={name}", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", files[1], "-out", files[0],
    )  # fmt: skip
    files[1].replace(key)
    files[0].replace(cert)
    return cert, key


class Secure(App):
    """`shardwise serve` with a certificate, as people start it: its line is text."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.cert, self.key = make_certificate(folder)
        self.data = folder / "data"
        super().__init__(
            folder, "serve", "--port", "0", "--tls-cert", str(self.cert), "--tls-key",
            str(self.key), data_dir=str(self.data), **variables,
        )  # fmt: skip
        self.said = self.line()
        self.url = self.said.split()[-1].rstrip("/")

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", httpx.URL(self.url).port or 0

    def shown(self) -> str:
        """The certificate that a new connection is shown."""
        return ssl.get_server_certificate(self.address, timeout=30)

    def client(self, *own: Path) -> httpx.Client:
        """A client that trusts the certificate of the moment, with a certificate of its own."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if own:
            context.load_cert_chain(*own)
        return httpx.Client(base_url=self.url, verify=context, timeout=60)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("people"), "prometheus")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, people: tuple[Path, Path]) -> Iterator[Secure]:
    started = Secure(
        tmp_path_factory.mktemp("tls"),
        tls_client_ca=str(people[0]),
        head_s="2",
        max_connections_per_address="20",
    )
    yield started
    assert not started.logged("Fatal error") and not started.logged("exception")
    assert started.stop() == 0


def test_the_page_is_where_serve_says(secure: Secure) -> None:
    assert secure.said == f"shardwise: the page is at {secure.url}/\n"
    assert secure.url.startswith("https://127.0.0.1:")
    assert json.loads((secure.data / "service.json").read_text())["url"] == secure.url
    with secure.client() as client:
        page = client.get("/", follow_redirects=True)
    assert page.status_code == 200 and "html" in page.headers["Content-Type"]


def test_the_client_library_asks_over_tls(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.cert))
    with Client(secure.url) as client:
        assert list(client.graphs()) == []


def test_large_bodies_and_heads_pass(secure: Secure) -> None:
    with secure.client() as client:
        large = client.post("/v1/graphs", content=b" " * 5_000_000)
        assert large.status_code == 422
        assert client.get("/healthz", headers={"X": "y" * 100_000}).status_code == 431


def test_a_connection_that_shakes_no_hands_is_ended(secure: Secure) -> None:
    with ExitStack() as stack:
        clients = []
        for begin in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"):
            clients.append(stack.enter_context(socket.create_connection(secure.address, 30)))
            clients[-1].sendall(begin)
        for client in clients:
            with suppress(ConnectionError):
                while client.recv(2**16):
                    pass
    with secure.client() as known:
        assert known.get("/healthz").status_code == 200


def test_connections_have_their_places_before_they_shake_hands(secure: Secure) -> None:
    context = ssl.create_default_context(cafile=str(secure.cert))

    def answered() -> bool:
        # All of it in two seconds: later, silent connections are ended, the last one too.
        with ExitStack() as stack, suppress(ConnectionError, ssl.SSLError):
            for _ in range(60):
                stack.enter_context(socket.create_connection(secure.address, 30, ("127.0.0.2", 0)))
            with secure.client() as client:
                assert client.get("/healthz").status_code == 200
            silent = socket.create_connection(secure.address, 30, ("127.0.0.2", 0))
            stack.enter_context(silent)
            with context.wrap_socket(silent, server_hostname="127.0.0.1") as late:
                late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return late.recv(2**16).startswith(b"HTTP/1.1 200 ")
        return False

    wait_until(answered, "one that shakes hands late has its place")


def test_metrics_ask_for_a_certificate(secure: Secure, people: tuple[Path, Path]) -> None:
    with secure.client() as stranger:
        assert stranger.get("/metrics").status_code == 403
        assert stranger.get("/healthz").status_code == 200
    with secure.client(*people) as known:
        assert "shardwise_connections" in known.get("/metrics").text


def test_a_new_certificate_is_shown_and_a_broken_one_is_not(secure: Secure) -> None:
    first = secure.shown()
    with secure.client() as client:
        assert client.get("/healthz").status_code == 200
        make_certificate(secure.cert.parent)
        wait_until(lambda: secure.shown() != first, "the new certificate is shown")
        second = secure.shown()
        assert second == ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(secure.cert.read_text()))
        assert client.get("/healthz").status_code == 200, "what is open stays open"
    kept = secure.cert.read_text()
    secure.cert.write_text("no certificate")
    wait_until(lambda: secure.logged("the certificate is not replaced"), "the log says so")
    assert secure.shown() == second
    secure.cert.write_text(kept)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    _, other = make_certificate(tmp_path, "other")
    junk, locked = tmp_path / "junk.pem", tmp_path / "locked.key"
    junk.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    openssl("ec", "-aes128", "-passout", "pass:secret", "-in", key, "-out", locked)
    missing = tmp_path / "missing.pem"
    for given, file, field in [
        ({"tls_cert": missing}, missing, "tls_cert"),
        ({"tls_cert": key}, key, "tls_cert"),
        ({"tls_cert": junk, "tls_key": key}, junk, "tls_cert"),
        ({"tls_cert": cert}, cert, "tls_key"),
        ({"tls_cert": cert, "tls_key": missing}, missing, "tls_key"),
        ({"tls_cert": cert, "tls_key": other}, other, "tls_key"),
        ({"tls_cert": cert, "tls_key": locked}, locked, "tls_key"),
        ({"tls_cert": cert, "tls_key": key, "tls_client_ca": key}, key, "tls_client_ca"),
        ({"tls_key": key}, None, "tls_key"),
        ({"tls_client_ca": cert}, None, "tls_client_ca"),
    ]:
        with pytest.raises(BadInput) as error:
            certificates_of(Settings(**{name: str(path) for name, path in given.items()}))
        assert (error.value.file, error.value.field) == (file and str(file), field), error.value


def test_a_key_and_certificate_replaced_in_two_steps(tmp_path: Path) -> None:
    """Between the two steps the files do not fit; what was read before stays."""
    cert, key = make_certificate(tmp_path)
    certificates = Certificates(str(cert), str(key))
    before = certificates.context
    assert not certificates.reload_if_changed()
    new_cert, new_key = make_certificate(tmp_path, "other")
    shutil.move(new_key, key)
    assert not certificates.reload_if_changed() and certificates.context is before
    shutil.move(new_cert, cert)
    assert certificates.reload_if_changed() and certificates.context is not before
    os.utime(cert, (time.time(), time.time()))
    assert certificates.reload_if_changed()


def test_serve_refuses_them_before_it_listens(tmp_path: Path) -> None:
    app = App(tmp_path, "serve", "--port", "0", "--tls-cert", "absent.pem", data_dir=str(tmp_path))
    try:
        assert app.process.wait(60) == 2
        assert "absent.pem: tls_cert: no such file or directory" in app.log.read_text()
    finally:
        app.stop()
