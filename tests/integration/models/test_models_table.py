"""The table of docs/models.md, made for two small models."""

from __future__ import annotations

import pytest

from shardwise.capture.families import FAMILIES, Family

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SMALL = (
    Family("small GPT", "hf:GPT2Config:n_layer=2,n_embd=64,n_head=2,vocab_size=128", 64, 16),
    Family("small LSTM", "zoo:lstm:layers=1,hidden=64,inputs=64,vocab=64,steps=2", 64),
)


@pytest.mark.full
def test_rows_of_two_small_models() -> None:
    from tools.models_table import GPUS, document, measure

    rows = [measure(family) for family in SMALL]
    for row in rows:
        assert row.captured.parameters == row.captured.torch_parameters
        assert row.captured.matrix_flops == pytest.approx(row.captured.torch_flops, rel=0.01)
        assert row.captured.undescribed == ()
        assert 0 < row.captured.seconds < 300
        assert 0 < row.captured.peak_bytes < 8 * 2**30
        assert len(row.searched) == len(GPUS)
        for cell in row.searched:
            assert cell.problem is None
            assert cell.points > 0
            assert cell.epsilon is not None
            assert cell.epsilon < 0.1
    lines = document(rows).splitlines()
    assert sum(line.startswith("| small ") for line in lines) == 2
    assert sum(line.count("|") == 10 for line in lines) == 4


def test_lines_of_other_families_are_kept() -> None:
    from tools.models_table import Captured, Row, Searched, document

    captured = Captured(1, 2, 3, 1e12, 10**12, (("aten.x", 4),), 0.5, 6.0, 2**30)
    searched = (Searched(7, 8, 0.01, 9.0), Searched(seconds=1.0, problem="too wide"))
    first, second = (Row(family, captured, searched) for family in FAMILIES[:2])
    both = document([second], earlier=document([first]))
    lines = [line for line in both.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {f.name}" for f in FAMILIES[:2]]
    assert "| 2 ≠ 3 |" in lines[2]
    assert "| aten.x (4×), 50.00% | 8, 0.01, 9.0 s | none after 1 s: too wide |" in lines[2]
    assert document([first], earlier=both) == both
    # What somebody wrote above the table stays with lines that were not measured again.
    dated = both.replace("\n| family |", "Measured in May.\n\n| family |", 1)
    assert document([first], earlier=dated) == dated
    assert document([first, second], earlier=dated) == both


def test_the_table_has_every_family_of_the_list() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8")
    for family in FAMILIES:
        assert f"| {family.name} |" in text
        assert family.source in text
