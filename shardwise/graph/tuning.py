"""What of a model is trained: all of it, or adapters beside frozen weights (LoRA, QLoRA).

    full                          every parameter
    lora:RANK[:TARGETS]           adapters of that rank on linear layers; all else is frozen
    lora-8bit:RANK[:TARGETS]      besides, the weights of linear layers are stored in 8 bits
    qlora:RANK[:TARGETS]          the same in 4 bits, nf4

An adapted layer computes y + s · B(A x), with A (rank, in) and B (out, rank) (Hu et al. 2021,
section 4.1). Operators and parameters are those that a module of peft is captured with: layer `q`
becomes `q.base_layer`, `q.lora_A.default` and `q.lora_B.default`, without dropout.

TARGETS is `all-linear`, every linear layer but the last, which makes the output (QLoRA, section 4;
peft's `all-linear`, axolotl's `lora_target_linear`, LLaMA-Factory's `all`); `attention`, those of
attention alone; or names between commas, as peft's `target_modules`, in which * stands for any
letters. Of what is stored in few bits are the weights of all linear layers but the last, whichever
are adapted, as in bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from shardwise.errors import BadInput
from shardwise.graph.document import graph_id
from shardwise.graph.graph import Graph, Operator, Tensor

FULL, LORA, LORA_8BIT, QLORA = KINDS = ("full", "lora", "lora-8bit", "qlora")
ALL_LINEAR, ATTENTION = "all-linear", "attention"
_STORED = {LORA_8BIT: "int8", QLORA: "nf4"}
SCALING = 2.0
"""Alpha over rank, as in torchtune's recipes for Llama 3 (rank 8, alpha 16). It costs the same
whatever it is."""
MOST_RANK = 2**16
MOST_TEXT = 500
FORM = "full, or lora:RANK, lora-8bit:RANK or qlora:RANK with :all-linear, :attention or :NAMES"

_WEIGHTS = {"aten.linear.default": 1, "aten.addmm.default": 2, "aten.mm.default": 1}
"""The position of the weight among the inputs of what linear layers compute."""


@dataclass(frozen=True)
class Tuning:
    """What is trained; `rank` and `targets` are of adapters."""

    kind: str = FULL
    rank: int = 0
    targets: str = ALL_LINEAR

    def __str__(self) -> str:
        return self.kind if self.kind == FULL else f"{self.kind}:{self.rank}:{self.targets}"


def parse_tuning(text: str, field: str = "tune") -> Tuning:
    """Returns what the text says. Raises `BadInput` for one that has another form."""
    kind, _, rest = text.partition(":")
    rank, colon, targets = rest.partition(":")
    if kind not in KINDS or (kind == FULL) != (text == FULL) or len(text) > MOST_TEXT:
        raise BadInput(f"unknown tuning {text[:80]!r}", field=field, expected=FORM)
    if kind == FULL:
        return Tuning()
    if not rank.isascii() or not rank.isdecimal() or not 1 <= int(rank[:9]) <= MOST_RANK:
        raise BadInput(
            f"a rank of {rank[:20]!r}", field=field, expected=f"a whole number, 1 to {MOST_RANK}"
        )
    if colon and not all(name.strip() for name in targets.split(",")):
        raise BadInput(f"targets {targets[:80]!r}", field=field, expected=FORM)
    return Tuning(kind, int(rank), targets or ALL_LINEAR)


@dataclass(frozen=True)
class Layer:
    """A linear layer: the operators of one module, of which `product` multiplies by `weight`."""

    scope: str
    operators: tuple[Operator, ...]
    product: Operator
    weight: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.scope.rpartition(".")[2]


def tuned(graph: Graph, tune: str) -> Graph:
    """Returns the graph that trains what the option says, unchanged if it does already.

    Raises `BadInput` if it has no linear layer, or none that the targets name.
    """
    tuning = parse_tuning(tune)
    if tuning.kind == FULL or graph.tuning == str(tuning):
        return graph
    layers = linear_layers(graph)
    adapted = targets_of(graph, layers, tuning)
    stored = {layer.weight for layer in layers} if tuning.kind in _STORED else set[str]()
    frozen = {
        name: replace(
            tensor,
            frozen=tensor.role == "parameter" and tensor.differentiable,
            stored=_STORED[tuning.kind] if name in stored else tensor.stored,
        )
        for name, tensor in graph.tensors.items()
    }
    made = _Adapting(Graph(graph.name, frozen, graph.operators), tuning.rank)
    count = sum(made.adapt(layer) for layer in adapted)
    if not count:
        raise BadInput(
            f"no layer of {graph.name} that {tuning.targets[:80]} names reads and makes one tensor",
            field="tune",
            expected="other layers",
        )
    return replace(made.graph(), tuning=str(tuning), untuned=graph_id(graph))


def tuning_text(graph: Graph) -> str:
    """Returns text such as `LoRA of rank 16 on all linear layers: 0.5 % of parameters train`; no
    text of a graph of which all parameters train."""
    # Stages of pipelines have copies of what is read at both ends of a model.
    parameters = [
        tensor
        for name, tensor in graph.tensors.items()
        if tensor.role == "parameter" and tensor.differentiable and " (copy " not in name
    ]
    total = sum(tensor.elements for tensor in parameters)
    trained = sum(tensor.elements for tensor in parameters if tensor.trains)
    if trained == total:
        return ""
    share = f"{100 * trained / total:.2g} % of parameters train"
    if not graph.tuning:
        return share
    tuning = parse_tuning(graph.tuning)
    named = {ALL_LINEAR: "all linear layers", ATTENTION: "the linear layers of attention"}
    where = named.get(tuning.targets, tuning.targets.replace(",", ", "))
    kind = {LORA: "LoRA", LORA_8BIT: "LoRA in 8 bits", QLORA: "QLoRA"}[tuning.kind]
    return f"{kind} of rank {tuning.rank} on {where}: {share}"


def linear_layers(graph: Graph) -> list[Layer]:
    """Returns the linear layers of a graph but the last, in its order.

    A weight that something else reads too, as a tied embedding, belongs to no layer.
    """
    of_scope: dict[str, list[Operator]] = {}
    for op in graph.operators:
        of_scope.setdefault(op.scope, []).append(op)
    products = [op for op in graph.operators if _weight(op, graph) is not None]
    layers = []
    for op in products[:-1]:
        weight, own = _weight(op, graph), of_scope[op.scope]
        alone = sum(_weight(other, graph) is not None for other in own) == 1
        if weight is not None and op.scope and alone and len(graph.consumers[weight]) == 1:
            layers.append(Layer(op.scope, tuple(own), op, weight))
    return layers


def targets_of(graph: Graph, layers: Sequence[Layer], tuning: Tuning) -> list[Layer]:
    """Returns the layers that get adapters. Raises `BadInput` where there are none."""
    if not layers:
        raise BadInput(
            f"{graph.name} has no linear layer before its output", field="tune", expected=FULL
        )
    if tuning.targets == ALL_LINEAR:
        return list(layers)
    if tuning.targets == ATTENTION:
        around = {op.scope for op in graph.operators if "attention" in op.kind}
        chosen = [layer for layer in layers if layer.scope.rpartition(".")[0] in around]
    else:
        patterns = [name.strip() for name in tuning.targets.split(",")]
        chosen = [layer for layer in layers if any(_named(layer, one) for one in patterns)]
    if not chosen:
        names = ", ".join(dict.fromkeys(layer.name for layer in layers))
        raise BadInput(
            f"{tuning.targets[:80]} names no linear layer of {graph.name}",
            field="tune",
            expected=f"{ALL_LINEAR}, {ATTENTION}, or some of {names[:400]}",
        )
    return chosen


def _named(layer: Layer, pattern: str) -> bool:
    return fnmatchcase(layer.scope, pattern) or fnmatchcase(layer.scope, f"*.{pattern}")


def _weight(op: Operator, graph: Graph) -> str | None:
    """Returns the matrix of parameters that an operator multiplies by."""
    place = _WEIGHTS.get(op.kind)
    name = None if place is None or place >= len(op.inputs) else op.inputs[place]
    if name is None:
        return None
    tensor = graph.tensors[name]
    return name if tensor.role == "parameter" and len(tensor.shape) == 2 else None


class _Adapting:
    """A graph that gets adapters, layer by layer."""

    def __init__(self, graph: Graph, rank: int) -> None:
        self._graph, self._rank = graph, rank
        self._renamed: dict[str, str] = {}
        self._after: dict[str, list[Tensor]] = {}
        self._scopes: dict[str, str] = {}
        self._added: dict[str, list[Operator]] = {}
        self._sums: dict[str, str] = {}
        self._place = {name: place for place, name in enumerate(graph.tensors)}

    def adapt(self, layer: Layer) -> bool:
        """Adds the adapters of a layer and returns whether it has any: layers that read or make
        several tensors have none."""
        tensors, scope = self._graph.tensors, layer.scope
        made = [name for op in layer.operators for name in op.outputs]
        read = [
            name
            for op in layer.operators
            for name in op.inputs
            if name not in made and tensors[name].role not in ("parameter", "buffer")
        ]
        results = [name for name in made if self._leaves(name, layer)]
        if len(set(read)) != 1 or len(results) != 1:
            return False
        source, result = read[0], results[0]
        self._scopes[scope] = f"{scope}.base_layer"
        own = [name for op in layer.operators for name in op.inputs]
        parameters = [name for name in dict.fromkeys(own) if tensors[name].role == "parameter"]
        for name in (*made, *parameters):
            self._renamed[name] = _inside(name, scope)
        here, there = tensors[source], tensors[result]
        down, up = (f"{scope}.lora_{letter}.default" for letter in "AB")
        wide, narrow = there.shape, (*there.shape[:-1], self._rank)
        dtype = tensors[layer.weight].dtype
        last = max(parameters, key=self._place.__getitem__)
        self._after[last] = [
            Tensor(f"{down}.weight", (self._rank, here.shape[-1]), dtype, "parameter"),
            Tensor(f"{up}.weight", (wide[-1], self._rank), dtype, "parameter"),
        ]
        names = (f"{down}.linear", f"{up}.linear", f"{scope}.mul", f"{scope}.add")
        shapes = (narrow, wide, wide, wide)
        role = there.role
        self._after[result] = [
            Tensor(name, shape, there.dtype, role if name == names[-1] else "activation")
            for name, shape in zip(names, shapes, strict=True)
        ]
        self._sums[result] = names[-1]
        linear, both = "aten.linear.default", ["self", "other"]
        weights = {"tensor_arguments": ["input", "weight"]}
        scale = {"other": SCALING, "tensor_arguments": ["self"]}
        added = {"alpha": 1, "tensor_arguments": both}
        self._added[layer.operators[-1].name] = [
            Operator(names[0], linear, (source, f"{down}.weight"), names[:1], weights, down),
            Operator(names[1], linear, (names[0], f"{up}.weight"), names[1:2], weights, up),
            Operator(names[2], "aten.mul.Tensor", names[1:2], names[2:3], scale, scope),
            Operator(
                names[3], "aten.add.Tensor", (self._renamed[result], names[2]), names[3:], added,
                scope,
            ),
        ]  # fmt: skip
        return True

    def _leaves(self, name: str, layer: Layer) -> bool:
        inside = {op.name for op in layer.operators}
        readers = {op.name for op in self._graph.consumers[name]}
        return bool(readers - inside) or self._graph.tensors[name].role == "output"

    def graph(self) -> Graph:
        """Returns the graph with all adapters."""
        return Graph(self._graph.name, dict(self._tensors()), tuple(self._operators()))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._graph.tensors.items():
            shown = self._renamed.get(name, name)
            role = "activation" if name in self._sums else tensor.role
            yield shown, replace(tensor, name=shown, role=role)
            for other in self._after.get(name, ()):
                # An adapter may read what another one makes.
                yield other.name, other

    def _operators(self) -> Iterator[Operator]:
        for op in self._graph.operators:
            scope = self._scopes.get(op.scope)
            yield replace(
                op,
                name=op.name if scope is None else _inside(op.name, op.scope),
                inputs=tuple(self._read(name, op) for name in op.inputs),
                outputs=tuple(self._renamed.get(name, name) for name in op.outputs),
                scope=scope or op.scope,
            )
            for place, added in enumerate(self._added.get(op.name, ())):
                # What the first reads may have got an adapter itself.
                first, *others = added.inputs
                source = first if place else self._sums.get(first, first)
                yield replace(added, inputs=(source, *others))

    def _read(self, name: str, op: Operator) -> str:
        """Returns what an operator reads: of its own layer what that has made, of others the sum
        with their adapters."""
        maker = self._graph.producer.get(name)
        if name in self._sums and maker is not None and maker.scope != op.scope:
            return self._sums[name]
        return self._renamed.get(name, name)


def _inside(name: str, scope: str) -> str:
    """Returns a name of a layer as that of the layer inside its adapters."""
    head = f"{scope}."
    return f"{scope}.base_layer.{name.removeprefix(head)}" if name.startswith(head) else name
