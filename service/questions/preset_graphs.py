"""Graphs by name, `preset:llama3-8b`: those shipped with Shardwise, and those of a folder.

A service needs no torch. What is not shipped, such as a preset with options, its operator captures
once, on any machine: `shardwise capture llama3-8b:… -o FOLDER/NAME.json.gz`. A file is read when a
question first names it; one of the folder goes before one that is shipped.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from pathlib import Path

from service.base.problems import Problem
from service.questions.upload import Upload, require_operators, upload_of
from shardwise.capture.presets import find_preset, near_presets
from shardwise.capture.shipped import shipped_presets
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.step_sizes import StepSizes, split_sizes

PRESET = "preset:"
SUFFIXES = (".json.gz", ".json")
MOST_NAMES = 200
MOST_READ = 8
"""Graphs that one process holds; that of Llama 3 8B is 0.7 MB."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PresetGraphs:
    """The graphs of presets that are shipped, and those of the folder if there is one."""

    def __init__(self, folder: str, max_operators: int) -> None:
        self._folder = Path(folder).expanduser() if folder else None
        self._max_operators = max_operators
        self._read: OrderedDict[tuple[str, int, int, StepSizes], Upload] = OrderedDict()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Returns the names of the graphs, at most `MOST_NAMES`."""
        return sorted(self._files())[:MOST_NAMES]

    def upload(self, spec: str) -> Upload:
        """Returns the graph of `preset:NAME`, or of NAME if it is a preset or in the folder, each
        with sizes or without.

        Raises `BadInput` for an unknown name and sizes that a file does not hold for, and a Problem
        404 for a preset that is not in the folder; all say what to do.
        """
        plain, sizes = split_sizes(spec)
        name = plain.removeprefix(PRESET)[:200]
        files = self._files()
        known = name if name in files else find_preset(name)
        if known in files:
            try:
                return self._graph(files[known], sizes)
            except BadInput as error:
                raise error if not sizes.asked else error.in_file(f"{PRESET}{known}") from None
        raise _lacking(name, sorted(files), sorted(self._own_files()))

    def has(self, spec: str) -> bool:
        """Returns whether a question's graph is named as a preset, there or not."""
        return spec.startswith(PRESET) or find_preset(split_sizes(spec)[0][:200]) is not None

    def _files(self) -> dict[str, Path]:
        return {**shipped_presets(), **self._own_files()}

    def _own_files(self) -> dict[str, Path]:
        if self._folder is None:
            return {}
        try:
            paths = sorted(self._folder.iterdir(), reverse=True)
        except OSError:
            return {}
        return {
            path.name.removesuffix(suffix): path
            for path in paths
            for suffix in SUFFIXES
            if path.name.endswith(suffix) and _NAME.fullmatch(path.name.removesuffix(suffix))
        }

    def _graph(self, path: Path, sizes: StepSizes) -> Upload:
        """Returns the graph of a file, which is read again when it has changed."""
        state = path.stat()
        key = (str(path), state.st_mtime_ns, state.st_size, sizes)
        with self._lock:
            if key not in self._read:
                graph = read_graph(path, sizes)
                require_operators(len(graph.operators), self._max_operators)
                self._read[key] = upload_of(graph)
            self._read.move_to_end(key)
            while len(self._read) > MOST_READ:
                self._read.popitem(last=False)
            return self._read[key]


def _lacking(name: str, there: list[str], own: list[str]) -> Exception:
    """Returns the error for a name that there is not: what to capture, or what is near."""
    base, _, options = name.partition(":")
    known = find_preset(base)
    if known is None:
        near = ", ".join(dict.fromkeys([*near_presets(base), *own[:20]]))
        return BadInput(
            f"there is no preset {base[:80]!r}",
            field="graph",
            expected=near or "a preset of docs/presets.md, an id, or shipped:NAME",
        )
    asked = f"{known}:{options}" if options else known
    return Problem(
        "not-found",
        f"this service has no graph of the preset {asked[:200]}: run `shardwise capture "
        f"{asked[:200]} -o graph.json.gz` and upload that (POST /v1/graphs)",
        field="graph",
        expected=", ".join(f"{PRESET}{one}" for one in [*own, *there][:20]) or "an id",
    )
