"""The tools: what each is for, what it takes, and which document it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from shardwise.documents import json_schema
from shardwise.mcp.arguments import (
    Arguments,
    CompareArguments,
    CurveArguments,
    ExplainArguments,
    ExportArguments,
    FrontierArguments,
    ListArguments,
    PlanArguments,
    QuoteArguments,
    input_schema,
    object_schema,
)
from shardwise.mcp.lists import Export, Graphs, Profiles


@dataclass(frozen=True)
class Tool:
    """A tool: its name, a title, a description for the model that chooses among tools, the type of
    its arguments, and its document, by the word of `shardwise.documents` or as a type.

    `searches` says that it may take long: it reports progress and can be cancelled.
    """

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    document: str | type[msgspec.Struct]
    searches: bool = True

    def input_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the arguments."""
        return input_schema(self.arguments)

    def output_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the document, as `shardwise schema` prints it, with the object
        at the root."""
        if isinstance(self.document, str):
            return object_schema(json_schema(self.document))
        return object_schema(msgspec.json.schema(self.document))


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "plan",
            "Plan",
            "The strategy (data and tensor parallelism, ZeRO, micro-batches, recomputation) with "
            "which a model trains fastest on a number of GPUs within their memory: its step time "
            "and peak memory, with a proven gap. The document has every operator; the text is "
            "short. Its `id` names the plan for explain and export.",
            PlanArguments,
            "plan",
        ),
        Tool(
            "curve",
            "Curve",
            "The shortest step time for every number of GPUs from 1 to max_gpus: how well a job "
            "scales, and the fewest GPUs on which it fits.",
            CurveArguments,
            "curve",
        ),
        Tool(
            "quote",
            "Quote",
            "Cloud instances on which a job fits, cheapest first, with step times, prices and "
            "their dates; for a whole job give steps, and a deadline or a budget.",
            QuoteArguments,
            "quote",
        ),
        Tool(
            "frontier",
            "Frontier",
            "Every strategy that no other beats in both peak memory and step time on a number of "
            "GPUs.",
            FrontierArguments,
            "frontier",
        ),
        Tool(
            "compare",
            "Compare",
            "The strategies of data parallelism, FSDP, Megatron, FlexFlow, OptCNN, Tofu and "
            "Mesh-TensorFlow next to the best one that was found, on one cost model.",
            CompareArguments,
            "compare",
        ),
        Tool(
            "explain",
            "Explain a plan",
            "How each group of operators of a plan is split and what it costs, and why not a "
            "neighbouring strategy. Takes a plan, or graph, hardware and gpus to make one.",
            ExplainArguments,
            "explanation",
        ),
        Tool(
            "export",
            "Export a plan",
            "What starts a plan's hosts, for Slurm, Kueue, Ray or SkyPilot.",
            ExportArguments,
            Export,
            searches=False,
        ),
        Tool(
            "list_hardware",
            "List hardware",
            "The built-in hardware profiles: what `hardware` may be.",
            ListArguments,
            Profiles,
            searches=False,
        ),
        Tool(
            "list_graphs",
            "List graphs",
            "The shipped training graphs: what `graph` may be besides files of your own.",
            ListArguments,
            Graphs,
            searches=False,
        ),
    )
}
