"""The library's functions for commands, under the names of the service's client."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from shardwise import answers, solve

    return solve.solve if name == "solve" else getattr(answers, name)
