"""What an image's layers hold: their compressed size and their files."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

PIECE = 1 << 20
"""Bytes read at a time."""


@contextmanager
def _saved(image: str) -> Iterator[tarfile.TarFile]:
    process = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            yield archive
            # The engine writes on until its end.
            while process.stdout.read(PIECE):
                pass
    finally:
        process.stdout.close()
        failed = process.wait()
    if failed:
        raise subprocess.CalledProcessError(failed, ["docker", "save", image])


def _layers(image: str) -> Iterator[IO[bytes]]:
    with _saved(image) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is None:
                continue
            # Engines before 25 name layers; later ones name all by digest, and the rest is JSON.
            peeked = io.BufferedReader(_Raw(stream), PIECE)
            named = member.name.endswith("/layer.tar")
            blob = member.name.startswith("blobs/") and not peeked.peek(1).startswith(b"{")
            if named or blob:
                yield peeked


def compressed_bytes(image: str) -> list[int]:
    """Returns the size of each layer as a registry would keep it: gzip's, at level 6."""
    sizes = []
    for stream in _layers(image):
        packer = zlib.compressobj(6, wbits=31)
        size = 0
        while piece := stream.read(PIECE):
            size += len(packer.compress(piece))
        sizes.append(size + len(packer.flush()))
    return sizes


def files(image: str) -> Iterator[tuple[str, bytes]]:
    """Gives the path and the content of every file of every layer, deleted ones too."""
    for stream in _layers(image):
        with tarfile.open(fileobj=stream, mode="r|") as layer:
            for member in layer:
                content = layer.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name, content.read()


def configuration(image: str) -> str:
    """Returns the image's configuration and history as text: what a registry would show."""
    parts = [
        subprocess.run(
            ["docker", *arguments, image], capture_output=True, text=True, check=True
        ).stdout
        for arguments in (["image", "inspect"], ["history", "--no-trunc"])
    ]
    return json.dumps(json.loads(parts[0])) + parts[1]


class _Raw(io.RawIOBase):
    """A member of an archive as a stream that cannot seek."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._stream.read(len(view))
        view[: len(data)] = data
        return len(data)
