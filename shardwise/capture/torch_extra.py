"""The extras with torch and with models: looked up only when something is captured."""

from __future__ import annotations

import importlib.util
from typing import Any

from shardwise.errors import CaptureError

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float64": "float64",
    "fp64": "float64",
}
"""Accepted names of parameter dtypes, and the dtype of each."""


EXTRAS = {"torch": "torch", "timm": "models", "transformers": "models", "diffusers": "models"}
"""Packages that captures need, and the extra of each."""


def require(package: str = "torch", *, extra: str | None = None) -> None:
    """Raises CaptureError unless `package`, one of `EXTRAS`, is installed.

    `extra` is the one to install where the capture needs more than the package's own.
    """
    if importlib.util.find_spec(package) is None:
        raise CaptureError(
            f"capturing needs {package}, which is not installed",
            expected=f"pip install 'shardwise[{extra or EXTRAS[package]}]'",
        )


def torch_dtype(name: str) -> Any:
    """Returns the torch.dtype that a user calls `name`."""
    import torch

    if name not in DTYPES:
        raise CaptureError(
            f"unknown dtype {name!r}", field="dtype", expected=", ".join(sorted(DTYPES))
        )
    return getattr(torch, DTYPES[name])
