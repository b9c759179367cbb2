"""Models by name: `llama3-8b`, under that name or another one of the same architecture.

The table is shardwise/data/presets.toml: for each model its configuration class of transformers,
or its class of diffusers, the fields that differ from the defaults of that class, and where the
numbers are from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from shardwise import validation
from shardwise.files import DATA
from shardwise.near import near

TABLE = DATA / "presets.toml"
NONE = "none"
"""How the table writes None, which TOML lacks."""


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model.

    `config` is the configuration class of transformers, or the model class of diffusers (`kind`,
    as in sources); `fields` is what differs from its defaults, `dtype` that of the parameters in
    the published config.json, if it has one. `batch` (samples) and `seq` (tokens of a sample,
    None of images alone) are those of a step unless a user gives others. `parameters` is the
    published number, `source` says who published it.
    """

    config: str
    batch: int
    parameters: int
    source: str
    kind: Literal["hf", "diffusers"] = "hf"
    seq: int | None = None
    dtype: str | None = None
    aliases: tuple[str, ...] = ()
    fields: dict[str, Any] = {}


@cache
def presets() -> Mapping[str, Preset]:
    """Returns all presets by name, in the order of the table."""
    table = validation.convert(
        tomllib.loads(TABLE.read_text("utf-8")), dict[str, Preset], file=TABLE.name
    )
    return {
        name: msgspec.structs.replace(
            preset, fields={k: None if v == NONE else v for k, v in preset.fields.items()}
        )
        for name, preset in table.items()
    }


def preset_names() -> tuple[str, ...]:
    """Returns the names of the presets."""
    return tuple(presets())


def find_preset(name: str) -> str | None:
    """Returns the preset that has this name or alias, in upper or lower case; None if none has."""
    return _by_any_name().get(name.lower())


def near_presets(word: str) -> list[str]:
    """Returns up to three presets with a name or alias like `word`, the most similar first."""
    known = _by_any_name()
    # Without parts: a module of one's own may be called `bert`.
    close = near(word, known, most=8, least=0.7, parts=False)
    return list(dict.fromkeys(known[name] for name in close))[:3]


@cache
def _by_any_name() -> Mapping[str, str]:
    return {
        other.lower(): name
        for name, preset in presets().items()
        for other in (name, *preset.aliases)
    }
