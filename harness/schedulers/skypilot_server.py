"""SkyPilot's own API server and command in a home of their own, where clouds cost what we ship.

What `sky check` finds with an account is noted by hand, so that its optimizer and its dry run go as
far as they go without one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from harness.schedulers.catalog import CLOUDS, write_offers
from harness.schedulers.environments import QUIET, Environment, skypilot
from harness.service.service_harness import free_port

START_S = LAUNCH_S = 400.0
"""Patience on a loaded machine; alone it takes 10 s."""
ENDED = "Dryrun finished."
"""What SkyPilot prints when it has written all that it would start."""
CHECKED = "skypilot-server-on-boot-check finished"
CHOSEN = re.compile(r"^ (?P<cloud>\w+) \((?P<region>\S+)\) +(?P<instance>\S+) .* "
                    r"(?P<usd>[\d.]+) +\S*\s*✔", re.M)  # fmt: skip
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Launch:
    """What a `sky launch --dryrun` printed, and what it would have started."""

    text: str
    ended: bool
    """Whether it came to the end of SkyPilot's dry run."""
    cluster: dict[str, Any] | None
    """The description of the cluster that would be provisioned, if one was written."""

    @property
    def chosen(self) -> tuple[str, str, float]:
        """Cloud, instance type and USD per hour for all nodes that its optimizer chose."""
        found = CHOSEN.search(self.text)
        assert found, self.text
        return found["cloud"], found["instance"], float(found["usd"])


@dataclass(frozen=True)
class SkyPilot:
    """A running API server; `home` is its home and its client's."""

    environment: Environment
    home: Path
    variables: dict[str, str]

    def launch(self, name: str, task: str) -> Launch:
        """Launches a task's YAML on a new cluster of a name, without provisioning it."""
        file = self.home / f"{name}.yaml"
        file.write_text(task)
        done = subprocess.run(
            [str(Path(self.environment.python).with_name("sky")), "launch", "--dryrun", "--yes",
             "--cluster", name, str(file)],
            cwd=self.home, env=self.variables, capture_output=True, text=True, timeout=LAUNCH_S,
            check=False,
        )  # fmt: skip
        text = COLOURS.sub("", done.stdout + done.stderr)
        written = self.home / ".sky" / "generated" / f"{name}.yml.tmp"
        cluster = yaml.safe_load(written.read_text()) if written.exists() else None
        return Launch(text, done.returncode == 0 and ENDED in text, cluster)


@contextmanager
def running_skypilot(home: Path, policy_url: str) -> Iterator[SkyPilot]:
    """Yields SkyPilot with an admin policy; its server is ended with all that it started."""
    environment, port = skypilot(), free_port()
    write_offers(home / ".sky" / "catalogs")
    (home / ".sky" / "config.yaml").write_text(json.dumps({"admin_policy": policy_url}))
    variables = {
        **QUIET,
        "HOME": str(home),
        "PATH": f"{Path(environment.python).parent}:{os.environ['PATH']}",
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(port),
    }
    server = _started(environment, port, home, variables)
    try:
        environment.run("skypilot_clouds.py", list(CLOUDS.values()), home, **variables)
        yield SkyPilot(environment, home, variables)
    finally:
        _end(server)


def _started(
    environment: Environment, port: int, home: Path, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Starts the server; it gives up where its own processes take a minute to start."""
    until = monotonic() + START_S
    while True:
        with (home / "server.log").open("w") as log:
            server = subprocess.Popen(
                [environment.python, "-m", "sky.server.server", "--port", str(port)],
                cwd=home, env=variables, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        while server.poll() is None and monotonic() < until:
            # Its check of all clouds, when it starts, would take back what is noted before.
            if CHECKED in (home / "server.log").read_text() and _healthy(port):
                return server
            sleep(0.2)
        _end(server)
        assert monotonic() < until, (home / "server.log").read_text()[-3000:]


def _end(server: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _healthy(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
