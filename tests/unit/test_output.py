"""Documents that commands print."""

from __future__ import annotations

import os
import sys

import pytest

from shardwise.cli.output import emit


def test_a_program_that_reads_from_a_pipe_has_a_document_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", 0) as there, os.fdopen(writing, "w") as here:
        monkeypatch.setattr(sys, "stdout", here)
        emit({"url": "http://é"})
        assert there.read(100) == '{"url":"http://é"}\n'.encode()
