"""The papers' models as graphs: captured once, kept under out/paper/graphs.

TensorOpt names no sizes beyond Table 1 (parameters in GB, one float32 copy as for VGG16, and memory
at batch 256). Where several fit, `table1.py` has the one that was taken and the others.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from shardwise.graph import Graph, read_graph, write_graph
from shardwise.search.search import Subject

FOLDER = Path("out/paper/graphs")

SOURCES: dict[str, tuple[str, dict[str, int]]] = {
    "vgg16": ("zoo:vgg16", {"batch": 256}),
    "wide-resnet": ("zoo:wrn:depth=46,width=55", {"batch": 256}),
    "transformer": ("zoo:transformer", {"batch": 256, "seq": 64}),
    "transformer-s": ("zoo:transformer-s", {"batch": 256, "seq": 64}),
    "rnn": ("zoo:lstm:hidden=20480,inputs=20480,vocab=51200", {"batch": 256}),
    "rnn-4-8k": ("zoo:lstm:layers=4,hidden=8192,inputs=1024", {"batch": 512}),
    "wresnet-152-10": ("zoo:wide-resnet-152:width=10", {"batch": 8}),
}
"""Source and capture arguments by name; other names are sources themselves."""

SHIPPED = ("vgg16", "transformer")


@cache
def graph(name: str, batch: int = 0) -> Graph:
    """The graph of a name in `SOURCES`, or of any source with a batch."""
    if name in SHIPPED:
        from shardwise.capture import shipped_graph

        return read_graph(shipped_graph(name))
    source, arguments = SOURCES.get(name, (name, {"batch": batch}))
    label = name if name in SOURCES else f"{name.removeprefix('zoo:')}-{batch}"
    path = FOLDER / f"{label.translate(str.maketrans(':,=', '---'))}.json.gz"
    if not path.exists():
        from shardwise.capture import capture

        FOLDER.mkdir(parents=True, exist_ok=True)
        write_graph(capture(source, name=label, **arguments), path)
    return read_graph(path)


@cache
def subject(name: str, batch: int = 0) -> Subject:
    """The same, ready for searches."""
    return Subject.of(graph(name, batch))
