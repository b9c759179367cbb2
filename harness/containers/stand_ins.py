"""Base images made of Debian's packages, for engines that reach no registry.

    python -m harness.containers.stand_ins NAME…

builds the named ones (debian:bookworm, debian:trixie, python, postgres, redis, prometheus, rust)
and prints the image of each. An image's tag is the hash of what it is made of, so the second time
nothing is built. `stand_ins/NAME` has what is the same as in the official image: users, commands,
paths, variables. docs/adr/0054-container-stand-ins.md says what is not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.containers.bases import debian, digest, rust
from harness.containers.builders import build
from harness.containers.engine import Missing, engine, has_image

RECIPES = Path(__file__).parent / "stand_ins"
SUITE = "trixie"
"""Of the stand-ins: the first with a Python that `deploy/requirements` are pinned for."""


def image(name: str) -> str:
    """Returns the image that stands in for a base, which is built if the engine lacks it.

    Raises Missing if this machine lacks what it is made with, ValueError if there is no such name.
    """
    engine()
    if name.startswith("debian:"):
        return debian(name.removeprefix("debian:"))
    if name == "rust":
        return rust()
    if not (RECIPES / name / "Dockerfile").is_file():
        raise ValueError(f"expected debian:SUITE, rust or a folder of {RECIPES}, got {name!r}")
    return layered(name, RECIPES / name, debian(SUITE))


def layered(name: str, recipe: Path, base: str, **arguments: str) -> str:
    """Returns the image that a folder's Dockerfile makes of a base, its argument BASE, and of
    more arguments by their names.

    The build uses the host's network, which may be the only one that reaches a mirror.
    """
    files = sorted(p for p in recipe.rglob("*") if p.is_file())
    given = [f"{key}={value}" for key, value in {"BASE": base, **arguments}.items()]
    parts = [part for p in files for part in (p.name.encode(), p.read_bytes())]
    parts += [argument.encode() for argument in given]
    tag = f"shardwise-{name}:{digest(parts)}"
    if not has_image(tag):
        build(tag, recipe, {"BASE": base, **arguments})
    return tag


def main(names: list[str]) -> int:
    """Prints the images of the names, one a line. Returns an exit status."""
    if not names:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        for name in names:
            print(image(name), flush=True)
    except (Missing, ValueError) as error:
        print(f"no stand-in: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
