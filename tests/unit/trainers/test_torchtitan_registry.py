"""torchtitan's registry in Python: asked of torchtitan, here one that stands in for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.read import configuration_of, read_configuration

LAUNCH = """#!/bin/bash
NGPU=${NGPU:-"8"}
MODULE=${MODULE:-"llama3"}
CONFIG=${CONFIG:-"llama3_8b"}
torchrun --nproc_per_node=${NGPU} -m torchtitan.train --module ${MODULE} --config ${CONFIG} "$@"
"""
STAND_IN = """
from types import SimpleNamespace as Named
class FullAC:
    class Config: pass
class ChunkedLossWrapper:
    class Config: pass
class Trainer(Named):
    def to_dict(self):
        return {"training": {"local_batch_size": self.samples, "seq_len": 8192,
                             "global_batch_size": -1, "mixed_precision_reduce": "float32"},
                "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 2,
                                "pipeline_parallel_layers_per_stage": None},
                "compile": {"enable": True, "components": ["model", "loss"]},
                "optimizer": {"param_groups": [{"optimizer_name": "AdamW"}]}}
class ConfigManager:
    def parse_args(self, args):
        print("what torchtitan says")
        if "nothing" in args:
            raise ValueError("Config function 'nothing' not found")
        samples = 2 if "--training.local_batch_size=2" in args else 1
        spec = Named(name="llama3", flavor="8B", model="Float8Linear.Config")
        return Trainer(model_spec=spec, samples=samples,
                       activation_checkpoint=FullAC.Config(), loss=ChunkedLossWrapper.Config())
"""


@pytest.fixture
def torchtitan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a package in torchtitan's place, for this process and for those that it starts."""
    package = tmp_path / "path" / "torchtitan"
    for name, text in (
        ("", ""),
        ("config", STAND_IN),
        ("models", '_supported_models = {"llama3"}'),
        ("experiments", "_supported_experiments = frozenset()"),
    ):
        (package / name).mkdir(parents=True, exist_ok=True)
        (package / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")


def read(text: str, tmp_path: Path) -> object:
    (tmp_path / "train.sh").write_text(text)
    return read_configuration(tmp_path / "train.sh", 8)


@pytest.mark.usefixtures("torchtitan")
def test_torchtitan_is_asked_what_a_launch_names(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(LAUNCH)
    found = read_configuration(tmp_path / "train.sh", 8)
    assert found.trainer == "torchtitan" and found.named.name == "llama3-8b"
    assert found.parallelism == Parallelism(
        shards=4, tensor=2, sequence=True, zero=3, recompute="full"
    )
    assert (found.batch, found.sequence_length) == (4, 8192)
    assert found.stated == {
        "framework": "compiled",
        "optimizer": "adam",
        "update": "fused",
        "precision": "fp8:tensorwise",
    }
    assert [line.partition(":")[0] for line in found.left_out] == [
        "the chunked loss",
    ]
    (tmp_path / "flags").write_text(
        "--module llama3 --config llama3_8b --training.local_batch_size=2"
    )
    assert read_configuration(tmp_path / "flags", 8).batch == 8


@pytest.mark.usefixtures("torchtitan")
@pytest.mark.parametrize(
    ("text", "match"),
    [
        (LAUNCH.replace("llama3_8b", "nothing"), "torchtitan refuses it.*'nothing' not found"),
        (LAUNCH.replace('"llama3"', '"os"'), "not one of torchtitan's own modules: os"),
        (LAUNCH.replace("llama3_8b", "$(hostname)"), "torchtitan's flags: depends on"),
        ("def llama3_8b() -> Trainer.Config:\n    return Trainer.Config()\n", "which is not run"),
    ],
)
def test_what_torchtitan_does_not_know_is_refused(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        read(text, tmp_path)


def test_nobody_is_asked_without_torchtitan_or_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="torchtitan is not installed here"):
        read(LAUNCH, tmp_path)
    with pytest.raises(BadInput, match="on your own machine"):
        configuration_of(LAUNCH, 8, "train.sh")
