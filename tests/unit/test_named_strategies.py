"""Named strategies: the simplest within the tolerance, and those that a frontier names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.models.shortened import shortened
from shardwise.advise import Options, explain, plan
from shardwise.advise.explain import strategy_text
from shardwise.documents import Plan
from shardwise.graph import Graph
from shardwise.hardware import load_hardware

H100 = load_hardware("dgx-h100")
FASTEST = Options(micro_batches=(1,), simplest="never")


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return shortened("gpt2", 1)


@pytest.fixture(scope="module")
def fastest(gpt2: Graph) -> Plan:
    return plan(gpt2, H100, 8, options=FASTEST)


# The simplest


@pytest.mark.parametrize(("epsilon", "label"), [(0.01, "FSDP 8"), (0.05, "DP 8")])
def test_the_simplest_within_the_tolerance(
    gpt2: Graph, fastest: Plan, epsilon: float, label: str
) -> None:
    options = replace(FASTEST, epsilon=epsilon, simplest="auto")
    answer = plan(gpt2, H100, 8, options=options)
    predicted, faster = answer.predicted, answer.predicted.faster
    assert predicted.label == label
    [part] = predicted.mixtures or []
    assert (part.label, part.parameters, part.compute) == (
        label,
        pytest.approx(1),
        pytest.approx(1),
    )
    # What is proven is proven of this answer.
    assert faster and answer.certificate.epsilon == predicted.gap
    assert predicted.gap is not None and faster.saves < predicted.gap <= epsilon
    assert answer.certificate.status == "within_epsilon"
    bound = answer.certificate.time_lower_bound_s
    assert bound and predicted.replayed_time_s == pytest.approx(bound * (1 + predicted.gap))
    assert faster.replayed_time_s == pytest.approx(fastest.predicted.replayed_time_s, rel=1e-3)
    said = f"{label}; {faster.saves:.1%} faster is possible: DP 8 (ZeRO-1), see explain"
    assert strategy_text(predicted) == explain(answer).text[0] == said


def test_never_and_no_tolerance_give_the_fastest(gpt2: Graph, fastest: Plan) -> None:
    exact = plan(gpt2, H100, 8, options=replace(FASTEST, epsilon=0.0, simplest="auto"))
    assert not fastest.predicted.faster and not exact.predicted.faster
    assert exact.predicted.replayed_time_s <= fastest.predicted.replayed_time_s
    assert len(fastest.predicted.mixtures or []) > 1
    [line] = [line for line in explain(fastest).text if line.startswith("Of it: ")]
    assert "DP 8 (ZeRO-1) " in line and "% of parameters" in line
