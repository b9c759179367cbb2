"""The certificate that `serve` presents, reloaded when its files change."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

from service.base.settings import Settings
from shardwise.errors import BadInput

log = logging.getLogger(__name__)
CHECK_EVERY_S = 2.0


class Certificates:
    """Holds the context for new connections; those that are open keep theirs."""

    def __init__(self, cert: str, key: str = "", client_ca: str = "") -> None:
        """Reads the files. Raises `BadInput` with file and field."""
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._stamp = self._file_stamps()
        self.context = _context(cert, key, client_ca)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Checks for changed files until `stop`, in a thread because the disk may hang."""
        self._thread = threading.Thread(target=self._watch, name="certificates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the checks."""
        self._stopping.set()

    def reload_if_changed(self) -> bool:
        """Reads changed files; logs those that cannot be used and keeps the previous context.

        Returns True if there is a new context.
        """
        stamp = self._file_stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.context = _context(self._cert, self._key, self._client_ca)
        except BadInput as error:
            log.error("the certificate is not replaced: %s", error)
            return False
        log.info("the certificate was replaced", extra={"file": self._cert})
        return True

    def _watch(self) -> None:
        while not self._stopping.wait(CHECK_EVERY_S):
            self.reload_if_changed()

    def _file_stamps(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in (self._cert, self._key, self._client_ca) if path)


def certificates_of(settings: Settings) -> Certificates | None:
    """Returns the certificates of the settings; None without TLS. Raises `BadInput`."""
    if settings.tls_cert:
        return Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name):
            raise BadInput("set without a certificate", field=name, expected="tls_cert as well")
    return None


def _stamp(path: str) -> object:
    try:
        status = Path(path).stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino


def _context(cert: str, key: str, client_ca: str) -> ssl.SSLContext:
    chain = _pem(cert, "tls_cert", "CERTIFICATE-----")
    own = _pem(key or cert, "tls_key", "PRIVATE KEY-----")
    if "ENCRYPTED" in own:
        raise BadInput(
            "the key is encrypted", file=key or cert, field="tls_key", expected="no passphrase"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _require_certificates(chain, cert, "tls_cert")
    try:
        context.load_cert_chain(cert, key or None, password=lambda: "")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", "") or ""
        if "MISMATCH" in reason:
            problem = "the key is not the certificate's"
        else:
            problem = f"cannot be used: {(reason or str(error)).lower().replace('_', ' ')}"
        raise BadInput(
            problem, file=key or cert, field="tls_key", expected="the PEM key of tls_cert"
        ) from None
    if client_ca:
        authorities = _pem(client_ca, "tls_client_ca", "CERTIFICATE-----")
        _require_certificates(authorities, client_ca, "tls_client_ca")
        context.load_verify_locations(cadata=authorities)
        # Asked for, not demanded: agents and people come with keys.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _pem(path: str, field: str, mark: str) -> str:
    try:
        text = Path(path).read_text("ascii", errors="replace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(reason, file=path, field=field, expected="a PEM file") from None
    if mark not in text:
        expected = "-----BEGIN " + mark
        raise BadInput("missing", file=path, field=field, expected=f"a PEM file with {expected}")
    return text


def _require_certificates(text: str, path: str, field: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise BadInput(
            "not a certificate that can be read", file=path, field=field, expected="a PEM file"
        ) from None
