"""The images that the Dockerfile makes: their size, and what is in them that should not be."""

from __future__ import annotations

import re

import pytest

from harness.containers import layers
from harness.containers.composed import BUILT, Composed, inspect

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

MOST_MB = {"service": 150, "worker": 150, "agent": 200}
"""Compressed, 10^6 bytes; the agent without torch."""
LEFT_OVERS = re.compile(
    r"(^|/)(\.git|\.env|\.venv|Cargo\.toml|id_rsa|\.netrc|rustc|gcc)$"
    r"|^root/\.(cache|config|docker|ssh)/|^var/lib/apt/lists/.*_Packages|^wheels/.|^source/"
)
"""What builds and their users leave behind."""
PRIVATE_KEY = re.compile(rb"^-----BEGIN ([A-Z]+ )?PRIVATE KEY-----\s+[A-Za-z0-9+/=]{60}", re.M)


@pytest.mark.parametrize("target", BUILT)
def test_an_image_is_small(built: Composed, target: str) -> None:
    sizes = [size / 1e6 for size in layers.compressed_bytes(f"shardwise-{target}:local")]
    print(f"{target}: {sum(sizes):.0f} MB compressed, by layer {[round(s, 1) for s in sizes]}")
    assert sum(sizes) <= MOST_MB[target]


@pytest.mark.parametrize("target", BUILT)
def test_an_image_holds_no_secret_and_nothing_of_its_build(built: Composed, target: str) -> None:
    compiled = 0
    for path, content in layers.files(f"shardwise-{target}:local"):
        assert not LEFT_OVERS.search(path), path
        assert not PRIVATE_KEY.search(content), path
        compiled += path.endswith(".pyc") and "/shardwise/" in path
    # The root is read-only: what is not compiled now would be compiled at each start.
    assert compiled > 100


@pytest.mark.parametrize("target", BUILT)
def test_an_image_runs_as_an_own_user_and_sets_no_secret(built: Composed, target: str) -> None:
    configuration = inspect(f"shardwise-{target}:local")["Config"]
    assert configuration["User"] == "10001:10001"
    secret = re.compile(r"^(?!GPG_KEY=)\w*(KEY|PASSWORD|SECRET|TOKEN)\w*=")
    assert [v for v in configuration["Env"] if secret.match(v)] == []
