"""Images of one layer: a minimal Debian, and this machine's Rust tool chain.

An image's tag is the hash of this module and of what goes into it.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from harness.containers.debian_archive import KEYRING, archive
from harness.containers.engine import Missing, has_image, run

AUTHORITIES = Path("usr/local/share/ca-certificates")
"""Where an administrator puts authorities: a build behind this machine's proxy needs them too."""
NOT_IN_SLIM = ("doc", "groff", "info", "lintian", "linda", "locale", "man")
"""Folders of /usr/share that Debian's slim images leave out."""
KEEP_NO_PACKAGES = """\
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""


def debian(suite: str) -> str:
    """Returns a minimal Debian, slimmed as the official `SUITE-slim`, with this machine's
    certificate authorities and, for apt, its sources.

    Raises Missing if the image has to be made and this takes what the machine lacks.
    """
    sources = archive().sources(suite)
    authorities = sorted((Path("/") / AUTHORITIES).glob("*.crt"))
    parts = [Path(__file__).read_bytes(), sources.encode(), *(p.read_bytes() for p in authorities)]
    name = f"shardwise-debian:{suite}-{digest(parts)}"
    if has_image(name):
        return name
    if os.geteuid() != 0:
        raise Missing(f"root, to make the image {name}")
    if shutil.which("debootstrap") is None:
        raise Missing("the package debootstrap")
    with TemporaryDirectory(prefix="shardwise-debian-") as folder:
        root = Path(folder) / "root"
        # What it mounts below the folder goes with its namespace, however it ends.
        run("unshare", "--mount", "debootstrap", "--variant=minbase", "--include=ca-certificates",
            f"--keyring={KEYRING}", suite, str(root), archive().main)  # fmt: skip
        for authority in authorities:
            shutil.copy(authority, root / AUTHORITIES)
        run("chroot", str(root), "update-ca-certificates")
        _slim(root)
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
        (root / "etc/apt/sources.list.d/debian.sources").write_text(sources)
        with _import(name) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
            tar.add(root, arcname=".")
    return name


def rust() -> str:
    """Returns this machine's Rust tool chain at the paths of the official image."""
    try:
        version = run("rustc", "-vV")
        sysroot = Path(run("rustc", "--print", "sysroot").strip())
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Missing("a Rust tool chain") from error
    programs = ("cargo", "rustc")
    if not all((sysroot / "bin" / program).is_file() for program in programs):
        raise Missing("a Rust tool chain of rustup's, with cargo beside rustc")
    name = f"shardwise-rust:{digest([Path(__file__).read_bytes(), version.encode()])}"
    if has_image(name):
        return name
    home, tools = "usr/local/rustup/toolchains/stand-in", "usr/local/cargo/bin"
    with _import(name) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for folder in (tools, home):
            tar.addfile(_entry(folder, tarfile.DIRTYPE))
        tar.add(sysroot / "lib", arcname=f"{home}/lib")
        for program in programs:
            tar.add(sysroot / "bin" / program, arcname=f"{home}/bin/{program}")
            # The official image has rustup's proxies here; rustc finds its libraries by its place.
            link = _entry(f"{tools}/{program}", tarfile.SYMTYPE)
            link.linkname = f"/{home}/bin/{program}"
            tar.addfile(link, io.BytesIO())
    return name


def digest(parts: Iterable[bytes]) -> str:
    """Returns a short hash of parts in their order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:12]


def _slim(root: Path) -> None:
    for name in NOT_IN_SLIM:
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
        (root / "usr/share" / name).mkdir()
    excluded = "".join(f"path-exclude /usr/share/{name}/*\n" for name in NOT_IN_SLIM)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(excluded)
    (root / "etc/apt/apt.conf.d/clean").write_text(KEEP_NO_PACKAGES)
    for pattern in ("var/lib/apt/lists/*", "var/cache/apt/*", "var/log/*", "debootstrap"):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _entry(path: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, 0o755
    return entry


@contextmanager
def _import(name: str) -> Iterator[IO[bytes]]:
    """Gives a stream for a tar archive of which the engine makes an image of one layer."""
    process = subprocess.Popen(
        ["docker", "import", "--change", 'CMD ["/bin/sh"]', "-", name],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        yield process.stdin
    finally:
        process.stdin.close()
        failed = process.wait()
    if failed:
        raise subprocess.CalledProcessError(failed, ["docker", "import", name])
