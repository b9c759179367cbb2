"""What a trainer's configuration states of a step besides its parallelism, as our options."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from shardwise.cost.options import Options
from shardwise.cost.software import EAGER
from shardwise.cost.step_settings import EIGHT_BITS, FUSED, StepSettings
from shardwise.errors import BadInput
from shardwise.hardware import Hardware
from shardwise.trainers.configuration import Configuration

_STEP = tuple(item.name for item in fields(StepSettings))
_KNOWN: Mapping[str, tuple[str, ...]] = {
    "adam": (
        *("adam", "adamw", "adamwtorch", "adamwtorchfused", "adamwhf", "fusedadam"),
        *("deepspeedcpuadam", "lamb", "fusedlamb", "nadam", "radam"),
        *("adam8bit", "adamw8bit", "adamwbnb8bit", "pagedadamw8bit", "adamwtorch8bit"),
    ),
    "sgd": ("sgd",),
    "momentum": (
        *("momentum", "lion", "lionw", "fusedlion", "lion8bit", "pagedlion8bit"),
        *("muon", "adagrad", "rmsprop"),
    ),
}
"""By our optimizers, the names without case and punctuation of those that keep as much state."""


def optimizer_of(name: str, field: str, notes: list[str]) -> dict[str, str]:
    """Returns the options of an optimizer by a trainer's name for it.

    Adds a note for one that is read as another with as much state. Raises `BadInput` for one whose
    state is not known.
    """
    plain = "".join(character for character in name.lower() if character.isalnum())
    known = next((own for own, names in _KNOWN.items() if plain in names), None)
    if known is None:
        raise BadInput(
            f"{name[:40]!r}: how much state it keeps is not known, and decides what fits",
            field=field,
            expected="Adam, AdamW, SGD or Lion, also in 8 bits",
        )
    if known not in plain:
        notes.append(f"{field} {name[:40]}: priced as {known}, which keeps as much state")
    stated = {"optimizer": known}
    if plain.endswith("8bit"):
        stated["state"] = EIGHT_BITS
    elif "fused" in plain:
        stated["update"] = FUSED
    return stated


def with_stated(options: Options, stated: Mapping[str, str], given: Collection[str]) -> Options:
    """Returns options with what a configuration states, except those that are `given` by name and
    those that differ from their default."""
    plain = Options()
    top: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for name, value in stated.items():
        if name not in given and _of(options, name) == _of(plain, name):
            (inner if name in _STEP else top)[name] = value
    if inner:
        top["step"] = replace(options.step, **inner)
    return replace(options, **top)


def as_configured(options: Options, stated: Mapping[str, str], given: Collection[str]) -> Options:
    """Returns options with what a trainer's file states, as `with_stated`: a file that does not say
    that it compiles is of an eager program."""
    return with_stated(options, {"framework": EAGER, **stated}, given)


def on_hardware(
    configuration: Configuration, hardware: Hardware, *, piped: bool = False
) -> Configuration:
    """Returns a configuration whose states are on the GPU where those on the host are not priced:
    of pipelines, and where a profile does not say what memory its hosts have."""
    if "offload" not in configuration.stated or (hardware.host_memory is not None and not piped):
        return configuration
    why = "of pipelines" if piped else f"{hardware.name} does not say what memory its hosts have"
    stated = {name: value for name, value in configuration.stated.items() if name != "offload"}
    left_out = [*configuration.left_out, f"offloading of states: priced on the GPU; {why}"]
    return replace(configuration, stated=stated, left_out=left_out)


def changed_in_words(before: Options, after: Options, stated: Mapping[str, str]) -> list[str]:
    """Returns which of the stated options changed, in words such as `gradients float32`."""
    return [
        f"{name} {value}"
        for name, value in stated.items()
        if _of(before, name) != value == _of(after, name)
    ]


def _of(options: Options, name: str) -> Any:
    return getattr(options.step if name in _STEP else options, name)
