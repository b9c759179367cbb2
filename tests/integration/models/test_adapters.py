"""Modules with adapters as peft builds them, beside the same model with an option."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwise.answers import plan  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.cost.options import Options  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute.adapters import adapt  # noqa: E402
from shardwise.execute.captured import Captured, capture_for, capture_module  # noqa: E402
from shardwise.graph import graph_id  # noqa: E402
from shardwise.graph.tuning import tuned  # noqa: E402
from shardwise.hardware import load_hardware  # noqa: E402

pytestmark = pytest.mark.torch


class LoraLayer(torch.nn.Module):
    """Written by hand after peft's `LoraLayer`: names of children, order of operators."""

    def __init__(self, base: Any, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(inputs, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, outputs, bias=False)})
        self.scaling = {"default": 2.0}

    def forward(self, x: Any) -> Any:
        result = self.base_layer(x)
        for name, down in self.lora_A.items():
            result = result + self.lora_B[name](down(x)) * self.scaling[name]
        return result


class Conv1D(torch.nn.Module):
    """The linear layer of GPT-2, with its weight the other way round."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Any) -> Any:
        shape = (*x.size()[:-1], self.bias.shape[0])
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class Block(torch.nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()

        def layer(base: Any, inputs: int, outputs: int) -> Any:
            return LoraLayer(base, inputs, outputs, rank) if rank else base

        self.norm = torch.nn.LayerNorm(16)
        self.up = layer(torch.nn.Linear(16, 32), 16, 32)
        self.down = layer(Conv1D(16, 32), 32, 16)
        self.out = layer(torch.nn.Linear(16, 16, bias=False), 16, 16)

    def forward(self, x: Any) -> Any:
        return x + self.out(self.down(torch.relu(self.up(self.norm(x)))))


class Stack(torch.nn.Module):
    def __init__(self, rank: int = 0) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 16)
        self.blocks = torch.nn.ModuleList([Block(rank) for _ in range(2)])
        self.head = torch.nn.Linear(16, 20)
        if rank:
            for path, parameter in self.named_parameters():
                parameter.requires_grad_("lora_" in path)

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def captured(module: Any) -> Captured:
    ids = torch.zeros(4, 6, dtype=torch.long)
    return capture_module(Model(module, (ids, ids)), "stack")


def test_a_module_with_adapters_is_captured_as_the_option_makes_them() -> None:
    written, made = captured(Stack(4)).graph, tuned(captured(Stack()).graph, "lora:4")
    assert written.operators == made.operators
    assert written.tensors == made.tensors
    assert graph_id(written) == graph_id(made)


def test_adapters_are_put_into_a_module() -> None:
    plain = captured(Stack())
    wanted = tuned(plain.graph, "lora:4:up,down")
    given = adapt(plain, "lora:4:up,down")
    assert capture_module(given, "stack").graph.tensors == wanted.tensors
    trained = [name for name, p in given.module.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 2 and all("lora_" in name for name in trained)
    ids = torch.zeros(4, 6, dtype=torch.long)
    # B is 0: nothing has changed yet.
    torch.manual_seed(0)
    before = Stack()
    expected = before(ids, ids)
    assert torch.equal(adapt(captured(before), "lora:4").module(ids, ids), expected)


def test_weights_in_few_bits_are_not_put_into_a_module() -> None:
    with pytest.raises(BadInput, match="priced and not run"):
        adapt(captured(Stack()), "qlora:4")


def test_what_a_module_does_not_train_is_frozen() -> None:
    module = Stack()
    module.table.requires_grad_(False)
    module.blocks[0].requires_grad_(False)
    graph = captured(module).graph
    frozen = {name for name, tensor in graph.tensors.items() if tensor.frozen}
    assert frozen == {n for n, p in module.named_parameters() if not p.requires_grad}


def test_a_plan_of_adapters_is_for_a_module_that_has_them() -> None:
    ids = torch.zeros(4, 6, dtype=torch.long)
    made = plan(captured(Stack()).graph, load_hardware("l4"), 2, options=Options(tune="lora:4"))
    assert made.tune == "lora:4:all-linear"
    assert capture_for(Stack(4), (ids, ids), made).graph.tensors
    with pytest.raises(BadInput, match="not the one that the plan was made for") as refused:
        capture_for(Stack(), (ids, ids), made)
    assert "with lora:4:all-linear" in str(refused.value.expected)
