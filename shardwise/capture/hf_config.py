"""A transformers configuration from `hf:CLASS:key=value,…`: checks every key, fetches nothing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.source import Source, Value
from shardwise.errors import CaptureError

IMPLEMENTATION_KEYS = ("attn_implementation", "experts_implementation")
"""How transformers computes attention and experts; not part of the configuration."""

INPUT_KEYS = ("attention_mask",)
"""What the model is given; not part of the configuration either."""


def make_config(source: Source) -> Any:
    """Returns the configuration object; a key may set part of it (`text_config.hidden_size`).

    Raises CaptureError for a class, a key or a value that transformers does not know.
    """
    import transformers

    config_class = getattr(transformers, source.target, None)
    base = transformers.PretrainedConfig
    if not (isinstance(config_class, type) and issubclass(config_class, base)):
        known = [name for name in dir(transformers) if name.endswith("Config")]
        raise CaptureError(
            f"transformers has no configuration class {source.target!r}",
            file=source.text,
            expected=_suggestion(source.target, known) or "a class such as GPT2Config",
        )
    with foreign_code(f"{source.target} cannot be configured", source=source.text), quiet():
        defaults = config_class()
    arguments: dict[str, Any] = {}
    for key, value in source.options.items():
        if key not in (*IMPLEMENTATION_KEYS, *INPUT_KEYS):
            _set_option(arguments, defaults, key, key, value, source)
    with foreign_code(f"{source.target} cannot be configured", source=source.text), quiet():
        config = config_class(**arguments)
        config.use_cache = False
    return config


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


def _set_option(
    arguments: dict[str, Any], defaults: Any, path: str, key: str, value: Value, source: Source
) -> None:
    first, dot, rest = key.partition(".")
    part = getattr(defaults, first, None)
    if dot and hasattr(part, "to_dict"):
        _set_option(arguments.setdefault(first, {}), part, path, rest, value, source)
        return
    accepted = {*defaults.to_dict(), *getattr(type(defaults), "attribute_map", {}), "num_labels"}
    if key not in accepted:
        raise CaptureError(
            f"{type(defaults).__name__} has no option {key!r}",
            file=source.text,
            field=path,
            expected=_suggestion(key, sorted(accepted)) or "an attribute of the configuration",
        )
    if isinstance(part, Mapping) or hasattr(part, "to_dict"):
        raise CaptureError(
            f"{key} is not a single value",
            file=source.text,
            field=path,
            expected=f"{path}.KEY={value}",
        )
    _check_type(path, value, part, source)
    arguments[key] = value


def _check_type(key: str, value: Value, default: Any, source: Source) -> None:
    wanted = type(default)
    fitting = (int, float) if wanted is float else (wanted,)
    if default is None or value is None or wanted not in (bool, int, float, str):
        return
    if wanted is int and isinstance(value, int) and value < 0 <= default:
        raise CaptureError(
            f"{value} is negative", file=source.text, field=key, expected=f"a value like {default}"
        )
    if not isinstance(value, fitting) or (wanted is not bool and isinstance(value, bool)):
        raise CaptureError(
            f"{value!r} is not of type {wanted.__name__}",
            file=source.text,
            field=key,
            expected=f"a value like {default!r}",
        )


def _suggestion(word: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(word, known, n=3)
    return ", ".join(close) if close else None
