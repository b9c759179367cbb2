"""What to capture: `llama3-8b`, `hf:GPT2Config:n_layer=4`, `timm:resnet50`, `a.b:call`, a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shardwise.capture.presets import find_preset, near_presets, preset_names, presets
from shardwise.errors import CaptureError

Value = int | float | bool | str | None
Origin = Literal["class", "preset", "file"]
KINDS: tuple[Literal["hf", "diffusers", "timm", "zoo"], ...] = ("hf", "diffusers", "timm", "zoo")
FROM_FILES = ("hf", "diffusers")
"""The kinds that presets and config.json files are of."""
PRESET = "preset"
CONFIG_FILE = "config.json"
"""What transformers calls the file of a configuration."""
FORMS = (
    "a preset such as llama3-8b[:key=value,…], hf:CONFIG_CLASS[:key=value,…], "
    "hf:./config.json[:key=value,…], diffusers:CLASS[:key=value,…], "
    "diffusers:./config.json[:key=value,…], timm:NAME[:key=value,…], zoo:NAME[:key=value,…], "
    "package.module:callable, FILE.onnx[:dimension=size,…] or onnx:FILE"
)
_ONNX = re.compile(
    r"(?:onnx:(?P<named>.+?)|(?P<plain>.+\.onnx(?:\.gz)?))(?::(?P<options>[^:/=]+=[^:/]*))?",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Source:
    """`kind` says who builds the model, `target` which one, `options` are its key=value pairs.

    `origin` says what the target of a model of transformers (`hf`) or diffusers is: the name of a
    class or of a preset, or the path of a config.json or of its folder.
    """

    kind: Literal["hf", "diffusers", "timm", "zoo", "callable", "onnx"]
    target: str
    options: Mapping[str, Value] = field(default_factory=dict)
    text: str = ""
    origin: Origin = "class"

    @property
    def name(self) -> str:
        """What the graph is called: the preset with its options, else the source as given."""
        if self.origin != "preset":
            return self.text
        changed = ",".join(f"{key}={_written(value)}" for key, value in self.options.items())
        return f"{self.target}:{changed}" if changed else self.target


def parse_source(text: str) -> Source:
    """Parses a source; raises CaptureError if it has no known form."""
    onnx = _ONNX.fullmatch(text)
    if onnx is not None:
        path = onnx["named"] or onnx["plain"]
        return Source("onnx", path, _parse_options(onnx["options"] or "", text), text)
    preset = parse_preset(text)
    if preset is not None:
        return preset
    prefix, colon, rest = text.partition(":")
    if prefix == PRESET or "=" in rest or not colon:
        _refuse_misspelt(rest.partition(":")[0] if prefix == PRESET else prefix, text)
    if not colon or not prefix or not rest:
        raise CaptureError(f"{text!r} is not a model source", field="SOURCE", expected=FORMS)
    kind = next((k for k in KINDS if k == prefix), None)
    if kind is None:
        return Source("callable", text, {}, text)
    target, _, options = rest.partition(":")
    if not target:
        raise CaptureError(f"{text!r} names no model", field="SOURCE", expected=FORMS)
    origin = _origin(kind, target, text) if kind in FROM_FILES else "class"
    return Source(kind, target, _parse_options(options, text), text, origin)


def parse_preset(text: str) -> Source | None:
    """Parses `NAME`, `preset:NAME` or `hf:NAME`, each with options or without.

    Returns None unless NAME is a preset or an alias of one. `gpt2:build` is none: what follows the
    colon are no options, so that it is a callable.
    """
    prefix, _, rest = text.partition(":")
    if prefix in (PRESET, *FROM_FILES):
        name, _, options = rest.partition(":")
    else:
        name, options = prefix, rest
        if options and "=" not in options:
            return None
    found = find_preset(name)
    if found is None:
        return None
    return Source(presets()[found].kind, found, _parse_options(options, text), text, "preset")


def _refuse_misspelt(name: str, text: str) -> None:
    """Raises CaptureError if `name` is like a preset, or was said to be one."""
    near = near_presets(name)
    if near or text.startswith(f"{PRESET}:"):
        raise CaptureError(
            f"there is no preset {name!r}",
            field="SOURCE",
            expected=", ".join(near or preset_names()),
        )


def _origin(kind: str, target: str, text: str) -> Origin:
    """Returns whether `KIND:TARGET` is a class or a file; raises CaptureError for a hub's name."""
    if target.startswith((".", "/", "~")) or target.endswith(("/", ".json")):
        return "file"
    if (Path(target) / CONFIG_FILE).is_file():
        return "file"
    if "/" not in target:
        return "class"
    near = near_presets(target)
    like = f", or a preset: {', '.join(near)}" if near else ""
    folder = target.rpartition("/")[2]
    files = "config.json" if kind == "hf" else "--include '*/config.json'"
    raise CaptureError(
        f"no model hub is contacted, and {target} is neither a preset nor a folder here",
        file=text,
        expected=f"its config.json, fetched with `hf download {target} {files} --local-dir "
        f"{folder}` or a browser, as {kind}:./{folder}{like}",
    )


def _parse_options(text: str, source: str) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise CaptureError(f"{part!r} is not an option", field=source, expected="key=value")
        if key in options:
            raise CaptureError(f"{key} is given twice", field=source)
        options[key] = parse_value(value)
    return options


def parse_value(text: str) -> Value:
    """Parses `12`, `0.5`, `true` or `none`; returns other text unchanged."""
    words: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _written(value: Value) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
