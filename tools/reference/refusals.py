"""docs/reference/refusals.md: what has no answer, read from shardwise/question/refusals.py."""

from __future__ import annotations

from shardwise.question.refusals import REFUSALS


def page() -> str:
    """Returns the whole page."""
    rows = [
        f"| {one.what} | `{one.field}`: {one.instead.replace('|', '/')} | {one.why} |"
        for one in REFUSALS
    ]
    return "\n".join(
        [
            "# What has no answer",
            "",
            "Made by `make reference`.",
            "",
            "Devices, stages, schedules, spaces, objectives, orders and points may be combined in "
            "any way but these, through every door: command line, HTTP, MCP and Python. A question "
            "that is one of these is refused before anything is computed, and the error names the "
            "field, the reason and what is expected. Values that no question may have, such as an "
            "unknown optimizer, are refused where they are read.",
            "",
            "| refused | expected | why |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
