"""Signatures of webhooks as Standard Webhooks specifies them, and the secrets that make them.

    secret = HMAC-SHA256(key, "shardwise webhook secret" ‖ 0 ‖ salt)
    signature = HMAC-SHA256(secret, id ‖ "." ‖ timestamp ‖ "." ‖ body)

`key` is the operator's (`SHARDWISE_WEBHOOK_KEY`) and never in the database, `salt` is in
the webhook's row. So no secret is stored, neither plain nor encrypted, and a reader of the database
or a backup cannot sign.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from service.base.settings import Settings
from shardwise.errors import BadInput

KEY_FILE = "webhook.key"
_PURPOSE = b"shardwise webhook secret\0"


def secret_of(key: bytes, salt: str) -> bytes:
    """Returns the secret of the webhook with this salt."""
    return hmac.digest(key, _PURPOSE + bytes.fromhex(salt), "sha256")


def shown(secret: bytes) -> str:
    """Returns a secret as receivers are given it, `whsec_…`."""
    return "whsec_" + base64.b64encode(secret).decode()


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Returns the header `webhook-signature`, `v1,…`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


@dataclass(frozen=True)
class Keyring:
    """The operator's keys by their fingerprints; the first makes new secrets, all of them sign."""

    keys: dict[str, bytes]

    def newest(self) -> str | None:
        """Returns the fingerprint of the key for new webhooks; None if there is no key."""
        return next(iter(self.keys), None)

    def secret(self, fingerprint: str, salt: str) -> bytes:
        """Returns the secret that a row's fingerprint and salt make."""
        return secret_of(self.keys[fingerprint], salt)


def fingerprint_of(key: bytes) -> str:
    """Returns how a row names the key that it needs; the key cannot be derived from it."""
    return hashlib.sha256(b"shardwise webhook key\0" + key).hexdigest()[:16]


def keyring(settings: Settings, *, make: bool = False) -> Keyring:
    """Returns the keys in force, none if webhooks are not set up.

    The embedded mode keeps a key in its folder; with `make` it is written if it is missing. Raises
    `BadInput` when that file cannot be read or written.
    """
    text = settings.webhook_key
    if not text and not settings.database_url:
        text = _of_folder(settings.folder / KEY_FILE, make)
    keys = [part.strip().encode() for part in text.split(",") if part.strip()]
    return Keyring({fingerprint_of(key): key for key in keys})


def _of_folder(path: Path, make: bool) -> str:
    try:
        if make and not path.exists():
            _write_once(path, secrets.token_hex(32))
        return path.read_text("ascii").strip() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(
            reason.lower(),
            file=str(path),
            field="webhook_key",
            expected="a file that the service can read",
        ) from None


def _write_once(path: Path, text: str) -> None:
    """Writes the file as a whole, only if it does not exist."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
        os.link(part, path)
    except FileExistsError:
        return
    finally:
        part.unlink(missing_ok=True)
