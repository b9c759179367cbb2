"""TensorOpt Table 4: data parallelism against the shortest time on 16 GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paper.result import Claim, Result, Table, against
from paper.setting import GIB, PAPER, cluster, fastest, network, parallel
from paper.table1 import CANDIDATES

from shardwise.advise import Options
from shardwise.hardware import Hardware

THEIRS = {
    # mini-time, data parallel, Horovod (seconds)
    "vgg16": (0.10, 0.16, 0.15),
    "wide-resnet": (1.99, 2.89, 2.80),
    "transformer-s": (1.16, 1.18, 1.04),
}
TARGET = 0.15


@dataclass(frozen=True)
class Row:
    """Both times of a model, in seconds, and what they consist of."""

    mini_time_s: float
    parallel_s: float
    compute_s: float
    mini_compute_s: float
    parallel_gib: float

    @property
    def ratio(self) -> float:
        return self.parallel_s / self.mini_time_s

    def as_data(self) -> dict[str, float]:
        return {**vars(self), "ratio": self.ratio}


def row(
    model: str, hardware: Hardware | None = None, options: Options = PAPER, batch: int = 0
) -> Row:
    """Data parallelism and mini-time under the limit of one V100."""
    found = fastest(model, hardware=hardware, options=options, batch=batch)
    chosen = found.fastest_within(found.limit_bytes)
    if chosen is None:
        raise RuntimeError(f"{model} does not fit")
    theirs = parallel(found)
    return Row(
        float(found.time_s[chosen]),
        theirs.time_s,
        theirs.compute_s,
        found.compute_s(chosen),
        theirs.memory_bytes / GIB,
    )


def without_fast_convolutions() -> Hardware:
    """The cluster whose 3 × 3 convolutions take every operation of their definition."""
    base = cluster()
    plain = replace(base.devices[0], fast_convolution_saving={})
    return replace(base, devices=(plain,))


def before() -> Hardware:
    """The cluster as it was modelled before this comparison: efficiency 0.6, no fast algorithms."""
    base = without_fast_convolutions()
    slow = replace(base.devices[0], compute_efficiency_by_dtype={})
    return replace(base, devices=(slow,))


EXPERIMENTS: dict[str, tuple[Hardware, Options]] = {
    "as above": (cluster(), PAPER),
    "two-node trees instead of rings": (replace(cluster(), two_node_trees=True), PAPER),
    "half the bandwidth between nodes": (network(0.5), PAPER),
    "no fast 3 × 3 convolutions": (without_fast_convolutions(), PAPER),
    "nor vector units' own efficiency": (before(), PAPER),
    "partial sums may be scattered": (cluster(), replace(PAPER, pins=())),
}


def make() -> Result:
    result = Result("table4", "TensorOpt Table 4: data parallelism ÷ mini-time on 16 GPUs")
    rows, ours = [], {}
    for model, (mini, data, horovod) in THEIRS.items():
        found = ours[model] = row(model)
        rows.append(
            (
                model,
                f"{data / mini:.2f}",
                f"**{found.ratio:.2f}**",
                against(found.ratio, data / mini),
                f"{data:g} ({horovod:g})",
                f"{found.parallel_s:.3g}",
                against(found.parallel_s, data),
                f"{mini:g}",
                f"{found.mini_time_s:.3g}",
                against(found.mini_time_s, mini),
            )
        )
    headers = ("model", "ratio, paper", "ours", "", "data parallel (Horovod), paper, s", "ours", "")
    result.tables.append(Table((*headers, "mini-time, paper, s", "ours", ""), rows))
    result.claims = [_within(model, found) for model, found in ours.items()]
    experiments = _experiments(ours)
    lengths = {f"{n} tokens": row(f"zoo:transformer-s:seq={n}", batch=256) for n in (32, 128, 256)}
    networks = {name: row(source, batch=256) for source, name in CANDIDATES[1:5]}
    result.tables += [
        _experiment_table(experiments),
        _bounds_table(ours),
        _ratios("Transformer-S with sequences of", lengths),
        _ratios("WideResNet, if it were", networks),
    ]
    result.data = {
        "rows": {m: {**r.as_data(), "theirs": THEIRS[m]} for m, r in ours.items()},
        "experiments": {e: {m: r.as_data() for m, r in by.items()} for e, by in experiments.items()},
        "other_models": {n: r.as_data() for n, r in (lengths | networks).items()},
    }
    result.text = TEXT
    return result


def _within(model: str, found: Row) -> Claim:
    mini, data, _ = THEIRS[model]
    off = found.ratio / (data / mini) - 1
    return Claim(
        f"{model}: {data / mini:.2f} (target: within {TARGET:.0%})",
        abs(off) <= TARGET,
        f"{found.ratio:.2f}, {off:+.0%}",
    )


def _experiments(ours: dict[str, Row]) -> dict[str, dict[str, Row]]:
    return {
        name: {m: ours[m] if name == "as above" else row(m, hardware, options) for m in THEIRS}
        for name, (hardware, options) in EXPERIMENTS.items()
    }


def _experiment_table(experiments: dict[str, dict[str, Row]]) -> Table:
    rows: list[tuple[str, ...]] = [
        ("*paper*", *(f"{d / m:.2f}: {d:g} / {m:g}" for m, d, _ in THEIRS.values()))
    ]
    for name, by_model in experiments.items():
        cells = (f"{r.ratio:.2f}: {r.parallel_s:.3g} / {r.mini_time_s:.3g}" for r in by_model.values())
        rows.append((name, *cells))
    return Table(("ratio: data parallel / mini-time, s", *THEIRS), rows)


def _bounds_table(ours: dict[str, Row]) -> Table:
    """Data parallelism when its gradients' all-reduce overlaps with backward, as well as can be."""
    rows = []
    for model, found in ours.items():
        sync = found.parallel_s - found.compute_s
        overlapped = found.compute_s / 3 + max(found.compute_s * 2 / 3, sync)
        rows.append(
            (
                model,
                f"{found.compute_s:.3g}",
                f"{sync:.3g}",
                f"{found.parallel_s:.3g}",
                f"{overlapped:.3g}",
                f"{THEIRS[model][1]:g}",
                f"{THEIRS[model][2]:g}",
            )
        )
    headers = ("data parallel, s", "compute", "all-reduce", "sum (ours)", "all-reduce overlapped")
    return Table((*headers, "paper", "Horovod, paper"), rows)


