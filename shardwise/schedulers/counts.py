"""What a scheduler needs of a curve: the GPU counts that fit, and nothing else.

A `shardwise.curve/1` document has a point for every count from 1 on, those that do not fit among
them. `Counts` keeps those that fit, with the time by which the curve ranks them, so that no
exporter can name another one by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from msgspec import to_builtins

from shardwise.documents import Curve, schema_of
from shardwise.errors import BadInput, NotFound

CURVE_SCHEMA = schema_of(Curve)
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Count:
    """A number of GPUs on which the job fits: seconds of one step, on as few nodes as hold it."""

    gpus: int
    nodes: int
    step_s: float

    @property
    def even(self) -> bool:
        """Whether every node has as many GPUs: launchers that start nodes alike need that."""
        return self.gpus % self.nodes == 0

    @property
    def per_node(self) -> int:
        """GPUs of each node; the most of one node where they differ."""
        return -(-self.gpus // self.nodes)


@dataclass(frozen=True)
class Counts:
    """The counts of one job on one kind of GPU, ascending; never empty.

    `samples` is what one step takes in (the batch size), 1 where that is not known: then rates
    are steps per second. `node_gpus` is the most GPUs of one node that the curve saw.
    """

    name: str
    hardware: str
    gpu_type: str
    samples: int
    batch_known: bool
    max_gpus: int
    node_gpus: int
    counts: tuple[Count, ...]

    @classmethod
    def of(cls, curve: Curve | Mapping[str, Any], gpu_type: str | None = None) -> Counts:
        """Returns the counts of a `shardwise.curve/1` document.

        Raises `BadInput` naming the field if it is not such a document, or one over bundles of
        devices, `NotFound` with the curve's own reason when nothing fits.
        """
        document = curve_document(curve)
        points = points_of(document)
        ranked = "replayed_time_s" if document.get("overlap") else "time_s"
        counts = [_count(p, i, ranked) for i, p in enumerate(points) if _fits(p, i)]
        if not counts:
            reason = next((str(p["reason"]) for p in points[::-1] if p.get("reason")), "")
            raise NotFound(
                f"nothing fits on up to {len(points)} GPUs" + (f": {reason}" if reason else "")
            )
        hardware = str(document.get("hardware") or "hardware")
        batch = document.get("batch_size")
        inside = [p["gpus"] for p in points if p.get("nodes") == 1]
        return cls(
            name=str(document.get("graph_name") or "job"),
            hardware=hardware,
            gpu_type=gpu_type or accelerator(hardware),
            samples=batch if isinstance(batch, int) and batch > 0 else 1,
            batch_known=isinstance(batch, int) and batch > 0,
            max_gpus=max(int(p["gpus"]) for p in points),
            node_gpus=max(inside, default=1),
            counts=tuple(sorted(counts, key=lambda count: count.gpus)),
        )

    def rate(self, count: Count) -> float:
        """Returns samples per second (steps per second where the batch size is not known)."""
        return self.samples / count.step_s

    @property
    def smallest(self) -> Count:
        """The fewest GPUs on which the job fits."""
        return self.counts[0]

    def even(self) -> Counts:
        """Returns the counts whose nodes have as many GPUs each. Raises `NotFound` without any."""
        return self._only([c for c in self.counts if c.even], "with as many GPUs on every node")

    def on_nodes_of(self, sizes: Collection[int]) -> Counts:
        """Returns even counts with one of these GPUs per node. Raises `NotFound` without any."""
        some = [c for c in self.counts if c.even and c.per_node in sizes]
        return self._only(some, f"on nodes of {', '.join(map(str, sizes))} GPUs")

    def up_to(self, gpus: int) -> Counts:
        """Returns the counts up to `gpus`. Raises `NotFound` without any."""
        return self._only([c for c in self.counts if c.gpus <= gpus], f"up to {gpus} GPUs")

    def best(self, efficiency: float = 0.0) -> Count:
        """Returns the fastest count (of equals the smallest) that uses its GPUs well enough.

        `efficiency`, 0 to 1: a count's rate per GPU over the best rate per GPU of all counts is at
        least this. 0 is the fastest of all, 1 the count with the best rate per GPU.
        """
        if not 0 <= efficiency <= 1:
            raise BadInput(f"got {efficiency}", field="efficiency", expected="a number from 0 to 1")
        most = max(1 / (c.step_s * c.gpus) for c in self.counts)
        good = [c for c in self.counts if 1 / (c.step_s * c.gpus) >= efficiency * most]
        return min(good, key=lambda c: (c.step_s, c.gpus))

    def run_below(self, top: Count, step: int = 1) -> tuple[Count, ...]:
        """Returns the counts `top`, `top` − `step`, … down to one that does not fit; ascending.

        A scheduler that picks any number between two bounds may be given only such a run.
        """
        by_gpus = {c.gpus: c for c in self.counts}
        run = []
        gpus = top.gpus
        while gpus in by_gpus:
            run.append(by_gpus[gpus])
            gpus -= step
        return tuple(reversed(run))

    def _only(self, counts: list[Count], what: str) -> Counts:
        if not counts:
            raise NotFound(f"{self.name} on {self.hardware}: nothing fits {what}")
        return replace(self, counts=tuple(counts))


def curve_document(curve: Curve | Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a curve as JSON has it."""
    return to_builtins(curve) if isinstance(curve, Curve) else curve


