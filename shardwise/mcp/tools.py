"""The tools of `shardwise mcp`, each with what answers it in this process."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.documents import Pipeline, PipelineExplanation, WholeExplanation, WholePlan
from shardwise.mcp.arguments import (
    CompareArguments,
    CurveArguments,
    ExplainArguments,
    ExportArguments,
    FrontierArguments,
    ListArguments,
    PlanArguments,
    PricingArguments,
    QuoteArguments,
)
from shardwise.mcp.lists import Graphs, Profiles
from shardwise.mcp.local import (
    Answer,
    compare_systems,
    explain_plan,
    export_given,
    list_graphs,
    list_profiles,
    make_curve,
    make_frontier,
    make_plan,
    make_quote,
    price_given,
)
from shardwise.mcp.tool import Tool

TOOLS: Mapping[str, Tool[Answer]] = {
    tool.name: tool
    for tool in (
        Tool(
            "plan",
            "Plan",
            "The strategy (data and tensor parallelism, ZeRO, micro-batches, recomputation) with "
            "which a model trains fastest on a number of GPUs within their memory: its step time "
            "and peak memory, with a proven gap. The document has every operator; the text is "
            "short. Its `id` names the plan for explain and export. With a trainer as `space`, "
            "the fastest that the trainer can run, and what that costs. With `stages` the fastest "
            "pipeline, or the plan without one where that is as fast.",
            PlanArguments,
            Pipeline | WholePlan,
            make_plan,
        ),
        Tool(
            "curve",
            "Curve",
            "The shortest step time for every number of GPUs from 1 to max_gpus: how well a job "
            "scales, and the fewest GPUs on which it fits. With `stages` pipelines count too.",
            CurveArguments,
            "curve",
            make_curve,
        ),
        Tool(
            "quote",
            "Quote",
            "Cloud instances on which a job fits, cheapest first, with step times, prices and "
            "their dates; for a whole job give steps, and a deadline or a budget. With `stages` "
            "pipelines count too.",
            QuoteArguments,
            "quote",
            make_quote,
        ),
        Tool(
            "frontier",
            "Frontier",
            "Every strategy that no other beats in both peak memory and step time on a number of "
            "GPUs, and with `stages` the pipelines that none of them beats.",
            FrontierArguments,
            "frontier",
            make_frontier,
        ),
        Tool(
            "compare",
            "Compare",
            "The strategies of data parallelism, FSDP, Megatron, FlexFlow, OptCNN, Tofu and "
            "Mesh-TensorFlow next to the best one that was found, on one cost model.",
            CompareArguments,
            "compare",
            compare_systems,
        ),
        Tool(
            "explain",
            "Explain a plan",
            "How each group of operators of a plan is split and what it costs, and why not a "
            "neighbouring strategy; of a pipeline what each stage does and keeps. Takes either, or "
            "graph, hardware and gpus to make a plan.",
            ExplainArguments,
            WholeExplanation | PipelineExplanation,
            explain_plan,
        ),
        Tool(
            "price_configuration",
            "Price a configuration",
            "What a configuration that somebody has for torchtitan, Megatron, DeepSpeed, "
            "accelerate or nanotron takes: step time, peak memory, whether it fits, and for each "
            "single change how much it saves, with the best strategy that the trainer can run.",
            PricingArguments,
            "pricing",
            price_given,
        ),
        Tool(
            "export",
            "Export a plan",
            "A plan as the configuration of the trainer that runs it (to), with what that cannot "
            "say, or as what starts its hosts with Slurm, Kueue, Ray or SkyPilot (format).",
            ExportArguments,
            "export",
            export_given,
            searches=False,
        ),
        Tool(
            "list_hardware",
            "List hardware",
            "The built-in hardware profiles: what `hardware` may be.",
            ListArguments,
            Profiles,
            list_profiles,
            searches=False,
        ),
        Tool(
            "list_graphs",
            "List graphs",
            "The shipped training graphs: what `graph` may be besides files of your own.",
            ListArguments,
            Graphs,
            list_graphs,
            searches=False,
        ),
    )
}
