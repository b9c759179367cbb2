"""The command line as a user meets it: real processes, exit codes, one line per error."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import commands
from harness.graph_builder import mlp
from shardwise import __version__
from shardwise.graph import write_graph

BAD = 2
INFEASIBLE = 1


def shardwise(
    *arguments: str, cwd: Path | None = None, columns: int = 80
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns)}
    environment.pop("SHARDWISE_DEBUG", None)
    return commands.shardwise(*arguments, cwd=cwd, env=environment)


def interrupted(*arguments: str, percent: int = 0) -> tuple[int, str, str]:
    """Run a search, press Ctrl-C when it first says that it is this far, let it end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shardwise.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        far = re.search(r"(\d+)%", line)
        if line.startswith("… ") and "costs" not in line and int(far[1] if far else 0) >= percent:
            process.send_signal(signal.SIGINT)
            break
    out, rest = process.communicate(timeout=60)
    return process.returncode, out, said + rest


def one_document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    document: dict[str, Any] = json.loads(line)
    assert document["schema"].startswith("shardwise.")
    return document


def refused(done: subprocess.CompletedProcess[str], *parts: str, code: int = BAD) -> None:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("note:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("shardwise: error: ")
    for part in parts:
        assert part in lines[0], lines[0]


VGG = ("shipped:vgg16", "--hardware", "dgx-v100-16gb")
"""For what is refused before a search."""
FEW = ("--micro-batches", "1", "--zero", "0,1")
"""For a quick search by replayed times."""
SUM = ("--objective", "sum")
TIGHT = ("--memory", "2500MB")
"""Holds what each of two devices needs of the small model, not what one does."""
PROBLEM = {
    "schema": "shardwise.problem/1",
    "operators": [
        {
            "name": "a",
            "choices": [
                {"memory_bytes": 10, "time_s": 1.5},
                {"memory_bytes": 4, "time_s": 2.0},
            ],
        },
        {"name": "b", "choices": [{"memory_bytes": 1, "time_s": 1.0}] * 2},
    ],
    "edges": [
        {
            "source": "a",
            "target": "b",
            "choices": [
                [
                    [{"memory_bytes": 0, "time_s": 0.1}],
                    [{"memory_bytes": 3, "time_s": 0.0}, {"memory_bytes": 0, "time_s": 0.4}],
                ],
                [[{"memory_bytes": 0, "time_s": 0.2}], [{"memory_bytes": 0, "time_s": 0.2}]],
            ],
        }
    ],
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A model whose searches take a twentieth of a second, and hardware."""
    path = tmp_path_factory.mktemp("model") / "small.json"
    write_graph(mlp(65536, 1024, 4096), path)
    return (str(path), "--hardware", "dgx-v100-16gb")


@pytest.mark.parametrize(
    ("objective", "memory", "time"),
    [(FEW, "replayed_peak_bytes", "replayed_time_s"), (SUM, "memory_bytes", "time_s")],
)
def test_frontier_json_and_table(
    small: tuple[str, ...], objective: tuple[str, ...], memory: str, time: str
) -> None:
    arguments = ("frontier", *small, "--gpus", "2", *objective)
    document = one_document(shardwise(*arguments, "--json"))
    for key in ("graph", "hardware", "gpus", "turning_point", "provenance", "certificate"):
        assert key in document
    for point in document["points"]:
        assert point["compute_s"] + point["communication_s"] == pytest.approx(point["time_s"])
        assert point["plan_id"].startswith("sha256:")
    ends = document["points"][0], document["points"][-1]
    assert ends[0][memory] < ends[1][memory] and ends[0][time] > ends[1][time]
    done = shardwise(*arguments, "--quiet")
    assert done.returncode == 0
    assert "turning point" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_tofu_is_a_peer_of_one_point(small: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (*small, "--gpus", "8", "--method", "tofu")
    document = one_document(shardwise("frontier", *arguments, "--json"))
    assert len(document["points"]) == 1
    assert document["certificate"] == {"exact": False, "epsilon": None, "status": "heuristic"}
    plan = one_document(shardwise("plan", *arguments, "--json"))
    assert plan["id"] == document["points"][0]["plan_id"]
    assert plan["predicted"]["gap"] is None
    done = shardwise("frontier", *arguments, "--quiet")
    assert "nothing proven (heuristic)" in done.stdout
    assert "Tofu's steps move" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    refused(shardwise("plan", *arguments, "--memory", "100MB"), "Tofu's strategy", code=INFEASIBLE)
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps(PROBLEM))
    # No tensors in a problem file: the bare solver does not offer it.
    assert shardwise("solve", str(problem), "--method", "tofu").returncode == BAD


def test_compare_by_sums_answers_for_every_system(small: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("compare", *small, "--gpus", "4", "--proposals", "50", "--objective", "sum")
    document = one_document(shardwise(*arguments, "--seed", "7", "--json"))
    assert document["schema"] == "shardwise.compare/1"
    methods = {method["method"]: method for method in document["methods"]}
    assert methods["flexflow"]["details"]["seed"] == 7
    assert methods["fsdp"]["space"] == methods["shardwise"]["space"] == "all"
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>")):
        picture = tmp_path / f"compare.{suffix}"
        done = shardwise(*arguments, "--zero", "0", "--plot", str(picture), "--quiet")
        assert done.returncode == 0, done.stderr
        assert picture.read_bytes().lower().startswith(start.lower())
    assert "Mesh-Tensor" in done.stdout, "a long name may be broken"
    assert "FSDP" not in done.stdout
    assert "data parallelism takes" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_compare_ranks_by_replayed_steps(small: tuple[str, ...]) -> None:
    few = ("--proposals", "50", "--recompute", "never", "--micro-batches", "1,2")
    arguments = ("compare", *small, "--gpus", "4", *few)
    document = one_document(shardwise(*arguments, "--json"))
    assert document["ranking"][0] == "shardwise"
    done = shardwise(*arguments, "--quiet")
    title, columns, first, *_ = done.stdout.splitlines()
    assert "replayed step" in title + columns
    assert "This system" in columns + first
    for text in ("slower", "peak GiB", "FSDP", "Proven: no strategy", "data parallelism takes"):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--method", "tofu"), ("method", "Tofu is one of the systems")),
        (("--plot", "picture.pdf"), ("plot", ".html or .svg or .png")),
        (("--plot", "no-such-folder/f.png"), ("no such folder",)),
        (("--proposals", "0"), ("--proposals",)),
        (("--memory", "much"), ("memory", "expected a size", "got 'much'")),
        (("--gpus", "0"), ("gpus", "at least 1")),
        (("--pin", "split=batch"), ("pin", "a comparison with rules")),
        (("--micro-batches", "1,2", "--objective", "sum"), ("micro-batches", "one number")),
    ],
)
def test_compare_refuses_in_one_line(arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    refused(shardwise("compare", *VGG, "--gpus", "2", *arguments), *parts)


def test_compare_says_what_is_not_there() -> None:
    missing = ("compare", "no-such.json", "--hardware", "l4", "--gpus", "2")
    refused(shardwise(*missing), "no-such.json")
    too_many = ("compare", "shipped:vgg16", "--hardware", "l4*1", "--gpus", "64")
    refused(shardwise(*too_many), "8 devices", code=INFEASIBLE)


def test_plan_file_and_explain(small: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    done = shardwise("plan", *small, "--gpus", "4", "-o", str(output), "--quiet")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    explanation = one_document(shardwise("explain", str(output), "--json"))
    plan = json.loads(output.read_text())
    assert explanation["plan"] == plan["id"]
    assert explanation["totals"]["time_s"] == pytest.approx(plan["predicted"]["time_s"])
    again = one_document(shardwise("plan", *small, "--gpus", "4", "--json"))
    assert again["id"] == plan["id"]


def test_curve_formats(small: tuple[str, ...]) -> None:
    arguments = ("curve", *small, "--max-gpus", "3", *FEW, *TIGHT)
    document = one_document(shardwise(*arguments, "--json"))
    assert [p["gpus"] for p in document["points"]] == [1, 2, 3]
    table = shardwise(*arguments, "--format", "csv")
    header, *rows = table.stdout.splitlines()
    assert header.startswith("gpus,nodes,feasible,time_s")
    assert len(rows) == 3
    gavel = json.loads(shardwise(*arguments, "--format", "gavel").stdout)
    assert all("null" in row for row in gavel["v100"].values())
    refused(shardwise(*arguments, "--efficiency", "0.5"), "format")


def test_a_curve_says_what_each_count_came_to_when_it_is_known(small: tuple[str, ...]) -> None:
    arguments = ("curve", *small, "--max-gpus", "3", *FEW, *TIGHT)
    done = shardwise(*arguments)
    known = [line.partition(": ") for line in done.stderr.splitlines() if line.startswith("… ")]
    # Other lines of progress have the number of the count: `… 2 GPUs (2 of 3)`.
    known = [line for line in known if not line[0].endswith(")")]
    # Powers of two come first.
    assert [name for name, _, _ in known] == ["… 1 GPU", "… 2 GPUs", "… 3 GPUs"]
    assert known[0][2] == "nothing fits"
    for _, _, text in known[1:]:
        step, _, strategy = text.partition(" a step, ")
        assert step in done.stdout
        assert strategy
    for silent in ("--quiet", "--json"):
        assert " a step" not in shardwise(*arguments, silent).stderr


def test_quote_table_and_json(small: tuple[str, ...], tmp_path: Path) -> None:
    offers = tmp_path / "offers.csv"
    offers.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\ng2,L4,8,8.0,here\n"
    )
    arguments = ("quote", small[0], "--offers", str(offers), "--max-instances", "1", *FEW)
    document = one_document(shardwise(*arguments, "--steps", "100", "--json"))
    assert document["minimum_gpus"] == 8
    assert document["stale"]
    done = shardwise(*arguments, "--quiet")
    assert "g2" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_solve_and_its_methods(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    answers = []
    for method in ("auto", "elimination", "ldp", "brute-force"):
        document = one_document(shardwise("solve", str(path), "--method", method, "--json"))
        assert document["certificate"]["exact"]
        answers.append([(p["memory_bytes"], p["time_s"]) for p in document["points"]])
    assert answers == [[(5, 3.2), (11, 2.6), (14, 2.5)]] * 4


def test_inspect_and_lists() -> None:
    document = one_document(shardwise("inspect", "shipped:vgg16", "--json"))
    assert document["parameters"]["elements"] == 138_357_544
    assert document["undescribed_operators"] == []
    assert "dgx-h100" in shardwise("hardware", "list").stdout
    assert "InfiniBand" in shardwise("hardware", "show", "dgx-h100").stdout
    assert "p5.48xlarge" in shardwise("offers", "list").stdout


@pytest.mark.parametrize(
    ("suffix", "objective"),
    [(".png", SUM), (".svg", FEW), (".html", SUM)],
    ids=["png", "svg", "html"],
)
def test_plots(
    small: tuple[str, ...], tmp_path: Path, suffix: str, objective: tuple[str, ...]
) -> None:
    frontier, curve = tmp_path / f"f{suffix}", tmp_path / f"c{suffix}"
    done = shardwise(
        "frontier", *small, "--gpus", "2", *objective, "--plot", str(frontier), "--quiet"
    )
    assert done.returncode == 0, done.stderr
    done = shardwise(
        "curve", *small, "--max-gpus", "2", *objective, "--plot", str(curve), "--quiet"
    )
    assert done.returncode == 0, done.stderr
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}
    for picture in (frontier, curve):
        assert picture.read_bytes().lstrip().startswith(starts[suffix])
    assert {p.name for p in tmp_path.iterdir()} == {frontier.name, curve.name}


def test_a_name_that_does_not_exist_is_exit_code_one() -> None:
    done = shardwise("frontier", "shipped:nosuch", "--hardware", "l4", "--gpus", "1")
    refused(done, "nosuch", "vgg16", code=INFEASIBLE)


def test_infeasible_is_exit_code_one(small: tuple[str, ...]) -> None:
    planned = shardwise("plan", *small, "--gpus", "1", "--memory", "100MB", "--quiet")
    refused(planned, "GiB per GPU", code=INFEASIBLE)
    done = shardwise("curve", *small, "--max-gpus", "1", *FEW, *TIGHT, "--quiet")
    assert done.returncode == INFEASIBLE
    assert "1 GPU: does not fit; needs" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("frontier", "nosuch.json", "--hardware", "l4", "--gpus", "1"), ["nosuch.json"]),
        (("frontier", "shipped:vgg16", "--hardware", "abacus", "--gpus", "1"), ["abacus", "l4"]),
        (("frontier", *VGG, "--gpus", "0"), ["gpus"]),
        (("frontier", *VGG, "--gpus", "many"), ["gpus"]),
        (("frontier", *VGG), ["--gpus"]),
        (("frontier", *VGG, "--gpus", "1", "--memory", "lots"), ["memory", "lots"]),
        (("frontier", *VGG, "--gpus", "1", "--epsilon", "-1"), ["epsilon"]),
        (("frontier", *VGG, "--gpus", "1", "--plot", "f.gif"), ["f.gif", ".png"]),
        (("frontier", *VGG, "--gpus", "1", "--plot", "no/such/f.png"), ["no/such"]),
        (("plan", *VGG, "--gpus", "1", "-o", "no/such/p.json"), ["no/such"]),
        (("plan", *VGG, "--gpus", "1", "--objective", "max-fun"), ["objective"]),
        (("plan", *VGG, "--gpus", "1", "--pin", "x"), ["pin", "KEY=VALUE"]),
        (("plan", *VGG, "--gpus", "2", "--pin", "nobody:zero=1"), ["pin", "matches no operator"]),
        (("plan", *VGG, "--gpus", "2", "--zero", "4"), ["zero", "0, 1, 2, 3"]),
        (("plan", *VGG, "--gpus", "2", "--micro-batches", "a"), ["micro-batches"]),
        (("quote", "shipped:vgg16", "--budget", "5"), ["steps"]),
        (("run",), ["PLAN_FILE"]),
        (("run", "no/such.json"), ["no/such.json"]),
        (("nosuchcommand",), ["nosuchcommand"]),
        (("solve", "."), ["."]),
        (("capture", "model.onnx", "-o", "g.json"), ["ONNX"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_arguments_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], parts: list[str]
) -> None:
    refused(shardwise(*arguments, cwd=tmp_path), *parts)
    assert list(tmp_path.iterdir()) == []


def _broken(change: str) -> str:
    document = json.loads(json.dumps(PROBLEM))
    if change == "nan":
        return json.dumps(document).replace("0.4", "NaN")
    if change == "infinite":
        return json.dumps(document).replace("0.4", "1e999")
    if change == "negative":
        document["edges"][0]["choices"][0][1][1]["time_s"] = -1
    elif change == "schema":
        document["schema"] = "shardwise.problem/7"
    elif change == "name":
        document["edges"][0]["target"] = "c"
    elif change == "loop":
        document["edges"][0]["target"] = "a"
    elif change == "rows":
        document["edges"][0]["choices"].pop()
    elif change == "columns":
        document["edges"][0]["choices"][1].pop()
    elif change == "alternatives":
        document["edges"][0]["choices"][1][0] = []
    elif change == "choices":
        document["operators"][1]["choices"] = []
    elif change == "twice":
        document["operators"][1]["name"] = "a"
    elif change == "text":
        document["operators"][0]["choices"][1]["memory_bytes"] = "4"
    elif change == "deep":
        return "[" * 100_000
    elif change == "cut":
        return json.dumps(document)[:100]
    elif change == "list":
        return "[]"
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("nan", "edges[0].choices[0][1][1].time_s"),
        ("infinite", "edges[0].choices[0][1][1].time_s"),
        ("negative", "edges[0].choices[0][1][1].time_s"),
        ("schema", "schema"),
        ("name", "edges[0].target"),
        ("loop", "edges[0].target"),
        ("rows", "edges[0].choices"),
        ("columns", "edges[0].choices[1]"),
        ("alternatives", "edges[0].choices[1][0]"),
        ("choices", "operators[1].choices"),
        ("twice", "operators[1].name"),
        ("text", "operators[0].choices[1].memory_bytes"),
        ("deep", "object"),
        ("cut", "JSON"),
        ("list", "object"),
    ],
)
def test_bad_problems_name_file_and_field(tmp_path: Path, change: str, where: str) -> None:
    path = tmp_path / "problem.json"
    path.write_text(_broken(change))
    refused(shardwise("solve", str(path)), str(path), where)


@pytest.mark.parametrize("command", ["solve", "inspect", "explain"])
def test_a_huge_file_is_refused_by_its_size(tmp_path: Path, command: str) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    refused(shardwise(command, str(path)), "huge.json", "at most")


def test_bad_graphs_name_file_and_field(tmp_path: Path) -> None:
    document = {
        "schema": "shardwise.graph/1",
        "name": "g",
        "tensors": [
            {"name": "x", "shape": [4, 8], "dtype": "float32", "role": "input", "batch_dim": 0},
            {"name": "w", "shape": [6, 9], "dtype": "float32", "role": "parameter"},
            {"name": "y", "shape": [4, 6], "dtype": "float32", "role": "output"},
        ],
        "operators": [
            {
                "name": "l",
                "kind": "aten.linear.default",
                "inputs": ["x", "w"],
                "outputs": ["y"],
                "attributes": {"tensor_arguments": ["input", "weight"]},
                "scope": "",
            }
        ],
    }
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(document))
    arguments = ("frontier", str(path), "--hardware", "l4", "--gpus", "1")
    refused(shardwise(*arguments), "graph.json", "operators[0]")
    document["tensors"][1]["shape"] = [6, 8]
    path.write_text(json.dumps(document))
    assert shardwise(*arguments, "--quiet").returncode == 0
    document["operators"][0]["inputs"] = ["x", "nowhere"]
    path.write_text(json.dumps(document))
    refused(shardwise(*arguments), "operators[0].inputs[1]", "nowhere")


def test_a_broken_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"schema": "shardwise.plan/1", "id": 3}')
    refused(shardwise("explain", str(path)), "plan.json")
    path.write_text('{"schema": "shardwise.plan/9"}')
    refused(shardwise("explain", str(path)), "schema", "shardwise.plan/1")


@pytest.mark.torch
def test_a_captured_model_goes_all_the_way(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    output = tmp_path / "bert.json.gz"
    source = "hf:BertConfig:num_hidden_layers=1,hidden_size=64,num_attention_heads=4"
    done = shardwise("capture", source, "--batch", "32", "--seq", "64", "-o", str(output))
    assert done.returncode == 0, done.stderr
    machine = ("--hardware", "dgx-a100-80gb", "--gpus", "4")
    document = one_document(shardwise("frontier", str(output), *machine, *FEW, "--json"))
    assert document["undescribed_operators"] == []
    assert document["certificate"]["epsilon"] is not None
    assert len(document["points"]) > 3


@pytest.mark.torch
def test_a_failing_export_says_what_to_do(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mymodel.py").write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sum() if x.sum().item() > 0 else x.mean()\n"
        "def make():\n"
        "    return M(), (torch.ones(4, 4),)\n"
    )
    refused(shardwise("capture", "mymodel:make", "-o", "g.json", cwd=tmp_path), "mymodel")
    assert not (tmp_path / "g.json").exists()


def test_ctrl_c_gives_the_answer_so_far() -> None:
    deep = ("frontier", "shipped:llama-8b", "--hardware", "dgx-h100", "--gpus", "64")
    # By then the first number of micro-batches has a strategy.
    code, out, err = interrupted(*deep, "--epsilon", "0", percent=20)
    assert code == 130, err
    assert "(cancelled)" in out
    assert "certified within" in out
    assert "Traceback" not in err


def test_the_module_is_the_command() -> None:
    program = [sys.executable, "-m", "shardwise", "--version"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)
