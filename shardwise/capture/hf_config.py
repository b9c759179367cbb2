"""The configuration of a transformers model with its `key=value,…`: checks every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.hf_images import IMAGE_SIZE
from shardwise.capture.hf_origin import TYPE, Origin
from shardwise.capture.hf_steady import steady
from shardwise.capture.source import Source, Value
from shardwise.errors import CaptureError
from shardwise.near import near

IMPLEMENTATION_KEYS = ("attn_implementation", "experts_implementation")
"""Keys for transformers' implementations of attention and experts; not configuration fields."""

INPUT_KEYS = ("attention_mask", "task")
"""Keys for the model's inputs and training task; not configuration fields either."""

SCANS = "scan_implementation"
"""How recurrences are captured: `fused`, one operator each, or `eager`, transformers' own form."""

_PACKED = "spatial_merge_size"
"""A field of vision towers that take images of any size, whose configurations have none."""

_TEXT = "text_config"
_LAYERS = "num_hidden_layers"
_COUNTS = (_LAYERS, "n_layer", "n_layers", "num_layers")
MOST_LAYERS = 10_000
"""A model with more is built for minutes, and takes the memory of its modules alone."""

_PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "hybrid_override_pattern")
"""Fields with one item per layer: lists, or a letter for each (Nemotron-H)."""

_FREE = "_token_id"
"""Ends of names whose values may be a number or a list of numbers."""


def make_config(source: Source, origin: Origin) -> Any:
    """Returns the configuration object; a key may set part of it (`text_config.hidden_size`).

    Raises CaptureError for a key or a value that the configuration class does not know.
    """
    defaults = plain_config(source, origin)
    arguments: dict[str, Any] = {}
    for key, value in source.options.items():
        if key not in (*IMPLEMENTATION_KEYS, *INPUT_KEYS, SCANS, TYPE):
            _set_option(arguments, defaults, key, key, value, source, _read_from(origin, defaults))
    fields = _merged(_with_text_apart(origin, arguments), arguments)
    _cut_lists_of_layers(fields, arguments)
    where = origin.file or source.text
    with foreign_code(f"{source.target} cannot be configured", source=where), quiet():
        config = origin.config_class(**fields)
        steady(config, source.options)
    _check_sizes(config, where)
    _check_layers(config, arguments.get(_LAYERS), source)
    return config


def plain_config(source: Source, origin: Origin) -> Any:
    """Returns the configuration without the options of the source."""
    doing, where = f"{source.target} cannot be configured", origin.file or source.text
    with foreign_code(doing, source=where), quiet():
        usual = origin.config_class()
    for key, value in origin.fields.items():
        if not key.endswith(_FREE) and not isinstance(value, list | Mapping):
            check_type(key, value, _default(usual, key), where, _annotated(usual, key))
    with foreign_code(doing, source=where), quiet():
        return origin.config_class(**origin.fields)


def _default(config: Any, key: str) -> Any:
    """Returns a field of a configuration, None where it has none or none for all layers.

    Configurations whose layers differ (Gemma 4) raise errors of their own for such a field.
    """
    try:
        return getattr(config, key, None)
    except Exception:
        return None


