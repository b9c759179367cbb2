"""What `shardwise plan` prints: one page, each other strategy with why it was not taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec import UNSET
from msgspec.structs import replace

from harness.graph_builder import mlp
from shardwise.answers import Options, explain, plan, read_plan
from shardwise.cli.plan import plan as plan_command
from shardwise.cli.plan_page import Asked, plan_page
from shardwise.documents import Plan
from shardwise.documents.plan import MORE_ROOM, Neighbour, NextBest
from shardwise.errors import BadInput
from shardwise.graph import Graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.trainers.plan import plan_for

MOST_LINES = 24
WHERE = ("--hardware", "dgx-h100", "--gpus", "8", "--micro-batches", "1", "--quiet")
ASKED = Asked("g.json", "dgx-h100", "8", 0.01, "p.json")


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def tight(gpt2: Graph) -> Plan:
    options = Options(micro_batches=(1,), memory_limit_bytes=5.6 * 2**30, framework="eager")
    return plan(gpt2, load_hardware("dgx-h100"), 8, options=options)


def page_of(document: Plan, capsys: pytest.CaptureFixture[str], asked: Asked = ASKED) -> str:
    capsys.readouterr()
    plan_page(document, explain(document), asked)
    return capsys.readouterr().out


def row_of(page: str, name: str) -> str:
    """Returns a row of the page in one line."""
    (found,) = re.findall(rf"^{name} +(.*(?:\n {{11}}.*)*)", page, re.MULTILINE)
    return " ".join(str(found).split())


def asked_for(*arguments: str) -> Result:
    return CliRunner().invoke(plan_command, list(arguments), catch_exceptions=False)


def test_a_plan_is_one_page(
    gpt2_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path takes lines of its own
    file = Path("plan.json")
    done = asked_for(gpt2_file, *WHERE, "-o", str(file))
    document = read_plan(file)
    lines = done.stdout.splitlines()
    assert len(lines) <= MOST_LINES
    assert lines[0].startswith("gpt2-4 on 8 GPUs of dgx-h100")
    assert row_of(done.stdout, "strategy") == document.predicted.label
    step = row_of(done.stdout, "step")
    assert f"{document.predicted.tokens_per_s:,.0f} tokens/s" in step and "MFU" in step
    assert f"peak {document.predicted.peak_bytes / 2**30:.2f} GiB" in row_of(done.stdout, "memory")
    assert row_of(done.stdout, "proven").endswith("asked for 1.0%")
    assert row_of(done.stdout, "run").endswith(f"plan.json --graph {gpt2_file}")
    assert "groups by time" not in done.stdout


def test_other_strategies_say_why_they_were_not_taken(
    tight: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    page = page_of(tight, capsys)
    others = [line[11:] for line in page.splitlines() if re.search(": (slower|does not)", line)]
    assert len(others) == len(tight.neighbours or ()) == 4
    assert others[-1].startswith("No recomputation: does not fit (needs ")
    assert all(len(line) < 100 for line in page.splitlines())


def test_a_full_memory_says_what_room_costs(
    tight: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    [roomy] = [one for one in tight.neighbours or () if one.name == MORE_ROOM]
    more = (tight.predicted.peak_bytes - roomy.peak_bytes) / 2**30
    assert roomy.peak_bytes <= 0.9 * tight.memory_limit_bytes < tight.predicted.peak_bytes
    assert row_of(page_of(tight, capsys), "room").startswith(f"{more:.1f} GiB more room: slower by")


def test_room_that_is_asked_for_stays_free(gpt2: Graph) -> None:
    options = Options(
        micro_batches=(1,),
        memory_limit_bytes=5.6 * 2**30,
        memory_room_bytes=0.5 * 2**30,
        framework="eager",
    )
    roomy = plan(gpt2, load_hardware("dgx-h100"), 8, options=options)
    assert roomy.memory_limit_bytes == 5.1 * 2**30 >= roomy.predicted.peak_bytes
    assert roomy.predicted.peak_bytes > 4.6 * 2**30


def test_more_room_than_memory_is_refused(gpt2: Graph) -> None:
    options = Options(memory_limit_bytes=2.0**30, memory_room_bytes=2.0**31)
    with pytest.raises(BadInput, match="2 GiB of the 1 GiB that a step may use"):
        plan(gpt2, load_hardware("dgx-h100"), 8, options=options)


def test_one_that_is_faster_or_as_fast_says_so(
    tight: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    step_s = tight.predicted.replayed_time_s
    made = [Neighbour(name, name, 1, t, 1, True) for name, t in (("a", 0.9), ("b", 1.00001))]
    near = [replace(one, replayed_time_s=one.replayed_time_s * step_s) for one in made]
    page = page_of(replace(tight, neighbours=near), capsys)
    assert "A: faster by 10.0% (" in page and "B: as fast (" in page


@pytest.mark.parametrize(
    ("gap", "epsilon", "warned"), [(0.005, 0.01, False), (0.083, 0.01, True), (0.083, 0.1, False)]
)
def test_a_proof_that_is_further_than_asked_is_a_warning(
    gap: float, epsilon: float, warned: bool, tight: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    proven = replace(tight, predicted=replace(tight.predicted, gap=gap))
    row = row_of(page_of(proven, capsys, Asked("g", "h", "8", epsilon)), "proven")
    assert f"more than {1 - 1 / (1 + gap):.1%}" in row and f"asked for {epsilon:.1%}" in row
    assert ("WARNING" in row) == warned


def test_without_a_proof_nothing_is_proven(tight: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    none = replace(tight, predicted=replace(tight.predicted, gap=None))
    assert row_of(page_of(none, capsys), "proven").startswith("nothing")


def test_a_trainers_plan_is_exported(gpt2: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    machine = load_hardware("dgx-h100")
    document = plan_for(gpt2, machine, 8, "deepspeed", options=Options(micro_batches=(1, 2)))
    page = page_of(document, capsys)
    assert row_of(page, "export") == "shardwise export p.json --to deepspeed"
    assert "micro-batches instead of 1" in page or "1 micro-batch instead of" in page
    step_s = document.predicted.replayed_time_s
    assert document.neighbours
    for one in document.neighbours:
        assert one.replayed_time_s >= step_s if one.fits else one.replayed_time_s < step_s


def test_less_time_has_its_reason(tight: Plan) -> None:
    def reason(added_s: float, added_bytes: float, objective: str = "mini-time") -> str:
        group = tight.groups[0]
        other = NextBest(group.split, 0, [], False, added_s, added_bytes)
        changed = replace(tight, groups=[replace(group, next_best=other)], objective=objective)
        (row,) = explain(changed).groups
        assert row.next_best is not None
        return row.next_best.why_not

    left = tight.memory_limit_bytes - tight.predicted.peak_bytes
    assert reason(-1.0, left + 1) == "does not fit"
    assert reason(-1.0, left / 2, "mini-memory") == "more memory"
    assert reason(-1.0, 0.0) == "not faster in the replayed step"
    assert reason(1.0, 0.0) == "slower"


def test_nothing_fits_says_what_may_help(tmp_path: Path) -> None:
    file = tmp_path / "mlp.json"
    write_graph(mlp(), file)
    arguments = (str(file), "--hardware", "l4", "--gpus", "2", "--memory", "1KB", "--quiet")
    done = CliRunner().invoke(plan_command, arguments)
    assert done.exit_code == 1 and not done.stdout
    assert f"shardwise curve {file} --hardware l4 --max-gpus 4" in done.stderr
    assert not CliRunner().invoke(plan_command, [*arguments, "--json"]).stderr


@pytest.mark.parametrize(
    ("gap", "epsilon", "texts"),
    [
        (0.01004, 0.0099, ("0.994%", "0.990%")),
        (0.0201, 0.0196, ("1.97%", "1.96%")),
        (0.5, 0.01, ("33.3%", "1.0%")),
    ],
)
def test_a_warning_never_says_that_what_was_asked_for_was_proven(
    gap: float,
    epsilon: float,
    texts: tuple[str, str],
    tight: Plan,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proven = replace(tight, predicted=replace(tight.predicted, gap=gap))
    row = row_of(page_of(proven, capsys, Asked("g", "h", "8", epsilon)), "proven")
    assert f"more than {texts[0]} of the step; asked for {texts[1]}. WARNING" in row


def test_utilisation_is_named_in_both_conventions(
    tight: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    predicted = tight.predicted
    whole, causal = predicted.model_flops_utilisation, predicted.causal_flops_utilisation
    assert whole is not UNSET and causal is not UNSET and 0.5 < causal / whole < 1
    said = f"MFU {whole:.1%} ({causal:.1%} as causal attention is computed)"
    assert said in row_of(page_of(tight, capsys), "step")
    alike = replace(tight, predicted=replace(predicted, causal_flops_utilisation=whole))
    assert row_of(page_of(alike, capsys), "step").endswith(f"MFU {whole:.1%}")
