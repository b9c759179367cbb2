"""HeteroG Table 4: our strategies against its four baselines on 12 GPUs."""

from __future__ import annotations

from paper import heterog_times
from paper.result import Result


def make() -> Result:
    return heterog_times.make(12)
