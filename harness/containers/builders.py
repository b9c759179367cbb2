"""Images of Dockerfiles, by buildx or by buildah, in the engine's store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.containers.engine import builder, has_image, quietly, run, show


def build(
    tag: str,
    folder: Path,
    arguments: Mapping[str, str],
    *,
    target: str | None = None,
) -> None:
    """Makes the image of a folder's Dockerfile, or of a target in it, and shows what that prints.

    The build uses the host's network. Arguments that name images of the engine are bases.
    """
    words = ["--network", "host", "--tag", tag]
    words += [word for item in arguments.items() for word in ("--build-arg", "=".join(item))]
    words += ["--target", target] if target else []
    if builder() == "buildx":
        show("buildx", "build", "--load", "--progress", "plain", *words, str(folder))
        return
    # buildah has a store of its own: bases are copied there, and what it makes is copied back.
    for image in arguments.values():
        if has_image(image) and not quietly("buildah", "inspect", "--type", "image", image):
            run("buildah", "pull", "--quiet", f"docker-daemon:{image}")
    # Docker's format has health checks and shells. Its runtime needs cgroups that containers and
    # virtual machines may not give it; chroot does not.
    made = ("buildah", "build", "--isolation", "chroot", "--format", "docker", "--layers")
    subprocess.run([*made, *words, str(folder)], stdout=sys.stderr, check=True)
    run("buildah", "push", f"localhost/{tag}", f"docker-daemon:{tag}")
