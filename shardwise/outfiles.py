"""Files that commands write: refused before the work where possible, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.files import write_whole


def check_output(path: str | None, field: str = "output") -> None:
    """Raises `BadInput` for an output that could not be written, before the work is done."""
    if path is None:
        return
    if not path or "\0" in path:
        raise BadInput(
            f"{path!r} is not a file name", field=field, expected="the name of a file to write"
        )
    target = Path(path)
    if target.is_dir():
        raise BadInput("is a directory", file=path, field=field, expected="a file name")
    # A file appears under its name by renaming, which would replace /dev/null or a pipe.
    if target.exists() and not target.is_file():
        raise BadInput("not a regular file", file=path, field=field, expected="a file name")
    folder = target.parent
    if not folder.is_dir():
        raise BadInput(
            "no such folder", file=str(folder), field=field, expected="a folder that exists"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(
            "the folder cannot be written",
            file=str(folder),
            field=field,
            expected="a folder that you may write to",
        )


@contextmanager
def written(path: str) -> Iterator[Path]:
    """Yields a temporary path that becomes `path` when the block succeeds, whole or not at all."""
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        # The system names the temporary file, which the user does not know.
        reason = (error.strerror or str(error)).lower()
        raise BadInput(reason, file=path, expected="a file that can be written") from None


def write_json(document: Any, path: str) -> None:
    """Writes a document, whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
