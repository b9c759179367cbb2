"""At which batches and lengths a model is captured to find its symbols.

The widest range is tried first, from 1 to 2^20 samples and from 16 to 2^20 tokens; five captures do
where it holds: the one asked for, two at opposite corners and two at odd sizes between. Where a
capture at a corner has other operators (a window that is longer than the sequence, a broadcast that
a batch of 1 needs not) or is refused (more tokens than positions), the next narrower range is
tried. What depends on a length's divisors (chunks, padding) holds for the captured length alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from shardwise.capture.capture import capture
from shardwise.capture.presets import presets
from shardwise.capture.source import parse_source
from shardwise.capture.symbolic import Sample, symbolic_json
from shardwise.errors import BadInput
from shardwise.graph.graph import Graph
from shardwise.graph.step import step_of
from shardwise.step_sizes import StepSizes, sized, split_sizes

MOST = 2**20
"""The largest batch and length that are tried."""
LEAST_SEQ = 16
BATCHES = (1, 2)
LARGE_BATCHES = (MOST, 2**16, 2**12)
"""The smaller ones where a tensor of the largest could not exist."""
LENGTHS = tuple(2**power for power in range(20, 8, -1))
ODD = ((7, 601), (13, 9973))

_ALIKE = "the same operators at other values"

CaptureAt = Callable[[int, int | None], Graph]
"""Captures a model with a batch and a length, None for the length of the first capture. Raises
`BadInput`."""


def symbols_of(graph: Graph, batch: int, seq: int | None, capture_at: CaptureAt) -> bytes:
    """Returns the document with symbols of a model that was captured with `batch` and `seq`.

    Raises `BadInput` where the graph depends on both in another way than a polynomial's.
    """
    points = _Points(Sample(batch, seq or 0, graph), capture_at)
    if seq is None:
        return symbolic_json(points.of_batches())
    try:
        return symbolic_json(points.of_both())
    except BadInput:
        return symbolic_json(points.of_batches())


def symbolic_of_source(
    source: str, graph: Graph, batch: int | None, seq: int | None, dtype: str | None
) -> bytes | None:
    """Returns the document with symbols of a captured source, which is captured again.

    `batch`, `seq` and `dtype` are as they were given to `capture`. Returns None for a user's
    function, which may make tensors as large as it is asked for, and an ONNX file, whose sizes are
    the user's. Raises `BadInput` where no symbols are found.
    """
    parsed = parse_source(split_sizes(source)[0])
    if parsed.kind in ("callable", "onnx"):
        return None
    named = split_sizes(sized(source, StepSizes(batch, seq)))[1]
    step = step_of(graph)
    preset = presets()[parsed.target] if parsed.origin == "preset" else None
    length = named.seq or (preset.seq if preset else step.seq)
    if step.batch is None:
        raise BadInput("none in the inputs", field="batch", expected="an input with samples")

    def capture_at(samples: int, tokens: int | None) -> Graph:
        return capture(
            parsed.text, batch=samples, seq=tokens or named.seq, dtype=dtype, name=graph.name
        )

    return symbols_of(graph, step.batch, length, capture_at)


class _Points:
    def __init__(self, first: Sample, capture_at: CaptureAt) -> None:
        self._first = first
        self._capture_at = capture_at
        self._known: dict[tuple[int, int], Sample | None] = {(first.batch, first.seq): first}

    def of_both(self) -> list[Sample]:
        """Returns samples over batches and lengths. Raises `BadInput` if lengths have other
        operators."""
        seq = self._first.seq
        long = self._furthest([length for length in LENGTHS if length > seq] + [seq], BATCHES[0])
        shorter = [n + 1 for n in reversed(LENGTHS) if n + 1 < seq]
        short = self._furthest([n for n in (LEAST_SEQ, *shorter) if n < seq] + [seq], MOST)
        few = self._first_alike((batch, long) for batch in BATCHES)
        many = self._first_alike((batch, short) for batch in LARGE_BATCHES)
        if few is None or many is None or short == long:
            raise BadInput("holds for no other length", field="seq", expected=_ALIKE)
        odd = [self._alike(batch, n) for batch, n in self._odd(short, long)]
        if None in odd:
            raise BadInput("depends on its divisors", field="seq", expected=_ALIKE)
        return self._distinct([self._first, few, many, *odd])

    def of_batches(self) -> list[Sample]:
        """Returns samples over batches of the captured length. Raises `BadInput`."""
        seq = self._first.seq
        few = self._first_alike((batch, seq) for batch in BATCHES)
        many = self._first_alike((batch, seq) for batch in LARGE_BATCHES)
        odd = [self._alike(batch, seq) for batch, _ in ODD]
        return self._distinct([self._first, few, many, *odd])

    def _odd(self, least: int, most: int) -> Iterator[tuple[int, int]]:
        """Yields two points of odd lengths within a range, one on each side of the first length
        where there is room."""
        first = self._first.seq
        (few, low), (many, high) = ODD
        yield few, low if least < low < first else max(least, first * 5 // 6) | 1
        yield many, high if first < high < most else max(least, most - 11) | 1

    def _distinct(self, samples: Iterable[Sample | None]) -> list[Sample]:
        if None in samples:
            raise BadInput("holds for no other batch", field="batch", expected=_ALIKE)
        found = {(s.batch, s.seq): s for s in samples if s is not None}
        return list(found.values())

    def _furthest(self, lengths: Sequence[int], batch: int) -> int:
        """Returns the first of the lengths with the operators of the captured one, which is the
        last of them; those behind it are taken to have them, too. The first is tried with
        `batch`."""
        if self._alike(batch, lengths[0]):
            return lengths[0]
        least, most = 0, len(lengths) - 1
        while least < most:
            place = (least + most) // 2
            if self._alike(BATCHES[-1], lengths[place]):
                most = place
            else:
                least = place + 1
        return lengths[most]

    def _first_alike(self, points: Iterable[tuple[int, int]]) -> Sample | None:
        return next(filter(None, (self._alike(*point) for point in points)), None)

    def _alike(self, batch: int, seq: int) -> Sample | None:
        """Returns a capture with the operators of the first one, or None."""
        if (batch, seq) not in self._known:
            try:
                graph = self._capture_at(batch, None if seq == self._first.seq else seq)
            except BadInput:
                graph = None
            if graph is not None and _outline(graph) != _outline(self._first.graph):
                graph = None
            self._known[batch, seq] = None if graph is None else Sample(batch, seq, graph)
        return self._known[batch, seq]


def _outline(graph: Graph) -> tuple[object, ...]:
    return tuple(graph.tensors), tuple((op.name, op.kind) for op in graph.operators)
