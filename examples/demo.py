"""The service at work on this machine: `make demo`.

Starts `shardwise serve` with everything embedded, uploads a graph, asks what a scheduler, somebody
who rents and somebody who trains would ask, and reads the metrics of a dashboard. Where torch is
installed (`make demo TORCH=1`), an agent joins, measures this machine, runs a small model's plan
and compares the prediction. Stops all of it and leaves nothing behind.

usage: python examples/demo.py [--stay]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GRAPH = Path("shardwise/data/graphs/gpt2.json.gz")
SMALL = "zoo:mlp:layers=3,inputs=256,hidden=512,classes=16,batch=64"
OPTIONS = {"micro_batches": [1], "epsilon": 0.02}
PATIENCE_S = 300
SHARDWISE = str(Path(sys.executable).with_name("shardwise"))
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"\n[{time.monotonic() - STARTED:5.1f} s] {text}", flush=True)


def show(*lines: str) -> None:
    for line in lines:
        print(f"    {line}", flush=True)


class Failed(Exception):
    """What went wrong, in one line."""


def wait_for(what: str, there: Callable[[], Any]) -> Any:
    """Returns the first true value of `there`. Raises Failed, naming `what`, if there is none."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if value := there():
            return value
        time.sleep(0.2)
    raise Failed(f"{what}: not within {PATIENCE_S} s")


