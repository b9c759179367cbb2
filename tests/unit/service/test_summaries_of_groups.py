"""Profiles with groups of devices in the service's lists, forms and pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi")

from service.page.render import environment
from service.page.views.profile import profile_context
from service.questions.cost_model import seconds_of
from service.store.hardware import check_sizes
from service.store.summaries import hardware_summary, summary_of_document
from shardwise.documents.stored import HardwareSummary, HardwareVersion
from shardwise.errors import BadInput
from shardwise.hardware import GroupPath, hardware_document, load_hardware

MIXED = load_hardware("heterog-12")


def test_a_summary_has_all_kinds() -> None:
    summary = hardware_summary(MIXED, builtin=True)
    assert summary["device"] == "V100-PCIe-16GB, GTX1080Ti-11GB, P100-PCIe-12GB"
    assert (summary["gpus_per_node"], summary["max_nodes"]) == (4, 5)
    assert summary["memory_bytes"] == 11 * 2**30
    assert summary["groups"][1] == {
        "name": "1080ti", "kind": "GTX1080Ti-11GB", "nodes": 2, "per_node": 2,
        "memory_bytes": 11 * 2**30,
    }  # fmt: skip
    assert summary_of_document(hardware_document(MIXED)) == {**summary, "builtin": False}
    assert "groups" not in hardware_summary(load_hardware("l4"), builtin=True)


@pytest.mark.parametrize("name", ["heterog-12", "l4"])
def test_a_summary_is_as_it_is_documented(name: str) -> None:
    summary = {**hardware_summary(load_hardware(name), builtin=True), "created_at": None}
    assert msgspec.to_builtins(msgspec.convert(summary, HardwareSummary)) == summary
    version = {**summary, "version": 1, "previous_id": None}
    assert msgspec.to_builtins(msgspec.convert(version, HardwareVersion)) == version


def test_the_form_names_every_group() -> None:
    template = environment().get_template("macros.html")
    shown = template.module.devices(hardware_summary(MIXED, builtin=True))
    assert shown == (
        "1 × 4 × V100-PCIe-16GB, 16.0 GiB; 2 × 2 × GTX1080Ti-11GB, 11.0 GiB; "
        "2 × 2 × P100-PCIe-12GB, 12.0 GiB"
    )
    shown = template.module.devices(hardware_summary(load_hardware("l4"), builtin=True))
    assert shown == "8 × L4-24GB, 24.0 GiB"


def rendered(document: dict[str, Any]) -> str:
    """Returns the page of a profile."""
    context = {
        **profile_context(document), "spec": document["name"], "versions": [], "groups": [],
        "rights": {"submit": False}, "problem": None, "nonce": "", "path": "/", "administers": [],
        "signed_in": False, "person": None,
    }  # fmt: skip
    return environment().get_template("profile.html").render(**context)


def test_the_page_of_a_profile_shows_groups_and_paths() -> None:
    page = rendered(hardware_document(replace(MIXED, paths=(GroupPath("v100", "p100", 1e8, 0.0),))))
    assert "<dt>v100</dt><dd>1 node of 4 × V100-PCIe-16GB; between nodes" in page
    assert "<dt>1080ti</dt><dd>2 nodes of 2 × GTX1080Ti-11GB</dd>" in page
    assert "<dt>v100 and p100</dt>" in page
    assert "<dd>V100-PCIe-16GB</dd>" in page
    assert "8 ranks of a node, a100" in rendered(hardware_document(load_hardware("h100-8+a100-8")))
    assert "<dd>8 × L4-24GB in a node</dd>" in rendered(hardware_document(load_hardware("l4")))


def test_groups_of_no_real_machine_are_refused() -> None:
    one = MIXED.groups[0]
    many = replace(MIXED, groups=tuple(replace(one, name=f"g{i}") for i in range(65)))
    with pytest.raises(BadInput, match="at most 64"):
        check_sizes(many)
    wide = replace(MIXED, groups=(replace(one, per_node=10_001),))
    with pytest.raises(BadInput, match=r"groups\[0\].per_node"):
        check_sizes(wide)
    check_sizes(MIXED)


def test_a_question_about_groups_has_an_estimate() -> None:
    asked = {"kind": "plan", "hardware": hardware_document(MIXED), "gpus": 8, "options": {}}
    assert seconds_of(asked, {"operators": 100, "batch_size": 64}) > 0
