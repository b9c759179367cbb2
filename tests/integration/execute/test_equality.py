"""A plan computes what one device computes: random strategies of every family of models.

The default is a subset by seeds; `python benchmarks/bench_equality.py` runs all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = pytest.mark.torch

from harness.execute.bounds import equal  # noqa: E402
from harness.execute.equality import case_of  # noqa: E402
from harness.execute.families import TOYS  # noqa: E402
from harness.execute.swept import swept  # noqa: E402
from harness.tiers import some  # noqa: E402

SEEDS = {4: range(1), 8: range(2, 3)}
"""Per number of ranks the strategies that are run by default."""

ON_EIGHT = ("GPT-2", "Llama", "BERT", "ResNet", "LSTM", "DLRM", "MLP")
"""Families that are run on eight ranks by default: with two cores those are slow."""

CASES = [(4, family) for family in TOYS] + [(8, family) for family in ON_EIGHT]

ALWAYS = (
    "GPT-2",
    "Llama with adapters",
    "GPT-2, half frozen",
    "Mixtral",
    "gpt-oss",
    "Mamba-2",
    "T5",
    "ResNet",
    "LSTM",
    "DLRM",
)
"""Families that `make test` runs, on four ranks: one of each kind of layers, of tied
weights and of weights behind a transpose."""

FAILED_ONCE = [(4, "Mamba-2", 11), (4, "Mixtral", 12), (8, "CLIP", 5)]
"""Ranks, family, seed. In the first two autograd saves a view of what is recomputed on some ranks
only, by strides (an einsum) or by the rank's place (experts); ranks hung, or took one collective
for another. In the third some ranks have none of the classes."""

SENT = ("Mixtral", "gpt-oss", "Llama 4")
"""Families of which rows are sent to experts, under the first strategies that have it so."""

STEPS = 2


class Results:
    """What one sweep of each number of ranks found, started when it is first asked for."""

    def __init__(self, asked: set[tuple[int, str]]) -> None:
        self._asked = asked
        self._found: dict[int, list[dict[str, Any]]] = {}

    def of(self, ranks: int, family: str) -> list[dict[str, Any]]:
        """Returns the results of a family, by seed; the first call sweeps all that are asked."""
        if ranks not in self._found:
            families = [family for family in TOYS if (ranks, family) in self._asked]
            self._found[ranks] = sweep(ranks, SEEDS[ranks], families)
        return [result for result in self._found[ranks] if result["family"] == family]


def sweep(ranks: int, seeds: range, families: Sequence[str]) -> list[dict[str, Any]]:
    cases = ["--cases", f"{ranks}:{seeds.start}:{seeds.stop}", "--steps", str(STEPS)]
    return swept("--trace", *cases, *families)


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Results:
    """Of the tests of this module that were selected and ask for it."""
    mine = [item for item in request.session.items if item.path == request.path]
    asking = [i for i in mine if isinstance(i, pytest.Function) and "results" in i.fixturenames]
    calls = [item.callspec.params for item in asking]
    return Results({(call["ranks"], call["family"]) for call in calls})


@pytest.mark.parametrize(
    ("ranks", "family"), some(CASES, lambda case: case[0] == 4 and case[1] in ALWAYS)
)
def test_random_strategies_compute_what_one_device_computes(
    results: Results, family: str, ranks: int
) -> None:
    lines = results.of(ranks, family)
    assert [result["seed"] for result in lines] == list(SEEDS[ranks])
    for result in lines:
        assert equal(result), result


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "family", "seed"), FAILED_ONCE)
def test_strategies_that_failed_once(ranks: int, family: str, seed: int) -> None:
    (result,) = sweep(ranks, range(seed, seed + 1), [family])
    assert equal(result), result


@pytest.mark.parametrize("family", SENT)
def test_rows_that_are_sent_to_experts(family: str) -> None:
    seed = next(seed for seed in range(20) if _sends(case_of(family).strategies.plan(4, seed)))
    (result,) = sweep(4, range(seed, seed + 1), [family])
    assert equal(result), result


def _sends(plan: dict[str, Any]) -> bool:
    """Returns whether products with experts have rows sent to them."""
    return any(
        "routed" in operator["split"]
        for group in plan["groups"]
        for operator in group["operators"]
        if operator["kind"] == "shardwise.expert_linear.default"
    )


@pytest.mark.full
def test_the_program_that_nccl_would_run_computes_the_same() -> None:
    """On CPUs; with `--device cuda` the ranks share a GPU, whose collectives pass through the
    host in the same way (harness/execute/through_host.py)."""
    # Under this seed both have ZeRO, so that gradients are scattered.
    families = ("MLP", "Llama")
    lines = swept("--device", "cpu:0", "--cases", "4:3:4", "--steps", str(STEPS), *families)
    assert [result["family"] for result in lines] == list(families)
    for result in lines:
        assert equal(result), result
