"""An sbatch of our own on PATH, which writes down what it was called with.

It holds every request possible (`--test-only`), unless told otherwise."""

from __future__ import annotations

from pathlib import Path


class FakeSbatch:
    """`folder` goes on PATH; `calls` are the arguments of every call, newest last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "calls"
        self._full = folder / "full"
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "sbatch"
        program.write_text(
            "#!/bin/sh\n"
            f"if [ \"$1\" = --test-only ]; then [ ! -e '{self._full}' ]; exit; fi\n"
            f"for one in \"$@\"; do printf '%s\\037' \"$one\"; done >> '{self._log}'\n"
            f"echo >> '{self._log}'\n"
            "echo 'Submitted batch job 7'\n"
        )
        program.chmod(0o755)

    def refuse(self) -> None:
        """Has it refuse every request from now on, if asked beforehand."""
        self._full.touch()

    @property
    def calls(self) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split("\037")[:-1] for line in lines]
