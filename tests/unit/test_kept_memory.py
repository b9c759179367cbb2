"""Freed memory stays: what a step frees is not faulted in again by the next."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIZE, ROUNDS = 2**24, 20
PROGRAM = f"""
import ctypes, resource, sys
from shardwise.measure.memory import keep_freed_memory
if "keep" in sys.argv and not keep_freed_memory():
    print("unknown"); raise SystemExit
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
def step():
    first, second = libc.malloc({SIZE}), libc.malloc(3 * {SIZE})
    ctypes.memset(first, 1, {SIZE}); ctypes.memset(second, 1, 3 * {SIZE})
    libc.free(first); libc.free(second)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    if done.stdout.strip() == "unknown":
        pytest.skip("the allocator is not glibc's")
    return int(done.stdout)


def test_pages_are_touched_once() -> None:
    ordinary, kept = _faults(), _faults("keep")
    assert ordinary > ROUNDS * SIZE // 4096, "a page for every 4 KiB of every round"
    assert kept < ordinary / 100
