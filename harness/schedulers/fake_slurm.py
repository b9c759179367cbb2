"""An sbatch of our own on PATH, which writes down what it was called with."""

from __future__ import annotations

from pathlib import Path


class FakeSbatch:
    """`folder` goes on PATH; `calls` are the arguments of every call, newest last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls"
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "sbatch"
        program.write_text(
            "#!/bin/sh\n"
            f"for one in \"$@\"; do printf '%s\\037' \"$one\"; done >> '{self._log}'\n"
            f"echo >> '{self._log}'\n"
            "echo 'Submitted batch job 7'\n"
        )
        program.chmod(0o755)

    @property
    def calls(self) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split("\037")[:-1] for line in lines]
