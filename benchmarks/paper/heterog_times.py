"""HeteroG's Tables 1 and 4 (seconds of an iteration on 8 and on 12 GPUs) beside ours.

Made of the rows that `heterog_runs.py` kept. Seconds are not compared: ours are modelled from data
sheets. Compared are the order of systems, what fits, and speed-ups (baseline ÷ ours).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

from paper.heterog_models import ROWS
from paper.heterog_published import CNNS, LARGE, METHODS, SPARSE, TIMES
from paper.heterog_runs import CARD, LOCAL, Figures, kept
from paper.rank_correlation import kendall, spearman
from paper.result import Claim, Result, Table

TITLES = {method: method.upper() for method in METHODS}
RANKED = 0.5
"""Kendall's τ from which models are said to rank as in the paper: three of four pairs agree."""
TABLE_OF = {8: 1, 12: 4}


@dataclass(frozen=True)
class Line:
    """A model with a batch: what was kept of it."""

    figures: Figures

    @property
    def model(self) -> str:
        return str(self.figures["model"])

    @property
    def name(self) -> str:
        """The model with its batch, and the tokens of a sequence if they are not the code's."""
        seq = self.figures["seq"]
        tokens = f", {seq} tokens" if seq else ""
        return f"{self.model} ({self.figures['batch']}{tokens})"

    @property
    def is_searched(self) -> bool:
        return "ours" in self.figures

    @property
    def ours(self) -> Figures:
        return dict(self.figures["ours"])

    @cached_property
    def our_s(self) -> float | None:
        """Seconds of our answer, all devices together or one group alone; None: nothing fits."""
        alone = self.ours["alone"]
        times = [self.ours.get("time_s"), alone[1] if alone else None]
        return min((time for time in times if time is not None), default=None)

    @property
    def group_alone(self) -> str | None:
        """The group of devices that alone is faster than all together, if one is."""
        alone = self.ours["alone"]
        return str(alone[0]) if alone and alone[1] == self.our_s else None

    def seconds(self, method: str) -> float:
        """Seconds of a baseline."""
        return float(self.figures["baselines"][method]["time_s"])

    def peak(self, method: str) -> float:
        """The peak of a baseline where it has the least room, of what a device may use."""
        return float(self.figures["baselines"][method]["peak_of_limit"])

    def fits(self, method: str) -> bool:
        return self.peak(method) <= 1.0

    def speed_up(self, method: str) -> float:
        """Seconds of a baseline ÷ ours."""
        assert self.our_s is not None
        return self.seconds(method) / self.our_s


def lines(gpus: int) -> list[Line]:
    """Returns the models for which the paper prints times of all systems."""
    known = {(row["model"], row["batch"], row["seq"]): Line(row) for row in kept(gpus)}
    asked = [(row.model, row.batch_8 if gpus == 8 else row.batch_12) for row in ROWS if row.fits]
    return [known[model, batch, None] for model, batch in asked]


def large_lines(gpus: int) -> list[Line]:
    """Returns the models whose data parallelism runs out of memory in the paper, then those with
    longer sequences."""
    fitting = {line.name for line in lines(gpus)}
    return [line for row in kept(gpus) if (line := Line(row)).name not in fitting]


def make(gpus: int) -> Result:
    """Returns Table 1 (8 GPUs) or Table 4 (12)."""
    number = TABLE_OF[gpus]
    result = Result(
        f"heterog_table{number}",
        f"HeteroG Table {number}: an iteration on {gpus} mixed GPUs (baseline ÷ ours)",
    )
    of_models, large = lines(gpus), large_lines(gpus)
    searched = [line for line in of_models if line.is_searched]
    result.tables = [_speed_ups(gpus, searched)]
    if searched == of_models:
        result.tables.append(_correlations(gpus, searched))
    result.tables += [_what_fits(gpus, large), _breakdown(of_models)]
    if all("experiments" in line.figures for line in of_models):
        result.tables += _experiments(of_models)
    result.claims = [
        *(_ours_is_faster(line) for line in searched),
        *(_sums(line) for line in of_models),
        _shares(gpus, of_models),
        *(_of_all_models(gpus, searched) if searched == of_models else ()),
        *(
            _runs_out(line)
            for line in large
            if not line.figures["seq"] and line.model in LARGE[gpus]
        ),
        *_ours_fits(gpus, large),
    ]
    result.data = {"rows": [line.figures for line in [*of_models, *large]]}
    return result


