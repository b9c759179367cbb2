"""docs/reference/agent-settings.md is made of agent/config.py."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from agent.config import Config, EntryPoint, LogLimits, load_config
from tools.reference.agent_settings import page

TABLES = {"entry_points", "logs", "name"}
"""Fields that are tables, or a table's name."""


def test_every_field_has_its_text_and_its_default_is_read_as_it_is_shown(tmp_path: Path) -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    shown = {row[0].strip("|` "): row[1].strip("` ") for row in rows if len(row) == 3}
    for kind in (Config, LogLimits, EntryPoint):
        for item in fields(kind):
            assert "text" in item.metadata or item.name in TABLES, item.name
    top = {item.name for item in fields(Config)} - TABLES
    limits = {item.name for item in fields(LogLimits)}
    lines = [f"{name} = {shown[name]}" for name in sorted(top & set(shown))]
    lines += ["[logs]", *(f"{name} = {shown[name]}" for name in sorted(limits))]
    file = tmp_path / "agent.toml"
    file.write_text("\n".join(lines))
    assert load_config(file) == Config()
