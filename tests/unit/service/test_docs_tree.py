"""The documentation that a service serves: which files, and which page belongs to which view."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from service.base import docs_tree
from service.base.docs_tree import DocsTree, scripts_of
from service.page import render
from service.page.manual import TOPICS, topics_of

ROOT = Path(__file__).parents[3]
SCRIPT = 'go("&amp;")'
PAGE = f"<!doctype html><title>x</title><script>{SCRIPT}</script><script src='a.js'></script>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    docs = tmp_path / "docs"
    (docs / "how-to").mkdir(parents=True)
    (docs / "index.html").write_text(PAGE)
    (docs / "how-to" / "price.html").write_text("price")
    (docs / "how-to" / "index.html").write_text("all of them")
    (docs / "picture.png").write_bytes(b"\x89PNG")
    return docs


def test_files_are_found_by_their_path_alone(folder: Path) -> None:
    secret = folder.parent / "secret.html"
    secret.write_text("secret")
    (folder / "link.html").symlink_to(secret)
    (folder / "outside").symlink_to(folder.parent, target_is_directory=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "page.html").write_text("hidden")
    (folder / ".buildinfo").write_text("hidden")
    (folder / "program.py").write_text("print()")
    tree = DocsTree(str(folder))
    assert tree.names() == ["how-to/index.html", "how-to/price.html", "index.html", "picture.png"]
    for name in (
        "../secret.html", "how-to/../../secret.html", "how-to/../index.html", "/index.html",
        str(secret), "link.html", "outside/secret.html", ".hidden/page.html", ".buildinfo",
        "program.py", "how-to", "index.html/", "./index.html", "..\\secret.html", "index.html\0",
        "//index.html", "INDEX.HTML",
    ):  # fmt: skip
        assert tree.file(name) is None, name
    (index, price, picture) = (tree.file(n) for n in ("", "how-to/price.html", "picture.png"))
    assert index is not None and gzip.decompress(index.content) == PAGE.encode()
    assert index == tree.file("index.html") and index.media_type == "text/html; charset=utf-8"
    assert price is not None and price.digest != index.digest and price.scripts == ()
    assert picture is not None and not picture.gzipped and picture.content == b"\x89PNG"
    of_folder = tree.file("how-to/")
    assert of_folder is not None and gzip.decompress(of_folder.content) == b"all of them"


def test_scripts_inside_a_page_are_named_by_their_hash() -> None:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert scripts_of(PAGE + PAGE) == (f"'sha256-{digest}'",)
    assert scripts_of("<p>no script</p>") == ()


def test_without_a_built_tree_nothing_is_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert DocsTree("").names() == []
    assert caplog.text == ""
    assert DocsTree(str(folder / "none")).names() == []
    assert "make docs" in caplog.text
    assert DocsTree(str(folder / "index.html")).names() == []
    (folder / "index.html").rename(folder / "other.html")
    assert DocsTree(str(folder)).names() == []
    (folder / "other.html").rename(folder / "index.html")
    monkeypatch.setattr(docs_tree, "MOST_BYTES", 10)
    assert DocsTree(str(folder)).names() == []
    assert "too large" in caplog.text


def test_every_linked_page_is_a_page_of_the_documentation(tmp_path: Path) -> None:
    templates = {path.name for path in (Path(render.__file__).parent / "templates").iterdir()}
    assert TOPICS.keys() <= templates
    (tmp_path / "index.html").write_text("index")
    for name in {name for topics in TOPICS.values() for name, _ in topics}:
        source = ROOT / "docs" / f"{name}.md"
        assert re.match(r"# \S", source.read_text()), name
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.html").write_text(name)
    whole, none = DocsTree(str(tmp_path)), DocsTree("")
    for template, topics in TOPICS.items():
        assert [title for _, title in topics_of(template, whole)] == [title for _, title in topics]
        assert topics_of(template, none) == []
    (tmp_path / "compare.html").unlink()
    left = [where for where, _ in topics_of("comparison.html", DocsTree(str(tmp_path)))]
    assert left == ["/manual/certificates.html", "/manual/methods.html"]
