"""Files: read within a limit, written whole or not at all."""

from __future__ import annotations

import codecs
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shardwise.errors import BadInput

DATA = Path(__file__).resolve().parent / "data"
"""What is shipped: graphs, profiles, tables."""

MAX_FILE_BYTES = 256 * 2**20
"""Largest file that is read, before and after decompression, in bytes."""

LIMIT_VARIABLE = "SHARDWISE_MAX_FILE_BYTES"
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 2**20


def max_file_bytes() -> int:
    """Returns the limit in force: `SHARDWISE_MAX_FILE_BYTES`, else `MAX_FILE_BYTES`."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return MAX_FILE_BYTES
    if not text.isdecimal() or int(text) == 0:
        raise BadInput(
            f"{text!r} is not a limit", field=LIMIT_VARIABLE, expected="a number of bytes"
        )
    return int(text)


def read_bounded(path: str | os.PathLike[str], kind: str, most: int | None = None) -> bytes:
    """Returns the content of a file, decompressed; `kind` says in errors what was expected.

    `most` is a limit in bytes below that of all files. Raises `BadInput` for a file that cannot be
    read or is above the limit.
    """
    file = os.fspath(path)
    limit = max_file_bytes()
    expected = f"at most {limit} bytes; {LIMIT_VARIABLE} raises the limit"
    if most is not None and most < limit:
        limit, expected = most, f"at most {most} bytes: {kind}"
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise BadInput(f"the file has {size} bytes", file=file, expected=expected)
            # Asks for one byte over the limit: the size of a pipe is not known beforehand.
            data = stream.read(limit + 1)
    except OSError as error:
        raise BadInput(_reason(error), file=file, expected=kind) from None
    if data.startswith(_GZIP_MAGIC):
        data = _decompress(data, limit, file)
    if len(data) > limit:
        raise BadInput(f"more than {limit} bytes", file=file, expected=expected)
    return data.removeprefix(codecs.BOM_UTF8)  # some editors of Windows write it


def _decompress(data: bytes, limit: int, file: str) -> bytes:
    """Returns at most `limit` + 1 bytes of a gzip file of one or more members."""
    parts: list[bytes] = []
    total = 0
    rest = data
    try:
        while rest.startswith(_GZIP_MAGIC) and total <= limit:
            inflate = zlib.decompressobj(wbits=31)
            while not inflate.eof and total <= limit:
                part = inflate.decompress(rest, min(_CHUNK_BYTES, limit + 1 - total))
                if not part and not inflate.eof:
                    raise BadInput(
                        "the gzip data ends early", file=file, expected="a whole gzip file"
                    )
                parts.append(part)
                total += len(part)
                rest = inflate.unconsumed_tail
            rest = inflate.unused_data
    except zlib.error as error:
        raise BadInput(
            f"broken gzip data: {error}", file=file, expected="a whole gzip file"
        ) from None
    return b"".join(parts)


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file that appears under its name only when it is complete.

    Raises `BadInput` if the folder cannot be written.
    """
    try:
        _write_atomically(Path(path), data)
    except OSError as error:
        raise BadInput(
            _reason(error), file=os.fspath(path), expected="a file that can be written"
        ) from None


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a file that only its owner may read; it is renamed to `path` at the end.

    Raises `BadInput` if it cannot be written; then there is no file, or the old one.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as out:
                yield out
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(_reason(error), file=str(path), expected="a file that can be read") from None


def _write_atomically(target: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files that only their owner may read; a graph is not a secret.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
