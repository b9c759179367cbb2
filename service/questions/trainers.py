"""Questions on trainers: their spaces, and the configurations that somebody has.

A configuration is read where its question is answered, by a process with limits: a parser may need
most of a minute for a text that is within the bounds of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.answers import Options
from shardwise.cost.options import Progress
from shardwise.documents import Pricing, PricingRequest
from shardwise.documents.questions import MOST_CONFIGURATION_BYTES
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, devices_of
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of


def check_pricing(ask: PricingRequest, hardware: Hardware, options: Options) -> None:
    """Raises `BadInput` for a configuration that cannot be priced here, naming the field."""
    check(Question.of(options, "pricing", devices_of(ask.gpus, hardware)), requested=True)
    size = len(ask.configuration.encode())
    if size > MOST_CONFIGURATION_BYTES:
        raise BadInput(
            f"it has {size} bytes",
            field="configuration",
            expected=f"at most {MOST_CONFIGURATION_BYTES}",
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