def _speed_ups(gpus: int, of_models: list[Line]) -> Table:
    rows = []
    for line in of_models:
        printed, *baselines = TIMES[gpus][line.model]
        cells = [
            f"**{line.speed_up(method):.2f}** ({theirs / printed:.2f})"
            for method, theirs in zip(METHODS, baselines, strict=True)
        ]
        rows.append((line.name, f"{line.our_s:.3g} ({printed:g})", *cells, _answer(line)))
    headers = (*(f"{TITLES[m]} ÷ ours (paper)" for m in METHODS), "our strategy")
    return Table(("model (batch)", "ours, s (HeteroG)", *headers), rows)


def _answer(line: Line) -> str:
    if line.group_alone:
        return f"{line.group_alone} alone, the others idle"
    return str(line.ours["label"])


def _correlations(gpus: int, of_models: list[Line]) -> Table:
    rows = []
    for method in METHODS:
        ours, theirs = _both(gpus, of_models, method)
        rows.append(
            (TITLES[method], f"{spearman(ours, theirs):.2f}", f"{kendall(ours, theirs):.2f}")
        )
    return Table(("speed-ups over, as the paper ranks models", "Spearman's ρ", "Kendall's τ"), rows)


def _both(gpus: int, of_models: list[Line], method: str) -> tuple[list[float], list[float]]:
    at = METHODS.index(method) + 1
    ours = [line.speed_up(method) for line in of_models]
    theirs = [TIMES[gpus][line.model][at] / TIMES[gpus][line.model][0] for line in of_models]
    return ours, theirs


def _ours_is_faster(line: Line) -> Claim:
    """Whether every baseline is slower, also one that would not fit here, which the paper ran."""
    slower = {method: line.speed_up(method) for method in METHODS}
    said = ", ".join(f"{TITLES[method]} {by:.2f}" for method, by in slower.items())
    missing = [TITLES[method] for method in METHODS if not line.fits(method)]
    if missing:
        said += f" ({', '.join(missing)} would not fit)"
    return Claim(
        f"{line.model}: ours is faster than the four baselines",
        all(by > 1.0 for by in slower.values()),
        f"they take, times ours: {said}",
    )


def _sums(line: Line) -> Claim:
    """Which way to sum gradients is faster."""
    server, collective = ("ev-ps", "cp-ps"), ("ev-ar", "cp-ar")
    first, second = (server, collective) if line.model in SPARSE else (collective, server)
    pairs = list(zip(first, second, strict=True))
    names = ("PS", "AR") if line.model in SPARSE else ("AR", "PS")
    said = ", ".join(
        f"{TITLES[method]} {line.seconds(method):.3g} s" for pair in pairs for method in pair
    )
    return Claim(
        f"{line.model}: {names[0]} is faster than {names[1]}, under EV and CP",
        all(line.seconds(a) < line.seconds(b) for a, b in pairs),
        said,
    )


def _shares(gpus: int, of_models: list[Line]) -> Claim:
    """For which models proportional shares are faster than even ones."""
    faster = [model for model, times in TIMES[gpus].items() if times[4] < times[2]]
    ratios = {line.model: line.seconds("ev-ar") / line.seconds("cp-ar") for line in of_models}
    return Claim(
        f"CP-AR is faster than EV-AR for {', '.join(faster)}, and for no other model",
        {model for model, ratio in ratios.items() if ratio > 1.0} == set(faster),
        ", ".join(f"{model} {ratio - 1.0:+.1%}" for model, ratio in ratios.items()),
    )


def _of_all_models(gpus: int, searched: list[Line]) -> list[Claim]:
    return [_least(gpus, searched), *(_ranks(gpus, searched, method) for method in METHODS)]


def _least(gpus: int, searched: list[Line]) -> Claim:
    least = min(min(times[1:]) / times[0] for times in TIMES[gpus].values())
    ours = {line.model: min(line.speed_up(m) for m in METHODS) for line in searched}
    smallest = min(ours, key=lambda model: ours[model])
    return Claim(
        f"no speed-up over a baseline is below {least - 1.0:.1%}",
        ours[smallest] >= least,
        f"the least is {ours[smallest] - 1.0:.1%} ({smallest})",
    )


def _ranks(gpus: int, of_models: list[Line], method: str) -> Claim:
    ours, theirs = _both(gpus, of_models, method)
    tau = kendall(ours, theirs)
    return Claim(
        f"speed-ups over {TITLES[method]} rank the models as printed (τ ≥ {RANKED})",
        tau >= RANKED,
        f"τ {tau:.2f}",
    )


