"""docs/reference/http.md: every call and shape of the OpenAPI document that the service gives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from itertools import groupby
from typing import Any

import msgspec

from service.base.problems import FAILURES, MEDIA_TYPE, PREFIX, documentation
from service.base.settings import Settings
from service.host.app import create_app
from shardwise.answers import Options
from shardwise.cost.named_options import NAMES
from tools.reference.command_line import linked

_TITLES = {"skypilot": "SkyPilot", "operation": "Health and metrics"}
_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}


def openapi() -> dict[str, Any]:
    """Returns the document of a service without a database."""
    with tempfile.TemporaryDirectory() as folder:
        document: dict[str, Any] = create_app(Settings(data_dir=folder)).openapi()
    return document


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    calls = [
        (method, path, call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    ]
    parts = [
        "# HTTP",
        "",
        "Made by `make reference` from the document that a service gives at `/openapi.json`. "
        "How to ask, with examples: [The service](../service.md).",
        "",
        "A key is given as `Authorization: Bearer KEY` and must have the call's scope; `admin` is "
        "all of them. A service on loopback without keys needs none, but for an agent's own calls.",
        "",
    ]
    for tag, members in groupby(calls, key=lambda one: one[2]["tags"][0]):
        parts += [f"## {_TITLES.get(tag, tag.capitalize())}", ""]
        for method, path, call in members:
            parts += _call(method, path, call)
    parts += [
        "## Errors",
        "",
        f"`{MEDIA_TYPE}` with a {_link('Problem')}, whose `type` is `{PREFIX}` and the name.",
        "",
        documentation(),
    ]
    parts += ["The `error` of a failed job has one of these types:", ""]
    parts += ["| type | meaning |", "|---|---|"]
    parts += [f"| `{slug}` | {title} |" for slug, title in FAILURES.items()]
    parts += ["", *_options(), "## Shapes", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _shape(name, schema)
    return "\n".join(parts)


def _options() -> Iterator[str]:
    """Yields the members of `options`, which every question takes."""
    yield from ("## Options", "", "What `options` of a question may hold.", "")
    text = cleandoc(Options.__doc__ or "").partition("\n\n")[2]
    yield from (linked(text), "", "| member | default |", "|---|---|")
    defaults = Options()
    for name in NAMES:
        value = getattr(defaults, name)
        shown = "" if value is None else f"`{msgspec.json.encode(value).decode()}`"
        yield f"| `{name}` |{_cell(shown)}|"
    yield ""


def _call(method: str, path: str, call: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "")
    text = cleandoc(call.get("description") or call["summary"]).rstrip(".")
    scopes = [scope for requirement in call["security"] for scope in requirement.get("key", ())]
    scope = f"Scope: `{scopes[0]}`" if scopes else "No key is needed"
    yield from (f"{text}. {scope}.", "")
    if parameters := call.get("parameters"):
        yield from ("| parameter | in | type | what it is |", "|---|---|---|---|")
        for one in parameters:
            meaning = one.get("description", "").rstrip(".")
            needed = "required" if one["required"] and one["in"] != "path" else ""
            meaning = ". ".join(part for part in (meaning, needed) if part)
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} |{_cell(meaning)}|"
        yield ""
    if body := call.get("requestBody"):
        yield from (f"Body: {_bodies(body['content'])}.", "")
        example = body["content"].get("application/json", {}).get("example")
        if example is not None:
            yield from ("```json", _example(example), "```", "")
    errors = []
    yield from ("| answer | | body |", "|---|---|---|")
    for status, response in sorted(call["responses"].items()):
        if MEDIA_TYPE in response.get("content", {}):
            errors.append(status)
        else:
            shown = _bodies(response.get("content", {}))
            yield f"| {status} | {response['description']} |{_cell(shown)}|"
    yield ""
    if errors:
        yield from (f"[Errors](#errors): {', '.join(errors)}.", "")


def _cell(text: str) -> str:
    return f" {text} " if text else " "


def _bodies(content: Mapping[str, Any]) -> str:
    """Returns media types with their shapes; JSON's is not named."""
    shapes = []
    for kind, body in content.items():
        shape = _type(body["schema"])
        shapes.append(shape if kind == "application/json" else f"`{kind}` ({shape})")
    return ", or ".join(shapes)


def _shape(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if text := schema.get("description"):
        yield from (cleandoc(_indented(text)), "")
    if "properties" not in schema:
        yield from (_type(schema), "")
        return
    required = set(schema.get("required", ()))
    yield from ("| member | type | default |", "|---|---|---|")
    for member, inner in schema["properties"].items():
        default = "required" if member in required else ""
        if inner.get("default") is not None:
            default = f"`{_json(inner['default'])}`"
        bare = {key: value for key, value in inner.items() if key != "default"}
        yield f"| `{member}` | {_type(bare)} |{_cell(default)}|"
    yield ""


def _indented(text: str) -> str:
    """Returns a docstring whose first line is at the margin, as cleandoc expects."""
    return text if text.startswith("\n") else "\n" + text if "\n" not in text else text


def _type(schema: Mapping[str, Any]) -> str:
    """Returns a JSON Schema in words; named shapes are links to their own part."""
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "const" in schema:
        return f"`{_json(schema['const'])}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind == "object":
        return _object(schema)
    if kind == "null":
        return "null"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in schema
    ]
    default = [f"default `{_json(schema['default'])}`"] if "default" in schema else []
    name = "bytes" if schema.get("format") == "binary" else _NAMES.get(kind, "anything")
    words = " ".join([name, *bounds])
    return ", ".join([words, *default])


def _object(schema: Mapping[str, Any]) -> str:
    if members := schema.get("properties"):
        inner = ", ".join(f"`{name}`: {_type(one)}" for name, one in members.items())
        return f"object ({inner})"
    values = schema.get("additionalProperties")
    return f"object of {_type(values)}" if isinstance(values, Mapping) else "object"


def _example(value: Mapping[str, Any]) -> str:
    """Returns one member per line, and one object per line of a list of objects."""
    lines = []
    for key, inner in value.items():
        shown = _json(inner)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            shown = "[\n    " + ",\n    ".join(_json(one) for one in inner) + "\n  ]"
        lines.append(f"  {_json(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"
