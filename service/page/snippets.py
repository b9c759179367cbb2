"""A question as other programs ask it: a command, lines of Python, a call with curl.

Each asks exactly what a job asked. What a program cannot ask is left out: the command line has no
flag for some options of the HTTP interface.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.cli.advisor import FLAGS
from shardwise.cli.arguments import SUM
from shardwise.documents.questions import COLLECTIONS
from shardwise.pipeline.asked import AUTO

GRAPH_FILE, HARDWARE_FILE, OFFERS_FILE = "graph.json", "hardware.json", "offers.csv"
QUESTION_FILE = "question.json"

MOST_INLINE = 2000
"""Characters of a body that curl's line contains; a longer one is a file."""

_STEP_FLAGS = {
    "state": "state",
    "gradients": "gradients",
    "accumulation": "accumulate",
    "offload": "offload",
    "weights": "weights",
    "update": "update",
}
_NO_FLAG = ("memory_headroom", "gradients_applied_at_once")
_WIDTH = 88


@dataclass(frozen=True)
class Asked:
    """A question in the words of programs.

    `graph`, `hardware`, `offers` and `configuration` are what a program takes: a name, or that of a
    file. `options` are those that are not the defaults, `body` is what the service takes.
    `uploads`: the service does not have the profile, and takes it first.
    """

    kind: str
    graph: str
    body: Mapping[str, Any]
    hardware: str | None = None
    members: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    offers: str | None = None
    configuration: str | None = None
    uploads: bool = False


def command_of(asked: Asked) -> str | None:
    """Returns the command that asks this; None if no flags say it."""
    options = _flags(asked)
    if options is None:
        return None
    words: list[list[str]] = []
    if asked.kind == "pricing":
        words.append(["--like", str(asked.configuration)])
    if asked.hardware is not None:
        words.append(["--hardware", asked.hardware])
    if asked.offers is not None:
        words.append(["--offers", asked.offers])
    words += [[f"--{name}", text] for name, text in _member_flags(asked)]
    verb = "explain" if asked.kind == "pricing" else asked.kind
    return _lines(["shardwise", verb, asked.graph], words + options)


def _member_flags(asked: Asked) -> list[tuple[str, str]]:
    """Returns the flags of what is asked besides options."""
    flags: list[tuple[str, str]] = []
    for name, value in asked.members.items():
        if name == "bundles":
            flags += [("bundle", bundle) for bundle in value]
        elif name == "prices":
            flags += [("price", f"{group}={_number(usd)}") for group, usd in value.items()]
        elif isinstance(value, list):
            flags.append((name, ",".join(map(str, value))))
        elif name == "objective" and asked.options.get("overlap") is False:
            continue
        else:
            flag = {"deadline_s": "deadline", "budget_usd": "budget"}.get(name, name)
            flags.append((flag.replace("_", "-"), _number(value)))
    return flags


def _flags(asked: Asked) -> list[list[str]] | None:
    """Returns the flags of the options; None if one has no flag, or two have the same."""
    words: list[list[str]] = []
    for name, value in asked.options.items():
        if name in _NO_FLAG:
            return None
        if name == "overlap":
            if asked.members.get("objective", "mini-time") != "mini-time":
                return None
            words.append(["--objective", SUM])
        elif name == "power_limit_w":
            words.append(["--power-limit", f"{_number(value)}W"])
        elif name == "pins":
            words += [["--pin", rule] for rule in value]
        elif name == "step":
            if not value.keys() <= _STEP_FLAGS.keys():
                return None
            words += [[f"--{_STEP_FLAGS[key]}", text] for key, text in value.items()]
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else _number(value)
            words.append([f"--{FLAGS.get(name, name).replace('_', '-')}", text])
    return words


def python_of(asked: Asked, server: str, *, key: bool) -> str:
    """Returns lines of Python that ask this: the library, or for a configuration the service."""
    if asked.kind == "pricing":
        return _python_client(asked, server, "pricing", key=key)
    imports = ["import shardwise"]
    first = [_python(asked.graph)]
    named: list[tuple[str, str]] = []
    if asked.kind == "quote":
        if asked.offers is not None:
            first.append(_python(asked.offers))
        if asked.hardware is not None:
            named.append(("hardware", _python(asked.hardware)))
    else:
        first.append(_python(asked.hardware))
    named += [
        (name, "None" if name == "stages" and value == AUTO else _python(value))
        for name, value in asked.members.items()
    ]
    named += _python_options(asked.options, imports)
    arguments = first + [f"{name}={value}" for name, value in named]
    answer = COLLECTIONS[asked.kind].removesuffix("s")
    call = _call(f"{answer} = shardwise.{asked.kind}", arguments)
    return "\n".join([*sorted(imports), "", call])


