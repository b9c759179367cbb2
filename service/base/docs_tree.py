"""The built documentation in a folder: which files there are, and each with its digest.

What may be read is decided once, from a listing of the folder without links: a name that is not in
it does not exist, whatever it spells.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import os
import threading
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

log = logging.getLogger(__name__)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".ipynb": "application/x-ipynb+json",
    ".inv": "application/octet-stream",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
"""Media types of what Sphinx writes; other files are not served."""

INDEX = "index.html"
MOST_FILES = 5000
MOST_BYTES = 64 * 2**20
"""Bytes of the whole folder: all of it may be held, compressed."""
_SMALLER = ("text/", "application/json", "application/x-ipynb", "image/svg")


@dataclass(frozen=True)
class DocsFile:
    """A file, and for a page the hashes of the scripts inside it (CSP 3, `script-src`)."""

    content: bytes
    media_type: str
    digest: str
    gzipped: bool
    scripts: tuple[str, ...]


class DocsTree:
    """The files of a folder that Sphinx wrote. Without such a folder there are none."""

    def __init__(self, folder: str) -> None:
        self._files = _listed(Path(folder).expanduser()) if folder else {}
        self._read: dict[str, DocsFile] = {}
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        """Returns the names of all files, such as `how-to/price.html`."""
        return sorted(self._files)

    def file(self, name: str) -> DocsFile | None:
        """Returns a file by its path in the folder, that of a folder being its index.

        None if there is none. A file is read once.
        """
        if name == "" or name.endswith("/"):
            name += INDEX
        path = self._files.get(name)
        if path is None:
            return None
        with self._lock:
            if name not in self._read:
                self._read[name] = _read(path)
            return self._read[name]


def _listed(folder: Path) -> dict[str, Path]:
    """Returns the files of a folder by name; none if it has no index or is too large."""
    files: dict[str, Path] = {}
    size = 0
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if path.suffix not in TYPES or name.startswith(".") or path.is_symlink():
                continue
            files[path.relative_to(folder).as_posix()] = path
            size += path.stat().st_size
            if len(files) > MOST_FILES or size > MOST_BYTES:
                log.warning("the documentation in %s is too large and not served", folder)
                return {}
    if INDEX not in files:
        log.warning("there is no documentation in %s: build it with `make docs`", folder)
        return {}
    return files


def _read(path: Path) -> DocsFile:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES)
    kind = TYPES[path.suffix]
    digest = hashlib.sha256(content).hexdigest()[:16]
    scripts = scripts_of(content.decode("utf-8", "replace")) if path.suffix == ".html" else ()
    gzipped = kind.startswith(_SMALLER)
    kept = gzip.compress(content, 6, mtime=0) if gzipped else content
    return DocsFile(kept, kind, digest, gzipped, scripts)


def scripts_of(html: str) -> tuple[str, ...]:
    """Returns the hashes of the scripts that a page contains, as a policy names them."""
    parser = _Scripts()
    parser.feed(html)
    hashes = (hashlib.sha256(text.encode()).digest() for text in parser.texts)
    return tuple(dict.fromkeys(f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes))


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and "src" not in dict(attrs)
        if self._inside:
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = False
