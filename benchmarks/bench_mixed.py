"""Random models on random clusters of several kinds: our answer against every other system's.

    python benchmarks/bench_mixed.py [--cases A:B] [--figures FILE]
Cases A to B - 1, of all 200. What a FILE (out/bench/mixed.json) has of other cases stays in it, so
that slices add up; every case is written when it is done. A case is a violation where another
strategy that fits is faster than our answer. `gap` is how far our answer is from the proven bound
at most. Where nothing of ours fits, nothing else may either.

    python benchmarks/bench_mixed.py --gaps A:B
    python benchmarks/bench_mixed.py --models NAME …

Our answers alone, with how far they are from the bound of all parts of the strategies and, as
`paths`, from that of paths alone: of these cases, or on `heterog-8` of shipped models and HeteroG's
(`paper/heterog_models.py`), at one micro-batch and its batch on 8 devices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

from paper import heterog_models
from run import heading, store

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from harness.models.mixed_cases import MixedCase, mixed_case  # noqa: E402
from shardwise.answers import Options  # noqa: E402
from shardwise.capture import shipped_graph  # noqa: E402
from shardwise.documents.comparison import ranked  # noqa: E402
from shardwise.graph import read_graph  # noqa: E402
from shardwise.hardware import Devices, load_hardware  # noqa: E402
from shardwise.peers import compare  # noqa: E402
from shardwise.search.chosen import fastest  # noqa: E402
from shardwise.search.replayed import search_replayed  # noqa: E402
from shardwise.search.search import Search, Subject  # noqa: E402

CASES, FEW = 200, 20
"""Cases of this benchmark alone, and among all benchmarks."""
PROPOSALS = 300
FIGURES = Path("out/bench/mixed.json")
ROUNDING = 1e-9


def run(first: int = 0, cases: int = FEW) -> dict[str, Any]:
    return figures_of(rows_of(range(first, first + cases), {}, None))


def rows_of(
    cases: range, known: dict[int, dict[str, Any]], target: Path | None
) -> list[dict[str, Any]]:
    """Returns the rows of these cases and those known, by case; writes them to `target` after each
    case."""
    rows = dict(known)
    print(f"{'case':>5} {'devices':34} {'s':>6} {'ours ms':>9} {'gap':>6}  next")
    for seed in cases:
        rows[seed] = _row(seed)
        if target is not None:
            _write({"bench_mixed": {"rows": [rows[case] for case in sorted(rows)]}}, target)
    return [rows[case] for case in sorted(rows)]


def figures_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints and returns what all rows say together."""
    gaps = [row["gap"] for row in rows if row["gap"] is not None]
    seconds = [row["seconds"] for row in rows]
    violations = [row for row in rows if row["faster"]]
    figures = {
        "cases": len(rows),
        "violations": len(violations),
        "nothing_fits": sum(row["time_s"] is None for row in rows),
        "gap_median": statistics.median(gaps) if gaps else None,
        "gap_p90": _p90(gaps) if gaps else None,
        "gap_worst": max(gaps, default=None),
        "seconds_median": statistics.median(seconds),
        "seconds_p90": _p90(seconds),
        "proposals": PROPOSALS,
    }
    print(", ".join(f"{name} {value}" for name, value in figures.items()))
    for row in violations:
        print(f"violation: case {row['case']}: {row['faster']}")
    return {**figures, "rows": rows}


def _write(figures: dict[str, Any], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(figures, indent=1) + "\n")


def _known(target: Path) -> dict[int, dict[str, Any]]:
    """Returns the rows that a file of figures has, by case."""
    if not target.exists():
        return {}
    rows = json.loads(target.read_text())["bench_mixed"]["rows"]
    return {row["case"]: row for row in rows}


