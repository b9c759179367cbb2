"""A profile with a graph's operators measured: what `shardwise measure --operators` does."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.cost.options import Options, Progress, quiet
from shardwise.graph import Graph
from shardwise.hardware import Hardware, hardware_document, hardware_from_document
from shardwise.measure.operators.clock import cache_bytes
from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.measuring import Measured, Tell, measure_operators
from shardwise.measure.operators.needed import Of, needed_operators
from shardwise.measure.operators.tables import merged
from shardwise.torch_operators import load_torch


def add_operators(
    profile_document: Mapping[str, Any],
    graph: Graph,
    gpus: int,
    *,
    options: Options | None = None,
    of: Of = "frontier",
    effort: Effort | None = None,
    progress: Progress = quiet,
    tell: Tell | None = None,
) -> tuple[dict[str, Any], Measured]:
    """Returns the profile with the calls that plans of `graph` on `gpus` devices need, and what
    was measured here.

    Without `effort`, measures on the first GPU if there is one, else on CPUs with as many siblings
    as a node has devices. Caches are flushed unless the whole step fits into them. Calls that the
    profile already has are measured again. Raises what `needed_operators` and `measure_operators`
    raise, and `BadInput` for a document that is not a profile.
    """
    hardware = hardware_from_document(dict(profile_document))
    items = needed_operators(graph, hardware, gpus, options, of=of, progress=progress)
    if effort is None:
        effort = default_effort(graph, hardware, gpus)
    effort = replace(effort, kind=hardware.devices[0].kind)
    measured = measure_operators(items, effort, tell)
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    concurrency = f", {effort.ranks} ranks at once" if effort.ranks > 1 else ""
    sources = {
        **hardware.sources,
        "operators": f"measured on {now[:10]} with torch {load_torch().__version__}{concurrency}",
    }
    tables = merged(hardware.operators, measured.tables)
    return hardware_document(replace(hardware, operators=tables, sources=sources)), measured


def default_effort(graph: Graph, hardware: Hardware, gpus: int) -> Effort:
    """Returns how a graph's operators are measured on this machine by default."""
    torch = load_torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ranks = min(gpus, hardware.per_node) if device == "cpu" else 1
    cache = cache_bytes(torch, torch.device(device))
    return Effort(device, ranks=ranks, flushed=working_set_bytes(graph) / gpus > cache / ranks)


def working_set_bytes(graph: Graph) -> float:
    """Returns the least that one step touches: every tensor once."""
    return float(sum(tensor.size_bytes for tensor in graph.tensors.values()))