def _with_text_apart(origin: Origin, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields with those of the text model as a part, where arguments change that part.

    Older files (Qwen2-VL) have them beside the vision model's part; transformers reads them there
    only if there is no part for them.
    """
    if _TEXT not in arguments or _TEXT in origin.fields:
        return origin.fields
    own = origin.config_class().to_dict()
    of_text = {key: value for key, value in origin.fields.items() if key not in own}
    return {**{k: v for k, v in origin.fields.items() if k in own}, _TEXT: of_text}


def _merged(fields: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with the arguments in their places, also inside parts."""
    merged = dict(fields)
    for key, value in arguments.items():
        part = fields.get(key)
        if isinstance(part, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(part, value)
        else:
            merged[key] = value
    return merged


def _cut_lists_of_layers(fields: dict[str, Any], arguments: Mapping[str, Any]) -> None:
    """Shortens what has one item per layer to a smaller number of layers, if one is asked for."""
    layers = arguments.get(_LAYERS)
    if isinstance(layers, int):
        for key in _PER_LAYER:
            if isinstance(fields.get(key), list | str) and key not in arguments:
                fields[key] = fields[key][:layers]


def _check_sizes(config: Any, where: str) -> None:
    """Raises CaptureError for more layers than a graph of which could be captured."""
    for key in _COUNTS:
        layers = vars(config).get(key)
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise CaptureError(
                f"{layers} layers", file=where, field=key, expected=f"at most {MOST_LAYERS}"
            )


def _check_layers(config: Any, asked: Any, source: Source) -> None:
    """Raises CaptureError if a configuration has other layers than those that were asked for.

    One that counts the items of a list (Nemotron-H) ignores the number.
    """
    count = _default(config, _LAYERS)
    if isinstance(asked, int) and isinstance(count, int) and count != asked:
        raise CaptureError(
            f"{source.target} says what each of its {count} layers is, not of {asked}",
            file=source.text,
            field=_LAYERS,
            expected=f"at most {count}",
        )


def _read_from(origin: Origin, defaults: Any) -> frozenset[str]:
    """Returns the fields of the origin that a configuration takes and keeps under other names.

    Nemotron-H makes its list of layers of `hybrid_override_pattern`, and counts them itself.
    """
    kind = type(defaults)
    return frozenset(k for k in origin.fields if isinstance(getattr(kind, k, None), property))


def asks_for_mask(source: Source) -> bool:
    """Returns whether `attention_mask=true` makes the padding mask an input of the model."""
    wanted = source.options.get("attention_mask", False)
    if not isinstance(wanted, bool):
        raise CaptureError(
            f"{wanted!r} is not a bool",
            file=source.text,
            field="attention_mask",
            expected="true: padded sequences with their mask, false: full sequences",
        )
    return wanted


def has_fused_scans(source: Source) -> bool:
    """Returns whether recurrences are one operator each; raises CaptureError for another word."""
    how = source.options.get(SCANS, "fused")
    if how not in ("fused", "eager"):
        raise CaptureError(
            f"{how!r} is not known", file=source.text, field=SCANS, expected="fused or eager"
        )
    return how == "fused"


def _set_option(
    arguments: dict[str, Any],
    defaults: Any,
    path: str,
    key: str,
    value: Value,
    source: Source,
    more: frozenset[str] = frozenset(),
) -> None:
    """Puts one option into the arguments; `more` are fields beside those of `to_dict`."""
    first, dot, rest = key.partition(".")
    part = _default(defaults, first)
    if dot and hasattr(part, "to_dict"):
        _set_option(arguments.setdefault(first, {}), part, path, rest, value, source)
        return
    accepted = {
        *defaults.to_dict(),
        *getattr(type(defaults), "attribute_map", {}),
        "num_labels",
        *more,
    }
    if _PACKED in accepted:
        accepted.add(IMAGE_SIZE)
    if key not in accepted:
        raise CaptureError(
            f"{type(defaults).__name__} has no option {key!r}",
            file=source.text,
            field=path,
            expected=_in_a_part(key, defaults)
            or _suggestion(key, sorted(accepted))
            or "an attribute of the configuration",
        )
    if isinstance(part, Mapping) or hasattr(part, "to_dict"):
        raise CaptureError(
            f"{key} is not a single value",
            file=source.text,
            field=path,
            expected=f"{path}.KEY={value}",
        )
    check_type(path, value, part, source.text, _annotated(defaults, first))
    arguments[key] = value


def _annotated(config: Any, key: str) -> tuple[type, ...]:
    """Returns the plain types that a configuration's class allows a field (`str | int | None`)."""
    for kind in type(config).__mro__:
        hint = vars(kind).get("__annotations__", {}).get(key)
        if hint is not None:
            return tuple(one for one in get_args(hint) if one in (int, float, str))
    return ()


def check_type(
    key: str, value: Value, default: Any, file: str, also: tuple[type, ...] = ()
) -> None:
    """Raises CaptureError unless a field's value is of its default's type or one of `also`, and not
    negative."""
    wanted = type(default)
    fitting = (int, float) if wanted is float else (wanted, *also)
    if default is None or value is None or wanted not in (bool, int, float, str):
        return
    if wanted is int and isinstance(value, int) and value < 0 <= default:
        raise CaptureError(
            f"{value} is negative", file=file, field=key, expected=f"a value like {default}"
        )
    if not isinstance(value, fitting) or (wanted is not bool and isinstance(value, bool)):
        raise CaptureError(
            f"{value!r} is not of type {wanted.__name__}",
            file=file,
            field=key,
            expected=f"a value like {default!r}",
        )


def _in_a_part(key: str, defaults: Any) -> str:
    """Returns the paths of a key in the parts of a configuration; none if no part has it."""
    parts = {name: part for name, part in vars(defaults).items() if hasattr(part, "to_dict")}
    return ", ".join(f"{name}.{key}" for name, part in parts.items() if key in part.to_dict())


def _suggestion(word: str, known: list[str]) -> str | None:
    close = near(word, known, most=3)
    return ", ".join(close) if close else None