def _python_client(asked: Asked, server: str, method: str, *, key: bool) -> str:
    imports = ["from shardwise import Client"]
    arguments = [_python(asked.body["graph"]), _python(asked.body["hardware"])]
    arguments += [
        f"{name}={_python(value)}" for name, value in asked.members.items() if value != AUTO
    ]
    if asked.configuration is not None:
        imports.append("from pathlib import Path")
        arguments.append(f"configuration=Path({_python(asked.configuration)}).read_text()")
    if "file" in asked.body:
        arguments.append(f"file={_python(asked.body['file'])}")
    options = _python_options(asked.options, imports)
    if options:
        imports.append("from shardwise.answers import Options")
        arguments.append(
            f"options=Options({', '.join(f'{name}={text}' for name, text in options)})"
        )
    opened = [_python(server)]
    if key:
        imports.append("import os")
        opened.append('key=os.environ["SHARDWISE_KEY"]')
    call = _call(f"    {asked.kind} = client.{method}", arguments, "    ")
    imports.sort(
        key=lambda line: (line.split()[1].startswith("shardwise"), line.startswith("from"), line)
    )
    return "\n".join([*imports, "", f"with Client({', '.join(opened)}) as client:", call])


def _python_options(options: Mapping[str, Any], imports: list[str]) -> list[tuple[str, str]]:
    """Returns options as keywords; adds the imports that their values need."""
    named = []
    for name, value in options.items():
        if name == "pins":
            imports.append("from shardwise.cost.pins import parse_pin")
            text = "".join(f"parse_pin({_python(rule)}), " for rule in value)
            named.append((name, f"({text.strip()})"))
        elif name == "step":
            imports.append("from shardwise.cost.step_settings import StepSettings")
            inner = ", ".join(f"{key}={_python(one)}" for key, one in value.items())
            named.append((name, f"StepSettings({inner})"))
        else:
            named.append((name, _python(tuple(value) if isinstance(value, list) else value)))
    return named


def curl_of(asked: Asked, server: str, *, key: bool) -> str:
    """Returns the calls with curl that ask this; a key is taken from the environment."""
    headers = [["-H", "Content-Type: application/json"]]
    calls = []
    if asked.uploads:
        upload = [*headers, ["-d", f"@{HARDWARE_FILE}"]]
        calls.append(_lines(["curl", "-sS", f"{server}/v1/hardware"], upload, key))
    text = body_text(asked)
    data = ["-d", text if len(text) <= MOST_INLINE else f"@{QUESTION_FILE}"]
    url = f"{server}/v1/{COLLECTIONS[asked.kind]}"
    calls.append(_lines(["curl", "-sS", url], [*headers, data], key))
    return "\n".join(calls)


def body_text(asked: Asked) -> str:
    """Returns the body of the HTTP call."""
    return json.dumps(asked.body)


def _lines(command: list[str], words: list[list[str]], key: bool = False) -> str:
    """Returns a command for a shell, on several lines if one is not enough."""
    parts = [shlex.join(word) for word in words]
    if key:
        # The shell puts the key in, which is in no text of this page.
        parts.insert(0, '-H "Authorization: Bearer $SHARDWISE_KEY"')
    whole = " ".join([shlex.join(command), *parts])
    return whole if len(whole) <= _WIDTH else " \\\n  ".join([shlex.join(command), *parts])


def _call(function: str, arguments: list[str], indent: str = "") -> str:
    whole = f"{function}({', '.join(arguments)})"
    if len(whole) <= _WIDTH:
        return whole
    inner = "".join(f"{indent}    {argument},\n" for argument in arguments)
    return f"{function}(\n{inner}{indent})"


def _python(value: Any) -> str:
    """Returns a value as Python has it, strings in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _number(value: Any) -> str:
    """Returns a number as a flag takes it; a text as it is."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
