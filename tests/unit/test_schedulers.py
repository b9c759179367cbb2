"""Schedulers' forms: no count that does not fit is ever named, whatever the curve."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput, NotFound
from shardwise.schedulers.counts import Counts
from shardwise.schedulers.formats import FORMS, export
from shardwise.schedulers.goodput import Goodput
from shardwise.schedulers.kueue import COMPLETIONS_FOLLOW, GPU, MIN_PARALLELISM


def curve(times: list[float | None], per_node: int = 4, **more: Any) -> dict[str, Any]:
    """A curve document; None: that count does not fit."""
    points = [
        {
            "gpus": g,
            "nodes": -(-g // per_node),
            "feasible": t is not None,
            "time_s": t,
            "replayed_time_s": None if t is None else 2 * t,
            **({} if t is not None else {"reason": "too large"}),
        }
        for g, t in enumerate(times, start=1)
    ]
    head = {"schema": "shardwise.curve/1", "graph_name": "net", "hardware": "dgx-v100-16gb"}
    return {**head, "batch_size": 64, "overlap": False, "points": points, **more}


times = st.floats(1e-4, 1e3)
curves = st.builds(
    curve,
    st.lists(st.none() | times, min_size=1, max_size=24).filter(lambda t: any(t)),
    st.sampled_from([1, 2, 4, 8]),
)


def fits(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {p["gpus"]: p for p in document["points"] if p["feasible"]}


def exported(document: dict[str, Any], form: str, efficiency: float = 0.0) -> Any:
    """The form, read; None where it has nothing to say."""
    try:
        text = export(document, form, efficiency=efficiency)
    except NotFound:
        return None
    return text if form == "sbatch" else json.loads(text)


@given(curves)
def test_gavel_lists_the_counts_that_fit(document: dict[str, Any]) -> None:
    (types,) = exported(document, "gavel").values()
    rates = {}
    for key, row in types.items():
        # Gavel's own pattern (parse_job_type_tuple of scheduler/utils.py).
        match = re.match(r"\('(.*)', (\d+)\)", key)
        assert match is not None and match[1] == "net (batch size 64)"
        assert list(row) == ["null"]
        rates[int(match[2])] = row["null"]
    assert rates == {g: pytest.approx(1 / p["time_s"]) for g, p in fits(document).items()}


@given(curves, st.integers(0, 30), st.integers(0, 30))
def test_speedups_are_zero_where_the_curve_has_no_number(
    document: dict[str, Any], nodes: int, replicas: int
) -> None:
    goodput = Goodput(exported(document, "adaptdl"))
    known = fits(document)
    priced = replicas in known and known[replicas]["nodes"] == nodes
    first = min(known)
    expected = known[first]["time_s"] / known[replicas]["time_s"] * first if priced else 0.0
    assert goodput(nodes, replicas) == pytest.approx(expected)
    assert isinstance(goodput(nodes, replicas), float)
    many = goodput(np.array([nodes, 0]), np.array([replicas, 0]))
    assert many.tolist() == [pytest.approx(expected), 0.0]
    assert goodput(np.float32(nodes), np.float32(replicas)) == pytest.approx(expected)
    assert goodput.min_replicas in known and goodput.max_replicas in known
    assert exported(document, "sia")["v100"] == exported(document, "adaptdl")


@given(curves, st.floats(0, 1))
def test_kueue_may_admit_any_number_of_pods(document: dict[str, Any], efficiency: float) -> None:
    job = exported(document, "kueue", efficiency)
    if job is None:
        assert not any(g % p["nodes"] == 0 for g, p in fits(document).items())
        return
    spec, annotations = job["spec"], job["metadata"]["annotations"]
    (container,) = spec["template"]["spec"]["containers"]
    per_pod, most = int(container["resources"]["limits"][GPU]), spec["parallelism"]
    least = int(annotations.get(MIN_PARALLELISM, most))
    for pods in range(least, most + 1):
        assert fits(document)[pods * per_pod]["nodes"] == pods
    # The rules of Kueue's webhook, pkg/controller/jobs/job/job_webhook.go.
    assert spec["completionMode"] == "Indexed" and spec["completions"] == most
    if MIN_PARALLELISM in annotations:
        assert 0 < least < most and annotations[COMPLETIONS_FOLLOW] == "true"


@given(curves, st.floats(0, 1))
def test_ray_may_take_any_number_of_workers(document: dict[str, Any], efficiency: float) -> None:
    workers = exported(document, "ray", efficiency)["num_workers"]
    low, high = workers if isinstance(workers, list) else (workers, workers)
    assert low <= high
    assert set(range(low, high + 1)) <= set(fits(document))


@given(curves, st.floats(0, 1))
def test_nodes_times_gpus_fit(document: dict[str, Any], efficiency: float) -> None:
    script = exported(document, "sbatch", efficiency)
    if script is not None:
        nodes = int(re.search(r"^#SBATCH --nodes=(\d+)$", script, re.M)[1])  # type: ignore[index]
        gpus = int(re.search(r"^#SBATCH --gres=gpu:(\d+)$", script, re.M)[1])  # type: ignore[index]
        assert fits(document)[nodes * gpus]["nodes"] == nodes
        assert f"--nnodes={nodes} --nproc-per-node={gpus} " in script
    task = exported(document, "skypilot", efficiency)
    if task is not None:
        wanted = task["resources"].get("ordered", [task["resources"]])
        rows = [fits(document)[task["num_nodes"] * w["accelerators"]["V100"]] for w in wanted]
        assert all(row["nodes"] == task["num_nodes"] for row in rows)


@given(curves)
def test_efficiency_trades_time_for_use(document: dict[str, Any]) -> None:
    counts = Counts.of(document)
    chosen = [counts.best(e) for e in (0.0, 0.5, 0.9, 1.0)]
    assert chosen[0].step_s == min(p["time_s"] for p in fits(document).values())
    assert [c.step_s for c in chosen] == sorted(c.step_s for c in chosen)
    use = [1 / (c.step_s * c.gpus) for c in chosen]
    assert use[-1] == max(1 / (c.step_s * c.gpus) for c in counts.counts)


@pytest.mark.parametrize("form", FORMS)
def test_where_nothing_fits_nothing_is_written(form: str) -> None:
    with pytest.raises(NotFound, match="nothing fits on up to 2 GPUs: too large"):
        export(curve([None, None]), form)


def test_a_gap_ends_the_run() -> None:
    document = curve([None, 4.0, None, 2.0, 1.7, 1.5], per_node=8)
    assert exported(document, "ray")["num_workers"] == [4, 6]
    pods = exported(curve([8.0, 4.0, None, 2.0], per_node=1), "kueue")
    assert pods["spec"]["parallelism"] == 4
    assert MIN_PARALLELISM not in pods["metadata"]["annotations"]
    pods = exported(curve([None, 4.0, 3.0, 2.0], per_node=1), "kueue")
    assert pods["metadata"]["annotations"][MIN_PARALLELISM] == "2"


def test_ranked_by_the_time_that_the_curve_ranks_by() -> None:
    document = curve([1.0], overlap=True)
    assert exported(document, "gavel")["v100"]["('net (batch size 64)', 1)"]["null"] == 0.5
    assert exported(document, "adaptdl")["goodputs"][0]["samples_per_s"] == 32.0


def test_names_from_outside_stay_names() -> None:
    document = curve([1.0], graph_name="a'); $(reboot)\n#SBATCH --uid=0", hardware="x")
    script = exported(document, "sbatch")
    assert "reboot)" not in script and "\n#SBATCH --uid" not in script
    (key,) = exported(document, "gavel")["x"]
    assert key.count("'") == 2 and "\n" not in key
    assert re.fullmatch(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", exported(document, "kueue")["metadata"]["name"]
    )


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "schema"),
        (curve([1.0]) | {"points": []}, "points"),
        (curve([1.0]) | {"points": [{"feasible": True}]}, "points[0].gpus"),
        (curve([1.0]) | {"points": [{"gpus": 1, "feasible": True}]}, "points[0].time_s"),
        (
            curve([1.0]) | {"points": [{"gpus": 1, "feasible": True, "time_s": 1.0, "nodes": 2}]},
            "points[0].nodes",
        ),
    ],
)
def test_malformed_curves_are_refused_by_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        export(document, "gavel")
    assert error.value.field == field


@pytest.mark.parametrize("form", ["kueue", "sbatch"])
def test_a_count_of_uneven_nodes_is_never_the_answer(form: str) -> None:
    """Five GPUs of nodes of four are four and one, which launchers of like nodes cannot start."""
    uneven = curve([None] * 4 + [1.0])
    with pytest.raises(NotFound, match="with as many GPUs on every node"):
        export(uneven, form)
    both = curve([None] * 3 + [2.0, 1.0])
    assert "gpu:4" in export(both, "sbatch") and "gpu:3" not in export(both, "sbatch")
