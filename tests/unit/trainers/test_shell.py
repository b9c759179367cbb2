"""Launch scripts: what they would run, against bash, and that no text takes long."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.read import read_configuration
from shardwise.trainers.shell import commands_of

LAUNCH = """torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size ${MBS:-1} \\
  --global-batch-size 64 --tensor-model-parallel-size ${TP:-1} --bf16 """
BASE = Parallelism(replicas=8, micro_batches=8)
BRANCHES = """
AC=none
if [ $AC = full ]; then
  ac_options="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ "$AC" == sel ]; then
  ac_options="--recompute-activations"
else
  ac_options=""
fi
DO=false
[[ $DO = true ]] && do_options="--use-distributed-optimizer"
"""
SIZES = """
SIZE=$1
case $SIZE in
  7B) TP=1;;
  70B) TP=8;;
  *) echo unknown; exit 1;;
esac
"""


def read(text: str, tmp_path: Path, gpus: int = 8) -> Configuration:
    file = tmp_path / "train.sh"
    file.write_text(text)
    return read_configuration(file, gpus)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", BASE),
        (BRANCHES, "${ac_options} ${do_options}", BASE),
        (BRANCHES.replace("AC=none", "AC=full"), "$ac_options",
         Parallelism(replicas=8, micro_batches=8, recompute="full")),
        (BRANCHES.replace("AC=none", "AC=sel"), "$ac_options",
         Parallelism(replicas=8, micro_batches=8, recompute="selective",
                     recompute_modules=("core_attn",))),
        ("TP=${TP:-2}\n: \"${MBS:=2}\"\n", "",
         Parallelism(replicas=4, tensor=2, micro_batches=8)),
        ("", "--tensor-model-parallel-size 4 --micro-batch-size 2",
         Parallelism(replicas=2, tensor=4, micro_batches=16)),
        ("TP=$((2 * 2))\nARGS=(--sequence-parallel)\nARGS+=(--use-distributed-optimizer)\n",
         '"${ARGS[@]}"', Parallelism(shards=2, tensor=4, sequence=True, zero=1, micro_batches=32)),
        (SIZES.replace("SIZE=$1", "SIZE=${1:-70B}"), "",
         Parallelism(tensor=8, micro_batches=64)),
        ("DP=$(expr 8 / 4)\nTP=`expr $DP \\* 2`\nCP=$(echo $TP)\n", "--micro-batch-size $CP",
         Parallelism(replicas=2, tensor=4, micro_batches=8)),
        ("MORE=$(cat <<EOF\n--use-distributed-optimizer\n--sequence-parallel\nEOF\n)\nTP=2\n",
         "$MORE", Parallelism(shards=4, tensor=2, sequence=True, zero=1, micro_batches=16)),
        ("source /opt/venv/bin/activate\n. ~/.bashrc\n", "$MORE", BASE),
        (". ./env.sh\nMORE=--use-distributed-optimizer\n", "$MORE --save $CHECKPOINT",
         Parallelism(shards=8, zero=1, micro_batches=8)),
        ("while [ $# -gt 0 ]; do TP=$2; shift; done\n", "", BASE),
        ("if nvidia-smi | grep -q H100; then EXTRA='--fp8-format hybrid'; fi\n", "$EXTRA", BASE),
        ("", "--checkpoint-activations",
         Parallelism(replicas=8, micro_batches=8, recompute="full")),
        ("", "--accumulate-allreduce-grads-in-fp32 --bf16", BASE),
        ("", "--activations-checkpoint-method uniform",
         Parallelism(replicas=8, micro_batches=8, recompute="full")),
    ],
)  # fmt: skip
def test_flags_of_scripts(tmp_path: Path, before: str, after: str, expected: Parallelism) -> None:
    assert read(f"#!/bin/bash\n{before}\n{LAUNCH}{after}\n", tmp_path).parallelism == expected


@pytest.mark.parametrize(
    ("script", "match"),
    [
        (LAUNCH.replace("${TP:-1}", "$TP"), r"--tensor-model-parallel-size: depends on \$TP"),
        (SIZES + LAUNCH, r"SIZE=\$1, which it compares with 7B, 70B.*SIZE=7B"),
        ("if [ -f /x ]; then A=--sequence-parallel; fi\n" + LAUNCH + "$A",
         r"--sequence-parallel: depends on \[ -f /x \]"),
        ('source "$(dirname $0)/conf.sh"\n' + LAUNCH + "$MODEL_ARGS",
         r"the launch: depends on \$MODEL_ARGS; .* unless conf.sh does, which is not read"),
        ("A=$(expr length 12)\n" + LAUNCH + "--seq-length $A", r"--seq-length: depends on"),
        ("for TP in 1 2; do\n" + LAUNCH + "\ndone", "1 in one command and 2 in another"),
        ("if true; then\n" + LAUNCH, "line"),
        (LAUNCH.replace("--tensor-model-parallel-size", "--tensor_model_parallel_size"),
         "--tensor_model_parallel_size: unknown flag: did you mean --tensor-model-parallel-size"),
        (LAUNCH + "--pipeline-model-parallel 2", "did you mean --pipeline-model-parallel-size"),
        (LAUNCH + "--sequence-parallel false", "--sequence-parallel: got 'false', and takes no"),
        (LAUNCH + "--deepspeed --zero-stage 3", "--deepspeed: no flag of Megatron-LM"),
        (LAUNCH + "--fsdp 'full_shard auto_wrap'", "--fsdp: no flag of Megatron-LM"),
    ],
)  # fmt: skip
def test_what_a_script_leaves_open_is_named(tmp_path: Path, script: str, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        read("#!/bin/bash\n" + script + "\n", tmp_path)


def test_a_script_in_a_script_is_followed(tmp_path: Path) -> None:
    launch = LAUNCH.replace("\\\n", "")
    for text in (
        f'TP=2\ncmd="{launch}"\necho $cmd\neval $cmd | tee log\n',
        f"export TP=2\nsrun --label bash -c '{launch}'\n",
        f"TP=2\nsbatch <<EOF\n#!/bin/bash\n{launch}\nEOF\n",
        f"TP=2\nrun() {{\n {launch} $@\n}}\nrun --seq-length 5\n",
    ):
        found = read("#!/bin/bash\n" + text, tmp_path)
        assert found.parallelism.tensor == 2, text


SCRIPT = r"""
x=3; y="a b"; z='$x'; w=$x$y; arr=(1 "2 3" $y); arr+=(last)
n=$((x * (2 + 4) % 7)); m=${missing:-d$x}; : "${kept:=v}"; p=${w%b}; q=${w#3}; r=${y/a/c}; s=${#y}
i=0; while [ $i -lt 4 ]; do i=$((i+1)); if [ $i = 3 ]; then break; fi; done
for f in $y "c d"; do t="$t|$f"; done
case $w in 4*) u=four;; 3*|5*) u=three;; *) u=none;; esac
if [[ $y == a* && ! -z $x ]] || false; then v=yes; else v=no; fi
say() { local k=$2; g="$1-$k-$#"; return 0; }; say one two
[ "$n" -eq 4 ] && h=equal || h=other
(x=9); e=$x
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_variables_are_those_of_bash() -> None:
    names = [
        "x",
        "y",
        "z",
        "w",
        "n",
        "m",
        "kept",
        "p",
        "q",
        "r",
        "s",
        "i",
        "t",
        "u",
        "v",
        "g",
        "h",
        "e",
    ]
    ends = SCRIPT + 'printf "%s\\n" ' + " ".join(f'"${name}"' for name in names) + ' "${arr[@]}"\n'
    ran = subprocess.run(["bash", "-c", ends], capture_output=True, text=True, check=True)
    found = commands_of(SCRIPT).variables
    words = [str(found[name]) for name in names]
    array = found["arr"]
    assert isinstance(array, list)
    assert [*words, *array] == ran.stdout.splitlines()


@pytest.mark.parametrize(
    "unit",
    ["(", "$(", "${a:-", "<<A\n", "if a; then ", "$((", "[[ ", "`", "a|", "{ ", "x=(", "a;",
     "x=$x$x$x\n", "! ", "a && ", "f() { f; f; }; f\n", '[[ "aaaaaaaaaa" == *a*a*a*a*b ]]\n',
     "if a; then x=1; fi\n", "i=0; while [ $i -lt 999 ]; do i=$((i+1)); done\n", '"\\"'],
)  # fmt: skip
def test_nothing_takes_long(unit: str) -> None:
    script = unit * (2**16 // len(unit))
    try:
        commands_of(script)
    except BadInput as error:
        assert len(str(error)) < 300
