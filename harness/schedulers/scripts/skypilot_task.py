"""Runs in SkyPilot's environment: its own parser reads our tasks."""

import json
import sys
from pathlib import Path

import sky

rows = []
for number, text in enumerate(json.load(sys.stdin)):
    path = Path(f"task{number}.yaml")
    path.write_text(text)
    task = sky.Task.from_yaml(str(path))
    rows.append([task.name, task.num_nodes, [r.accelerators for r in task.resources]])
print(json.dumps(rows))
