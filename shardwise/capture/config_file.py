"""A config.json on this machine, of transformers or diffusers: its fields, read within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.capture.torch_extra import DTYPES
from shardwise.errors import BadInput, CaptureError
from shardwise.files import read_bounded

MAX_CONFIG_BYTES = 16 * 2**20
"""Largest config.json that is read; the largest published ones list thousands of labels."""


def read_fields(path: Path, kind: str) -> dict[str, Any]:
    """Returns the fields of a config.json; `kind` says in errors what was expected.

    Raises CaptureError that names the file.
    """
    file = str(path)
    try:
        data = read_bounded(path, kind, MAX_CONFIG_BYTES)
    except BadInput as error:
        raise CaptureError(error.problem, file=file, expected=error.expected) from None
    try:
        # transformers writes Infinity and NaN, which JSON does not have.
        document = json.loads(data)
    except RecursionError:
        raise CaptureError("nested too deeply", file=file, expected=kind) from None
    except ValueError as error:
        raise CaptureError(f"not JSON: {error!s:.80}", file=file, expected=kind) from None
    if not isinstance(document, dict):
        raise CaptureError("not a JSON object", file=file, expected=kind)
    return document


def dtype_of(fields: Mapping[str, Any], file: str) -> str | None:
    """Returns the dtype that a config.json states; raises CaptureError for an unknown one."""
    for key in ("dtype", "torch_dtype"):
        value = fields.get(key)
        if value is None:
            continue
        name = str(value).removeprefix("torch.")
        if name not in DTYPES:
            raise CaptureError(
                f"unknown dtype {value!r}", file=file, field=key, expected=", ".join(DTYPES)
            )
        return DTYPES[name]
    return None
