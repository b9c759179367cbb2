"""Questions on trainers: their spaces, and the configurations that somebody has.

A configuration is read where its question is answered, by a process with limits: a parser may need
most of a minute for a text that is within the bounds of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.advise import Options
from shardwise.cost.named_options import check_replayed
from shardwise.cost.options import Progress
from shardwise.documents import Plan, PlanRequest, Pricing, PricingRequest
from shardwise.documents.questions import MOST_CONFIGURATION_BYTES
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.trainers.plan import (
    check_objective,
    check_options,
    check_point,
    one_kind,
    plan_for,
)
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of
from shardwise.trainers.spaces import space_of


def check_space(ask: PlanRequest, hardware: Hardware, options: Options) -> None:
    """Raises `BadInput` for a plan that a trainer's space does not have, naming the field."""
    space_of(ask.space)
    one_kind(ask.gpus, hardware)
    check_objective(ask.objective, ask.space)
    check_point(ask.point)
    check_replayed(check_options, options)


def check_pricing(ask: PricingRequest, hardware: Hardware, options: Options) -> None:
    """Raises `BadInput` for a configuration that cannot be priced here, naming the field."""
    one_kind(ask.gpus, hardware)
    size = len(ask.configuration.encode())
    if size > MOST_CONFIGURATION_BYTES:
        raise BadInput(
            f"it has {size} bytes",
            field="configuration",
            expected=f"at most {MOST_CONFIGURATION_BYTES}",
        )
    check_replayed(check_options, options)


def planned(
    q: Mapping[str, Any], graph: Graph, hardware: Hardware, options: Options, progress: Progress
) -> Plan:
    """Returns the plan of a question that names a trainer's space."""
    return plan_for(
        graph,
        hardware,
        q["gpus"],
        q["space"],
        objective=q["objective"],
        options=options,
        progress=progress,
    )


def priced(
    q: Mapping[str, Any], graph: Graph, hardware: Hardware, options: Options, progress: Progress
) -> Pricing:
    """Returns the price of a question's configuration."""
    file = q["file"]
    configuration = configuration_of(q["configuration"], q["gpus"], file)
    return price_configuration(
        graph, hardware, q["gpus"], configuration, options, file=file, progress=progress
    )