def _ratios(title: str, rows: dict[str, Row]) -> Table:
    return Table(
        (title, "ratio", "data parallel, s", "mini-time, s"),
        [
            (name, f"{r.ratio:.2f}", f"{r.parallel_s:.3g}", f"{r.mini_time_s:.3g}")
            for name, r in rows.items()
        ],
    )


TEXT = [
    "Of the six times five are within 12 % of what the paper executed; Transformer-S under data "
    "parallelism is 22 % above.",
    "What was wrong before this comparison, and is corrected for all models: (1) 3 × 3 convolutions were "
    "priced by their definition; VGG16 at batch 16 then takes 169 ms on a V100, and is published at "
    "71.7 ms (TensorFlow 1.5) and 83.5 ms (PyTorch 0.3), faster than the V100's peak allows without a fast "
    "algorithm. (2) Large float32 products reach 89 % of the vector units' peak, not the 60 % of tensor "
    "cores. (3) All-reduce over two machines was priced hierarchically, each byte crossing once; "
    "NCCL then went along a ring, 1.875 times as many through each card (nccl-tests issue 29, one EDR card: "
    "bus bandwidth 12.2 GB/s). Each came from published measurements of one device or one "
    "collective; the second table takes them back one by one.",
    "Why (3) can be told from the paper too: its WideResNet saves 2.89 - 1.99 = 0.90 s of "
    "communication. All-reduce of 7.3 GB that crosses once at the card's full rate takes 0.63 s, along "
    "a ring 1.2 s. No strategy saves more than all of it.",
    "Why VGG16's ratio is 17 % high: data parallelism agrees (+4 %); mini-time is 12 ms lower than "
    "executed. What it leaves of communication is 9 ms here; the paper's estimates are below what "
    "was executed by 5 to 8 % too (its Table 2). Both times are printed with two digits: 0.16 / 0.10 is "
    "anything from 1.48 to 1.74.",
    "Why Transformer-S's is 22 % high: data parallelism's all-reduce alone takes 0.82 s here, so the "
    "paper's 1.18 s and Horovod's 1.04 s leave less than our computation for everything else. Either they "
    "overlapped (the third table: 1.02 s if fully) or sequences were shorter (fourth "
    "table; then mini-time would be shorter than printed as well). With trees instead of rings the ratio "
    "is 1.00 and the WideResNet's is 1.12. No one setting gives all three ratios; nothing was chosen "
    "by row.",
]
