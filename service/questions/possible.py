"""Refuses options that cannot be met on this graph when the question is asked.

A search would refuse all of this too, in the same words, but only once it has its turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.questions.cost_model import BATCH_SIZE
from service.questions.graph_digest import Digests
from service.questions.question import Question
from shardwise.cost.mixed.assemble import searched_mesh
from shardwise.cost.named_options import of_request
from shardwise.cost.pins import parse_pin
from shardwise.cost.space import SearchMesh
from shardwise.errors import BadInput
from shardwise.hardware import Blocks, Devices, Mesh, TooFewDevices, hardware_from_document
from shardwise.sharding.micro_batches import require_divisor


def require_possible(digests: Digests, question: Question, summary: Mapping[str, Any]) -> None:
    """Raises `BadInput` whose field is `options.NAME` for options that this graph cannot meet.

    `summary` is the graph's; rules on operators are checked if its names have been read.
    """
    options = question.document["options"]
    try:
        for count in options["micro_batches"] if BATCH_SIZE in summary else ():
            require_divisor(summary[BATCH_SIZE], count)
        digest = digests.known(question.graph_id) if options["pins"] else None
        if digest is not None:
            rules = [parse_pin(rule) for rule in options["pins"]]
            digest.require_possible(rules, _axes(question.document))
    except BadInput as error:
        raise of_request(error) from None


def _axes(document: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Returns name and level of the axes that a rule may name; None if every count has its own."""
    if "gpus" not in document:
        return None
    hardware = hardware_from_document(document["hardware"])
    gpus, most = document["gpus"], document["options"]["max_configurations"]
    if isinstance(gpus, str):
        search_mesh = searched_mesh(Blocks.of(hardware, Devices.parse(gpus, hardware)), most)
    else:
        try:
            search_mesh = SearchMesh.build(Mesh.build(hardware, gpus), most)
        except TooFewDevices:
            return None
    return [(axis.name, axis.level.partition(" ")[0]) for axis in search_mesh.axes]
