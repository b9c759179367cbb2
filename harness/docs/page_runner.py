"""Runs a page's blocks as a reader would: in order, in one folder, in one shell's environment.

`shardwise`, `python` and `torchrun` are this checkout's. `pip install` only looks whether the
extras that are named exist, and `shardwise measure` is given a few seconds instead of what the
page allows it; everything else runs as written. Port 8000 is another one, so that tests do not
meet what else runs on a machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from harness.docs.fence_checks import check
from harness.docs.fences import ROOT, Block
from harness.service.service_harness import wait_until

PATIENCE_S = 500.0
PORT = "127.0.0.1:8000"

_PIP = """#!/bin/sh
exec "{python}" - "$@" <<'PY'
import re, sys, tomllib
extras = tomllib.load(open("{root}/pyproject.toml", "rb"))["project"]["optional-dependencies"]
assert sys.argv[1] == "install", sys.argv
for word in sys.argv[2:]:
    for named in re.findall(r"^(?:shardwise|[.])\\[(.*)\\]$", word):
        missing = set(named.split(",")) - set(extras)
        assert not missing, f"no extra {{missing}}"
PY
"""
_SHARDWISE = """#!/bin/sh
if [ "$1" = measure ]; then set -- "$@" --time-limit 5; fi
exec "{python}" -P -m shardwise.cli.main "$@"
"""
_STATE = """set -a
if [ -f "$PAGE_STATE" ]; then . "$PAGE_STATE"; fi
trap 'code=$?; { export -p; echo "cd \\"$(pwd)\\""; } > "$PAGE_STATE"; exit $code' EXIT
"""


def programs(folder: Path) -> Path:
    """Returns a folder for PATH with the commands that pages call."""
    folder.mkdir(parents=True, exist_ok=True)
    python = {"python": sys.executable, "root": ROOT}
    for name, text in {
        "shardwise": _SHARDWISE,
        "pip": _PIP,
        "python": '#!/bin/sh\nexec "{python}" "$@"\n',
        "torchrun": '#!/bin/sh\nexec "{python}" -m torch.distributed.run "$@"\n',
    }.items():
        path = folder / name
        path.write_text(text.format(**python))
        path.chmod(0o755)
    return folder


class Page:
    """The state of one page: `folder` is where its commands run, `port` replaces 8000."""

    def __init__(
        self, folder: Path, port: int, replace: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._replace = {PORT: f"127.0.0.1:{port}", **replace}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SHARDWISE_")}
        self._environment = {
            **inherited,
            "PATH": f"{programs(folder / 'bin')}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{self.folder}",
            "HOME": str(folder),
            "COLUMNS": "88",
            "PAGE_STATE": str(folder / "state.sh"),
            "SHARDWISE_PORT": str(port),
            # A process that gets no turn for half a minute on a busy machine is not dead.
            **dict.fromkeys(("SHARDWISE_LEASE_S", "SHARDWISE_AGENT_LEASE_S"), "600"),
            "SHARDWISE_CLAIM_S": "600",
            "SHARDWISE_DATA_DIR": str(folder / "data"),
            **variables,
        }
        self._behind: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        self._program: list[tuple[Block, str]] = []

    def run(self, block: Block) -> None:
        """Runs one block as its mark says. Raises AssertionError with its output if it fails."""
        kind, value = block.mark or ("", "")
        text = block.commands
        for old, new in self._replace.items():
            text, value = text.replace(old, new), value.replace(old, new)
        if kind == "not run":
            check(block)
        elif kind == "run by":
            runner = ROOT / value
            assert Path(block.page).name in runner.read_text("utf-8"), f"{block.where}: {value}"
        elif kind == "file":
            (self.folder / value).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / value).write_text(text, "utf-8")
        elif block.language == "python":
            self._program.append((block, text))
        elif kind == "background":
            self._run_program()
            self._start(block, text, value)
        else:
            self._run_program()
            self._expect(block, ["sh", "-eu", "-c", _STATE + text], "", int(value or 0))

    def _run_program(self) -> None:
        """Runs the Python blocks that no shell command separates as one program."""
        if self._program:
            text = "".join(part for _, part in self._program)
            self._expect(self._program[0][0], [sys.executable, "-"], text, 0)
        self._program = []

    def _expect(self, block: Block, command: list[str], given: str, code: int) -> None:
        done = subprocess.run(
            command, input=given, cwd=self.folder, env=self._environment,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        said = f"{given or block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == code, f"{block.where} ended with {done.returncode}:\n{said}"
        assert "Traceback" not in done.stderr, f"{block.where}:\n{said}"

    def _start(self, block: Block, text: str, ready: str) -> None:
        log = self.folder.parent / f"background-{block.line}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-eu", "-c", _STATE + text], cwd=self.folder, env=self._environment,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self._behind.append((block, process, log))

        def answers() -> bool:
            assert process.poll() is None, f"{block.where} ended:\n{log.read_text()[-3000:]}"
            try:
                with urllib.request.urlopen(ready, timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        wait_until(answers, f"{block.where}: {ready} answers", within_s=PATIENCE_S)

    def finish(self) -> None:
        """Runs what is left at the end of the page."""
        self._run_program()

    def stop(self) -> None:
        """Stops what runs in the background, newest first, as Ctrl-C would."""
        for block, process, log in reversed(self._behind):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{block.where} does not end:\n{log.read_text()}") from None


def copy(folder: Path, page: Page, *names: str) -> None:
    """Copies files that a page takes for granted, from a folder made once for all pages."""
    for name in names:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, page.folder / name)
        else:
            shutil.copy(folder / name, page.folder / name)
