"""Result files are strangers': links, pipes, sizes, broken JSON, replaced files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import agent.results
from agent.results import Results


class Taken:
    """A report/ folder and what was handed over from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents: list[tuple[str, dict[str, Any]]] = []
        self.results = Results(
            folder, lambda name, document: self.documents.append((name, document))
        )

    def write(self, name: str, text: str) -> None:
        temporary = self.folder / ".temporary"
        temporary.write_text(text)
        temporary.rename(self.folder / name)
        self.results.collect()


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    return Taken(tmp_path)


def test_a_document_is_taken_once_and_again_when_it_is_replaced(taken: Taken) -> None:
    taken.write("m.json", '{"x": 1}')
    taken.results.collect()
    assert taken.documents == [("m", {"x": 1})]
    taken.write("m.json", '{"x": 2}')
    assert taken.documents[1:] == [("m", {"x": 2})]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "[1]"), ("a.json", '{"x": '), ("a.json", '{"x": NaN}'), ("a.json", "[" * 99999)],
)
def test_malformed_documents_are_refused_once(taken: Taken, name: str, text: str) -> None:
    taken.write(name, text)
    taken.results.collect()
    assert not taken.documents
    assert taken.results.refused == [f"report/{name}: it is not a JSON object"]


def test_other_names_are_not_looked_at(taken: Taken) -> None:
    for name in (".hidden.json", "a.txt", "a b.json", "-o.json"):
        taken.write(name, "{}")
    assert not taken.documents
    assert not taken.results.refused


def test_links_pipes_and_folders_are_not_followed(taken: Taken, tmp_path: Path) -> None:
    secret = tmp_path.parent / "secret.txt"
    secret.write_text('{"key": "x"}')
    (taken.folder / "link.json").symlink_to(secret)
    os.mkfifo(taken.folder / "pipe.json")
    (taken.folder / "folder.json").mkdir()
    for _ in range(2):
        taken.results.collect()
    assert not taken.documents
    assert len(taken.results.refused) == 3


def test_size_count_and_total_are_bounded(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent.results, "MOST_BYTES", 100)
    taken.write("big.json", json.dumps({"x": "y" * 200}))
    monkeypatch.setattr(agent.results, "MOST_TOTAL_BYTES", 50)
    taken.write("a.json", json.dumps({"x": "y" * 30}))
    taken.write("a.json", json.dumps({"x": "z" * 30}))
    monkeypatch.setattr(agent.results, "MOST_RESULTS", 2)
    taken.write("c.json", "{}")
    assert [name for name, _ in taken.documents] == ["a"]
    assert [text.partition(":")[0] for text in taken.results.refused] == [
        "report/big.json", "report/a.json", "report/c.json"
    ]  # fmt: skip
