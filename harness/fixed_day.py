"""Importing this gives quotes one day, whatever the clock says.

A quote holds the day on which it was asked, and says which prices are old on it. Tests that ask the
same twice would differ where midnight is between both, and prices of their tables would be old some
day. The processes that tests fork (`commands.py`, `warm.py`) begin with it too.
"""

from __future__ import annotations

import datetime
import importlib
from typing import Any

DAY = datetime.date(2026, 11, 15)
"""Prices of the tables of tests are of 1 November 2026, a fortnight before."""

offers: Any = importlib.import_module("shardwise.hardware.offers")
clock_day = offers.current_day
"""What users have."""

offers.current_day = lambda: DAY
