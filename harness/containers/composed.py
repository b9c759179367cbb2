"""docker-compose.yml brought up by a Docker engine, on stand-ins for the base images.

    python -m harness.containers.composed

builds the stand-ins and the images of the service, the worker and the agent.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from harness.containers import stand_ins
from harness.containers.builders import build
from harness.containers.engine import ROOT, Missing, builder, docker, run, show
from harness.service.service_harness import free_port

FILES = ("docker-compose.yml", "tests/containers/compose.yml")
BUILT = ("service", "worker", "agent")
"""Services whose images are ours, by the name of their target."""
BASES = ("python", "rust", "debian:trixie", "postgres", "redis", "prometheus")
AGENT_PYTHON = "python3.13"
"""The package of trixie's Python."""


def bases() -> dict[str, str]:
    """Returns the stand-ins as the variables of `FILES`, building those that are missing.

    Raises Missing if there is no engine or nothing to make them of.
    """
    names = {base: f"{base.partition(':')[0].upper()}_IMAGE" for base in BASES}
    images = {variable: stand_ins.image(base) for base, variable in names.items()}
    return {**images, "AGENT_PYTHON": AGENT_PYTHON}


@dataclass
class Composed:
    """A project of compose; its ports are free ones of this machine, on loopback."""

    project: str
    variables: dict[str, str]
    files: tuple[str, ...] = FILES
    """Relative to the root; each is laid over those before it."""
    service_port: int = field(default_factory=free_port)
    prometheus_port: int = field(default_factory=free_port)
    up_s: float = 0.0
    """How long the first `up` took."""

    @cached_property
    def _variables(self) -> dict[str, str]:
        return {
            **self.variables,
            "SERVICE_PORT": str(self.service_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            # Labels of a builder's own, and times that differ, would make new images of old ones.
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
        }

    def compose(self, *arguments: str) -> str:
        """Runs `docker compose` on the project and returns its standard output."""
        return docker("compose", *self._options(), *arguments, variables=self._variables)

    def _options(self) -> list[str]:
        files = [part for name in self.files for part in ("--file", str(ROOT / name))]
        return ["--project-name", self.project, *files]

    def build(self) -> None:
        """Builds our images, showing the output."""
        if builder() == "buildah":
            self._build_without_compose()
            return
        show(
            "compose", "--progress", "plain", *self._options(), "build", *BUILT,
            variables=self._variables,
        )  # fmt: skip

    def _build_without_compose(self) -> None:
        services = json.loads(self.compose("config", "--format", "json"))["services"]
        for name in BUILT:
            asked = services[name]["build"]
            build(services[name]["image"], ROOT, asked["args"], target=asked["target"])

    def up(self) -> float:
        """Brings everything up from built images. Returns the seconds until all is healthy."""
        begin = time.monotonic()
        self.compose("up", "--no-build", "--pull", "never", "--wait", "--quiet-pull")
        return time.monotonic() - begin

    def down(self) -> None:
        """Removes containers, networks and volumes; images stay."""
        self.compose("down", "--volumes", "--timeout", "45")

    def containers(self, service: str) -> list[str]:
        """Returns the ids of a service's containers, ended ones too."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def execute(self, service: str, *argv: str) -> str:
        """Runs a program in a service's first container, as its user. Returns what it prints."""
        return self.compose("exec", "-T", service, *argv)

    @cached_property
    def key(self) -> str:
        """The administrator's key, had as docs/deploy.md says."""
        return self.execute("service", "cat", "/run/shardwise/admin.key").strip()

    def ask(
        self, path: str, body: Any = None, media_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Asks the service through its published port. Returns the status and the answer.

        A body of bytes is sent as it is, anything else as JSON.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(
            f"http://127.0.0.1:{self.service_port}{path}",
            data=data,
            headers={"Authorization": f"Bearer {self.key}", "Content-Type": media_type},
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, _document(answer.read())
        except HTTPError as error:
            return error.code, _document(error.read())

    def scraped(self) -> list[dict[str, Any]]:
        """Returns Prometheus' targets."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/targets"
        with urlopen(url, timeout=10) as answer:
            targets: list[dict[str, Any]] = json.load(answer)["data"]["activeTargets"]
        return targets


def inspect(identifier: str) -> dict[str, Any]:
    """Returns what the engine knows of a container or an image."""
    (document,) = json.loads(run("docker", "inspect", identifier))
    return dict(document)


def logs(container: str) -> str:
    """Returns what a container printed, on either stream."""
    return run("sh", "-c", 'docker logs "$0" 2>&1', container)


def _document(text: bytes) -> Any:
    return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def main() -> int:
    """Builds all images; says what is missing, without failing, where they cannot be built."""
    try:
        composed = Composed("shardwise-build", bases())
    except Missing as missing:
        print(f"No image is built: it {missing}.", file=sys.stderr)
        return 0
    begin = time.monotonic()
    composed.build()
    print(f"built in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
