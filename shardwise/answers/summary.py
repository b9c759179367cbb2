"""A strategy's summary: its label, how fast it is, what bounds it, what would help.

Everything in the replayed step (`shardwise.replay`) beyond computation is exposed communication;
the larger of the two bounds the step. Communication is attributed to the link level that carries
most of it, since replay does not distinguish levels. If launching takes longer than the devices,
the host bounds the step. The memory limit bounds the fastest strategy that fits if the searches
have one that needs more memory and is `WORTH_MEMORY` faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardwise.answers.label import Labels
from shardwise.answers.levels import Levels
from shardwise.answers.mixed import mixed_ideal_s, mixed_label
from shardwise.answers.roles import tokens
from shardwise.answers.utilisation import ideal_s, model_flops
from shardwise.cost.options import NEVER
from shardwise.cost.software import COMPILED, GRAPHS
from shardwise.hardware.levels import BETWEEN
from shardwise.search.chosen import Chosen
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.search import Search

COMPUTE, LINKS, MEMORY, HOST = "compute", "links", "memory limit", "host"
WORTH_MEMORY = 0.05
"""Relative: minimum gain of a strategy with more memory for memory to be the bound."""
NOTICED = 0.005
"""Relative: smaller gains are not mentioned."""


@dataclass(frozen=True)
class Summary:
    """The members that documents have of a strategy."""

    label: str
    model_flops_utilisation: float
    causal_flops_utilisation: float
    tokens_per_s: float | None
    bound_by: str
    to_go_faster: str


@dataclass(frozen=True)
class _Faster:
    """Another strategy of the searches: its relative gain, and the missing memory."""

    label: str
    gain: float
    lacking_bytes: float


@dataclass(frozen=True)
class _Launching:
    """The host's part in a step: whether it takes longer than the devices, and the share of the
    step saved without it."""

    binds: bool
    share: float
    framework: str
    micro_batches: int

    @property
    def text(self) -> str:
        """What would shorten the host's part."""
        remedies = ["larger micro-batches"] if self.micro_batches > 1 else ["a larger batch"]
        if self.framework not in (COMPILED, GRAPHS):
            remedies.append("compiling the model")
        if self.framework != GRAPHS:
            remedies.append("CUDA graphs")
        return f"{', '.join(remedies[:-1])} or {remedies[-1]}" if remedies[1:] else remedies[0]


