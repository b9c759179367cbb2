"""Static files of the pages: our own, and Plotly's JavaScript from its Python package.

Addresses contain a digest of the content, so that browsers may cache the files forever.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import Request, Response

from service.base.problems import Problem, not_found

PLOTLY = "plotly.min.js"
FOREVER = "public, max-age=31536000, immutable"
FOLDER = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """A file, compressed once."""

    compressed: bytes
    media_type: str
    digest: str


def names() -> list[str]:
    """Returns the names of all files."""
    return [PLOTLY, *sorted(path.name for path in FOLDER.iterdir() if path.suffix in _TYPES)]


@cache
def asset(name: str) -> Asset:
    """Returns the file of a name. Raises a `not-found` problem if there is none."""
    if name not in names():
        raise not_found("file", name[:80])
    content = _path(name).read_bytes()
    return Asset(gzip.compress(content, 6, mtime=0), _TYPES[Path(name).suffix], digest(name))


@cache
def digest(name: str) -> str:
    """Returns a short digest of a file's content."""
    return hashlib.sha256(_path(name).read_bytes()).hexdigest()[:16]


def address(name: str) -> str:
    """Returns the path of a file, for templates."""
    return f"/assets/{name}?{digest(name)}"


def serve_asset(request: Request, name: str) -> Response:
    """Returns a file, compressed if the browser accepts that."""
    file = asset(name)
    return file_response(
        request,
        file.compressed,
        file.media_type,
        file.digest,
        named=request.url.query == file.digest,
    )


def file_response(
    request: Request,
    content: bytes,
    media_type: str,
    digest: str,
    *,
    named: bool,
    gzipped: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns a file's `content`, unpacked for a browser that takes nothing `gzipped`.

    Browsers keep what is `named` by a digest forever, and ask again for the rest.
    """
    every = {
        "Cache-Control": FOREVER if named else "no-cache",
        "ETag": f'"{digest}"',
        "Vary": "Accept-Encoding",
        **(headers or {}),
    }
    if request.headers.get("if-none-match") == every["ETag"]:
        return Response(status_code=304, headers=every)
    if gzipped and "gzip" in request.headers.get("accept-encoding", ""):
        every["Content-Encoding"] = "gzip"
    elif gzipped:
        content = gzip.decompress(content)
    return Response(content, headers=every, media_type=media_type)


def _path(name: str) -> Path:
    if name != PLOTLY:
        return FOLDER / name
    # Found without importing plotly, which would cost the service its start-up time and memory.
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.submodule_search_locations is None:
        raise Problem("not-configured", "plotly is not installed: pip install 'shardwise[service]'")
    return Path(spec.submodule_search_locations[0]) / "package_data" / PLOTLY
