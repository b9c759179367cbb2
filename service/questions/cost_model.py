"""The start value of a question's estimate, in seconds of solving; past jobs correct it.

    solve    = START + Σ over searches · recomputation · counts
    search   = FIXED + PER_OPERATOR · operators + PER_ASSIGNMENT · assignments

`assignments` is how many splits a group of operators has on the mesh: it follows from the factors
of the number of GPUs, and is why 16 GPUs cost more than 13. `recomputation` is a factor where every
group may recompute, `counts` the numbers of micro-batches that are searched to their end. The terms
were fitted to the shipped graphs on one core of 2024, those of replayed times in 2026. How hard a
graph is and how fast a host show the tenant's past jobs of like size, which outweigh this
(service/store/estimates.py). Pipelines are further searches, of their stages.

Devices of several kinds are computed once for each of their groups, with the proportions of their
shares as further choices, and no longer than their time limit; each group alone is searched too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import factorial, prod
from typing import Any

from service.questions.curves import places_of
from service.questions.search_options import options_from_document
from shardwise.answers import Options
from shardwise.answers.curve_assembly import gpus_of
from shardwise.cost.mixed.assemble import MOST_CONFIGURATIONS
from shardwise.cost.mixed.cluster import mesh_of_blocks
from shardwise.cost.named_options import PINS
from shardwise.cost.options import AUTO, TOFU
from shardwise.cost.space import assignments_of_group
from shardwise.hardware import (
    Blocks,
    Devices,
    Hardware,
    Mesh,
    hardware_from_document,
    parts_of,
)
from shardwise.replay.stages import FEWEST
from shardwise.search.replayed import SEVERAL_KINDS_S, time_limit_s

START_S = 0.8
"""A child's start: Python, NumPy, the graph."""

Terms = tuple[float, float, float]
"""FIXED, PER_OPERATOR, PER_ASSIGNMENT."""

NEAR: Terms = (0.3, 4e-4, 3e-3)
"""A search of sums near the memory limit, mostly replay."""

WHOLE: Terms = (0.1, 1e-4, 6e-3)
"""A search of sums for the whole frontier."""

NEAR_REPLAYED: Terms = (0.0, 1e-3, 6e-3)
"""A search of replayed times near the memory limit."""

WHOLE_REPLAYED: Terms = (0.1, 2e-3, 4e-2)
"""A search of replayed times for the whole frontier: one for each of many limits."""

VARIABLES = {True: 7, False: 4}
"""Splittable variables of a group, in a graph with convolutions and in others."""

BATCH_SIZE = "batch_size"
"""Member of a graph's summary: the samples of a step, null if nothing is one."""

MOST_DIMS = "most_dims"
"""Member of a graph's summary: the most dimensions of a parameter."""

CONVOLUTION_DIMS = 4
"""A parameter with this many dimensions is a convolution's."""

RECOMPUTATION = 1.6
"""Factor on the time of a search in which every group may recompute."""

COUNTS_REPLAYED = {True: 2, False: 3}
"""Numbers of micro-batches whose replayed times are searched to the end, at most; others are given
up. The first is near the memory limit."""

EXACTNESS = 0.25
"""Power of 1 / epsilon, from `COARSE` on: the whole frontier of sums. An epsilon of 0 counts as
`EXACT`."""

COARSE, EXACT = 0.01, 5e-7

ONE_METHOD = 60.0
"""Factor on a search of sums by a named method: `auto` leaves most of a chain to a quicker one."""

SEVERAL_KINDS = 5.0
"""Factor on the time of a search for each group of devices: shares are choices besides splits."""

WHOLE_MODEL = 2.0
"""Replaying every strategy for the whole model, as trainers have them, over one search."""

OTHER_SYSTEMS = {True: 4.0, False: 7.0}
"""Every other system of a comparison together, over our search, by whether steps are replayed."""

OTHERS_OF_SEVERAL_KINDS = 2.0
"""The same where devices are of several kinds."""

