"""Counts that do not fit, as ranges with the nearest miss."""

from __future__ import annotations

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from harness.answers import curve, quote
from shardwise.answers import Options
from shardwise.answers.ranges import range_text, ranges_that_do_not_fit
from shardwise.capture import shipped_graph
from shardwise.documents import CurvePoint
from shardwise.documents.curve import DoesNotFit
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware, read_offers

GIB = 2**30
LIMIT = 72.7 * GIB


def point(gpus: int, need: float | str | None) -> CurvePoint:
    """A count that fits (None), needs this many GiB, or was not searched for this reason."""
    base = CurvePoint(
        gpus, 1, need is None, None, None, None, None, None, None, None, "", best_gpus=None
    )
    if need is None:
        return base
    if isinstance(need, str):
        return replace(base, reason=need)
    return replace(base, reason=f"needs {need}", least_bytes=round(need * GIB))


@pytest.mark.parametrize(
    ("needs", "lines"),
    [
        ([None, None], []),
        ([180.0, 89.7, None], ["1 to 2 GPUs: do not fit; 2 need 89.7 of 72.7 GiB"]),
        ([89.7, None], ["1 GPU: does not fit; needs 89.7 of 72.7 GiB"]),
        (
            [180.0, None, 80.0, 90.0, None, 75.0],
            [
                "1 GPU: does not fit; needs 180.0 of 72.7 GiB",
                "3 to 4 GPUs: do not fit; 3 need 80.0 of 72.7 GiB",
                "6 GPUs: do not fit; need 75.0 of 72.7 GiB",
            ],
        ),
        (
            [80.0, 90.0, "x has 2 devices, not 3", "x has 2 devices, not 4"],
            [
                "1 to 2 GPUs: do not fit; 1 needs 80.0 of 72.7 GiB",
                "3 to 4 GPUs: x has 2 devices, not 3",
            ],
        ),
        ([72.71, None], ["1 GPU: does not fit; needs 72.71 of 72.70 GiB"]),
    ],
)
def test_ranges(needs: list[float | str | None], lines: list[str]) -> None:
    points = [point(gpus, need) for gpus, need in enumerate(needs, start=1)]
    found = ranges_that_do_not_fit(points, LIMIT)
    assert [range_text(of) for of in found] == lines
    counts = [n for of in found for n in range(of.first, of.last + 1)]
    assert counts == [p.gpus for p in points if not p.feasible]


def test_the_reason_is_that_of_the_nearest_count() -> None:
    [of] = ranges_that_do_not_fit([point(1, 100.0), point(2, 80.0), point(3, 90.0)], LIMIT)
    assert of == DoesNotFit(1, 3, 2, round(80 * GIB), round(LIMIT), "needs 80.0")


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    return read_graph(shipped_graph("vgg16"))


def test_a_curve_has_them_beside_its_points(vgg16: Graph) -> None:
    options = Options(overlap=False, memory_limit_bytes=6e9)
    document = curve(vgg16, load_hardware("p2.8xlarge*1"), 10, options)
    points = document["points"]
    counts = [n for of in document["does_not_fit"] for n in range(of["first"], of["last"] + 1)]
    assert counts == [p["gpus"] for p in points if not p["feasible"]]
    memory, devices = document["does_not_fit"]
    assert (memory["first"], memory["limit_bytes"]) == (1, 6_000_000_000)
    nearest = points[memory["nearest_gpus"] - 1]
    assert memory["least_bytes"] == nearest["least_bytes"] > memory["limit_bytes"]
    assert f"{memory['least_bytes'] / GIB:.1f} GiB" in nearest["reason"]
    assert (devices["first"], devices["last"], devices["nearest_gpus"]) == (9, 10, None)
    assert devices["reason"] == "p2.8xlarge has 8 devices (1 nodes of 8), not 9"
    for p in points:
        assert ("least_bytes" in p) == (not p["feasible"] and p["gpus"] <= 8)


def test_an_offer_on_which_nothing_fits_has_its_counts(vgg16: Graph) -> None:
    offers = [o for o in read_offers() if o.instance_type == "p3.16xlarge" and not o.spot][:1]
    options = Options(overlap=False, memory_limit_bytes=1e8)
    [row] = quote(vgg16, offers, max_instances=2, options=options)["not_offered"]
    [of] = row["does_not_fit"]
    assert (of["first"], of["last"], of["limit_bytes"]) == (8, 16, 100_000_000)
    assert row["reason"].startswith("8 to 16 GPUs: do not fit; 16 need ")


def test_what_is_not_searched_has_no_figures() -> None:
    assert point(1, "no").least_bytes is UNSET
    [of] = ranges_that_do_not_fit([point(1, "no")], LIMIT)
    assert (of.nearest_gpus, of.least_bytes, of.limit_bytes) == (None, None, None)
