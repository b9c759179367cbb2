"""Peers in a virtual environment of their own, out/peers: nothing of theirs enters Shardwise's.

Each peer is a script here that `out/peers` runs on a problem file: `SCRIPT PROBLEM CAPS`.
It prints one JSON object and imports nothing of Shardwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = Path("out/peers")
PYTHON = FOLDER / "bin" / "python"


@dataclass(frozen=True)
class Peer:
    """What to install (one list of pip's arguments per call) and the script that asks it."""

    name: str
    installs: tuple[tuple[str, ...], ...]
    script: str


GALVATRON = Peer(
    "Galvatron",
    # Its wheel wants torch and all of Transformers; the core wants numpy. C++ is compiled here.
    (("numpy>=1.26",), ("--no-deps", "hetu-galvatron==2.4.0")),
    "peer_galvatron.py",
)
HIGHS = Peer("HiGHS", (("numpy>=1.26", "highspy>=1.10"),), "peer_highs.py")


class Missing(Exception):
    """A peer cannot be installed or does not run; the text says why."""


def install(peer: Peer) -> None:
    """Install a peer once. Raises `Missing`."""
    stamp = FOLDER / f".{peer.name}"
    if stamp.exists():
        return
    if not PYTHON.exists():
        _called([sys.executable, "-m", "venv", str(FOLDER)], "no virtual environment")
    for arguments in peer.installs:
        command = [str(PYTHON), "-m", "pip", "install", "--quiet", *arguments]
        _called(command, f"pip install {arguments[-1]} failed")
    stamp.touch()


def ask(peer: Peer, problem: Path, caps: Sequence[float], limit_s: float) -> dict[str, Any]:
    """A peer's answers to a problem file at each memory cap. Raises `Missing`."""
    command = [str(PYTHON), str(HERE / peer.script), str(problem), json.dumps(list(caps))]
    answer: dict[str, Any] = json.loads(_called(command, f"{peer.name} failed", limit_s))
    return answer


def _called(command: list[str], what: str, limit_s: float | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: no answer in {limit_s:.0f} s") from None
    except OSError as error:
        raise Missing(f"{what}: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Missing(f"{what}: {lines[-1]}")
    return done.stdout
