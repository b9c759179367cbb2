"""Published training steps and their predictions (docs/accuracy.md is this with its sources)."""

from __future__ import annotations

from typing import Any

from published.report import as_data, head_line, predict_all, summary, total_lines
from published.runs import read_published


def run() -> dict[str, Any]:
    """Every run, printed as a table and answered as data."""
    print(head_line())
    predictions = predict_all(read_published(), tell=lambda line: print(line, flush=True))
    print(total_lines(predictions))
    times = summary([p.time_error for p in predictions])
    return {"rows": as_data(predictions), "time_error": times}


if __name__ == "__main__":
    run()
