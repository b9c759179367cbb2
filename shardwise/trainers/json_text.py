"""JSON as DeepSpeed reads it: with comments and commas before a closing bracket (Hjson)."""

from __future__ import annotations

import json
import re
from typing import Any

from shardwise.errors import BadInput
from shardwise.validation import unique_members

_LENIENT = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*+"?)|//[^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z)""", re.DOTALL | re.VERBOSE
)
_COMMA = re.compile(r"""(?P<text>"(?:[^"\\]|\\.)*+"?)|,(?=[ \t\r\n]*+[}\]])""", re.DOTALL)
_BEGIN = re.compile(r"\s*+(?:(?://[^\n]*+|/\*.*?\*/)\s*+)*+\{", re.DOTALL)


def read_json(text: str, expected: str) -> dict[str, Any] | None:
    """Returns the object of a JSON text, None for a text that does not begin as one.

    Raises `BadInput` for broken JSON, and for keys that occur twice, as DeepSpeed does.
    """
    if not _BEGIN.match(text):
        return None
    try:
        return _decoded(text)
    except json.JSONDecodeError:
        pass
    except (ValueError, RecursionError) as error:
        raise _broken(error, expected) from None
    plain = _COMMA.sub(_kept, _LENIENT.sub(_kept, text))
    try:
        return _decoded(plain)
    except (ValueError, RecursionError) as error:
        raise _broken(error, expected) from None


def _decoded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text, object_pairs_hook=unique_members)
    return found


def _kept(match: re.Match[str]) -> str:
    """Returns a string as it is, and the line breaks of anything else, so that lines count on."""
    return match["text"] or "\n" * match[0].count("\n")


def _broken(error: Exception, expected: str) -> BadInput:
    return BadInput(f"broken JSON: {error!s:.80}", expected=expected)
