"""SkyPilot catalogs, with the columns and quirks of the real ones.

One is small and its prices are invented; the other has the shipped offers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from shardwise.files import DATA

VERSION = "v8"
"""The catalog's format in the SkyPilot that tests run."""
CLOUDS = {"aws": "AWS", "gcp": "GCP", "lambda": "Lambda", "nebius": "Nebius"}
"""SkyPilot's names of the providers of the shipped offers."""
ZONED = ("aws", "gcp")
"""Providers whose files have a column of zones."""


def gpu_info(name: str, count: int, mib: int) -> str:
    """How the catalog describes GPUs, as Python's text of a dictionary."""
    gpu = f"{{'Name': '{name}', 'Count': {count}, 'MemoryInfo': {{'SizeInMiB': {mib}}}}}"
    return f"\"{{'Gpus': [{gpu}], 'TotalGpuMemoryInMiB': {count * mib}}}\""


NEBIUS = f"""\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu-4,,0,4,16,0.1,eu-north1,,
h100-1,H100,1,16,200,3.00,eu-north1,{gpu_info("H100", 1, 81920)},1.25
h100-8,H100,8,128,1600,24.00,eu-north1,{gpu_info("H100", 8, 81920)},10.00
h100-8,H100,8,128,1600,23.00,us-central1,{gpu_info("H100", 8, 81920)},12.00
b200-8,B200,8,160,1792,44.00,us-central1,{gpu_info("B200", 8, 184320)},
"""
AWS = f"""\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
m5.large,,,2.0,8.0,,0.1,0.05,us-east-1,use1-az1,x86_64
g5.48xlarge,A10G,8.0,192.0,768.0,{gpu_info("A10G", 8, 22888)},16.0,5.0,us-east-1,use1-az1,x86_64
g5.48xlarge,A10G,8.0,192.0,768.0,{gpu_info("A10G", 8, 22888)},16.0,4.0,us-east-1,use1-az2,x86_64
g6f.large,L4,0.125,2.0,8.0,{gpu_info("L4", 1, 2861)},0.2,0.1,us-east-1,use1-az1,x86_64
p4d.24xlarge,A100,8.0,96.0,1152.0,{gpu_info("A100", 8, 40960)},22.0,,us-east-1,use1-az1,x86_64
p5.48xlarge,H100,8.0,192.0,2048.0,{gpu_info("H100", 8, 81920)},55.0,20.0,us-east-1,use1-az1,x86_64
p5.48xlarge,H100,8.0,192.0,2048.0,{gpu_info("H100", 8, 81920)},57.0,,eu-west-1,euw1-az1,x86_64
dl1.24xlarge,Gaudi HL-205,8.0,96.0,768.0,,13.0,4.0,us-east-1,use1-az1,x86_64
"""
GCP = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.5,3.0
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-b,9.5,3.0
g2-standard-24,24.0,96.0,,,,us-central1,us-central1-a,0.9,0.4
n1-standard-8,8.0,30.0,,,,us-central1,us-central1-a,0.4,0.1
,,,H100,8,H100,us-central1,us-central1-a,78.5,20.0
,,,L4,2,L4,us-central1,us-central1-a,1.1,0.4
,,,T4,1,T4,us-central1,us-central1-a,0.35,0.1
,,,tpu-v6e-8,1,tpu-v6e-8,us-central1,us-central1-a,21.6,4.3
"""


def write_catalog(folder: Path, version: str = VERSION) -> Path:
    """Writes the files as SkyPilot keeps them under `folder`; returns the version's folder."""
    for cloud, text in (("nebius", NEBIUS), ("aws", AWS), ("gcp", GCP)):
        file = folder / version / cloud / "vms.csv"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return folder / version


def write_offers(folder: Path) -> None:
    """Writes the shipped offers as SkyPilot's files under `folder`, for all of `CLOUDS`.

    GCP's whole price is that of the machine; its accelerators, which are rows of their own, cost
    nothing more.
    """
    with (DATA / "offers.csv").open(encoding="utf-8", newline="") as file:
        offers = list(csv.DictReader(file))
    sold: dict[str, set[str]] = {}
    for provider, cloud in CLOUDS.items():
        rows = []
        for offer in offers:
            if offer["Provider"] == provider:
                sold.setdefault(offer["AcceleratorName"], set()).add(cloud)
                rows += _rows(offer)
        _write_table(folder / VERSION / provider / "vms.csv", rows)
    named = [{"AcceleratorName": gpu, "Clouds": ",".join(sorted(sold[gpu]))} for gpu in sold]
    _write_table(folder / VERSION / "common" / "accelerators.csv", named)


def _rows(offer: dict[str, str]) -> list[dict[str, str]]:
    columns = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB",
               "Price", "SpotPrice", "Region")  # fmt: skip
    row = {**{name: offer[name] for name in columns}, "GpuInfo": offer["AcceleratorName"]}
    if offer["Provider"] in ZONED:
        row["AvailabilityZone"] = f"{offer['Region']}-a"
    if offer["Provider"] != "gcp":
        return [row]
    of_gpu = ("AcceleratorName", "AcceleratorCount", "GpuInfo")
    machine = {name: "" if name in of_gpu else text for name, text in row.items()}
    free = {"InstanceType": "", "vCPUs": "", "MemoryGiB": "", "Price": "0", "SpotPrice": "0"}
    return [machine, {**row, **free}]


def _write_table(file: Path, rows: Iterable[dict[str, str]]) -> None:
    rows = list(rows)
    file.parent.mkdir(parents=True)
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, rows[0])
        writer.writeheader()
        writer.writerows(rows)