def _runs_out(line: Line) -> Claim:
    said = ", ".join(f"{TITLES[method]} {line.peak(method):.0%}" for method in METHODS)
    return Claim(
        f"{line.name}: the four baselines run out of memory",
        not any(line.fits(method) for method in METHODS),
        f"of what a device may use: {said}",
    )


def _ours_fits(gpus: int, large: list[Line]) -> list[Claim]:
    rows = [line for line in large if not line.figures["seq"] and line.model in LARGE[gpus]]
    if not all(line.is_searched for line in rows):
        return []
    said = ", ".join(f"{line.model} {_seconds(line.our_s)}" for line in rows)
    holds = all(line.our_s is not None for line in rows)
    return [Claim("these six fit with our strategies", holds, said)]


def _seconds(seconds: float | None) -> str:
    return "does not fit" if seconds is None else f"{seconds:.3g} s"


def _what_fits(gpus: int, large: list[Line]) -> Table:
    rows = []
    for line in large:
        printed = None if line.figures["seq"] else LARGE[gpus].get(line.model)
        ours = _our_cell(line, printed) if line.is_searched else "not searched"
        cells = [
            f"{line.peak(m):.0%}" + (f", {line.seconds(m):.3g} s" if line.fits(m) else "")
            for m in METHODS
        ]
        rows.append((line.name, ours, *cells))
    headers = (f"{TITLES[m]}, of memory" for m in METHODS)
    return Table(("data parallelism out of memory in the paper", "ours (HeteroG)", *headers), rows)


def _our_cell(line: Line, printed: float | None) -> str:
    theirs = "" if printed is None else f" ({printed:g} s)"
    if line.our_s is None:
        wider = line.figures.get("wider", {}).get("time_s")
        also = f"; with ZeRO and recomputation {wider:.3g} s" if wider else ""
        return f"does not fit{theirs}{also}"
    return f"{_seconds(line.our_s)}{theirs}: {_answer(line)}"


def _breakdown(of_models: list[Line]) -> Table:
    """What the slowest device computes and how long the busiest links are busy."""
    rows = []
    for line in of_models:
        cells = []
        ours = line.ours if line.is_searched else {}
        for figures in (*(line.figures["baselines"][m] for m in METHODS), ours):
            places = figures.get("places")
            cells.append("" if places is None else _busy(places))
        rows.append((line.name, *cells))
    headers = ("computation + links of the busiest place, s", *TITLES.values(), "ours")
    return Table(headers, rows)


def _busy(places: dict[str, list[float]]) -> str:
    compute, links = (max(place[i] for place in places.values()) for i in (0, 1))
    return f"{compute:.3g} + {links:.3g}"


def _experiments(of_models: list[Line]) -> list[Table]:
    """What the baselines take with one thing changed, and ours with other statistics."""
    rows = []
    for line in of_models:
        plain = {method: line.seconds(method) for method in METHODS}
        changed = line.figures["experiments"]
        cells = (
            _times(plain, line.our_s),
            _times(changed[CARD]),
            _times(changed[LOCAL], _local_s(line)),
        )
        rows.append((line.name, *cells))
    title = f"{' / '.join(TITLES.values())} (ours), s"
    tables = [Table((title, "as above", CARD, LOCAL), rows)]
    if all(_local_s(line) is not None for line in of_models):
        taus = (f"{_local_tau(of_models, method):.2f}" for method in METHODS)
        headers = (f"{LOCAL}: ranks of speed-ups over", *TITLES.values())
        tables.append(Table(headers, [("Kendall's τ", *taus)]))
    return tables


def _times(baselines: dict[str, float], ours: float | None = None) -> str:
    times = " / ".join(f"{baselines[method]:.3g}" for method in METHODS)
    return times if ours is None else f"{times} ({ours:.3g})"


def _local_s(line: Line) -> float | None:
    """Seconds of ours with each device's own statistics: as ever in models that have none; None
    where it was not searched."""
    if line.model not in CNNS:
        return line.our_s
    return Line({"ours": line.figures["local"]}).our_s if "local" in line.figures else None


def _local_tau(of_models: list[Line], method: str) -> float:
    """How models rank by their speed-ups over a baseline, as printed against ours."""
    _, theirs = _both(8, of_models, method)
    ours = [
        line.figures["experiments"][LOCAL][method] / (_local_s(line) or inf) for line in of_models
    ]
    return kendall(ours, theirs)
