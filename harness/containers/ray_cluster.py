"""A Ray cluster in containers: a head without GPUs and two nodes of two GPUs each.

Ray comes from PyPI into an environment of its own (`harness.schedulers.environments`), which hosts
see read-only; torch is that of this interpreter. Ray takes the number of GPUs on trust.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.containers.debian import image
from harness.containers.hosts import ROOT, Host, hosts
from harness.schedulers.environments import SCRIPTS, Environment, ray_environment
from harness.service.service_harness import wait_until

NODES = {"node1": "V100", "node2": "P100"}
"""The nodes, each with what Ray calls its GPUs."""
GPUS = 2
PORT = 6379
START_S = 120.0
SCRIPT_S = 400.0


class RayCluster:
    """Runs scripts on the head; `folder` is what all hosts see."""

    def __init__(self, machines: dict[str, Host], environment: Environment, folder: Path) -> None:
        self._head = machines["head"]
        self._nodes = [machines[name] for name in NODES]
        self._environment = environment
        self.folder = folder
        # After Ray's own packages, so that it finds the versions that it wants.
        (folder / "sitecustomize.py").write_text(
            f"import sys\nsys.path.append({sysconfig.get_path('purelib')!r})\n"
        )
        self._variables = {
            "HOME": "/root", "PYTHONPATH": f"{folder}:{ROOT}", "OMP_NUM_THREADS": "1",
            "PATH": f"{environment.path / 'bin'}:/usr/bin:/bin", "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_V2_ENABLED": "1",
        }  # fmt: skip

    def start(self) -> None:
        """Starts Ray on all hosts; returns once the head knows all GPUs."""
        few = ("--disable-usage-stats", "--object-store-memory=100000000")
        self._ray(self._head, "start", "--head", f"--port={PORT}", "--num-cpus=1", "--num-gpus=0",
                  "--include-dashboard=false", *few)  # fmt: skip
        for node in self._nodes:
            kind = json.dumps({f"accelerator_type:{NODES[node.name]}": 1})
            self._ray(node, "start", f"--address=head:{PORT}", f"--num-cpus={2 * GPUS}",
                      f"--num-gpus={GPUS}", f"--resources={kind}", *few)  # fmt: skip
        wait_until(
            lambda: f"/{len(NODES) * GPUS}.0 GPU" in self._ray(self._head, "status"),
            "all nodes have joined", START_S,
        )  # fmt: skip

    def run(self, script: str, given: Any) -> Any:
        """Returns what a script of `scripts/` prints as JSON, given JSON on standard input."""
        done = self._head.try_run(
            "python", str(SCRIPTS / script), variables=self._variables, folder=str(self.folder),
            given=json.dumps(given), timeout_s=SCRIPT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return json.loads(done.stdout.splitlines()[-1])

    def _ray(self, host: Host, *arguments: str) -> str:
        done = host.try_run("ray", *arguments, variables=self._variables)
        assert done.returncode == 0, f"{host.name}: {done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def running_ray(folder: Path) -> Iterator[RayCluster]:
    """Yields a cluster whose hosts have joined; skips the test without a container engine."""
    tag = image("ray", "procps")
    environment = ray_environment()
    with hosts(tag, ("head", *NODES), folder, environment.path) as (machines, _):
        cluster = RayCluster(machines, environment, folder)
        cluster.start()
        yield cluster
