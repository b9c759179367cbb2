"""Curves as questions: what is asked of each count, and the answer from what is known of them.

A point answers the question without its other counts, so points have ids of their own: all
questions of a tenant that contain a count share what was computed of it, by fewer devices where
these were known to be faster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from service.questions.pipelines import arguments_of
from shardwise import __version__, _core, validation
from shardwise.answers import Options
from shardwise.answers.curve import CurveQuestion, curve_question
from shardwise.answers.curve_assembly import assembled
from shardwise.documents import Curve
from shardwise.documents.questions import Gpus
from shardwise.graph import Graph
from shardwise.hardware import hardware_from_document
from shardwise.trainers.curve import trainer_question

MAX_GPUS, COUNTS, BUNDLES = "max_gpus", "counts", "bundles"
_PLACES = (MAX_GPUS, COUNTS, BUNDLES)


def places_member(places: Sequence[Gpus], *, named: bool) -> dict[str, Any]:
    """Returns the member of a question's document that says its counts or its bundles.

    Counts from 1 on without a gap are the largest one, however they were asked for.
    """
    if any(isinstance(place, str) for place in places):
        return {BUNDLES: list(places)}
    if not named or list(places) == list(range(1, len(places) + 1)):
        return {MAX_GPUS: places[-1]}
    return {COUNTS: list(places)}


def places_of(document: Mapping[str, Any]) -> tuple[Gpus, ...]:
    """Returns the counts or the bundles of a curve's question, ascending."""
    if BUNDLES in document:
        return tuple(document[BUNDLES])
    if COUNTS in document:
        return tuple(document[COUNTS])
    return tuple(range(1, document[MAX_GPUS] + 1))


def only_places(document: Mapping[str, Any], places: Sequence[Gpus]) -> dict[str, Any]:
    """Returns the question of some counts or bundles of a question."""
    rest = {name: of for name, of in document.items() if name not in _PLACES}
    bundles = any(isinstance(place, str) for place in places)
    return rest | {BUNDLES if bundles else COUNTS: list(places)}


def content_id(document: Mapping[str, Any]) -> str:
    """Returns the id of a question and of its answer: of all that the answer depends on."""
    canonical = json.dumps(
        {**document, "solver": f"{__version__}/{_core.version()}"},
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def point_ids(document: Mapping[str, Any]) -> dict[Gpus, str]:
    """Returns the id of each point of a curve's question, by its count or bundle, ascending.

    It is the same in every question that differs from this one in its counts only.
    """
    alone = content_id({name: of for name, of in document.items() if name not in _PLACES})
    return {
        place: "sha256:" + hashlib.sha256(f"{alone}/{place}".encode()).hexdigest()
        for place in places_of(document)
    }


def curve_question_of(document: Mapping[str, Any], graph: Graph, options: Options) -> CurveQuestion:
    """Returns the library's question of a document. Raises `BadInput` as the library does."""
    hardware = hardware_from_document(document["hardware"])
    asked = {name: document[name] for name in _PLACES if name in document}
    if "space" in document:
        return trainer_question(
            graph,
            hardware,
            options=options,
            trainer=document["space"],
            **asked,
            **arguments_of(document),
        )
    return curve_question(graph, hardware, options=options, **asked, **arguments_of(document))


def assembled_curve(
    document: Mapping[str, Any],
    contents: Mapping[Gpus, bytes],
    missing: Mapping[Gpus, str] | None = None,
) -> Curve:
    """Returns the answer to a curve's question from the points that are known.

    `contents` are curves of one count or bundle; `missing` says why others are not known.
    """
    parts = {
        place: validation.convert(msgspec.json.decode(content), Curve)
        for place, content in contents.items()
    }
    return assembled(places_of(document), parts, missing, named=COUNTS in document)
