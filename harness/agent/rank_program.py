"""What the tests' launches run: `rank_program.py WHAT ARGUMENTS…` as one rank."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
REPORT = Path(os.environ["SHARDWISE_RUN_DIR"]) / "report"


def write_result(name: str, document: object) -> None:
    temporary = REPORT / f".{name}.tmp"
    temporary.write_text(json.dumps(document))
    temporary.rename(REPORT / f"{name}.json")


def arguments(*given: str) -> None:
    write_result("arguments", {"arguments": list(given), "environment": dict(os.environ)})


def ring() -> None:
    """All ranks add up their ranks over gloo."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    add_up()
    dist.destroy_process_group()


def add_up() -> None:
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(RANK + 1)])
    dist.all_reduce(total)
    say(total.item())


def say(total: float) -> None:
    """Prints the sum; rank 0 writes it as its result."""
    print(f"rank {RANK} of {WORLD} says {total:g}", flush=True)
    if RANK == 0:
        write_result("measurement", {"schema": "shardwise.measurement/1", "sum": total})


def hold(path: str) -> None:
    """Joins the others, waits for a file, adds up with them."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    stay(path)
    add_up()
    dist.destroy_process_group()


def stay(path: str) -> None:
    print(f"joined {os.getpid()}", flush=True)
    while not Path(path).exists():
        time.sleep(0.05)


def hold_alone(path: str) -> None:
    """As `hold`, without torch, whose import takes seconds: each rank knows the sum by itself."""
    stay(path)
    say(float(sum(range(WORLD + 1))))


def wait() -> None:
    print(f"waiting {os.getpid()}", flush=True)
    time.sleep(600)


def stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait()


def deserter(marked: str = "") -> None:
    """Leaves a grandchild in a session of its own, deaf to SIGTERM, with the marker or without."""
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        ["setsid", "--fork", sys.executable, "-S", "-c", code],
        env=dict(os.environ) if marked else {},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    print(f"deserted {int(child.stdout.readline())}", flush=True)
    wait()


def shout(lines: str, length: str) -> None:
    line = "x" * int(length)
    for number in range(int(lines)):
        print(number, line)
    print("the last word", flush=True)


def eat(size: str) -> None:
    kept = [bytearray(os.urandom(2**20)) for _ in range(int(size))]
    print(f"ate {len(kept)}", flush=True)
    time.sleep(600)


def limit() -> None:
    write_result(
        "limit",
        {
            "file_limit_bytes": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
            "core_limit_bytes": resource.getrlimit(resource.RLIMIT_CORE)[0],
        },
    )


def fail() -> None:
    raise RuntimeError("the loss is not a number")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
