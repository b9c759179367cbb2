"""Blocks: the operators of a graph by module, repeated blocks folded; what a person can read.

1. A **unit** is a module that is worth a line of its own: a leaf with parameters, or a module
   that is not taken apart. Taken apart are the root, containers of more than `SMALL` operators
   (unless they are an item of a list, such as `down.0`) or between whose modules others run, and
   modules in which others repeat.
2. Operators between units (activations, pooling, additions of the model's own code) belong to the
   unit that made their latest input; heavy ones are units of their own, and so is what makes an
   output.
3. Units in the order of their first operators are folded where a sequence of up to `PERIOD` units
   repeats with the same operators and shapes (the layers of a transformer, pairs of Swin blocks),
   and where the picture would still be longer than `MANY` blocks, whatever the shapes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import OperatorSemantics

SMALL = 8
PERIOD = 4
MANY = 30


@dataclass(frozen=True)
class Sums:
    """Sums over some operators: elements of parameters (each counted where it is first read), bytes
    of activations kept for backward, flops of forward and backward, and how many operators have no
    description, so that their flops are not known."""

    parameters: int
    kept_bytes: int
    flops: float
    unknown: int


@dataclass(frozen=True)
class Part:
    """One line of a block: a module within it."""

    name: str
    kinds: str
    sums: Sums


@dataclass(frozen=True)
class Block:
    """`count` repetitions of the same modules; `sums` of all of them, `parts` of the first.

    `alike` is false where the repetitions have the same operators in different sizes.
    """

    title: str
    count: int
    alike: bool
    kinds: str
    parts: tuple[Part, ...]
    operators: tuple[Operator, ...]
    sums: Sums


@dataclass(frozen=True)
class Flow:
    """The largest tensor that goes from one block to a later one, by their positions."""

    source: int
    target: int
    label: str


@dataclass
class _Node:
    path: str
    own: list[int] = field(default_factory=list)
    children: dict[str, _Node] = field(default_factory=dict)

    def all(self) -> Iterator[int]:
        yield from self.own
        for child in self.children.values():
            yield from child.all()


@dataclass
class _Unit:
    path: str
    operators: list[int]


def fold(
    graph: Graph, semantics: Mapping[str, OperatorSemantics], kept: frozenset[str]
) -> tuple[list[Block], list[Flow]]:
    """Returns the blocks of a graph in order, and what flows between them.

    `kept` are tensor names.
    """
    units = _assign(graph, semantics, _units(graph))

    def exact(unit: _Unit) -> tuple[object, ...]:
        return _signature(graph, unit, shapes=True)

    runs = _tandems(units, exact)
    if len(runs) > MANY:
        runs = _tandems(units, lambda u: _signature(graph, u, shapes=False))
    sums = _Summing(graph, semantics, kept)
    blocks = []
    for run, period in runs:
        alike = all(exact(unit) == exact(run[i % period]) for i, unit in enumerate(run))
        blocks.append(_block(graph, run, period, alike, sums))
    return blocks, _flows(graph, blocks)


def _units(graph: Graph) -> list[_Unit]:
    root = _Node("")
    for number, op in enumerate(graph.operators):
        node = root
        for name in filter(None, op.scope.split(".")):
            path = f"{node.path}.{name}" if node.path else name
            node = node.children.setdefault(name, _Node(path))
        node.own.append(number)
    return list(_taken_apart(graph, root))


def _taken_apart(graph: Graph, node: _Node) -> Iterator[_Unit]:
    if node.path and not _worth_opening(graph, node):
        yield _Unit(node.path, sorted(node.all()))
        return
    if node.own:
        yield _Unit("", sorted(node.own))
    for child in node.children.values():
        yield from _taken_apart(graph, child)


def _worth_opening(graph: Graph, node: _Node) -> bool:
    if not node.children:
        return False
    numbers = sorted(node.all())
    if not node.own and numbers[-1] - numbers[0] >= len(numbers):
        return True  # others run between its modules: the upward path of a U-Net
    numbered = node.path.rpartition(".")[2].isdecimal()
    if not node.own and not numbered and len(numbers) > SMALL:
        return True
    return any(_repeats(graph, child) for child in _descendants(node))


def _descendants(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.children.values():
        yield from _descendants(child)


def _repeats(graph: Graph, node: _Node) -> bool:
    """Returns whether modules of the same operators, with modules of their own, are items of a list
    here."""
    listed = [c for name, c in node.children.items() if name.isdecimal() and c.children]
    signatures = Counter(
        _signature(graph, _Unit(c.path, sorted(c.all())), shapes=False) for c in listed
    )
    return any(count > 1 for count in signatures.values())


def _assign(
    graph: Graph, semantics: Mapping[str, OperatorSemantics], units: list[_Unit]
) -> list[_Unit]:
    """Applies rule 2: operators outside of units join the unit of their latest input."""
    home: dict[int, _Unit] = {}
    loose: set[int] = set()
    for unit in units:
        reads = any(
            graph.tensors[name].role == "parameter"
            for i in unit.operators
            for name in graph.operators[i].inputs
        )
        if unit.path and (reads or len(unit.operators) > SMALL):
            home.update(dict.fromkeys(unit.operators, unit))
        else:
            loose.update(unit.operators)
    number = {op.name: i for i, op in enumerate(graph.operators)}
    waiting: list[int] = []
    for i in sorted(loose):
        op = graph.operators[i]
        made_by = (graph.producer.get(name) for name in op.inputs)
        sources = [number[p.name] for p in made_by if p is not None and number[p.name] in home]
        ends = any(graph.tensors[name].role == "output" for name in op.outputs)
        if ends or (semantics[op.name].category == "heavy" and sources):
            home[i] = _Unit(op.scope or op.name, [])
        elif sources:
            home[i] = home[max(sources)]
        else:
            waiting.append(i)  # made of inputs and constants alone: goes to its reader
    shared: dict[str, _Unit] = {}
    for i in reversed(waiting):
        readers = [c for name in graph.operators[i].outputs for c in graph.consumers[name]]
        homes = {id(home[number[c.name]]): home[number[c.name]] for c in readers}
        scope = graph.operators[i].scope or "inputs"
        # What several units read (an attention mask) belongs to none of them.
        home[i] = (
            shared.setdefault(scope, _Unit(scope, []))
            if len(homes) > 1
            else next(iter(homes.values()), _Unit(scope, []))
        )
    result: dict[int, _Unit] = {}
    first: dict[int, int] = {}
    for i in sorted(home):
        unit = result.setdefault(id(home[i]), _Unit(home[i].path, []))
        unit.operators.append(i)
        if i not in loose or id(home[i]) not in first:
            first[id(home[i])] = min(first.get(id(home[i]), i), i)
    own = {key: _first_own(result[key], loose) for key in result}
    return [result[key] for key in sorted(result, key=own.__getitem__)]


def _first_own(unit: _Unit, loose: set[int]) -> int:
    return min((i for i in unit.operators if i not in loose), default=unit.operators[0])


def _signature(graph: Graph, unit: _Unit, shapes: bool) -> tuple[object, ...]:
    def shape(names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(graph.tensors[n].shape for n in names) if shapes else ()

    ops = [graph.operators[i] for i in unit.operators]
    return tuple(
        (op.kind, op.scope.removeprefix(unit.path), shape(op.inputs), shape(op.outputs))
        for op in ops
    )


def _tandems(
    units: list[_Unit], signature: Callable[[_Unit], tuple[object, ...]]
) -> list[tuple[list[_Unit], int]]:
    """Returns runs of units with their period: [a b a b a b c] is [(a b a b a b, 2), (c, 1)]."""
    marks = [hash(signature(unit)) for unit in units]
    runs: list[tuple[list[_Unit], int]] = []
    at = 0
    while at < len(units):
        period, times = max(
            ((p, _times(marks, at, p)) for p in range(1, PERIOD + 1)),
            key=lambda candidate: (
                candidate[0] * candidate[1] if candidate[1] > 1 else 1,
                -candidate[0],
            ),
        )
        length = period * times if times > 1 else 1
        runs.append((units[at : at + length], period if times > 1 else 1))
        at += length
    return runs


def _times(marks: list[int], at: int, period: int) -> int:
    pattern = marks[at : at + period]
    times = 1
    while marks[at + times * period : at + (times + 1) * period] == pattern:
        times += 1
    return times if len(pattern) == period else 1


class _Summing:
    """Sums of operators; a parameter counts where it is first read."""

    def __init__(
        self, graph: Graph, semantics: Mapping[str, OperatorSemantics], kept: frozenset[str]
    ) -> None:
        self._semantics = semantics
        self._parameters: dict[str, int] = defaultdict(int)
        self._kept: dict[str, int] = {}
        seen: set[str] = set()
        for op in graph.operators:
            for name in op.inputs:
                if graph.tensors[name].role == "parameter" and name not in seen:
                    seen.add(name)
                    self._parameters[op.name] += graph.tensors[name].elements
            self._kept[op.name] = sum(graph.tensors[n].size_bytes for n in op.outputs if n in kept)

    def of(self, operators: Sequence[Operator]) -> Sums:
        return Sums(
            sum(self._parameters[op.name] for op in operators),
            sum(self._kept[op.name] for op in operators),
            sum(
                self._semantics[op.name].forward_flops + self._semantics[op.name].backward_flops
                for op in operators
            ),
            sum(not self._semantics[op.name].described for op in operators),
        )


def _block(graph: Graph, run: list[_Unit], period: int, alike: bool, sums: _Summing) -> Block:
    count = len(run) // period
    first = run[:period]
    operators = [graph.operators[i] for unit in run for i in sorted(unit.operators)]
    one = [graph.operators[i] for unit in first for i in unit.operators]
    return Block(
        _title([unit.path for unit in run], [unit.path for unit in first]),
        count,
        alike,
        kinds_line(one),
        tuple(_parts(graph, first, sums)),
        tuple(operators),
        sums.of(operators),
    )


def _parts(graph: Graph, units: list[_Unit], sums: _Summing) -> Iterator[Part]:
    lines: dict[str, list[Operator]] = {}
    for unit in units:
        for i in unit.operators:
            op = graph.operators[i]
            below = op.scope.removeprefix(unit.path).lstrip(".").partition(".")[0]
            inside = op.scope.startswith(unit.path)
            tail = unit.path.rpartition(".")[2]
            name = below if inside and below else ""
            if len(units) > 1:
                name = f"{tail}.{name}" if name else tail
            lines.setdefault(name, []).append(op)
    named = [name for name in lines if name]
    if len(named) < 2:
        return
    for name, ops in lines.items():
        yield Part(name or "own", kinds_line(ops), sums.of(ops))


def kinds_line(operators: Sequence[Operator]) -> str:
    """Returns `2 layer_norm, 4 linear, attention`: products first, then the most frequent kinds."""
    counts = Counter(op.kind.partition(".")[2].partition(".")[0].strip("_") for op in operators)
    rank = {name: (name not in _TELLING, -count) for name, count in counts.items()}
    names = sorted(counts, key=lambda name: (*rank[name], name))
    return ", ".join(f"{counts[n]} {n}" if counts[n] > 1 else n for n in names)


_TELLING = frozenset(
    (
        *("linear", "addmm", "matmul", "bmm", "mm", "einsum", "embedding", "conv1d", "conv2d"),
        *("conv3d", "conv_transpose2d", "scaled_dot_product_attention", "expert_linear"),
        *("sink_attention", "selective_scan", "chunk_scan", "gated_delta_rule"),
        *("cross_entropy_loss", "layer_norm", "rms_norm", "batch_norm"),
        *("Conv", "Gemm", "MatMul"),
    )
)


def _title(paths: list[str], first: list[str]) -> str:
    """Returns `transformer.h.0 … 11`, or `layers.2.blocks.0-1 … 16-17`."""
    if len(paths) == 1:
        return paths[0]
    head, _, start = first[0].rpartition(".")
    end = paths[-1].rpartition(".")[2]
    if len(first) > 1:
        start = f"{start} + {first[-1].rpartition('.')[2]}"
    title = f"{start} … {end}" if len(paths) > len(first) else start
    return f"{head}.{title}" if head else title


def _flows(graph: Graph, blocks: list[Block]) -> list[Flow]:
    home = {op.name: i for i, block in enumerate(blocks) for op in block.operators}
    largest: dict[tuple[int, int], str] = {}
    for op in graph.operators:
        for name in op.inputs:
            made_by = graph.producer.get(name)
            if made_by is None or home[made_by.name] == home[op.name]:
                continue
            between = (home[made_by.name], home[op.name])
            known = largest.get(between)
            if known is None or graph.tensors[name].elements > graph.tensors[known].elements:
                largest[between] = name
    return [
        Flow(a, b, f"{list(graph.tensors[name].shape)} {graph.tensors[name].dtype}")
        for (a, b), name in sorted(largest.items())
    ]
