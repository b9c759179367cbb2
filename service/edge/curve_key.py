"""The cache key of a curve's query: the same question in another spelling has the same key.

The query is parsed, its names are checked and sorted, and the result is hashed. Hashing costs a
tenth of an answer from memory, so the keys of recent spellings are remembered.
"""

from __future__ import annotations

import hashlib
import re
from sys import getsizeof
from urllib.parse import parse_qsl

import msgspec

from service.edge.curve_forms import BUNDLES, COUNTS, CURVE, SCHEDULES, SPACE, STAGES
from service.edge.curve_forms import NAMES as FORM_NAMES
from shardwise.cost.named_options import NAMES, NUMBERS, PINS
from shardwise.step_sizes import NAMES as SIZES

MOST_BYTES = 4096
MOST_FIELDS = 100
"""Bounds of a query that is cached; a larger one is answered from the database each time."""
MOST_REMEMBERED_BYTES = 512
SPELLING_BYTES = 150
"""A remembered spelling without its texts: its slots in a table that is half empty."""
PART = 16
"""One part in this many of the cache's bytes is for spellings."""

_KNOWN = frozenset(
    (
        *NAMES,
        *SIZES,
        "graph",
        "hardware",
        "max_gpus",
        COUNTS,
        SPACE,
        BUNDLES,
        STAGES,
        SCHEDULES,
        *FORM_NAMES,
    )
)
_SEVERAL = frozenset((*NUMBERS, PINS, BUNDLES))
_PRIORITY = re.compile(r"-?(10|[0-9])")
_FORM_OPTIONS = frozenset(name for name in FORM_NAMES if name != "format")


def digest_of(query: bytes) -> bytes | None:
    """Returns the key of a query, 32 bytes; None if its answer is not to be cached.

    Not cached are queries with unknown names, with a single-valued name twice, or too long.
    """
    if len(query) > MOST_BYTES:
        return None
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS
        )
    except ValueError:
        return None
    # The priority only matters to a job that has to be computed; the answer is the same.
    pairs = [pair for pair in pairs if pair[0] != "priority" or not _PRIORITY.fullmatch(pair[1])]
    names = [name for name, _ in pairs]
    once = [name for name in names if name not in _SEVERAL]
    if not _KNOWN.issuperset(names) or len(set(once)) < len(once):
        return None
    if dict(pairs).get("format", CURVE) == CURVE and not _FORM_OPTIONS.isdisjoint(names):
        return None
    bundles = sorted({_spelled(value) for name, value in pairs if name == BUNDLES})
    pairs = [pair for pair in pairs if pair[0] != BUNDLES]
    pairs += [(BUNDLES, bundle) for bundle in bundles]
    pairs.sort(key=lambda pair: pair[0])
    return hashlib.blake2b(msgspec.json.encode(pairs), digest_size=32).digest()


def _spelled(bundle: str) -> str:
    """Returns a bundle with its groups in one order: the answer is the same for all."""
    return ",".join(sorted(part.strip() for part in bundle.split(",")))


class CurveKeys:
    """Keys of queries; recent spellings are remembered within `limit_bytes`, oldest evicted first.

    Belongs to one event loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._size = 0
        self._known: dict[bytes, bytes] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes in use."""
        return self._size

    def of(self, query: bytes) -> bytes | None:
        """Returns the key of a raw query, as `digest_of` does."""
        digest = self._known.get(query)
        if digest is None:
            digest = digest_of(query)
            if digest is not None and len(query) <= MOST_REMEMBERED_BYTES:
                self._remember(query, digest)
        return digest

    def _remember(self, query: bytes, digest: bytes) -> None:
        self._known[query] = digest
        self._size += _size(query, digest)
        while self._size > self._limit:
            oldest = next(iter(self._known))
            self._size -= _size(oldest, self._known.pop(oldest))


def _size(query: bytes, digest: bytes) -> int:
    return SPELLING_BYTES + getsizeof(query) + getsizeof(digest)
