"""The library as commands ask it, under the names that a client of the service has too."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from shardwise import answers, solve

    return solve.solve if name == "solve" else getattr(answers, name)
