"""A tar.gz that is sent while it is written: one file in memory at a time."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SEND_BYTES = 256 * 1024
"""Compressed bytes that are collected before they are sent."""

_GZIP = 31
"""zlib's window bits for gzip's own header and checksum."""


@dataclass(frozen=True)
class File:
    """One file of an archive."""

    name: str
    content: bytes


def tar_gz(files: Iterable[File], at: float) -> Iterator[bytes]:
    """Yields the archive of these files in pieces; `at` is the modification time of all.

    An archive that is cut off, because a file could not be written, is not a valid gzip.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    piece = bytearray()
    for file in files:
        piece += packer.compress(_header(file, at))
        piece += packer.compress(file.content)
        piece += packer.compress(b"\0" * (-len(file.content) % tarfile.BLOCKSIZE))
        if len(piece) >= SEND_BYTES:
            yield bytes(piece)
            piece.clear()
    piece += packer.compress(b"\0" * (2 * tarfile.BLOCKSIZE))
    piece += packer.flush()
    yield bytes(piece)


def read_files(content: bytes) -> dict[str, bytes]:
    """Returns the files of a small archive by name, for tests and scripts."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        files = {}
        for member in archive:
            file = archive.extractfile(member)
            files[member.name] = b"" if file is None else file.read()
    return files


def _header(file: File, at: float) -> bytes:
    info = tarfile.TarInfo(file.name)
    info.size = len(file.content)
    info.mtime = int(at)
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)