def points_of(document: Mapping[str, Any]) -> list[Any]:
    """Returns the points of a `shardwise.curve/1` document, at least one.

    Raises `BadInput` naming the field if it is not such a document.
    """
    if document.get("schema") != CURVE_SCHEMA:
        raise BadInput(
            f"got {str(document.get('schema'))[:60]!r}", field="schema", expected=CURVE_SCHEMA
        )
    points = document.get("points")
    if not isinstance(points, list) or not 0 < len(points) <= MOST_POINTS:
        raise BadInput("no list of points", field="points", expected="the points of a curve")
    return points


@cache
def accelerator(hardware: str) -> str:
    """Returns what clouds call this hardware's GPU (`V100`).

    Without an offer it is the hardware's own name.
    """
    from shardwise.hardware import read_offers

    return next((o.gpu_kind for o in read_offers() if o.hardware == hardware), hardware)


def _fits(point: Any, number: int) -> bool:
    if not isinstance(point, dict) or not isinstance(point.get("gpus"), int) or point["gpus"] < 1:
        raise BadInput("no GPU count", field=f"points[{number}].gpus", expected="a whole number")
    if point.get("bundle"):
        raise BadInput(
            f"got {str(point['bundle'])[:80]!r}",
            field=f"points[{number}].bundle",
            expected="a number of like GPUs: this reads curves over counts, not over bundles",
        )
    return bool(point.get("feasible")) or _pipeline(point, number) is not None


def _pipeline(point: Mapping[str, Any], number: int) -> Mapping[str, Any] | None:
    """Returns the pipeline that is a point's fastest, None where none is."""
    pipeline = point.get("pipeline")
    if pipeline is None or isinstance(pipeline, dict):
        return pipeline
    raise BadInput(
        f"got {str(pipeline)[:80]!r}",
        field=f"points[{number}].pipeline",
        expected="a pipeline's step, or none",
    )


def _count(point: Mapping[str, Any], number: int, ranked: str) -> Count:
    pipeline, nodes = _pipeline(point, number), point.get("nodes") or 1
    if pipeline is not None:
        ranked = "pipeline.step_s"
    step_s = point.get(ranked) if pipeline is None else pipeline.get("step_s")
    if not isinstance(step_s, int | float) or not 0 < step_s < float("inf"):
        raise BadInput(f"got {step_s!r}", field=f"points[{number}].{ranked}", expected="seconds")
    if not isinstance(nodes, int) or not 1 <= nodes <= point["gpus"]:
        raise BadInput(f"got {nodes!r}", field=f"points[{number}].nodes", expected="1 to gpus")
    return Count(point["gpus"], nodes, float(step_s))
