"""Guards calls into foreign code: a user's model, transformers, torch.export.

Such code may raise anything. Whatever it raises reaches the user as one CaptureError that says what
was being done, where in the model it happened and what may help.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from shardwise.errors import CaptureError, ShardwiseError

_HINTS = (
    (
        r"data.?dependent|unbacked|\.item\(\)|GuardOnDataDependent|local_scalar_dense|nonzero",
        "remove the control flow or the shape that depends on tensor values; for transformers "
        "models try attn_implementation=eager or experts_implementation=batched_mm",
    ),
    (
        r"meta tensor|meta device|aten::\S+.*'Meta'|no meta|fake impl|register_fake",
        "register a fake implementation of that operator (torch.library.register_fake)",
    ),
    (r"scaled_dot_product|flash", "try attn_implementation=eager"),
    (r"out of memory|MemoryError", "build the module without weights, on the meta device"),
)
_OPERATOR = re.compile(r"\b(?:torch\.ops\.)?(aten(?:\.|::)[\w.]+|[a-z]\w*::\w+(?:\.\w+)?)")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/shardwise/capture/", "<")
_MODELS = ("/transformers/models/", "/diffusers/models/")
_LONGEST = 300


class foreign_code:
    """Turns every exception of the block into a CaptureError that starts with `doing`.

    Redirects what the block prints to stderr: stdout is reserved for results.
    """

    def __init__(self, doing: str, *, source: str | None = None) -> None:
        self._doing = doing
        self._source = source
        self._printing = contextlib.redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        self._printing.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._printing.__exit__(kind, error, trace)
        # A model's file may call sys.exit; a user's Ctrl-C passes through.
        if not isinstance(error, Exception | SystemExit) or isinstance(error, ShardwiseError):
            return
        message = " ".join(str(error).split("\n\n")[0].split())[:_LONGEST]
        text = str(error)
        parts = [f"{self._doing}: {type(error).__name__}"]
        if message:
            parts[0] += f": {message}"
        operator = _OPERATOR.search(text)
        if operator and operator[1] not in message:
            parts.append(f"operator {operator[1]}")
        line = _user_line(error)
        if line:
            parts.append(f"at {line}")
        hint = next((hint for pattern, hint in _HINTS if re.search(pattern, text, re.I)), None)
        raise CaptureError("; ".join(parts), file=self._source, expected=hint) from None


def _user_line(error: BaseException) -> str | None:
    """Returns the innermost line of the model's own code, as `file.py:12: y = x.nonzero()`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in _LIBRARIES)]
    model = [f for f in frames if any(part in f.filename for part in _MODELS)]
    for frame in (*own[::-1], *model[::-1]):
        name = frame.filename.rpartition("/")[2]
        return f"{name}:{frame.lineno}: {(frame.line or '').strip()[:120]}"
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences libraries: when an export fails, torch prints whole graphs before the error."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
