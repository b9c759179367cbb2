"""Profiles of rented machines and of GPUs' nodes: the stated network, all else as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.answers import frontier
from shardwise.answers.expected import DATA_SHEETS_ALONE, TIME, factors, gpu_of, uncompared_note
from shardwise.cli.lists import hardware as hardware_command
from shardwise.errors import BadInput
from shardwise.hardware import (
    Hardware,
    find_gpu,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
    new_profile,
)
from shardwise.hardware.machines import machines

STATED = {
    "aws-p4d": ("A100-SXM4-40GB", 400),
    "aws-p4de": ("A100-SXM4-80GB", 400),
    "aws-p5": ("H100-SXM5-80GB", 3200),
    "aws-p5e": ("H200-SXM-141GB", 3200),
    "aws-p5en": ("H200-SXM-141GB", 3200),
    "aws-p6-b200": ("B200-SXM-180GB", 3200),
    "aws-p6-b300": ("B300-SXM-270GB", 6400),
    "azure-nd-a100-v4": ("A100-SXM4-40GB", 1600),
    "azure-nd-h100-v5": ("H100-SXM5-80GB", 3200),
    "azure-nd-h200-v5": ("H200-SXM-141GB", 3200),
    "azure-nd-mi300x-v5": ("MI300X-192GB", 3200),
    "gcp-a3-high": ("H100-SXM5-80GB", 800),
    "gcp-a3-mega": ("H100-SXM5-80GB", 1600),
    "gcp-a3-ultra": ("H200-SXM-141GB", 3200),
    "gcp-a4": ("B200-SXM-180GB", 3200),
    "lambda-h100": ("H100-SXM5-80GB", 3200),
}
"""The GPU and Gb/s of a node, as the clouds' pages have them."""
NODES = {
    "b300-8": "B300", "gb300-nvl72": "GB300", "mi325x-8": "MI325X", "mi355x-8": "MI355X",
    "tpu-v6e": "TPU-v6e",
}  # fmt: skip
RENTED = [row.name for row in machines().values() if row.is_rented]


def test_the_machines_are_the_ones_asked_for() -> None:
    assert set(RENTED) == set(STATED)
    assert machines().keys() - set(RENTED) == NODES.keys()
    assert machines().keys() <= set(list_builtin())


@pytest.mark.parametrize("name", RENTED)
def test_a_machine_has_eight_gpus_and_the_stated_network(name: str) -> None:
    machine, row = load_hardware(name), machines()[name]
    like = load_hardware(row.like)
    kind, gbit = STATED[name]
    assert (machine.per_node, machine.devices[0].kind) == (8, kind)
    assert machine.levels[-1].bandwidth_bytes_per_s == gbit * 1e9 / 8
    assert machine.devices == like.devices and machine.collectives == like.collectives
    assert machine.levels[0] == like.levels[0] and machine.host == like.host
    network = replace(machine.levels[-1], bandwidth_bytes_per_s=1.0)
    assert network == replace(like.levels[-1], bandwidth_bytes_per_s=1.0)


@pytest.mark.parametrize("name", RENTED)
def test_a_machine_says_where_its_network_is_stated(name: str) -> None:
    machine, row = load_hardware(name), machines()[name]
    said = machine.sources["levels.between"]
    assert said.startswith(row.source) and row.date in said and f"as in {row.like}" in said
    assert "levels.between.rails" not in machine.sources
    assert machine.provenance.startswith(f"{row.instance}: as {row.like}")
    others = {
        f: s for f, s in machine.sources.items() if f not in ("levels.between", "host_memory")
    }
    assert others.items() <= load_hardware(row.like).sources.items()


def test_a_machine_is_found_by_what_its_cloud_calls_it() -> None:
    assert load_hardware("p5.48xlarge") is load_hardware("aws-p5")
    assert load_hardware("standard_nd96isr_h100_v5*2").max_nodes == 2
    assert load_hardware("aws-p5*4").max_nodes == 4
    with pytest.raises(BadInput, match=r"unknown hardware 'aws-p55': did you mean aws-p5"):
        load_hardware("aws-p55")


@pytest.mark.parametrize("name", NODES)
def test_a_gpus_node_is_the_one_of_the_table(name: str) -> None:
    node, made = load_hardware(name), new_profile(NODES[name])
    assert replace(node, name=made.name).id == made.id
    assert find_gpu(NODES[name]).source in node.provenance
    assert "nothing here was measured by Shardwise" in node.provenance


@pytest.mark.parametrize("name", machines())
def test_a_profile_survives_its_file(name: str) -> None:
    profile = load_hardware(name)
    document = json.loads(json.dumps(hardware_document(profile)))
    assert hardware_from_document(document).id == profile.id


def test_the_list_names_them_all() -> None:
    shown = CliRunner().invoke(hardware_command, ["list", "--json"])
    assert machines().keys() <= set(json.loads(shown.stdout)["hardware"])


def test_the_documentation_names_them_all() -> None:
    text = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    assert [name for name in list_builtin() if f"`{name}`" not in text] == []


def compared(profile: Hardware) -> str:
    return uncompared_note([profile]) or ""


@pytest.mark.parametrize("name", ["mi355x-8", "mi325x-8", "l4"])
def test_an_answer_says_that_no_step_on_such_a_gpu_was_compared(name: str) -> None:
    profile = load_hardware(name)
    warnings = frontier(mlp(), profile, 2).warnings
    (said,) = [text for text in warnings if text.startswith("no published step on")]
    assert profile.devices[0].kind in said and DATA_SHEETS_ALONE in said


def test_it_says_so_only_of_gpus_without_a_published_step() -> None:
    kinds = {gpu for (gpu, piped, of), known in factors().items()
             if of == TIME and not piped and not known.few}  # fmt: skip
    for name in list_builtin():
        profile = load_hardware(name)
        if not profile.groups:
            assert bool(compared(profile)) == (gpu_of(profile.devices[0].kind) not in kinds), name
    assert not any("published step" in said for said in frontier(mlp(), HERE, 2).warnings)
    h200 = compared(load_hardware("h200-8"))
    assert h200 and "data sheets" not in h200
    few = compared(load_hardware("mi300x-8"))
    assert few == (
        "1 published step on MI300X, and no other compared, took 1.4 times as long as predicted"
    )
    measured = replace(load_hardware("l4"), measurement={"date": "2026-11-26"})
    assert not compared(measured)


HERE = load_hardware("aws-p5")


def test_what_data_sheets_alone_were_off_by_is_that_of_the_published_steps() -> None:
    from benchmarks.published.reading import read_published
    from benchmarks.published.stored import read_stored

    predictions = read_stored()
    ratios = [
        run.iteration_s / predictions[run.name].time_s
        for run in read_published().runs
        if run.name in predictions
        and gpu_of(load_hardware(run.hardware).devices[0].kind) in ("V100", "MI300X")
    ]
    assert len(ratios) > 10
    assert f"{min(ratios):.1f} to {max(ratios):.1f}" == DATA_SHEETS_ALONE
