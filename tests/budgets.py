"""How many seconds of test time a module may take in a whole `make test` on two cores.

`tests/unit/test_suite.py` holds them against the last whole run (`tests/record.json`). Without
them twelve minutes become thirty again, a second at a time. A module that takes longer should test
less, or share what it makes; where that cannot be, it stands here with the reason.
"""

from __future__ import annotations

USUAL_S = 60

LARGER: dict[str, tuple[int, str]] = {
    "tests/integration/agent/test_faults.py": (
        90, "faults of real agents, each with a lease, a grace or a restart that has to pass"
    ),
    "tests/integration/agent/test_whole_way.py": (
        100, "an agent measures this machine for real: 20 to 40 s of waiting, by its processor"
    ),
    "tests/integration/service/page/test_page_questions.py": (
        70, "every kind of question in Chromium"
    ),
    "tests/integration/service/page/test_page_for_everybody.py": (
        115, "all views in Chromium, axe once on each, and three widths"
    ),
    "tests/integration/service/test_pipelines_beside.py": (
        95, "a service that solves pipelines beside other jobs"
    ),
    "tests/end_to_end/test_cli.py": (
        75, "commands as processes, and searches that are interrupted"
    ),
}  # fmt: skip
"""Modules with a budget of their own: seconds, and why."""


def budget(module: str) -> int:
    """Returns a module's seconds; its path is relative to the repository."""
    return LARGER[module][0] if module in LARGER else USUAL_S