def gaps_of(named: Iterable[tuple[str, MixedCase]]) -> list[float]:
    """Prints for each question how far its answer is from the bound; returns that."""
    print(f"{'question':16} {'s':>6} {'ours ms':>10} {'gap':>7} {'paths':>7}")
    gaps, of_paths = [], []
    for name, case in named:
        started = time.monotonic()
        subject = Subject.of(case.graph)
        found = search_replayed(subject, case.hardware, case.bundle, case.options)
        best, spent = fastest(found), time.monotonic() - started
        if best is None:
            print(f"{name:16} {spent:6.1f} {'-':>10}", flush=True)
            continue
        gap, paths = (best.replayed_time_s / bound - 1.0 for bound in _bounds(found))
        gaps.append(gap)
        of_paths.append(paths)
        print(
            f"{name:16} {spent:6.1f} {best.replayed_time_s * 1e3:10.3f} {gap:7.1%} {paths:7.1%}",
            flush=True,
        )
    if gaps:
        print(
            f"median {statistics.median(gaps):.1%}, 9 of 10 within {_p90(gaps):.1%}, "
            f"of paths {statistics.median(of_paths):.1%}"
        )
    return gaps


def _model(name: str) -> MixedCase:
    """Returns the question about a shipped graph, or a model of HeteroG at its batch on 8
    devices."""
    if name in heterog_models.SOURCES:
        batch = next(row.batch_8 for row in heterog_models.ROWS if row.model == name)
        graph = heterog_models.heterog_graph(name, batch)
    else:
        graph = read_graph(shipped_graph(name))
    hardware = load_hardware("heterog-8")
    bundle = Devices.of(hardware, {"v100": 2, "1080ti": 4, "p100": 2})
    return MixedCase(graph, hardware, bundle, Options(micro_batches=(1,)))


def _bounds(found: list[Search]) -> tuple[float, float]:
    """Returns the bound on all searches together, and the one without division into parts."""
    proofs = [(s.proof, s.limit_bytes) for s in found if s.proof is not None]
    whole = [proof.without_parts().bound_s(limit) for proof, limit in proofs]
    return min(proof.bound_s(limit) for proof, limit in proofs), min(whole)


def _row(seed: int) -> dict[str, Any]:
    case = mixed_case(seed)
    started = time.monotonic()
    document = compare(
        case.graph, case.hardware, case.bundle, case.options, proposals=PROPOSALS, seed=seed
    )
    spent = time.monotonic() - started
    fitting = [(m.method, p.replayed_time_s or 0.0) for m, p in ranked(document) if p.feasible]
    ours = dict(fitting).get("shardwise")
    others = [one for one in fitting if one[0] != "shardwise"]
    limit = inf if ours is None else ours * (1.0 - ROUNDING)
    gap = document.certificate.epsilon if document.certificate else None
    row: dict[str, Any] = {
        "case": seed,
        "devices": str(case.bundle),
        "micro_batches": list(case.options.micro_batches),
        "seconds": spent,
        "time_s": ours,
        "gap": gap,
        "methods": dict(fitting),
        "faster": {
            name: time_s / ours - 1.0 if ours else None for name, time_s in others if time_s < limit
        },
    }
    following = f"{others[0][0]} {others[0][1] / ours - 1.0:+.1%}" if ours and others else "-"
    print(
        f"{seed:5} {row['devices'][:34]:34} {spent:6.1f} {(ours or 0.0) * 1e3:9.3f} "
        f"{'-' if gap is None else f'{gap:.1%}':>6}  {following}",
        flush=True,
    )
    return row


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]


def _slice(text: str) -> range:
    """Returns the cases from A to B - 1 of `A:B`."""
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, such as 0:{FEW}")
    return range(int(first), int(end))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=_slice, default=range(CASES), metavar="A:B")
    parser.add_argument("--figures", type=Path, default=FIGURES, metavar="FILE")
    parser.add_argument("--gaps", type=_slice, metavar="A:B")
    parser.add_argument("--models", nargs="+", metavar="NAME")
    asked = parser.parse_args()
    if asked.gaps:
        gaps_of((str(seed), mixed_case(seed)) for seed in asked.gaps)
    if asked.models:
        gaps_of((name, _model(name)) for name in asked.models)
    if asked.gaps or asked.models:
        return
    figures = heading("bench-mixed")
    rows = rows_of(asked.cases, _known(asked.figures), asked.figures)
    figures["bench_mixed"] = figures_of(rows)
    store(figures, asked.figures)


if __name__ == "__main__":
    main()
