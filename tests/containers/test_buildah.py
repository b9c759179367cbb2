"""buildah makes of the Dockerfile what buildx makes: for machines whose Docker has no buildx."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from harness.containers import builders
from harness.containers.composed import Composed, inspect
from harness.containers.engine import BUILDER_VARIABLE, ROOT, builder, quietly, run

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah"),
]

TARGET = "worker"
SAME = ("User", "Env", "Cmd", "Entrypoint", "WorkingDir", "ExposedPorts", "Healthcheck",
        "StopSignal")  # fmt: skip
"""What both have to say of how the image runs."""
TAG = "shardwise-by-buildah:test"


@pytest.fixture
def image(built: Composed, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The target built by buildah, with what compose says of its build."""
    services = json.loads(built.compose("config", "--format", "json"))["services"]
    asked = services[TARGET]["build"]
    monkeypatch.setenv(BUILDER_VARIABLE, "buildah")
    builder.cache_clear()
    try:
        builders.build(TAG, ROOT, asked["args"], target=asked["target"])
        yield TAG
    finally:
        builder.cache_clear()
        quietly("docker", "image", "rm", TAG)
        quietly("buildah", "rmi", TAG)


def test_an_image_by_buildah_is_that_of_buildx(image: str) -> None:
    ours, theirs = (inspect(name)["Config"] for name in (image, f"shardwise-{TARGET}:local"))
    assert {name: ours.get(name) for name in SAME} == {name: theirs.get(name) for name in SAME}
    packages = ("-c", "import importlib.metadata as m; "
                "print(sorted((d.name, d.version) for d in m.distributions()))")  # fmt: skip
    said = [
        run("docker", "run", "--rm", "--network", "none", "--entrypoint", "python", name, *packages)
        for name in (image, f"shardwise-{TARGET}:local")
    ]
    assert said[0] == said[1]
    assert "shardwise" in said[0]
