"""Where a transformers model comes from: a class, a preset, or a config.json on this machine.

Each becomes a configuration class with the fields that its defaults do not have. Nothing is
fetched, and no code beside a config.json is run (`auto_map` is left out).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.capture.config_file import dtype_of, read_fields
from shardwise.capture.presets import presets
from shardwise.capture.source import CONFIG_FILE, Source
from shardwise.errors import CaptureError, CaptureWarning
from shardwise.near import near

_KIND = "a config.json of transformers, or its folder"
_NOT_OF_THE_MODEL = frozenset(
    (
        *("model_type", "architectures", "auto_map", "custom_pipelines", "quantization_config"),
        *("transformers_version", "_name_or_path", "_commit_hash", "dtype", "torch_dtype"),
    )
)
"""Keys of a config.json that say nothing about the operators of training."""

TYPE = "model_type"
"""The option that says as which model type a config.json is read."""

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
"""Sizes that a file has to say under the names of the model type that it is read as."""


@dataclass(frozen=True)
class Origin:
    """`dtype` is what the configuration says of its parameters; `batch` and `seq` are defaults.

    `file` is the config.json that was read, `architectures` the model classes that it names.
    """

    config_class: Any
    fields: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    batch: int | None = None
    seq: int | None = None
    file: str | None = None
    architectures: tuple[str, ...] = ()


def find_origin(source: Source) -> Origin:
    """Returns the class and the fields of a source; raises CaptureError if there are none."""
    if source.origin == "file":
        return read_config(source.target, source.options)
    if source.origin == "preset":
        preset = presets()[source.target]
        chosen = _class_named(preset.config, source)
        return Origin(chosen, preset.fields, preset.dtype, preset.batch, preset.seq)
    return Origin(_class_named(source.target, source))


def read_config(target: str, options: Mapping[str, Any] | None = None) -> Origin:
    """Returns what a config.json says, given its path or its folder's.

    `options` may have the model type to read it as, whatever type it names.

    Raises CaptureError that names the file and the field.
    """
    from transformers import CONFIG_MAPPING

    path = Path(target).expanduser()
    if path.is_dir():
        path = path / CONFIG_FILE
    file = str(path)
    document = read_fields(path, _KIND)
    if options and options.get(TYPE) is not None:
        return _read_as(options, document, file)
    model_type = document.get("model_type")
    named = document.get("architectures")
    classes = tuple(n for n in named if isinstance(n, str)) if isinstance(named, list) else ()
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        config_class = CONFIG_MAPPING[model_type]
    elif "_class_name" in document:
        raise CaptureError("a model of diffusers", file=file, expected=f"diffusers:{target}")
    else:
        config_class = _of_architecture(classes, model_type, file)
        if config_class is None:
            raise _unknown_type(model_type, list(CONFIG_MAPPING), file)
    fields = {k: v for k, v in document.items() if k not in _NOT_OF_THE_MODEL}
    return Origin(
        config_class,
        fields,
        dtype_of(document, file),
        file=file,
        architectures=classes,
    )


def _read_as(options: Mapping[str, Any], document: Mapping[str, Any], file: str) -> Origin:
    """Returns a file's fields as those of a model type that its user finds nearly the same.

    A warning says which fields that type does not have. Raises CaptureError for an unknown type,
    and where the file has no size that the type needs, whose default would be another model's.
    """
    from transformers import CONFIG_MAPPING

    asked = options[TYPE]
    if asked not in CONFIG_MAPPING:
        raise _unknown_type(asked, list(CONFIG_MAPPING), file)
    config_class = CONFIG_MAPPING[asked]
    known = {*config_class().to_dict(), *getattr(config_class, "attribute_map", {})}
    fields = {k: v for k, v in document.items() if k not in _NOT_OF_THE_MODEL}
    mapped = getattr(config_class, "attribute_map", {})
    lacking = [
        size
        for size in _SIZES
        if size in known and not {size, mapped.get(size, size)} & {*fields, *options}
    ]
    if lacking:
        raise CaptureError(
            f"read as {asked}, it says nothing of {', '.join(lacking)}",
            file=file,
            field=TYPE,
            expected="these as options, or a model type with the names that the file has",
        )
    others = sorted(set(fields) - known)
    warnings.warn(
        f"{file}: captured as {asked}, which was asked for, not as the code of "
        f"{str(document.get('model_type'))[:40]!r}"
        + (f"; {asked} has no {', '.join(others)[:200]}" if others else ""),
        CaptureWarning,
        stacklevel=3,
    )
    of_type = {key: value for key, value in fields.items() if key in known}
    return Origin(config_class, of_type, dtype_of(document, file), file=file)


def _of_architecture(classes: tuple[str, ...], model_type: Any, file: str) -> Any:
    """Returns the configuration class of the first architecture that transformers has, if any.

    Files of models with code of their own give their own type and a class of transformers (Kimi K2:
    `DeepseekV3ForCausalLM`). A warning says so.
    """
    import transformers

    for name in classes:
        model = getattr(transformers, name, None)
        config_class = getattr(model, "config_class", None)
        if isinstance(config_class, type) and issubclass(
            config_class, transformers.PretrainedConfig
        ):
            warnings.warn(
                f"{file}: transformers has no model type {str(model_type)[:40]!r}; captured as "
                f"{name}, the architecture that the file names",
                CaptureWarning,
                stacklevel=2,
            )
            return config_class
    return None


def _class_named(name: str, source: Source) -> Any:
    import transformers

    config_class = getattr(transformers, name, None)
    if isinstance(config_class, type) and issubclass(config_class, transformers.PretrainedConfig):
        return config_class
    known = [known for known in dir(transformers) if known.endswith("Config")]
    close = near(name, known, most=3)
    raise CaptureError(
        f"transformers has no configuration class {name!r}",
        file=source.text,
        expected=", ".join(close) or "a class such as GPT2Config, or a preset such as gpt2",
    )


def _unknown_type(model_type: Any, known: list[str], file: str) -> CaptureError:
    close = near(model_type, known, most=3) if isinstance(model_type, str) else []
    problem = "missing" if model_type is None else f"transformers has no model type {model_type!r}"
    return CaptureError(
        problem,
        file=file,
        field="model_type",
        expected=f"{', '.join(close) or 'a model type of transformers, such as llama'}; or the "
        "option model_type=llama, to capture it as the architecture that is nearest",
    )
