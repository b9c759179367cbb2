"""Logs: one record a line, whatever it holds, with its context and without what is masked."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise.logs import JsonFormatter, TextFormatter

ROOT = Path(__file__).parents[2]


def record(message: str, *arguments: Any, **extra: Any) -> logging.LogRecord:
    made_record = logging.makeLogRecord({"msg": message, "args": arguments, "name": "a", **extra})
    made_record.levelno, made_record.levelname = logging.INFO, "INFO"
    return made_record


def raised() -> Any:
    try:
        raise ValueError("sw_secret")
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_record_is_one_line_whatever_the_path(formatter: logging.Formatter) -> None:
    path = "/v1/graphs/a\n12:00:00 error   forged\x1b[2J\u2028\x85b"
    line = formatter.format(record("GET %s", path))
    assert len(line.splitlines()) == 1
    assert all(c.isprintable() for c in line)


def test_json_has_the_context_and_the_scalars_of_extra() -> None:
    formatter = JsonFormatter(lambda: {"request_id": "r1"})
    document = json.loads(formatter.format(record("%d done", 3, jobs=2, nothing=None, many=[1])))
    assert document.pop("time") > 0
    assert document == {
        "level": "info", "logger": "a", "message": "3 done",
        "request_id": "r1", "jobs": 2, "nothing": None,
    }  # fmt: skip


def test_text_has_them_behind_the_message() -> None:
    formatter = TextFormatter(lambda: {"request_id": "r1"})
    line = formatter.format(record("%d done", 3, jobs=2))
    assert line.endswith(" info    3 done request_id=r1 jobs=2")


@pytest.mark.parametrize("kind", [JsonFormatter, TextFormatter])
def test_the_mask_sees_all_of_a_record(kind: type[JsonFormatter | TextFormatter]) -> None:
    formatter = kind(lambda: {"id": "sw_secret"}, lambda line: line.replace("sw_secret", "***"))
    line = formatter.format(record("sw_secret", note="sw_secret", exc_info=raised()))
    assert "Traceback" in line
    assert (line.count("***") >= 4, "sw_secret" in line) == (True, False)


@pytest.mark.parametrize(("form", "is_json"), [("json", True), ("auto", True), ("text", False)])
def test_records_go_to_standard_error(form: str, is_json: bool) -> None:
    code = (
        "import logging\nfrom shardwise.logs import set_up_logs\n"
        f"set_up_logs('debug', {form!r}, quiet=['noisy'])\n"
        "logging.getLogger('noisy').info('unheard')\nlogging.getLogger('other').debug('heard')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (line,) = done.stderr.splitlines()
    assert "heard" in line and line.startswith("{") == is_json