PROPOSAL_S = 5e-6
"""A proposal of FlexFlow's random search."""

PIPELINED = 1.5
"""A number of stages and micro-batches of a pipeline, over one search on the devices of a stage."""

COUNTS_PIPELINED = 3
"""Numbers of micro-batches for each number of stages, at most: others are proven to be slower."""

PIPELINES: Mapping[str, float] = {
    "plan": 1.0,
    "frontier": 1.5,
    "curve": 0.3,
    "quote": 0.3,
    "compare": 4.0,
}
"""Factor on the time of the pipelines of an answer: a frontier has them at many memories; a curve
and a quote give up those that are slower than a strategy without; a comparison has those of other
systems too."""

MOST_STAGES = 128
"""Stages of a pipeline that are estimated: few models have more blocks."""

SAMPLES = 24
"""Counts of a curve that are estimated; the others are like their neighbours."""


def seconds_of(question: Mapping[str, Any], graph: Mapping[str, Any]) -> float:
    """Returns the seconds that a question takes, from its document and its graph's summary."""
    options = options_from_document({**question["options"], PINS: []}, threads=1)
    near = _near(question)
    terms = _TERMS[options.replays, near]
    if question["kind"] == "quote" and "hardware" in question:
        hardware = hardware_of(question)
        texts = [str(bundle) for bundle in parts_of(hardware)]
        return START_S + _of_bundles(question, graph, hardware, texts, terms)
    if question["kind"] == "quote":
        searches = _of_offers(question, lambda alone, gpus: _of_count(alone, graph, gpus, terms))
    elif "bundles" in question:
        texts = question["bundles"]
        return START_S + _of_bundles(question, graph, hardware_of(question), texts, terms)
    elif question["kind"] == "curve":
        searches = _of_counts(question, lambda gpus: _of_count(question, graph, gpus, terms))
    elif isinstance(question["gpus"], str):
        texts = [question["gpus"]]
        one = _of_bundles(question, graph, hardware_of(question), texts, terms)
        others = OTHERS_OF_SEVERAL_KINDS if question["kind"] == "compare" else 0.0
        return START_S + one * (1 + others) + _proposals_s(question)
    elif question["kind"] == "plan" and not _has_plain(question.get("stages", AUTO)):
        searches = 0.0
    else:
        searches = _of_count(question, graph, question["gpus"], terms)
        if question["kind"] == "pricing":
            searches *= WHOLE_MODEL
        elif "space" in question:
            searches *= 1 + WHOLE_MODEL
        elif question["kind"] == "compare":
            searches *= 1 + OTHER_SYSTEMS[options.replays]
    whole = searches * _factor(options, graph.get(BATCH_SIZE), near)
    return START_S + whole + _pipelines_s(question, graph, options) + _proposals_s(question)


def _has_plain(stages: list[int] | str) -> bool:
    """Returns whether the strategies without a pipeline are among what a plan asks for."""
    return stages == AUTO or 1 in stages


def _pipelines_s(question: Mapping[str, Any], graph: Mapping[str, Any], options: Options) -> float:
    """Returns the seconds of the searches of pipelines that a question asks for."""
    if "stages" not in question:
        return 0.0
    kind = question["kind"]
    if kind == "quote":
        every = _of_offers(question, lambda alone, gpus: _of_stages(alone, graph, gpus, options))
    elif kind == "curve":
        every = _of_counts(question, lambda gpus: _of_stages(question, graph, gpus, options))
    else:
        every = _of_stages(question, graph, question["gpus"], options)
    return PIPELINES[kind] * every


def _proposals_s(question: Mapping[str, Any]) -> float:
    """Returns the seconds of the proposals that a comparison names."""
    return PROPOSAL_S * (question.get("proposals") or 0)


_TERMS = {
    (False, True): NEAR,
    (False, False): WHOLE,
    (True, True): NEAR_REPLAYED,
    (True, False): WHOLE_REPLAYED,
}
"""By whether replayed times are searched, and whether near the memory limit."""


