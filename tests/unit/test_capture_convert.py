"""Users' own models: what becomes of tied weights, in-place operators, regions and errors."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from shardwise.capture import capture
from shardwise.errors import CaptureError
from shardwise.graph import Graph, graph_id

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch

Build = Callable[..., Any]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Callable[[Build], str]:
    """Gives a function a place from which `package.module:callable` finds it."""

    def place(build: Build) -> str:
        module = types.ModuleType("users_model")
        module.build = build  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "users_model", module)
        return "users_model:build"

    return place


class Net(nn.Module):  # type: ignore[misc,name-defined]
    """A linear layer, then what the test is about, then a sum."""

    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(self.fc(x)).sum()


def net(body: Callable[[Any], Any]) -> Build:
    return lambda: (Net(body), (torch.zeros(2, 4),))


def kinds(graph: Graph) -> list[str]:
    return [op.kind.removeprefix("aten.") for op in graph.operators]


def test_names_roles_and_attributes(source: Callable[[Build], str]) -> None:
    graph = capture(source(net(lambda y: torch.nn.functional.gelu(y, approximate="tanh"))))
    assert kinds(graph) == ["linear.default", "gelu.default", "sum.default"]
    linear, gelu, total = graph.operators
    assert (linear.name, linear.scope) == ("fc.linear", "fc")
    assert linear.inputs == ("x", "fc.weight", "fc.bias")
    assert linear.attributes == {"tensor_arguments": ["input", "weight", "bias"]}
    assert gelu.attributes == {"tensor_arguments": ["self"], "approximate": "tanh"}
    assert total.attributes == {"tensor_arguments": ["self"], "dtype": None}
    roles = {name: tensor.role for name, tensor in graph.tensors.items()}
    assert roles == {
        "fc.weight": "parameter",
        "fc.bias": "parameter",
        "x": "input",
        "fc.linear": "activation",
        "gelu": "activation",
        "sum": "output",
    }
    assert graph.tensors["x"].batch_dim == 0
    assert graph.tensors["fc.linear"].shape == (2, 4)


def test_a_tied_weight_is_one_tensor(source: Callable[[Build], str]) -> None:
    class Tied(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x)).sum()

    def on_meta() -> Any:
        return Tied(), (torch.zeros(2, 4),)

    def with_data() -> Any:
        assert torch.zeros(1).item() == 0  # cannot be asked on the meta device
        return Tied(), {"x": torch.zeros(2, 4)}

    for build in (on_meta, with_data):
        graph = capture(source(build))
        assert graph.parameter_count == 16
        assert graph.operators[0].inputs == ("x", "a.weight")
        assert graph.operators[1].inputs[1] == "a.weight"


def test_inputs_that_are_one_object_stay_two(source: Callable[[Build], str]) -> None:
    class Difference(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return (a - b).sum()

    def build() -> Any:
        x = torch.zeros(2, 4)
        return Difference(), (x, x)

    assert capture(source(build)).operators[0].inputs == ("a", "b")


def test_in_place_operators_become_functional(source: Callable[[Build], str]) -> None:
    def body(y: Any) -> Any:
        y = y * 1.5
        y.mul_(2)
        alias = y
        y.add_(1)
        return alias

    graph = capture(source(net(body)))
    assert kinds(graph) == [
        "linear.default",
        "mul.Tensor",
        "mul.Tensor",
        "add.Tensor",
        "sum.default",
    ]
    for before, after in zip(graph.operators, graph.operators[1:], strict=False):
        assert after.inputs[0] == before.outputs[0]


def test_a_write_through_a_view_reaches_its_base(source: Callable[[Build], str]) -> None:
    def body(y: Any) -> Any:
        y = nn.functional.dropout(y * 1.5, 0.25)
        y[:, 0] = 0
        return y

    graph = capture(source(net(body)))
    assert "aten.dropout.default" in [op.kind for op in graph.operators]
    scatter = graph.operators[-2]
    assert scatter.kind == "aten.select_scatter.default"
    assert graph.operators[-1].inputs == scatter.outputs


@pytest.mark.parametrize("through_view", [False, True])
def test_running_statistics_are_not_written(
    source: Callable[[Build], str], through_view: bool
) -> None:
    class Normed(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Any) -> Any:
            y = torch.relu_(self.norm(x))
            if through_view:
                y[:, 0] = 1
            return y.sum()

    graph = capture(source(lambda: (Normed(), (torch.zeros(2, 3, 5, 5),))))
    norm = graph.operators[0]
    assert norm.kind == "aten.batch_norm.default"
    assert len(norm.outputs) == 1
    assert norm.attributes["training"] is True
    assert "num_batches_tracked" not in " ".join(graph.tensors)
    assert graph.operators[1].kind == "aten.relu.default"
    assert {t.role for t in graph.tensors.values() if "running" in t.name} == {"buffer"}


def test_regions_and_no_ops_disappear(source: Callable[[Build], str]) -> None:
    def body(y: Any) -> Any:
        with torch.no_grad():
            mask = torch.tanh(y)
        with torch.autocast("cpu", enabled=False):
            y = y * mask
        y = nn.functional.dropout(y, 0.0).contiguous().to(torch.float32).view(2, 4)
        unused = y.exp() + 1
        assert unused is not None
        return y

    assert kinds(capture(source(net(body)))) == [
        "linear.default",
        "tanh.default",
        "mul.Tensor",
        "sum.default",
    ]


def test_several_outputs_and_list_arguments(source: Callable[[Build], str]) -> None:
    def body(y: Any) -> Any:
        a, b, c = y.split([1, 2, 1], dim=1)
        values, _ = torch.max(torch.cat([c, a], dim=1), dim=1)
        return b.sum() + values.sum()

    graph = capture(source(net(body)))
    split, cat, largest = graph.operators[1:4]
    assert split.kind == "aten.split_with_sizes.default"
    assert split.attributes == {
        "tensor_arguments": ["self"],
        "split_sizes": [1, 2, 1],
        "dim": 1,
    }
    assert [graph.tensors[name].shape for name in split.outputs] == [(2, 1), (2, 2), (2, 1)]
    assert cat.inputs == (split.outputs[2], split.outputs[0])
    assert cat.attributes["tensor_arguments"] == ["tensors.0", "tensors.1"]
    assert len(largest.outputs) == 2
    assert graph.tensors[largest.outputs[1]].dtype == "int64"


def test_numbers_that_json_has_not(source: Callable[[Build], str]) -> None:
    def body(y: Any) -> Any:
        return y.masked_fill(y > 0, float("-inf"))[:, 1:]

    graph = capture(source(net(body)))
    by_kind = {op.kind: op for op in graph.operators}
    assert by_kind["aten.masked_fill.Scalar"].attributes["value"] == "-inf"
    assert by_kind["aten.slice.Tensor"].attributes["end"] is None
    graph_id(graph)


def test_calls_of_one_module_are_numbered(source: Callable[[Build], str]) -> None:
    class Twice(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.cell(self.cell(x)).sum()

    graph = capture(source(lambda: (Twice(), torch.zeros(2, 4))))
    assert [op.name for op in graph.operators] == ["cell.linear", "cell@1.linear", "sum"]
    assert [op.scope for op in graph.operators] == ["cell", "cell", ""]


def test_a_captured_graph_has_one_id(source: Callable[[Build], str]) -> None:
    place = source(net(torch.sigmoid))
    assert graph_id(capture(place)) == graph_id(capture(place))
    assert graph_id(capture(place)) != graph_id(capture(source(net(torch.tanh))))


def test_sizes_go_to_the_function(source: Callable[[Build], str]) -> None:
    def build(batch: int = 2, **more: int) -> Any:
        print("chatter")
        return Net(torch.tanh), (torch.zeros(batch, more.get("seq", 1), 4),)

    graph = capture(source(build), batch=6, seq=5, dtype="bf16", name="mine")
    assert graph.tensors["x"].shape == (6, 5, 4)
    assert graph.batch_size == 6
    assert {t.dtype for t in graph.tensors.values()} == {"bfloat16"}
    assert graph.name == "mine"
    with pytest.raises(CaptureError, match="takes no argument 'batch'"):
        capture(source(net(torch.tanh)), batch=6)


def test_what_a_model_prints_does_not_reach_stdout(
    source: Callable[[Build], str], capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> Any:
        print("chatter")
        return Net(torch.tanh), (torch.zeros(2, 4),)

    capture(source(build))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "chatter\n"


def test_evaluation_mode_is_left_except_where_it_was_chosen(
    source: Callable[[Build], str],
) -> None:
    class Dropped(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(self.fc(x)).sum()

    def evaluated() -> Any:
        return Dropped().eval(), (torch.zeros(2, 4),)

    def frozen() -> Any:
        module = Dropped()
        module.drop.eval()
        return module, (torch.zeros(2, 4),)

    assert "dropout.default" in kinds(capture(source(evaluated)))
    assert "dropout.default" not in kinds(capture(source(frozen)))


def branch(y: Any) -> Any:
    return y * 2 if y.sum() > 0 else y


@torch.library.custom_op("shardwise_test::opaque", mutates_args=())  # type: ignore[untyped-decorator]
def opaque(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
    return x.clone()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (branch, ["torch.export failed", "test_capture_convert.py", "y.sum() > 0", "control flow"]),
        (lambda y: y[y > 0], ["operator aten.index", "shape that depends on tensor values"]),
        (lambda y: y.nonzero(), ["operator aten.nonzero.default", "shapes are static"]),
        (lambda y: y * y.sum().item(), ["operator aten.item.default", "control flow"]),
        (opaque, ["shardwise_test::opaque", "register_fake"]),
        (lambda y: y @ y, ["torch.export failed", "test_capture_convert.py"]),
    ],
)
def test_what_cannot_be_exported_is_named(
    source: Callable[[Build], str],
    body: Callable[[Any], Any],
    words: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(source(net(body)))
    text = str(caught.value)
    assert text.startswith("users_model:build: ")
    for word in words:
        assert word in text
    assert "\n" not in text
    assert capfd.readouterr().err == ""


def fails() -> Any:
    raise KeyError("lost")


def leaves() -> Any:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (fails, "KeyError: 'lost'; at test_capture_convert.py"),
        (leaves, "SystemExit"),
        (lambda: 3, "an object of type int"),
        (lambda: (3, ()), "an object of type tuple"),
        (lambda: (nn.Linear(1, 1), 3), "inputs are of type int"),
        (lambda: (nn.Identity(), torch.zeros(2)), "computes no tensor"),
        (lambda: (nn.Linear(4, 4), torch.zeros(0, 4)), "has no elements"),
    ],
)
def test_a_function_that_builds_no_model(
    source: Callable[[Build], str], build: Build, words: str
) -> None:
    with pytest.raises(CaptureError, match="users_model:build: ") as caught:
        capture(source(build))
    assert words in str(caught.value)


def test_a_function_that_is_not_there(source: Callable[[Build], str]) -> None:
    source(fails)
    with pytest.raises(CaptureError, match="has no 'other'"):
        capture("users_model:other")
    with pytest.raises(CaptureError, match="cannot import no_such_module: ModuleNotFoundError"):
        capture("no_such_module:build")
