"""Offers of the catalog that SkyPilot keeps at ~/.sky/catalogs/VERSION/CLOUD/vms.csv.

A file has a row for each instance type, region and zone. An offer is an instance type at its
cheapest region and zone; `skypilot_rows.py` reads the rows. Nothing is downloaded: SkyPilot does
that (`sky gpus list`), and the date of the prices is when it last did.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from shardwise.errors import BadInput
from shardwise.files import DATA
from shardwise.hardware.accelerators import profile_name
from shardwise.hardware.offers import Offer, parse_offers, table_text
from shardwise.hardware.skypilot_rows import Instance, instances_of
from shardwise.near import did_you_mean, near, plain

NAME = "skypilot"
VMS = "vms.csv"
HOME = Path("~/.sky/catalogs")
"""Where SkyPilot keeps its catalogs: a folder for each version of their schema."""

FORM = f"{NAME}[:FOLDER][?cloud=aws,gcp&region=us-east-1&gpu=H100,H200&spot]"
LISTS = ("cloud", "region", "gpu")
MAX_CLOUDS = 100
DOWNLOAD = "the folder that SkyPilot fills ('sky gpus list' does)"


@dataclass(frozen=True)
class Choice:
    """What of a catalog is offered: `clouds` by their folders' names, `regions`, and `gpus` by
    SkyPilot's names, all of them where empty; with `spot` its prices are offers of their own."""

    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    spot: bool = False


def is_catalog(source: str) -> bool:
    """Returns whether `--offers` says SkyPilot's catalog rather than a table."""
    named = re.match(rf"{NAME}(?=[:?]|$)", source)
    return named is not None or Path(source.partition("?")[0]).name == VMS


def read_catalog(source: str) -> list[Offer]:
    """Returns the offers of `skypilot[:FOLDER][?…]` or of the path of a `vms.csv`.

    FOLDER is that of the catalogs, of one version of them, or of a cloud. GPUs without a profile
    are offers without one. Raises `BadInput` that names what is not there, or file, row and column.
    """
    place, _, query = source.partition("?")
    choice = _choice(query)
    path = place.removeprefix(NAME).removeprefix(":") if place.startswith(NAME) else place
    files = _files(Path(path or HOME).expanduser())
    chosen = _chosen(files, choice.clouds)
    known = _networks()
    offers: list[Offer] = []
    regions: set[str] = set()
    gpus: set[str] = set()
    for cloud, file in chosen.items():
        rows = instances_of(table_text(file), str(file), cloud)
        regions |= {row.region for row in rows}
        gpus |= {row.accelerator for row in rows}
        offers += _offers(rows, cloud, file, choice, known)
    _require(choice.regions, regions, "region")
    _require(choice.gpus, gpus, "gpu")
    if not offers:
        raise BadInput("no GPUs with a price", file=str(path or HOME), expected=FORM)
    return offers


def catalog_date(file: Path) -> str:
    """Returns the day, in UTC, on which SkyPilot downloaded a file, or someone last changed it.

    SkyPilot also sets a file's time when a download fails; that of the checksum which it writes
    beside the catalog after one is then the earlier.
    """
    checksum = file.parents[1] / ".meta" / file.parent.name / f"{VMS}.md5"
    times = [path.stat().st_mtime for path in (file, checksum) if path.is_file()]
    return datetime.datetime.fromtimestamp(min(times), tz=datetime.UTC).date().isoformat()


def _choice(query: str) -> Choice:
    found: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, max_num_fields=20):
        if key not in (*LISTS, "spot") or key in found or (key in LISTS) != bool(value):
            raise BadInput(f"got {query[:100]!r}", field="offers", expected=FORM)
        found[key] = value
    clouds, regions, gpus = (tuple(filter(None, found.get(k, "").split(","))) for k in LISTS)
    return Choice(clouds, regions, gpus, "spot" in found)


def _files(path: Path) -> dict[str, Path]:
    """Returns the files by cloud: of a file, of a cloud's folder, of a version's or of all."""
    if path.is_file() or path.name == VMS:
        return {path.absolute().parent.name: path}
    if (path / VMS).is_file():
        return {path.absolute().name: path / VMS}
    for folder in (path, *_versions(path)):
        files = {file.parent.name: file for file in sorted(folder.glob(f"*/{VMS}"))[:MAX_CLOUDS]}
        if files:
            return files
    raise BadInput(f"there is no CLOUD/{VMS}", file=str(path), expected=DOWNLOAD)


def _versions(path: Path) -> list[Path]:
    """Returns the folders v1, v2, … of the versions of the schema, the newest first."""
    numbered = [
        (int(folder.name[1:]), folder)
        for folder in path.glob("v*")
        if re.fullmatch(r"v\d{1,6}", folder.name)
    ]
    return [folder for _, folder in sorted(numbered, reverse=True)]


def _chosen(files: dict[str, Path], clouds: Sequence[str]) -> dict[str, Path]:
    _require(clouds, files, "cloud")
    wanted = {cloud.lower() for cloud in clouds}
    return {cloud: file for cloud, file in files.items() if not wanted or cloud.lower() in wanted}


def _require(asked: Sequence[str], there: set[str] | dict[str, Path], key: str) -> None:
    """Raises `BadInput` for what is asked for and not in the catalog."""
    known = {plain(name) for name in there}
    for name in asked:
        if plain(name) not in known:
            close = did_you_mean(near(name, there))
            some = ", ".join(sorted(there)[:20])
            raise BadInput(
                f"the catalog has no {key} {name[:60]!r}{close}", field="offers", expected=some
            )


def _networks() -> dict[tuple[str, str], float | None]:
    """Returns the networks of instance types in Gb/s, which the shipped table has and the catalog
    lacks."""
    shipped = parse_offers((DATA / "offers.csv").read_text("utf-8"), "offers.csv")
    return {(offer.provider, offer.instance_type): offer.network_gbps for offer in shipped}


def _offers(
    rows: Sequence[Instance],
    cloud: str,
    file: Path,
    choice: Choice,
    networks: dict[tuple[str, str], float | None],
) -> list[Offer]:
    """Returns the cheapest row of each instance type, and with `spot` the one at spot prices."""
    regions, gpus = {plain(r) for r in choice.regions}, {plain(g) for g in choice.gpus}
    best: dict[tuple[str, str, int, bool], tuple[float, Instance]] = {}
    for row in rows:
        if (regions and plain(row.region) not in regions) or (
            gpus and plain(row.accelerator) not in gpus
        ):
            continue
        for spot, price in ((False, row.price), (True, row.spot_price if choice.spot else None)):
            key = (row.instance_type, row.accelerator, row.count, spot)
            if price is not None and (key not in best or price < best[key][0]):
                best[key] = (price, row)
    version = file.absolute().parents[1].name
    source, as_of = f"SkyPilot catalog {version}/{cloud}/{file.name}", catalog_date(file)
    return [
        Offer(
            cloud, row.instance_type, row.count, row.accelerator, row.region, spot, price, as_of,
            source, profile_name(row.accelerator, row.count, row.memory_bytes),
            networks.get((cloud, row.instance_type)),
        )
        for (_, _, _, spot), (price, row) in best.items()
    ]  # fmt: skip