class Summaries:
    """Summarises points of a query's searches."""

    def __init__(self, searches: Sequence[Search]) -> None:
        self._searches = searches
        self._labels: dict[int, Labels] = {}
        self._levels: dict[int, Levels] = {}
        self._texts: dict[tuple[int, int], str] = {}

    def of(self, chosen: Chosen) -> Summary:
        """Returns the summary of one point."""
        search, point, step_s = chosen.search, chosen.point, chosen.ranking_s
        faster = self._faster(chosen)
        level, exposed = self._carrier(chosen), self._exposed(chosen)
        launching = self._launching(chosen)
        return Summary(
            label=self.label(search, point),
            model_flops_utilisation=self._utilisation(self._ideal_s, chosen),
            causal_flops_utilisation=self._utilisation(self._ideal_causal_s, chosen),
            tokens_per_s=self._tokens / step_s if self._tokens and step_s else None,
            bound_by=_bound(exposed, launching, level, faster),
            to_go_faster=_advice(exposed, launching, level, faster),
        )

    def label(self, search: Search, point: int) -> str:
        """Returns a strategy in one line."""
        key = (id(search), point)
        if key not in self._texts and isinstance(search, MixedSearch):
            self._texts[key] = mixed_label(search, point)
        if key not in self._texts:
            solution, replayed = search.solution, search.replayed
            self._texts[key] = self.labels(search).of(
                solution.choices[point],
                solution.edge_choices[point],
                (float(replayed.time_s[point]), float(replayed.peak_bytes[point])),
            )
        return self._texts[key]

    def labels(self, search: Search) -> Labels:
        """Returns the labels of a search's strategies, checked by their replayed steps."""
        key = id(search.problem)
        if key not in self._labels:
            groups = next((labels.groups for labels in self._labels.values()), None)
            self._labels[key] = Labels(search.problem, groups, search.replayer, search.limit_bytes)
        return self._labels[key]

    @cached_property
    def _tokens(self) -> int | None:
        return tokens(self._searches[0].subject.graph)

    def _utilisation(self, ideal_s: float, chosen: Chosen) -> float:
        step_s = chosen.ranking_s
        return ideal_s / (step_s * chosen.search.mesh.gpus) if step_s else 0.0

    @cached_property
    def _ideal_s(self) -> float:
        return self._ideal(computed=False)

    @cached_property
    def _ideal_causal_s(self) -> float:
        return self._ideal(computed=True)

    def _ideal(self, *, computed: bool) -> float:
        """Returns the seconds of the model's flops on one device at peak, or on several kinds at
        their mean."""
        search = self._searches[0]
        subject, graph = search.subject, search.problem.context.graph
        flops = model_flops(subject.coarsened, subject.patterns, graph, computed=computed)
        if isinstance(search, MixedSearch):
            return mixed_ideal_s(flops, search)
        return ideal_s(flops, search.hardware.devices[0])

    def _exposed(self, chosen: Chosen) -> float:
        """Returns the share of the replayed step that is exposed communication."""
        exposed_s = float(chosen.search.replayed.exposed_s[chosen.point])
        return exposed_s / chosen.replayed_time_s if chosen.replayed_time_s else 0.0

    def _launching(self, chosen: Chosen) -> _Launching:
        """Returns the host's part in the replayed step."""
        search, step_s = chosen.search, chosen.replayed_time_s
        host_s = float(search.replayed.host_s[chosen.point])
        device_s = float(search.replayed.device_s[chosen.point])
        return _Launching(
            host_s > device_s,
            1.0 - device_s / step_s if step_s else 0.0,
            search.options.launched_by,
            search.micro_batches,
        )

    def _carrier(self, chosen: Chosen) -> str:
        """Returns the level of links that carries most of the communication; empty without any."""
        search, point = chosen.search, chosen.point
        communication_s = max(chosen.time_s - search.compute_s(point), 0.0)
        if not communication_s:
            return ""
        if isinstance(search, MixedSearch):
            return BETWEEN
        if id(search.problem) not in self._levels:
            self._levels[id(search.problem)] = Levels(search.problem)
        levels = self._levels[id(search.problem)]
        solution = search.solution
        seconds = levels.seconds(
            solution.choices[point], solution.edge_choices[point], communication_s
        )
        return max(seconds, key=lambda level: seconds[level], default="")

    def _faster(self, chosen: Chosen) -> _Faster | None:
        """Returns the fastest strategy that fits or, if that is the chosen one, one that does not.

        Of those that need more memory, up to twice the limit, it is the smallest with at least half
        of the fastest's gain.
        """
        fitting: list[tuple[float, float, Search, int]] = []
        beyond: list[tuple[float, float, Search, int]] = []
        for search in self._searches:
            gains = 1.0 - search.ranking_s / max(chosen.ranking_s, 1e-30)
            lacking = search.replayed.peak_bytes - search.limit_bytes
            # The price of simplicity within the tolerance is reported elsewhere.
            simple = search.options.replays and search.options.simplest != NEVER
            noticed = max(NOTICED, search.options.epsilon if simple else 0.0)
            for p in np.flatnonzero(gains >= noticed).tolist():
                known = fitting if lacking[p] <= 0 else beyond
                if lacking[p] <= search.limit_bytes:
                    known.append((float(lacking[p]), float(gains[p]), search, p))
        if fitting:
            _, gain, search, point = max(fitting, key=lambda one: one[1])
            return _Faster(self.label(search, point), gain, 0.0)
        if not beyond or not chosen.fits:
            return None
        most = max(gain for _, gain, _, _ in beyond)
        lacking_bytes, gain, search, point = min(
            (one for one in beyond if one[1] >= most / 2), key=lambda one: one[:2]
        )
        return _Faster(self.label(search, point), gain, lacking_bytes)


def _bound(exposed: float, launching: _Launching, level: str, faster: _Faster | None) -> str:
    if faster is not None and faster.lacking_bytes > 0 and faster.gain >= WORTH_MEMORY:
        return MEMORY
    if launching.binds:
        return HOST
    return f"{LINKS} {level}" if exposed > 0.5 and level else COMPUTE


def _advice(exposed: float, launching: _Launching, level: str, faster: _Faster | None) -> str:
    """Returns one sentence on how to go faster."""
    if launching.binds:
        text = (
            f"The GPUs wait for the host, which launches their work: without that wait the step is "
            f"{launching.share:.0%} shorter, and {launching.text} would shorten it"
        )
    elif exposed < NOTICED or not level:
        text = "Nearly all of the step is compute: only faster computation shortens it"
    else:
        text = (
            f"{exposed:.0%} of the step is exposed communication (most communication time is "
            f"{level}): faster links gain at most that"
        )
    if faster is not None and faster.lacking_bytes > 0:
        lacking = _size(faster.lacking_bytes)
        text += f"; with {lacking} more memory per GPU, {faster.label} is {faster.gain:.0%} faster"
    elif faster is not None:
        text += f"; {faster.label} fits too and is {faster.gain:.0%} faster"
    return f"{text}."


def _size(size_bytes: float) -> str:
    return (
        f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
    )


def fields(summary: Summary, *, advice: bool = False) -> dict[str, Any]:
    """Returns the members of a summary as documents have them, with the sentence of advice or
    without it."""
    members = asdict(summary)
    if not advice:
        del members["to_go_faster"]
    return members