def hardware_of(question: Mapping[str, Any]) -> Hardware:
    """Returns the profile of a question's document."""
    return hardware_from_document(question["hardware"])


def _near(question: Mapping[str, Any]) -> bool:
    """Returns whether the search is near the memory limit, not of the whole frontier."""
    objective = question.get("objective")
    return question["kind"] != "frontier" and objective in (None, "mini-time", "mini-cost")


def _of_count(
    question: Mapping[str, Any],
    graph: Mapping[str, Any],
    gpus: int,
    terms: Terms,
) -> float:
    """Returns the seconds of one search on `gpus` GPUs; 0 on more than the hardware has."""
    per_node, nodes = _node(question)
    if gpus > per_node * nodes:
        return 0.0
    variables = VARIABLES[graph.get(MOST_DIMS, 0) >= CONVOLUTION_DIMS]
    most = int(question["options"].get("max_configurations", 200))
    fixed, per_operator, per_assignment = terms
    count = _levels(question, gpus, most, variables)
    return fixed + per_operator * int(graph.get("operators", 0)) + per_assignment * count


def _of_stages(
    question: Mapping[str, Any],
    graph: Mapping[str, Any],
    gpus: int,
    options: Options,
    possible: Sequence[int] | None = None,
) -> float:
    """Returns the seconds of the searches of pipelines on `gpus` GPUs: for each number of stages,
    of those that are `possible` (None: what divides the GPUs), and of micro-batches one on the
    devices of a stage."""
    stages = question["stages"]
    if possible is None:
        possible = [p for p in range(2, min(gpus, MOST_STAGES) + 1) if gpus % p == 0]
    counts = options.counts(graph.get(BATCH_SIZE))
    recomputation = RECOMPUTATION if options.recomputation == AUTO else 1.0
    searches = 0.0
    for p in possible if stages == AUTO else set(stages) & set(possible):
        batches = sum(count >= max(FEWEST, p) for count in counts)
        one = _of_count(question, graph, gpus // p, NEAR_REPLAYED)
        searches += PIPELINED * min(batches, COUNTS_PIPELINED) * recomputation * one
    return searches


def _of_bundles(
    question: Mapping[str, Any],
    graph: Mapping[str, Any],
    hardware: Hardware,
    texts: Sequence[str],
    terms: Terms,
) -> float:
    """Returns the seconds of the searches of some bundles, with those of the pipelines that are
    asked for: the model is costed on the stages of every group, and cut for every order of them."""
    plain = question["kind"] != "plan" or _has_plain(question.get("stages", AUTO))
    seconds = sum(_of_bundle(question, graph, hardware, text, terms) for text in texts if plain)
    if "stages" not in question:
        return seconds
    options = options_from_document({**question["options"], PINS: []}, threads=1)
    for text in texts:
        counts = [count for _, count in Devices.parse(text, hardware).counts]
        kinds, gpus = len(counts), sum(counts)
        possible = [
            p for p in range(2, min(gpus, MOST_STAGES) + 1)
            if gpus % p == 0 and all(count % (gpus // p) == 0 for count in counts)
        ]  # fmt: skip
        every = _of_stages(question, graph, gpus, options, possible)
        seconds += PIPELINES[question["kind"]] * every * (kinds + factorial(kinds)) / 2
    return seconds


def _of_bundle(
    question: Mapping[str, Any],
    graph: Mapping[str, Any],
    hardware: Hardware,
    text: str,
    terms: Terms,
) -> float:
    """Returns the seconds of the searches of a bundle: of all its groups, and of each alone."""
    options = options_from_document({**question["options"], PINS: []}, threads=1)
    bundle = Devices.parse(text, hardware)
    blocks = Blocks.of(hardware, bundle)
    variables = VARIABLES[graph.get(MOST_DIMS, 0) >= CONVOLUTION_DIMS]
    most = min(options.max_configurations, MOST_CONFIGURATIONS)
    fixed, per_operator, per_assignment = terms
    count = assignments_of_group(mesh_of_blocks(blocks), most, variables)
    one = fixed + per_operator * int(graph.get("operators", 0)) + per_assignment * count
    groups = len(bundle.counts)
    near = _near(question)
    one *= _factor(options, graph.get(BATCH_SIZE), near)
    limit_s = time_limit_s(bundle, options) or SEVERAL_KINDS_S
    together = SEVERAL_KINDS * groups * one
    alone = groups * one if near and groups > 1 else 0.0
    return min(together + alone, limit_s)


def _of_counts(question: Mapping[str, Any], of_count: Callable[[int], float]) -> float:
    """Returns the seconds of a curve: those of each count that the hardware has."""
    per_node, nodes = _node(question)
    every = [gpus_of(place) for place in places_of(question)]
    counts = [count for count in every if count <= per_node * nodes]
    if len(counts) == 0:
        return 0.0
    # The step is odd: an even one would leave out all even counts, or all odd ones.
    some = counts[:: (len(counts) // SAMPLES) | 1]
    mean = sum(map(of_count, some)) / len(some)
    return mean * len(counts)


def _of_offers(
    question: Mapping[str, Any], of_count: Callable[[Mapping[str, Any], int], float]
) -> float:
    """Returns the seconds of a quote: those of each of the instance counts 1, 2, 4 of a profile.

    `of_count` is asked with the question on one profile."""
    offers = {}
    for offer in question["offers"]:
        per_node = int(offer["gpus_per_instance"])
        if offer["hardware"] is None or (offer["hardware"], per_node) in offers:
            continue
        alone = {**question, "hardware": {"devices": [{"count": per_node}]}}
        counts = [n for n in (1, 2, 4) if n <= question["max_instances"]]
        offers[offer["hardware"], per_node] = sum(of_count(alone, n * per_node) for n in counts)
    # Most questions combine nothing that is not enough alone: one search more stands for them.
    combined = SEVERAL_KINDS * max(offers.values(), default=0.0) if "combine" in question else 0.0
    return sum(offers.values()) + combined


def _factor(options: Options, batch: int | None, near: bool) -> float:
    counts = len(options.counts(batch))
    if options.replays:
        counts = min(counts, COUNTS_REPLAYED[near])
    recomputation = RECOMPUTATION if options.recomputation == AUTO else 1.0
    return recomputation * counts * _exactness(options, near)


def _exactness(options: Options, near: bool) -> float:
    """Returns a factor on searches of sums; those of replayed times take as long for any."""
    if options.replays or options.method == TOFU:
        return 1.0
    method = 1.0 if options.method == AUTO else ONE_METHOD
    return method if near else method * max(COARSE / max(options.epsilon, EXACT), 1.0) ** EXACTNESS


def _node(question: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the GPUs of a node, the largest of several groups, and the most nodes."""
    hardware = question["hardware"]
    if groups := hardware.get("groups"):
        return max(group["per_node"] for group in groups), sum(group["nodes"] for group in groups)
    levels = hardware.get("levels") or [{"size": 10**6}]
    nodes = hardware.get("nodes") or prod(level["size"] for level in levels[1:] or levels)
    return int(hardware["devices"][0]["count"]), int(nodes)


def _levels(question: Mapping[str, Any], gpus: int, most: int, variables: int) -> int:
    """Returns how many assignments a group has, by the levels of links that the hardware has."""
    hardware = question["hardware"]
    if len(hardware.get("levels") or ()) <= 2:
        return _assignments(gpus, _node(question)[0], most, variables)
    mesh = Mesh.build(hardware_from_document(hardware), gpus)
    return assignments_of_group(mesh, most, variables)


@lru_cache(maxsize=4096)
def _assignments(gpus: int, per_node: int, most: int, variables: int) -> int:
    return assignments_of_group(Mesh.place(gpus, per_node), most, variables)
