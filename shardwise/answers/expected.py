"""Ranges around a prediction, from the errors of published steps.

Of every GPU that published steps were measured on, shardwise/data/expected.csv has by what factors
these took longer, and needed more memory, than predicted (docs/accuracy.md): with a pipeline and
without one, the lowest and the highest factor but for the share in `TAILS` at either end, where the
steps of every project weigh the same. The tails are such that of the steps of a project that is
left out about four fifths lie within the factors of all others; tools/expected_errors.py makes the
table and prints these shares.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from shardwise.cost.options import Options
from shardwise.documents.common import Expected
from shardwise.files import DATA
from shardwise.graph.tuning import FULL
from shardwise.hardware import Hardware
from shardwise.search.chosen import Chosen
from shardwise.search.mixed.search import MixedSearch
from shardwise.sharding.recipes import RECIPES
from shardwise.texts import counted

TABLE = DATA / "expected.csv"
COLUMNS = ("gpu", "pipeline", "figure", "steps", "projects", "low", "high")
TIME, PEAK = "time", "peak"
TAILS: Mapping[str, float] = {TIME: 0.06, PEAK: 0.05}
LEAST_STEPS, LEAST_PROJECTS = 8, 3
"""Minimum number of steps for a range."""


class Factors(NamedTuple):
    """A GPU's factors of measured over predicted, with the numbers of steps and projects.

    With `few` steps they are the least and the most.
    """

    steps: int
    projects: int
    low: float
    high: float

    @property
    def few(self) -> bool:
        """Whether there are too few steps for a meaningful range."""
        return self.steps < LEAST_STEPS or self.projects < LEAST_PROJECTS


DATA_SHEETS_ALONE = "0.9 to 1.8"
"""How many times as long as predicted published steps on V100 and MI300X took, the GPUs among them
whose profiles have no measured kernels (docs/accuracy.md)."""


def gpu_of(kind: str) -> str:
    """Returns the name of a GPU without its form and memory: `H100` of `H100-SXM5-80GB`."""
    return kind.split("-")[0]


@cache
def factors() -> Mapping[tuple[str, bool, str], Factors]:
    """Returns the table: by GPU, whether with a pipeline, and figure (`TIME`, `PEAK`)."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {
            (row["gpu"], row["pipeline"] == "yes", row["figure"]): Factors(
                int(row["steps"]), int(row["projects"]), float(row["low"]), float(row["high"])
            )
            for row in csv.DictReader(file)
        }


def comparable(options: Options) -> bool:
    """Returns whether a step resembles those that ranges are made of: published ones in 16 bits or
    more."""
    return was_published(options) and options.precision not in RECIPES


def was_published(options: Options) -> bool:
    """Returns whether a step resembles published ones: replayed, of all parameters, and with
    nothing on the host."""
    return options.replays and options.tune == FULL and not options.step.offloads_states


def expected_of(chosen: Chosen) -> Expected | UnsetType:
    """Returns the ranges of a strategy; unset on several kinds of devices, and for summed times."""
    search = chosen.search
    if isinstance(search, MixedSearch) or not comparable(search.options):
        return UNSET
    return expected(search.hardware, chosen.ranking_s, chosen.peak_bytes)


def expected(
    hardware: Hardware, step_s: float, peak_bytes: float, *, pipeline: bool = False
) -> Expected | UnsetType:
    """Returns the ranges of a step of `step_s` seconds and a peak of `peak_bytes` on a profile's
    devices; unset if these were measured themselves, or too few steps were published."""
    if hardware.operators or hardware.measurement or not step_s:
        return UNSET
    gpu = gpu_of(hardware.devices[0].kind)
    time = factors().get((gpu, pipeline, TIME))
    if time is None or time.few:
        return UNSET
    peak = factors().get((gpu, pipeline, PEAK))
    return Expected(
        step_s=[step_s * time.low, step_s * time.high],
        peak_bytes=UNSET
        if peak is None or peak.few
        else [round(peak_bytes * peak.low), round(peak_bytes * peak.high)],
        steps=time.steps,
        projects=time.projects,
        gpu=gpu,
    )


def uncompared_note(profiles: Iterable[Hardware]) -> str | None:
    """Returns a sentence on the GPUs of which no published step, or too few, were compared; None
    where there are enough, or they were measured where they stand.

    `profiles` have one kind of device each.
    """
    open_ones, few = [], {}
    for profile in profiles:
        device = profile.devices[0]
        known = factors().get((gpu_of(device.kind), False, TIME))
        if profile.operators or profile.measurement or (known is not None and not known.few):
            continue
        if known is None:
            open_ones.append(device)
        else:
            few[gpu_of(device.kind)] = known
    texts = []
    if open_ones:
        kinds = ", ".join(dict.fromkeys(device.kind for device in open_ones))
        texts.append(f"no published step on {kinds} has been compared")
        if not all(device.has_kernels for device in open_ones):
            texts.append(
                "with data sheets alone, as here, published steps (on V100 and MI300X) took "
                f"{DATA_SHEETS_ALONE} times as long as predicted"
            )
    for gpu, of in few.items():
        took = f"{of.low:.2g}" if of.low == of.high else f"{of.low:.2g} to {of.high:.2g}"
        texts.append(
            f"{counted(of.steps, 'published step')} on {gpu}, and no other compared, took {took} "
            "times as long as predicted"
        )
    return "; ".join(texts) or None


def step_range(of: Expected | UnsetType) -> str:
    """Returns a suffix such as ` (868 ms to 1.27 s)` for a step; empty if unknown."""
    if of is UNSET:
        return ""
    return f" ({_span(of)})"


def peak_range(of: Expected | UnsetType) -> str:
    """Returns a suffix such as ` (61.2 to 71.4)` for a peak in GiB; empty if unknown."""
    return "" if of is UNSET or of.peak_bytes is UNSET else f" ({_gib(of.peak_bytes)})"


def _span(of: Expected) -> str:
    return " to ".join(f"{s:.3g} s" if s >= 1 else f"{s * 1e3:.3g} ms" for s in of.step_s)


def _gib(sizes: Iterable[int]) -> str:
    return " to ".join(f"{size / 2**30:.3g}" for size in sizes)


def expected_sentence(of: Expected) -> str:
    """Returns both ranges with an explanation, for prose."""
    peak = "" if of.peak_bytes is UNSET else f" and a peak of {_gib(of.peak_bytes)} GiB"
    return f"Expected are {_span(of)} a step{peak}: {expected_text(of)}."


def expected_text(of: Expected | UnsetType) -> str:
    """Returns a sentence that explains the ranges; empty if unknown."""
    if of is UNSET:
        return ""
    return (
        f"four of five published steps on {of.gpu} lie in such ranges of their predictions "
        f"({of.steps:,} of {of.projects} projects)"
    )
