"""How many cases `make test` and `make test-all` draw of a law."""

from __future__ import annotations

import pytest
from hypothesis import settings

from harness import tiers
from harness.tiers import examples


def test_make_test_all_draws_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "WHOLE", False)
    assert examples(3, 40) == 3
    monkeypatch.setattr(tiers, "WHOLE", True)
    assert examples(3, 40) == 40
    with pytest.raises(AssertionError, match="more of them"):
        examples(40, 3)


def test_what_hypothesis_draws_in_make_test_is_the_same_in_each_run() -> None:
    few, many = (settings.get_profile(name) for name in ("few", "many"))
    assert (few.max_examples, few.derandomize) == (15, True)
    assert (many.max_examples, many.derandomize) == (200, False)
    now = many if tiers.WHOLE else few
    assert settings().max_examples == now.max_examples
