"""Presets in questions: the service's own graph of one, else one that is captured here."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from shardwise.capture.source import parse_preset
from shardwise.client.errors import Missing
from shardwise.client.exchange import Work
from shardwise.client.uploads import PRESET, GraphSource
from shardwise.cost.options import Progress, quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph

NEEDED = ("torch", "transformers")
FIELD = "graph"


def capture_instead(graph: GraphSource, missing: Missing, progress: Progress | None) -> Work | None:
    """Returns the capture of a preset whose graph a service lacks; None if nothing else is.

    Raises `BadInput`, which says what to do, where torch and transformers are not installed.
    """
    if not isinstance(graph, str) or missing.document.get("field") != FIELD:
        return None
    preset = parse_preset(graph)
    if preset is None:
        return None
    if any(find_spec(name) is None for name in NEEDED):
        raise BadInput(
            f"neither this service nor this machine can make the graph of {preset.name}",
            field=FIELD,
            expected=f"`pip install shardwise[models]` here, or {PRESET}{preset.target} in the "
            "folder of the service's graphs_dir",
        )
    return Work(partial(_captured, preset.name, progress or quiet))


def _captured(name: str, progress: Progress) -> Graph:
    from shardwise.capture.capture import capture

    return capture(f"{PRESET}{name}", progress=progress)
