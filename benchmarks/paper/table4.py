"""TensorOpt Table 4: data parallelism against the shortest time on 16 GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import patch

from paper.result import Claim, Result, Table, against
from paper.setting import PAPER, cluster, fastest, network, parallel
from paper.table1 import CANDIDATES
from shardwise.answers import Options
from shardwise.cost.group_work import GroupWork
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
    """Both times of a model, in seconds: as the search adds them up, and replayed.

    Replay overlaps communication with computation where nothing waits for it: what is executed.
    """

    mini_sum_s: float
    parallel_sum_s: float
    mini_s: float
    parallel_s: float
    compute_s: float

    @property
    def ratio(self) -> float:
        return self.parallel_s / self.mini_s

    @property
    def ratio_of_sums(self) -> float:
        return self.parallel_sum_s / self.mini_sum_s

    def as_data(self) -> dict[str, float]:
        return {**vars(self), "ratio": self.ratio, "ratio_of_sums": self.ratio_of_sums}


def row(
    model: str, hardware: Hardware | None = None, options: Options = PAPER, batch: int = 0
) -> Row:
    """Data parallelism, and the strategy whose time adds up to the least under a V100's limit."""
    search = fastest(model, hardware=hardware, options=options, batch=batch)
    chosen = search.fastest_within(search.limit_bytes)
    if chosen is None:
        raise RuntimeError(f"{model} does not fit")
    theirs = parallel(search)
    replayed = search.replayer.replay(theirs.choices[None, :], theirs.edge_choices[None, :])
    return Row(
        float(search.time_s[chosen]),
        theirs.time_s,
        float(search.replayed.time_s[chosen]),
        float(replayed.time_s[0]),
        theirs.compute_s,
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
    ours = {model: row(model) for model in THEIRS}
    result.tables.append(Table(_HEADERS, [_row(m, figures) for m, figures in ours.items()]))
    result.claims = [_within(model, figures) for model, figures in ours.items()]
    experiments = _experiments(ours)
    lengths = {f"{n} tokens": row(f"zoo:transformer-s:seq={n}", batch=256) for n in (32, 128)}
    networks = {name: row(source, batch=256) for source, name in CANDIDATES[1:5]}
    result.tables += [
        _sums_table(ours),
        _experiment_table(experiments),
        _ratios("Transformer-S with sequences of", lengths),
        _ratios("WideResNet, if it were", networks),
    ]
    result.data = {
        "rows": {m: {**r.as_data(), "theirs": THEIRS[m]} for m, r in ours.items()},
        "experiments": {
            e: {m: r.as_data() for m, r in by.items()} for e, by in experiments.items()
        },
        "other_models": {n: r.as_data() for n, r in (lengths | networks).items()},
    }
    return result


_HEADERS = (
    "model",
    "ratio, paper",
    "ours",
    "",
    "data parallel (Horovod), paper, s",
    "ours",
    "",
    "mini-time, paper, s",
    "ours",
    "",
)


def _row(model: str, ours: Row) -> tuple[str, ...]:
    mini, data, horovod = THEIRS[model]
    return (
        model,
        f"{data / mini:.2f}",
        f"**{ours.ratio:.2f}**",
        against(ours.ratio, data / mini),
        f"{data:g} ({horovod:g})",
        f"{ours.parallel_s:.3g}",
        against(ours.parallel_s, data),
        f"{mini:g}",
        f"{ours.mini_s:.3g}",
        against(ours.mini_s, mini),
    )


def _within(model: str, ours: Row) -> Claim:
    mini, data, _ = THEIRS[model]
    off = ours.ratio / (data / mini) - 1
    return Claim(
        f"{model}: {data / mini:.2f} (target: within {TARGET:.0%})",
        abs(off) <= TARGET,
        f"{ours.ratio:.2f}, {off:+.0%}",
    )


def _experiments(ours: dict[str, Row]) -> dict[str, dict[str, Row]]:
    """Everything taken back or changed, one by one."""
    experiments = {
        name: {m: ours[m] if name == "as above" else row(m, hardware, options) for m in THEIRS}
        for name, (hardware, options) in EXPERIMENTS.items()
    }
    with patch.object(GroupWork, "_statistics", lambda *_: None):
        experiments["statistics of normalisations are not summed"] = {m: row(m) for m in THEIRS}
    return experiments


def _experiment_table(experiments: dict[str, dict[str, Row]]) -> Table:
    rows: list[tuple[str, ...]] = [
        ("*paper*", *(f"{d / m:.2f}: {d:g} / {m:g}" for m, d, _ in THEIRS.values()))
    ]
    for name, by_model in experiments.items():
        cells = (f"{r.ratio:.2f}: {r.parallel_s:.3g} / {r.mini_s:.3g}" for r in by_model.values())
        rows.append((name, *cells))
    return Table(("ratio: data parallel / mini-time, s", *THEIRS), rows)


def _sums_table(ours: dict[str, Row]) -> Table:
    """The same without overlap, as the search adds up."""
    rows = []
    for model, figures in ours.items():
        mini, data, _ = THEIRS[model]
        rows.append(
            (
                model,
                f"{figures.ratio_of_sums:.2f} ({against(figures.ratio_of_sums, data / mini)})",
                f"{figures.parallel_sum_s:.3g} ({against(figures.parallel_sum_s, data)})",
                f"{figures.mini_sum_s:.3g} ({against(figures.mini_sum_s, mini)})",
                f"{figures.compute_s:.3g}",
            )
        )
    headers = ("sums, nothing overlapped", "ratio", "data parallel, s", "mini-time, s")
    return Table((*headers, "computation, s"), rows)


def _ratios(title: str, rows: dict[str, Row]) -> Table:
    return Table(
        (title, "ratio", "data parallel, s", "mini-time, s"),
        [
            (name, f"{r.ratio:.2f}", f"{r.parallel_s:.3g}", f"{r.mini_s:.3g}")
            for name, r in rows.items()
        ],
    )
