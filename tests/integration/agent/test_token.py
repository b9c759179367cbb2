"""The token of an agent's environment is out of reach of what the agent launches."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil

from agent.identity import TOKEN_FD, TOKEN_VARIABLE
from harness.agent.agent_harness import ROOT, FakeService, RunningAgent, wait_for


def test_a_launch_cannot_read_the_token_of_the_environment(
    service: FakeService, tmp_path: Path
) -> None:
    running = RunningAgent(service, tmp_path / "a", start=False)
    command = running.command()
    at = command.index("--token-file")
    del command[at : at + 2]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), TOKEN_VARIABLE: service.token}
    with running.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)
    try:
        wait_for(lambda: service.heartbeats or process.poll() is not None, "a heartbeat")
        assert process.poll() is None, running.text()
        for seen in (psutil.Process(process.pid), *psutil.Process(process.pid).children(True)):
            assert TOKEN_VARIABLE not in seen.environ()
            assert "swe_right" not in seen.environ().values()
            links = [
                str(f.readlink()) for f in Path(f"/proc/{seen.pid}/fd").iterdir() if f.exists()
            ]
            assert [link for link in links if "memfd" in link] == []
        assert TOKEN_FD not in os.environ
        assert "launches may start shardwise.run" in running.text()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
