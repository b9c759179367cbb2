"""Shares of a time: they add up to it and are said in words."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.cost.shares import (
    INTERPOLATED,
    MEASURED,
    MODELLED,
    Shares,
    by_source,
    shares_text,
    sum_shares,
)


def test_terms_fall_to_what_they_stand_on() -> None:
    times = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    codes = np.array([[MEASURED, MODELLED, MODELLED], [INTERPOLATED, MEASURED, MEASURED]])
    assert by_source(times, codes.astype(np.int8)).tolist() == [[1.0, 0.0, 6.0], [48.0, 8.0, 0.0]]
    assert Shares.of(times, codes) == Shares(49.0, 8.0, 6.0)
    assert Shares.of(times, MODELLED) == Shares(0.0, 0.0, 63.0)


def test_fractions_add_up_to_one() -> None:
    total = sum_shares([Shares(1.0), Shares(0.0, 1.0) * 2, Shares(0.0, 0.0, 1.0)])
    document = total.document()
    assert document is not None
    assert document.measured + document.interpolated + document.modelled == pytest.approx(1.0)
    assert document.interpolated == 0.5
    assert total.text() == "25% measured, 50% interpolated, 25% modelled"


def test_one_source_is_one_word_and_no_time_has_no_shares() -> None:
    assert Shares(0.0, 0.0, 3.0).text() == "modelled"
    assert Shares().document() is None
    assert shares_text(None) == "no time"
