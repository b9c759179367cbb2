"""HeteroG Tables 2 and 3: which share of operators runs how, in our strategies on 8 GPUs.

The paper counts the operators of TensorFlow's graphs, ours are those of the captured forward
graphs; their gradients run where they do. A block is two devices of one server, which share what is
placed on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from paper.heterog_published import CHOICES, LARGE_CHOICES
from paper.heterog_runs import CLUSTERS, Figures
from paper.heterog_times import Line, large_lines, lines
from paper.result import Claim, Result, Table
from shardwise.hardware import Devices, load_hardware

GPUS = 8
HARDWARE = load_hardware(f"heterog-{GPUS}")
DEVICES = 2
"""Of a block, which is one server's devices."""
ALONE = "one block of "
WAYS = ("EV-PS", "EV-AR", "CP-PS", "CP-AR")

Shares = Mapping[str, float]
"""Percent by way: `alone`, those of `WAYS`, `EV` and `CP` without a gradient, `some`, `whole`."""


def make() -> Result:
    result = Result("heterog_table3", "HeteroG Tables 2 and 3: how operators run, 8 GPUs")
    small = lines(GPUS)
    large = [line for line in large_lines(GPUS) if line.model in LARGE_CHOICES and _searched(line)]
    result.tables = [_small(small), _large(large)]
    result.claims = [
        *_mixed(small),
        *_alone(small),
        *(_mostly_alone(line) for line in large),
    ]
    result.data = {line.name: line.ours.get("choices") for line in [*small, *large]}
    return result


def _searched(line: Line) -> bool:
    return line.figures["seq"] is None


def shares(line: Line, weight: str = "operators") -> Shares:
    """Returns percent of the operators, or of another figure of choices, by way."""
    return _percent(_choices(line), weight, _way)


def _choices(line: Line) -> list[Figures]:
    """Returns how our answer runs: where one group alone is faster, all is there."""
    name = line.group_alone
    if name is None:
        return list(line.ours.get("choices", []))
    devices = dict(Devices.parse(CLUSTERS[GPUS], HARDWARE).counts)[name]
    whole = {"operators": 1, "parameter_bytes": 1}
    if devices == DEVICES:
        return [{"who": f"{ALONE}{name}", "sum": "", **whole}]
    return [{"who": f"some: {name}", "sum": "AR", **whole}]


def _percent(choices: list[Figures], weight: str, key: Callable[[Figures], str]) -> Shares:
    total = sum(choice[weight] for choice in choices) or 1.0
    percent: dict[str, float] = defaultdict(float)
    for choice in choices:
        percent[key(choice)] += 100.0 * choice[weight] / total
    return percent


def _way(choice: Figures) -> str:
    who = str(choice["who"])
    if who.startswith(ALONE):
        return "alone"
    if who.startswith("some"):
        return "some"
    return f"{who}-{choice['sum']}" if choice["sum"] else who


def _where(line: Line) -> Shares:
    """Returns percent of the operators by the group that they are alone in."""
    return _percent(_choices(line), "operators", lambda choice: str(choice["who"]))


def _small(of_models: list[Line]) -> Table:
    rows = []
    for line in of_models:
        ours, theirs = shares(line), CHOICES[line.model]
        named = ("alone", *WAYS)
        cells = [f"{ours.get(n, 0):.1f} ({t:g})" for n, t in zip(named, theirs, strict=True)]
        others = [f"{ours.get(name, 0):.1f}" for name in ("EV", "CP", "some", "whole")]
        rows.append((line.name, *cells, *others))
    headers = ("alone on a block (Table 2: on one V100)", *WAYS)
    without = ("even, no gradient", "proportional, no gradient", "some blocks", "all do all")
    return Table(("operators, % (paper)", *headers, *without), rows)


def _large(of_models: list[Line]) -> Table:
    rows = []
    for line in of_models:
        alone, replicated = LARGE_CHOICES[line.model]
        theirs = f"{sum(alone):.1f} / {sum(replicated):.1f}"
        if line.our_s is None:
            rows.append((line.name, theirs, "does not fit", ""))
            continue
        ours = shares(line)
        cells = ", ".join(f"{name} {share:.1f}" for name, share in ours.items() if share >= 0.05)
        rows.append((line.name, theirs, f"{ours.get('alone', 0):.1f}", cells))
    headers = ("Table 3: alone / replicated", "ours: alone", "ours")
    return Table(("operators, %", *headers), rows)


def _mixed(of_models: list[Line]) -> list[Claim]:
    """Both ways to sum and both kinds of shares, in every model."""
    sums = {line.model: _which(line, "sum", ("PS", "AR")) for line in of_models}
    kinds = {line.model: _which(line, "who", ("EV", "CP")) for line in of_models}
    return [
        Claim(
            "every model has gradients summed by PS and others by AR",
            all(said == "PS+AR" for said in sums.values()),
            ", ".join(f"{model} {said}" for model, said in sums.items()),
        ),
        Claim(
            "every model has operators with even shares and others with proportional ones, "
            "on all devices",
            all(said == "EV+CP" for said in kinds.values()),
            ", ".join(f"{model} {said}" for model, said in kinds.items()),
        ),
    ]


def _which(line: Line, of: str, names: tuple[str, ...]) -> str:
    """Returns which of these names the choices of an answer have."""
    found = {str(choice[of]) for choice in _choices(line)}
    return "+".join(name for name in names if name in found) or "neither"


def _alone(of_models: list[Line]) -> list[Claim]:
    where = {line.model: _where(line) for line in of_models}
    blocks = {
        model: {who.removeprefix(ALONE): s for who, s in of.items() if who.startswith(ALONE)}
        for model, of in where.items()
    }
    elsewhere = {m: sorted(set(of) - {"v100"}) for m, of in blocks.items() if set(of) - {"v100"}}
    heavy = {
        line.model: (shares(line)["alone"], shares(line, "parameter_bytes")["alone"])
        for line in of_models
        if blocks[line.model]
    }
    return [
        Claim(
            "every model has 1.8 to 12.2 % of its operators alone on one device",
            all(1.8 <= shares(line).get("alone", 0.0) <= 12.2 for line in of_models),
            ", ".join(f"{line.model} {shares(line).get('alone', 0.0):.1f}" for line in of_models),
        ),
        Claim(
            "what is alone is always on V100",
            not elsewhere,
            _said_elsewhere(elsewhere, sum(bool(of) for of in blocks.values())),
        ),
        Claim(
            "what is alone has many parameters (a larger share of them than of the operators)",
            bool(heavy) and all(parameters > operators for operators, parameters in heavy.values()),
            ", ".join(f"{m} {o:.1f} % with {p:.1f} % of parameters" for m, (o, p) in heavy.items())
            or "nothing is alone",
        ),
    ]


def _said_elsewhere(elsewhere: Mapping[str, list[str]], placed: int) -> str:
    if not elsewhere:
        return f"so in all {placed} models that place any"
    return ", ".join(f"{model}: {' and '.join(names)}" for model, names in elsewhere.items())


def _mostly_alone(line: Line) -> Claim:
    alone = sum(LARGE_CHOICES[line.model][0])
    if line.our_s is None:
        return Claim(f"{line.name}: {alone:.0f} % of operators are alone", False, "does not fit")
    ours = shares(line).get("alone", 0.0)
    return Claim(
        f"{line.name}: most operators ({alone:.0f} %) are alone on one device",
        ours > 50.0,
        f"{ours:.1f} %",
    )
