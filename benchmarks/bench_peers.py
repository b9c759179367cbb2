"""The whole frontier against peers that answer one memory cap at a time. Ratios are of one run.

Galvatron's core and HiGHS get the same problem files as we do (`shardwise.problem/1`). Each row
says how far the peer's time is from our frontier's, read at the same cap: `differs` is 0 where both
are exact. A peer that cannot be installed has a row that says so.

What the ratios do not say: Galvatron's core is one thread and handles chains with whole units of
memory only (here a unit is 1 MB); its table also holds the least times of smaller caps, which
it does not return. HiGHS is a general solver. We use both cores.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers import GALVATRON, HIGHS, Missing, Peer, ask, install

from shardwise import _core
from shardwise.search.problem import build, problem_from_json

FOLDER = Path("out/bench/problems")
LIMIT_S = 900.0
OUR_LIMIT_S = 60.0
REPEATS = 3
LONG_S = 10.0
"""Asked once where it takes this long."""
# (layers, strategies, memory cap in MB, all layers alike)
CHAINS = (
    (32, 8, 24_576, False),
    (32, 16, 24_576, False),
    (96, 16, 24_576, False),
    (96, 16, 81_920, False),
    (96, 16, 81_920, True),
    (96, 44, 81_920, False),
    (400, 8, 24_576, False),
    (400, 16, 24_576, False),
)
# (blocks, choices): a block is four operators in a row and an edge around them.
PROGRAMS = ((8, 8), (8, 16), (15, 12))
CAPS = 10


@dataclass(frozen=True)
class Ours:
    """One way that we answer with its median time; `refused` says why there is no answer."""

    asked: str
    solution: _core.Solution | None
    seconds: float = 0.0
    refused: str = ""

    def fastest_within(self, cap: float) -> float | None:
        assert self.solution is not None
        fitting = self.solution.time_s[self.solution.memory_bytes <= cap]
        return float(fitting[-1]) if len(fitting) else None


def run() -> dict[str, Any]:
    print(
        f"{'problem':26} {'peer':10} {'caps':>4} {'peer s':>8}  {'we answer':15} {'proven':>8} "
        f"{'points':>6} {'s':>8} {'ratio':>7} {'differs':>8}"
    )
    rows = []
    for layers, strategies, cap, alike in CHAINS:
        name = f"chain {layers} x {strategies}, {cap // 1024} GB{', alike' * alike}"
        rows += _compared(name, chain(layers, strategies, cap, alike=alike), GALVATRON, cap)
    for count, choices in PROGRAMS:
        name = f"blocks {4 * count + 1} x {choices}"
        rows += _compared(name, blocks(count, choices), HIGHS, None)
    return {"rows": rows, "repeats": REPEATS}


def _compared(
    name: str, document: dict[str, Any], peer: Peer, cap: int | None
) -> list[dict[str, Any]]:
    """One row per way that we answer: the whole frontier exactly and within 1 %, or one cap."""
    data = json.dumps(document).encode()
    core = build(problem_from_json(data))
    answers = [
        _ours(core, "frontier exact", time_limit_s=OUR_LIMIT_S),
        _ours(core, "frontier 1 %", epsilon=0.01),
    ]
    if cap is None:
        caps = _ten_caps(answers)
    else:
        caps = [float(cap)]
        answers.append(_ours(core, "the cap 1 %", epsilon=0.01, memory_target_bytes=float(cap)))
    file = FOLDER / f"{name.replace(' ', '-').replace(',', '')}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    theirs: dict[str, Any] = {"peer": peer.name, "problem": name, "caps": len(caps)}
    try:
        install(peer)
        reply = ask(peer, file, caps, LIMIT_S)
    except Missing as error:
        print(f"{name:26} {peer.name:10} not compared: {error}")
        return [{**theirs, "not_compared": str(error)}]
    finally:
        file.unlink()
    theirs |= {
        "version": reply["version"],
        "seconds": sum(statistics.median(a["seconds"]) for a in reply["answers"]),
        "unfinished": sum("unfinished" in a for a in reply["answers"]),
    }
    return [_row(theirs, ours, reply["answers"]) for ours in answers]


def _ours(core: _core.Problem, asked: str, **settings: Any) -> Ours:
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        try:
            solution = _core.solve(core, **settings)
        except RuntimeError as error:
            return Ours(asked, None, refused=str(error))
        seconds.append(time.perf_counter() - started)
        if seconds[0] > LONG_S:
            break
    return Ours(asked, solution, statistics.median(seconds))


def _ten_caps(answers: list[Ours]) -> list[float]:
    frontier = next(ours.solution for ours in answers if ours.solution is not None)
    low, high = float(frontier.memory_bytes[0]), float(frontier.memory_bytes[-1])
    return [float(np.floor(c)) + 0.5 for c in np.linspace(low, high, CAPS)]


def _row(theirs: dict[str, Any], ours: Ours, answers: list[dict[str, Any]]) -> dict[str, Any]:
    peer = theirs["peer"] + (f" ({theirs['unfinished']} open)" if theirs["unfinished"] else "")
    start = (
        f"{theirs['problem']:26} {peer:10} {theirs['caps']:4} {theirs['seconds']:8.3f}  "
        f"{ours.asked:15}"
    )
    row = {**theirs, "we_answer": ours.asked}
    if ours.solution is None:
        print(f"{start} refused: {ours.refused}")
        return {**row, "refused": ours.refused}
    points = len(ours.solution.time_s)
    proven = _proven(ours, answers)
    ratio = theirs["seconds"] / ours.seconds
    differs = max(_differs(ours, answer) for answer in answers)
    print(
        f"{start} {proven:>8} {points:6} {ours.seconds:8.3f} {ratio:7.2f} {differs:8.1e}",
        flush=True,
    )
    return {
        **row,
        "proven": proven,
        "points": points,
        "our_seconds": ours.seconds,
        "ratio": ratio,
        "differs": differs,
    }


def _proven(ours: Ours, answers: list[dict[str, Any]]) -> str:
    """What our answer claims of itself."""
    assert ours.solution is not None
    if ours.solution.exact:
        return "exact"
    bound = ours.solution.time_lower_bound_s
    if bound is None:
        return f"{ours.solution.epsilon:.2%}"
    mine = ours.fastest_within(answers[0]["cap_bytes"])
    return "nothing" if mine is None else f"{mine / bound - 1:.2%}"


def _differs(ours: Ours, answer: dict[str, Any]) -> float:
    """How far the two least times within the cap are apart; infinite where only one finds any."""
    mine, other = ours.fastest_within(answer["cap_bytes"]), answer["time_s"]
    if "unfinished" in answer or (mine is None and other is None):
        return 0.0
    return float("inf") if mine is None or other is None else abs(mine / other - 1)


def chain(layers: int, strategies: int, cap: int, *, alike: bool) -> dict[str, Any]:
    """Layers in a row: whole MB of memory, more of it is faster, and time between layouts.

    All layers differ unless `alike`. The cap is about what the strategies in the middle need.
    """
    rng = np.random.default_rng([layers, strategies, cap])
    share = cap / layers
    operators, edges = [], []
    for layer in range(layers):
        if layer == 0 or not alike:
            memory = np.maximum(1, rng.uniform(0.3 * share, 2.0 * share, strategies).round())
            seconds = share / memory + rng.exponential(0.5, strategies)
        if layer <= 1 or not alike:
            cells = _layouts(rng, strategies)
        operators.append(_operator(f"layer {layer}", memory, seconds))
        if layer:
            edges.append(_edge(f"layer {layer - 1}", f"layer {layer}", cells))
    return {"schema": "shardwise.problem/1", "operators": operators, "edges": edges}


def blocks(count: int, choices: int) -> dict[str, Any]:
    """Four operators in a row, an edge around them, again and again; all of them differ."""
    rng = np.random.default_rng([count, choices])
    operators, edges = [], []
    for o in range(4 * count + 1):
        memory = rng.uniform(10, 400, choices).round()
        seconds = 40 / memory + rng.exponential(1.0, choices)
        operators.append(_operator(f"o{o}", memory, seconds))
        near = [d for d in (1, 4) if o >= d and (d == 1 or o % 4 == 0)]
        edges += [_edge(f"o{o - d}", f"o{o}", _layouts(rng, choices)) for d in near]
    return {"schema": "shardwise.problem/1", "operators": operators, "edges": edges}


def _layouts(rng: np.random.Generator, choices: int) -> list[list[float]]:
    """Time between layouts that lie on a plane."""
    here, there = rng.uniform(0, 1, (choices, 1, 2)), rng.uniform(0, 1, (1, choices, 2))
    times: list[list[float]] = np.linalg.norm(here - there, axis=2).tolist()
    return times


def _operator(name: str, memory: Any, seconds: Any) -> dict[str, Any]:
    pairs = zip(memory.tolist(), seconds.tolist(), strict=True)
    return {"name": name, "choices": [{"memory_bytes": m, "time_s": t} for m, t in pairs]}


def _edge(source: str, target: str, seconds: list[list[float]]) -> dict[str, Any]:
    cells = [[[{"memory_bytes": 0.0, "time_s": t}] for t in row] for row in seconds]
    return {"source": source, "target": target, "choices": cells}


if __name__ == "__main__":
    run()
