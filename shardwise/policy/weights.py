"""Files of weights, `shardwise.policy/1`: an .npz with float16 arrays and a description in JSON.

Nothing in a file is unpickled, and what it says of sizes is checked before arrays are made.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.files import write_whole
from shardwise.policy.architecture import SIZES, Size, shapes

SCHEMA = "shardwise.policy/1"
MOST_BYTES = 16 * 2**20
"""The largest file, before and after decompression."""
DESCRIPTION = "description"
"""The array with the JSON text."""
KIND = "a policy's weights (.npz)"


class Description(msgspec.Struct):
    """What a file says of itself: how its weights came to be."""

    schema: str
    size: str
    seed: int
    rounds: int
    families: list[str]
    held_out: list[str]


@dataclass(frozen=True)
class Policy:
    """A network's size and weights, with their description."""

    size: Size
    weights: Mapping[str, NDArray[np.float32]]
    description: Description


def packed(arrays: Mapping[str, NDArray[Any]], description: Any) -> bytes:
    """Returns arrays with a description as the bytes of an .npz; the same bytes for the same."""
    out = io.BytesIO()
    text = np.frombuffer(msgspec.json.encode(description), dtype=np.uint8)
    np.savez(out, **{DESCRIPTION: text}, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def write_policy(policy: Policy, path: str) -> None:
    """Writes a file of weights, whole or not at all. Raises `BadInput` where that cannot be."""
    arrays = {name: array.astype(np.float16) for name, array in policy.weights.items()}
    write_whole(path, packed(arrays, policy.description))


def unpacked(path: str, most_bytes: int, kind: str) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an .npz. Raises `BadInput` for another file, or a larger one."""
    try:
        size = Path(path).stat().st_size
        if size > most_bytes:
            raise _too_large(path, size, most_bytes)
        data = Path(path).read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(reason, file=path, expected=kind) from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            whole = sum(member.file_size for member in members.infolist())
        if whole > most_bytes:
            raise _too_large(path, whole, most_bytes)
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, OSError, NotImplementedError):
        raise BadInput("not an .npz of numbers", file=path, expected=kind) from None


def _too_large(path: str, size: int, most: int) -> BadInput:
    return BadInput(f"{size} bytes", file=path, expected=f"at most {most} bytes")


def described(arrays: dict[str, NDArray[Any]], path: str, schema: str) -> bytes:
    """Removes the JSON text from arrays and returns it.

    Raises `BadInput` where there is none, or it has another schema.
    """
    text = arrays.pop(DESCRIPTION, None)
    if text is None or text.dtype != np.uint8:
        raise BadInput("no description", file=path, field=DESCRIPTION, expected=schema)
    try:
        found = validation.decode_any(text.tobytes())
    except validation.NotJson:
        raise BadInput("not JSON", file=path, field=DESCRIPTION, expected=schema) from None
    own = found.get("schema") if isinstance(found, dict) else None
    if own != schema:
        raise BadInput(f"unknown schema {own!r}", file=path, field="schema", expected=schema)
    return text.tobytes()


def read_policy(path: str) -> Policy:
    """Reads a file of weights.

    Raises `BadInput` for a file that cannot be read, is larger than `MOST_BYTES`, has another
    schema, lacks a parameter or has an unknown one, or one of another shape or dtype.
    """
    arrays = unpacked(path, MOST_BYTES, KIND)
    text = described(arrays, path, SCHEMA)
    description = validation.decode(text, Description, file=path)
    if description.size not in SIZES:
        raise BadInput(
            f"unknown size {description.size!r}",
            file=path,
            field="size",
            expected=", ".join(SIZES),
        )
    size = SIZES[description.size]
    return Policy(size, checked(arrays, size, path, np.float16), description)


def checked(
    arrays: Mapping[str, NDArray[Any]], size: Size, path: str, dtype: Any
) -> dict[str, NDArray[np.float32]]:
    """Returns a network's parameters in float32; raises `BadInput` as `read_policy`."""
    wanted = shapes(size)
    for name in sorted({*wanted, *arrays}):
        if name not in wanted:
            raise BadInput("unknown array", file=path, field=name, expected=f"size {size.name}")
        if name not in arrays:
            raise BadInput("missing", file=path, field=name, expected=f"shape {wanted[name]}")
        array = arrays[name]
        if array.shape != wanted[name] or array.dtype != dtype:
            raise BadInput(
                f"shape {array.shape} of {array.dtype}",
                file=path,
                field=name,
                expected=f"shape {wanted[name]} of {np.dtype(dtype)}",
            )
        if not np.isfinite(array).all():
            raise BadInput("not all finite", file=path, field=name, expected="finite numbers")
    return {name: arrays[name].astype(np.float32) for name in wanted}