class Service:
    """A running service, asked over HTTP as any program would."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Returns status, document and headers of a call; raises Failed for an error."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data=data, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, status = answer.read(), answer.status
                got = {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return 304, None, dict(error.headers)
            raise Failed(f"{path}: {error.code} {error.read(2000).decode()}") from error
        return status, json.loads(text) if text[:1] in b"{[" else text.decode(), got

    def answer(self, path: str, body: Any) -> Any:
        """Asks a question, waits for its job and returns the answer."""
        _, job, _ = self.call(path, body)
        return self.ended(job["location"])["result"]

    def ended(self, location: str) -> Any:
        """Waits until a job or a launch is done; raises Failed if it ends otherwise."""

        def done() -> Any:
            _, job, _ = self.call(location)
            if job["state"] in ("failed", "cancelled", "lost", "stopped"):
                raise Failed(f"{location} {job['state']}: {job.get('error') or job.get('reason')}")
            return job if job["state"] == "done" else None

        return wait_for(location, done)

    def curve(self, query: str) -> tuple[Any, str]:
        """Asks for a curve as a scheduler does, again and again until it is there."""

        def there() -> tuple[Any, str] | None:
            status, document, headers = self.call(f"/v1/curves?{query}")
            return (document, headers["etag"]) if status == 200 else None

        return wait_for("the curve", there)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, Failed):
            self.call("/readyz")
            return True
        return False

    def has_agent(self) -> bool:
        return any(agent["state"] == "live" for agent in self.call("/v1/agents")[1]["items"])


@contextlib.contextmanager
def program(*command: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs one of our programs until the block ends; its log is shown if the block fails."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [SHARDWISE, *command], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield process
        except Failed:
            print("\n".join(log.read_text("utf-8").splitlines()[-10:]), file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def address(process: subprocess.Popen[str]) -> str:
    """Returns the URL that a starting service prints."""
    for line in process.stdout or ():
        if found := re.search(r"https?://[^/\s]+", line):
            return found[0]
    raise Failed("the service ended before it said where it is")


def questions(service: Service) -> None:
    """What people and schedulers ask."""
    say(f"POST /v1/graphs: GPT-2's training graph ({GRAPH.stat().st_size // 1000} kB)")
    _, graph, _ = service.call("/v1/graphs", GRAPH.read_bytes(), Content_Encoding="gzip")
    show(f"{graph['operators']} operators, {graph['parameters']:,} parameters, {graph['id'][:19]}…")

    say("GET /v1/curves: a scheduler asks what each number of GPUs gives (A100, to 4)")
    query = f"graph={graph['id']}&hardware=dgx-a100-80gb&max_gpus=4&micro_batches=1&epsilon=0.02"
    curve, etag = service.curve(query)
    for point in curve["points"]:
        show(one_point(point))

    say("GET /v1/curves again: known now, and unchanged (If-None-Match)")
    before = time.perf_counter()
    status, _, _ = service.call(f"/v1/curves?{query}", If_None_Match=etag)
    show(f"{status} in {1000 * (time.perf_counter() - before):.1f} ms")

    say("POST /v1/quotes: the cheapest machines for 10,000 steps")
    asked = {"graph": graph["id"], "steps": 10_000, "max_instances": 1, "options": OPTIONS}
    for offer in service.answer("/v1/quotes", asked)["offers"][:3]:
        show(one_offer(offer))

    say("POST /v1/plans: the strategy to take on 8 GPUs")
    asked = {"graph": graph["id"], "hardware": "dgx-a100-80gb", "gpus": 8, "options": OPTIONS}
    predicted = service.answer("/v1/plans", asked)["predicted"]
    show(
        predicted["label"],
        f"{1000 * predicted['replayed_time_s']:.1f} ms a step, peak "
        f"{predicted['peak_bytes'] / 2**30:.2f} GiB; none that fits saves more than "
        f"{100 * predicted['gap']:.1f}%",
    )


def one_point(point: dict[str, Any]) -> str:
    return (
        f"{point['gpus']} GPUs  {1000 * point['replayed_time_s']:8.1f} ms a step  "
        f"{point['samples_per_s']:6.1f} samples/s  {point['peak_bytes'] / 2**30:5.2f} GiB"
    )


def one_offer(offer: dict[str, Any]) -> str:
    kind = "spot" if offer["spot"] else "on demand"
    return (
        f"${offer['usd_total']:6.2f}  {offer['instances']} x {offer['instance_type']} of "
        f"{offer['provider']}, {kind}: {offer['total_s'] / 60:.1f} minutes "
        f"(prices of {offer['price_as_of']})"
    )


def metrics(service: Service) -> None:
    """Some of what a dashboard reads."""
    say("GET /metrics: what a dashboard reads")
    _, text, _ = service.call("/metrics")
    wanted = re.compile(
        r"shardwise_(jobs|workers|worker_slots|queue_oldest_age_seconds|answers_total"
        r"|prediction_relative_error_sum)\b.* [^ ]+$"
    )
    lines = [line for line in text.splitlines() if wanted.match(line)]
    show(*[line for line in lines if "{" not in line or not line.endswith(" 0.0")])


def host(service: Service, folder: Path) -> None:
    """An agent lends this machine: measured, planned for, run, compared."""
    say("an agent joins with a one-time token, and lends two ranks of this machine")
    _, token, _ = service.call("/v1/agents/tokens", {"name": "demo", "expires_s": 600})
    secret = folder / "token"
    secret.touch(mode=0o600)
    secret.write_text(token["token"], "utf-8")
    (folder / "agent.toml").write_text("slots = 2\n", "utf-8")
    with program(
        "agent", "--server", service.url, "--data-dir", str(folder / "agent"), "--name", "here",
        "--config", str(folder / "agent.toml"), "--token-file", str(secret),
        log=folder / "agent.log",
    ):  # fmt: skip
        wait_for("the agent", service.has_agent)
        measured(service, folder)


def measured(service: Service, folder: Path) -> None:
    say("POST /v1/launches: two ranks measure this machine's computation and network")
    graph_file = folder / "mlp.json"
    command = [SHARDWISE, "capture", SMALL, "-o", str(graph_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr[-500:])
    _, graph, _ = service.call("/v1/graphs", graph_file.read_bytes())
    asked = {
        "kind": "measure", "agents": 1, "ranks_per_agent": 2, "hardware": "this-machine",
        "operators": graph["id"], "arguments": ["--time-limit=10", "--max-size=4MiB", "--quiet"],
    }  # fmt: skip
    launched(service, asked)
    items = service.call("/v1/hardware")[1]["items"]
    profile = next(item for item in items if item["name"] == "this-machine")
    show(f"hardware profile {profile['name']}, {profile['id'][:19]}…")

    say("POST /v1/plans: a small model on both ranks, with the measured profile")
    asked = {"graph": graph["id"], "hardware": profile["id"], "gpus": 2, "options": OPTIONS}
    plan = service.answer("/v1/plans", asked)
    show(plan["predicted"]["label"])

    say("POST /v1/launches: the agent runs that plan, ten steps")
    ran = launched(service, {"plan_id": plan["id"], "agents": 1, "arguments": ["--steps=10"]})
    (run,) = ran["runs"]
    of_step, predicted = run["measurement"], run["measurement"]["predicted"]
    show(
        f"step  predicted {1000 * predicted['replayed_time_s']:6.1f} ms   measured "
        f"{1000 * of_step['iteration_s']['median']:6.1f} ms (median)",
        f"peak  predicted {predicted['peak_bytes'] / 2**20:6.1f} MiB  measured "
        f"{of_step['peak_bytes']['max'] / 2**20:6.1f} MiB",
    )


def launched(service: Service, request: dict[str, Any]) -> Any:
    _, launch, _ = service.call("/v1/launches", request)
    return service.ended(f"/v1/launches/{launch['id']}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The service at work on this machine.")
    parser.add_argument("--stay", action="store_true", help="serve the page until Ctrl-C")
    asked = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="shardwise-demo-") as name:
            demo(Path(name), asked.stay)
    except (Failed, OSError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    say("everything is stopped; nothing is left behind")
    return 0


def demo(folder: Path, stay: bool) -> None:
    say("shardwise serve: the service, a worker, a broker and SQLite, all embedded")
    data = ("--data-dir", str(folder / "data"))
    with program("serve", "--port", "0", *data, log=folder / "serve.log") as process:
        service = Service(address(process))
        wait_for("the service", service.is_ready)
        show(f"the page is at {service.url}/ for as long as this runs")
        questions(service)
        if importlib.util.find_spec("torch") and importlib.util.find_spec("psutil"):
            host(service, folder)
        else:
            say("no torch here: `make demo TORCH=1` also measures this machine and runs a plan")
        metrics(service)
        if stay:
            say(f"the page is at {service.url}/; Ctrl-C ends all of it")
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
