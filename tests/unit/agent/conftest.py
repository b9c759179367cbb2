"""The agent's unit tests need its extra."""

from __future__ import annotations

import pytest

pytest.importorskip("psutil", reason="needs shardwise[agent]")
pytest.importorskip("httpx", reason="needs shardwise[agent]")
