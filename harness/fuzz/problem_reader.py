"""Fuzz target: whatever a problem file contains, reading gives a problem or `BadInput`.

`python -m harness.fuzz.problem_reader --seconds 60` runs it under atheris (coverage of the reader's
Python code) where that is installed, else on the same mutations drawn at random. Inputs that fail
are kept under out/fuzz/; give one as an argument to replay it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

from harness.fuzz import mutations

if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["shardwise.search.problem", "shardwise.errors"]):
        from shardwise.errors import BadInput
        from shardwise.search.problem import build, problem_from_json
else:
    from shardwise.errors import BadInput
    from shardwise.search.problem import build, problem_from_json

FOLDER = Path("out/fuzz")
FILE = "some file.json"


def check(data: bytes) -> bool:
    """Reads `data` as a file's content. Returns whether it was a problem. Any surprise raises."""
    try:
        problem = problem_from_json(data, FILE)
    except BadInput as error:
        message = str(error)
        assert error.file == FILE, "the error names no file"
        assert message.startswith(FILE) and len(message.splitlines()) == 1
        message.encode()
        return False
    # What the reader lets through the solver takes.
    build(problem)
    names = [operator.name for operator in problem.operators]
    assert len(set(names)) == len(names)
    for edge in problem.edges:
        assert {edge.source, edge.target} <= set(names) and edge.source != edge.target
    return True


def mutated(data: bytes, seed: int, max_size: int = 1 << 16) -> bytes:
    """Returns another document near `data`, or another text near it."""
    return mutations.mutated(data, random.Random(seed))[:max_size]


def _with_atheris(seconds: int, corpus: Path) -> None:
    def one_input(data: bytes) -> None:
        check(data)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 4 == 0:
            return bytes(atheris.Mutate(data, max_size))
        return mutated(data, seed, max_size)

    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(mutations.SEEDS):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=65536",
        "-timeout=20",
        "-verbosity=0",
        "-print_final_stats=1",
        f"-artifact_prefix={FOLDER}/reader-",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=mutator)
    atheris.Fuzz()


def without_coverage(seconds: float, inputs: int = sys.maxsize) -> tuple[int, int]:
    """Mutates mutations until either bound. Returns the number of inputs and of problems."""
    ends = time.monotonic() + seconds
    draw = random.Random(0)
    pool = list(mutations.SEEDS)
    seen = read = 0
    while seen < inputs and time.monotonic() < ends:
        data = mutated(draw.choice(pool), seen)
        try:
            good = check(data)
        except Exception:
            FOLDER.mkdir(parents=True, exist_ok=True)
            kept = FOLDER / f"reader-crash-{seen}"
            kept.write_bytes(data)
            print(f"input {seen} is kept in {kept}", file=sys.stderr)
            raise
        seen, read = seen + 1, read + good
        # Good documents are worth mutating further; broken ones seldom are.
        if good or draw.random() < 0.05:
            pool[draw.randrange(len(pool))] = data
        if seen % 200 == 0:
            pool[: len(mutations.SEEDS)] = mutations.SEEDS
    return seen, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("input", nargs="*", type=Path, help="replay these")
    asked = parser.parse_args()
    for path in asked.input:
        print(path, "is a problem" if check(path.read_bytes()) else "is refused")
    if asked.input:
        return
    if atheris is not None:
        _with_atheris(asked.seconds, FOLDER / "reader")
    seen, read = without_coverage(asked.seconds)
    print(json.dumps({"inputs": seen, "problems": read, "coverage": "none: atheris is missing"}))


if __name__ == "__main__":
    main()
