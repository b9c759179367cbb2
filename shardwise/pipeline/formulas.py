"""Closed formulas for steps of pipelines: exact ones, an estimate, and bounds.

Per stage s: f_s forward, b_s whole backward, bi_s and w_s its parts (inputs, weights), x_s the hop
to stage s + 1; p stages, one on each rank, and n micro-batches. Steps run from the first start to
the last end. Tests compare each with steps that are run (`simulate`).
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.errors import BadInput
from shardwise.pipeline.simulate import StageTimes


def once_through_s(times: Sequence[StageTimes], hops_s: Sequence[float]) -> float:
    """Returns the seconds of one micro-batch there and back: Σ (f_s + b_s) + 2 Σ x_s."""
    return sum(sum(of_stage) for of_stage in times) + 2 * sum(hops_s)


def gpipe_s(times: Sequence[StageTimes], hops_s: Sequence[float], micro_batches: int) -> float:
    """Returns the seconds of a GPipe step, exactly.

    T = Σ (f_s + b_s) + 2 Σ x_s + (n - 1) (max f_s + max b_s)
    """
    slowest = max(t.forward_s for t in times) + max(t.backward_s for t in times)
    return once_through_s(times, hops_s) + (micro_batches - 1) * slowest


def period_s(times: Sequence[StageTimes], hops_s: Sequence[float], window: int = 1) -> float:
    """Returns the seconds per further micro-batch under 1F1B, once the pipeline is full.

    π = max over s ≤ j of (Σ_{i=s..j} (f_i + b_i) + 2 Σ_{s≤i<j} x_i) / (h (j - s) + 1)

    Stage s may be `window` = h micro-batches ahead of the next: 1 for 1F1B, 2 for the eager form. A
    micro-batch goes from s to j and back while s starts at most h (j - s) + 1.
    """
    longest = 0.0
    for first in range(len(times)):
        way = 0.0
        for last in range(first, len(times)):
            way += sum(times[last]) + (2 * hops_s[last - 1] if last > first else 0.0)
            longest = max(longest, way / (window * (last - first) + 1))
    return longest


def one_forward_one_backward_s(
    times: Sequence[StageTimes], hops_s: Sequence[float], micro_batches: int, window: int = 1
) -> float:
    """Estimates the seconds of a 1F1B step: T ≈ Σ (f_s + b_s) + 2 Σ x_s + (n - 1) π.

    Exact for equal stages without hops. It is not a bound: 2,500 random pipelines of unequal stages
    exceeded it by at most 0.4 % (with a window of 2 by 2.6 %), and took up to 27 % less with few
    micro-batches, 14 % from 20 on.
    """
    through_s = once_through_s(times, hops_s)
    return through_s + (micro_batches - 1) * period_s(times, hops_s, window)


def least_s(
    times: Sequence[StageTimes], hops_s: Sequence[float], micro_batches: int, *, split: bool
) -> float:
    """Returns seconds that no schedule of one stage per rank can undercut.

    Each stage waits for its first tensor, does all its work, and its last gradient goes back:

        T ≥ Σ_{j<s} (f_j + b_j + 2 x_j) + n (f_s + b_s)

    With `split` backwards only the inputs' part has to go back, so both hold:

        T ≥ Σ_{j<s} (f_j + x_j) + n (f_s + b_s)
        T ≥ Σ_{j<s} (f_j + bi_j + 2 x_j) + n (f_s + bi_s) + w_0
    """
    least = there = back = 0.0
    for stage, (forward_s, inputs_s, weights_s) in enumerate(times):
        whole_s = micro_batches * sum(times[stage])
        if split:
            inputs_only_s = micro_batches * (forward_s + inputs_s) + times[0].weights_s
            least = max(least, there + whole_s, there + back + inputs_only_s)
        else:
            least = max(least, there + back + whole_s)
        hop_s = hops_s[stage] if stage < len(hops_s) else 0.0
        there += forward_s + hop_s
        back += inputs_s + hop_s + (0.0 if split else weights_s)
    return least


def bubble_s(
    name: str, times: StageTimes, *, ranks: int, micro_batches: int, stages_per_rank: int = 1
) -> float | None:
    """Returns the seconds that a step takes beyond n (f + b), for equal ranks without hops.

    `times` are those of all stages of a rank together:

        gpipe, 1f1b, 1f1b-eager    (p - 1) (f + b)
        interleaved                (p - 1) (f + b) / v
        zb-h1                      (p - 1) max(f, bi, f + bi - w) / v
        zbv, dualpipev             (p - 1) f / 2, if f = bi = w

    None where none of these holds: of V schedules with unequal times, of ZB-V with fewer than
    2p - 1 micro-batches, of interleaved and ZB-H1 with fewer than p. The published bubble of ZB-H1,
    (p - 1) (f + bi - w) (Qi et al. 2024, §2), holds where w is at most f and at most bi.
    """
    forward_s, inputs_s, weights_s = times
    match name:
        case "gpipe" | "1f1b" | "1f1b-eager":
            return (ranks - 1) * sum(times)
        case "interleaved" if micro_batches >= ranks:
            return (ranks - 1) * sum(times) / stages_per_rank
        case "zb-h1" if micro_batches >= ranks:
            longest_s = max(forward_s, inputs_s, forward_s + inputs_s - weights_s)
            return (ranks - 1) * longest_s / stages_per_rank
        case "zbv" | "dualpipev" if len(set(times)) == 1 and micro_batches >= 2 * ranks - 1:
            return (ranks - 1) * forward_s / 2
        case "interleaved" | "zb-h1" | "zbv" | "dualpipev":
            return None
    raise BadInput(
        f"unknown schedule {name!r}",
        field="schedule",
        expected="a schedule of docs/pipeline-schedules.md",
    )
