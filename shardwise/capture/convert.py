"""Converts an ExportedProgram to a Graph.

The exported graph is walked once. Regions that only switch autograd or autocast are walked as if
inlined. Operators that leave a tensor unchanged (asserts, aliases, views to the same shape, casts
to the same dtype, dropout of nothing) are passed through. In-place operators become their
functional twins, and writes to buffers (running statistics) are dropped. At the end only what the
outputs need is kept.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

from shardwise.capture.assembled import assembled
from shardwise.capture.attributes import EmptyValue, TensorValue, bind, dtype_name
from shardwise.capture.converted import Converted
from shardwise.capture.model import Model, first_names
from shardwise.capture.mutation import functional_twin, written_arguments
from shardwise.capture.naming import Names, module_path, short_kind
from shardwise.errors import CaptureError
from shardwise.graph.graph import DTYPE_BYTES, Graph, Operator, Role, Tensor
from shardwise.graph.symbols import mark_batch

_IGNORED = frozenset(
    {
        "_assert_tensor_metadata",
        "_assert_async",
        "_assert_scalar",
        "sym_size",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    }
)
_SAME_IF_SHAPE = frozenset(
    {
        "alias",
        "view",
        "reshape",
        "expand",
        "slice",
        "contiguous",
        "flatten",
        "squeeze",
        "_unsafe_view",
        "view_as",
        "expand_as",
    }
)
_SAME_IF_DTYPE = frozenset({"to", "type_as", "lift_fresh_copy", "lift_fresh"})
_INLINED = {
    "wrap_with_set_grad_enabled": 1,
    "wrap_with_autocast": 4,
    "tag_activation_checkpoint": 0,
}
"""Higher-order operators that only wrap a region, and the position of the region's argument."""

_OPENED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "_native_batch_norm_legit_functional": ("batch_norm", (False,)),
    "native_dropout": ("dropout", ()),
}
"""What torch's functionalisation decomposes: the whole operator, and its further arguments.

The results after the first are new running statistics and the dropout mask.
"""


_LIKE_NOTHING = {
    "new_empty": "empty.memory_format",
    "new_zeros": "zeros.default",
    "new_ones": "ones.default",
    "new_full": "full.default",
}
"""Factories that read only a tensor's dtype: the same without the tensor, so that what they make
depends on no data.
"""


def to_graph(program: Any, model: Model, name: str) -> Graph:
    """Returns an exported model's graph; raises CaptureError for what has no static form."""
    return convert(program, model, name).graph


def convert(program: Any, model: Model, name: str) -> Converted:
    """Returns the graph and what its names stand for; raises like `to_graph`."""
    walker = _Walker(program, model)
    walker.read_inputs()
    outputs = walker.walk(program.graph_module)
    return walker.converted(outputs, walker.finish(outputs, name))


@dataclass
class _Recorded:
    operator: Operator
    outputs: tuple[Tensor, ...]


class _Walker:
    """One pass over the exported graph; `values` holds what each fx node stands for."""

    def __init__(self, program: Any, model: Model) -> None:
        self._program = program
        self._model = model
        self._names = Names(model.prefix)
        self._tensor_names = Names(model.prefix)
        self._tensors: dict[str, Tensor] = {}
        self._recorded: list[_Recorded] = []
        self._paths: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._inputs: list[str | None] = []

    def read_inputs(self) -> None:
        """Turns placeholders into parameters, buffers and inputs; shared parameters become one."""
        from torch.export.graph_signature import InputKind

        self._placeholders: list[Any] = []
        nodes = [n for n in self._program.graph.nodes if n.op == "placeholder"]
        given = iter(self._model.input_names)
        known: dict[str, str] = {}
        shared = first_names(self._model.module)
        roles: dict[Any, Role] = {
            InputKind.PARAMETER: "parameter",
            InputKind.BUFFER: "buffer",
            InputKind.CONSTANT_TENSOR: "buffer",
            InputKind.USER_INPUT: "input",
        }
        for node, spec in zip(nodes, self._program.graph_signature.input_specs, strict=True):
            value = node.meta.get("val")
            if not _is_tensor(value):
                self._placeholders.append(value)
                self._inputs.append(None)
                continue
            role = roles.get(spec.kind)
            if role is None:
                raise CaptureError(f"input {node.name} is a {spec.kind.name}, not a tensor")
            if role == "input":
                path = next(given, None) or node.name
            else:
                path = shared.get(spec.target, spec.target)
            if role == "input" or path not in known:
                name = self._tensor_names.unique(self._names.short(path))
                self._tensors[name] = _tensor(name, value, role)
                if spec.kind is InputKind.PARAMETER:
                    self._mark_frozen(name, path)
                known[path] = name
                if role == "input":
                    self._inputs.append(name)
                elif spec.kind is InputKind.CONSTANT_TENSOR:
                    self._constants[name] = self._program.constants[spec.target]
                else:
                    self._paths[name] = path
            self._placeholders.append(TensorValue(known[path]))
        self._tensors = mark_batch(self._tensors)

    def _mark_frozen(self, name: str, path: str) -> None:
        """Marks a parameter that the module does not train, though it could."""
        tensor = self._tensors[name]
        if tensor.differentiable and not self._model.module.get_parameter(path).requires_grad:
            self._tensors[name] = replace(tensor, frozen=True)

    def walk(self, module: Any, arguments: list[Any] | None = None) -> list[Any]:
        """Walks one graph module; returns what its output node returns, as a flat list."""
        import torch

        supplied = iter(self._placeholders if arguments is None else arguments)
        live = _live(module)
        values: dict[Any, Any] = {}
        roots: dict[Any, Any] = {}

        def look_up(node: Any) -> Any:
            return values[roots.get(node, node)]

        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(supplied)
            elif node.op == "get_attr":
                values[node] = self._attribute(module, node)
            elif node.op == "output":
                returned = torch.fx.node.map_arg(node.args[0], look_up)
                return list(returned) if isinstance(returned, list | tuple) else [returned]
            elif node in live:
                args = torch.fx.node.map_arg(node.args, look_up)
                kwargs = torch.fx.node.map_arg(node.kwargs, look_up)
                if written_arguments(node.target) == [0]:
                    # Later readers of the written tensor see the result.
                    root = roots.get(node.args[0], node.args[0])
                    values[root] = self._call(node, functional_twin(node.target), args, kwargs)
                    roots[node] = root
                else:
                    values[node] = self._call(node, node.target, args, kwargs)
        raise CaptureError("the exported graph has no output")

    def _attribute(self, module: Any, node: Any) -> Any:
        """Returns a submodule (of a wrapping operator) or a constant tensor."""
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not _is_tensor(value):
            return value
        path = self._tensor_names.unique(self._names.short(str(node.target)))
        self._tensors[path] = _tensor(path, value, "buffer")
        self._constants[path] = value
        return TensorValue(path)

    def _call(self, node: Any, target: Any, args: Any, kwargs: Any) -> Any:
        if target is operator.getitem:
            return args[0][args[1]]
        if target is None or not hasattr(target, "_schema"):
            return self._call_region(node, target, args)
        packet = str(target._schema.name).rpartition("::")[2]
        if packet in _IGNORED:
            return None
        value = node.meta.get("val")
        if _is_empty(value):
            return EmptyValue(tuple(value.shape))
        args = _without_empty(packet, node, args)
        passed = _passed_through(packet, node, args, kwargs, self._tensors)
        if passed is not None:
            return passed
        if packet == "split_with_sizes" and 0 in args[1]:
            return self._split(node, target, args, kwargs, value)
        if packet in _OPENED:
            import torch

            name, more = _OPENED[packet]
            whole = getattr(torch.ops.aten, name).default
            result = self._record(node, whole, (*args, *more), kwargs, value[0])
            return [result, *[None] * (len(value) - 1)]
        if packet in _LIKE_NOTHING:
            import torch

            target = getattr(torch.ops.aten, _LIKE_NOTHING[packet].partition(".")[0])
            target = getattr(target, _LIKE_NOTHING[packet].partition(".")[2])
            return self._record(node, target, args[1:], {**kwargs, "dtype": value.dtype}, value)
        return self._record(node, target, args, kwargs, value)

    def _split(self, node: Any, target: Any, args: Any, kwargs: Any, value: Any) -> list[Any]:
        """Returns the parts of a split, of which those without elements are none of the graph's."""
        source, sizes, *more = args
        full = [part for part in value if not _is_empty(part)]
        parts = [source]
        if len(full) > 1:
            kept = [size for size in sizes if size]
            parts = self._record(node, target, (source, kept, *more), kwargs, full)
        rest = iter(parts)
        return [EmptyValue(tuple(p.shape)) if _is_empty(p) else next(rest) for p in value]

    def _call_region(self, node: Any, target: Any, args: Any) -> Any:
        name = getattr(target, "_name", None) or getattr(target, "__name__", str(target))
        if name not in _INLINED:
            raise CaptureError(
                f"operator {name} cannot be captured{_line(node)}",
                expected="straight-line code: no torch.cond, while_loop or custom region",
            )
        place = _INLINED[name]
        return self.walk(args[place], list(args[place + 1 :]))

    def _record(self, node: Any, target: Any, args: Any, kwargs: Any, value: Any) -> Any:
        kind = str(target)
        scope, called = (self._names.short(path) for path in module_path(node.meta))
        name = self._names.unique(f"{called}.{short_kind(kind)}" if called else short_kind(kind))
        bound = bind(target, args, kwargs)
        values = list(value) if isinstance(value, list | tuple) else [value]
        outputs: list[Tensor] = []
        results: list[Any] = []
        several = isinstance(value, list | tuple)
        for place, item in enumerate(values):
            if not _is_tensor(item):
                if item is not None:
                    raise CaptureError(
                        f"operator {kind} makes a {type(item).__name__}, not a tensor{_line(node)}",
                        expected="a model whose control flow does not depend on tensor values",
                    )
                results.append(None)
                continue
            base = f"{name}.{place}" if several else name
            tensor = _tensor(self._tensor_names.unique(base), item, "activation", node)
            self._tensors[tensor.name] = tensor
            outputs.append(tensor)
            results.append(TensorValue(tensor.name))
        attributes = {**bound.attributes, "tensor_arguments": list(bound.roles)}
        op = Operator(name, kind, bound.tensors, tuple(t.name for t in outputs), attributes, scope)
        self._recorded.append(_Recorded(op, tuple(outputs)))
        return results if several else results[0]

    def finish(self, outputs: list[Any], name: str) -> Graph:
        """Marks the outputs, drops what they do not need, and keeps every parameter and input."""
        kept_outputs = self._user_outputs(outputs)
        needed = set(kept_outputs)
        kept: list[Operator] = []
        for op in reversed(assembled([one.operator for one in self._recorded], self._tensors)):
            if any(name in needed for name in op.outputs):
                needed.update(op.inputs)
                needed.update(op.outputs)
                kept.append(op)
        produced = {name for op in kept for name in op.outputs}
        tensors: dict[str, Tensor] = {}
        for tensor in self._tensors.values():
            if tensor.name not in needed and tensor.role not in ("parameter", "input"):
                continue
            role: Role = "output" if tensor.name in kept_outputs & produced else tensor.role
            tensors[tensor.name] = replace(tensor, role=role)
        return Graph(name, tensors, tuple(reversed(kept)))

    def converted(self, outputs: list[Any], graph: Graph) -> Converted:
        """Returns the graph with what its names stand for."""
        from torch.export.graph_signature import OutputKind

        wanted = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        specs = self._program.graph_signature.output_specs
        returned = [
            value.name if isinstance(value, TensorValue) else None
            for value, spec in zip(outputs, specs, strict=True)
            if spec.kind in wanted
        ]
        return Converted(graph, self._paths, self._constants, tuple(self._inputs), tuple(returned))

    def _user_outputs(self, outputs: list[Any]) -> set[str]:
        from torch.export.graph_signature import OutputKind

        specs = self._program.graph_signature.output_specs
        wanted = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
        names = {
            value.name
            for value, spec in zip(outputs, specs, strict=True)
            if isinstance(value, TensorValue) and spec.kind in wanted
        }
        if not names & {t.name for recorded in self._recorded for t in recorded.outputs}:
            raise CaptureError(
                "the model computes no tensor", expected="a forward pass that returns its loss"
            )
        return names


def _live(module: Any) -> set[Any]:
    """Returns the nodes that an output or an in-place operator needs, without asserts."""
    stack = [
        node
        for node in module.graph.nodes
        if node.op == "output" or (node.op == "call_function" and written_arguments(node.target))
    ]
    live = set(stack)
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in live:
                live.add(source)
                stack.append(source)
    return live


def _passed_through(
    packet: str, node: Any, args: Any, kwargs: Any, tensors: dict[str, Tensor]
) -> TensorValue | None:
    """Returns the input if the operator returns it unchanged."""
    source = args[0] if args else None
    value = node.meta.get("val")
    if packet == "slice_scatter" and isinstance(args[1], EmptyValue):
        return source if isinstance(source, TensorValue) else None
    if packet == "cat" and isinstance(source, list) and len(source) == 1:
        return source[0] if isinstance(source[0], TensorValue) else None
    if not isinstance(source, TensorValue) or not _is_tensor(value):
        return None
    tensor = tensors[source.name]
    same_dtype = tensor.dtype == dtype_name(value.dtype)
    same_shape = _is_static(value) and tensor.shape == tuple(value.shape)
    if packet in _SAME_IF_SHAPE or packet in _SAME_IF_DTYPE:
        return source if same_dtype and same_shape and not kwargs.get("copy") else None
    if packet in ("dropout", "feature_dropout", "alpha_dropout"):
        probability, training = (*args[1:], kwargs.get("p"), kwargs.get("train"))[:2]
        return source if probability == 0.0 or training is False else None
    return None


def _is_empty(value: Any) -> bool:
    """Returns whether an operator makes one tensor without elements."""
    return _is_tensor(value) and _is_static(value) and 0 in value.shape


def _without_empty(packet: str, node: Any, args: Any) -> Any:
    """Returns arguments without tensors that have no elements, which concatenation leaves out;
    written into a slice they change nothing (`_passed_through`).

    Raises CaptureError where another operator computes with one.
    """
    if packet == "slice_scatter" and isinstance(args[1], EmptyValue):
        return args
    if packet in ("cat", "concat", "concatenate") and isinstance(args[0], list | tuple):
        args = ([one for one in args[0] if not isinstance(one, EmptyValue)], *args[1:])
    for one in args:
        for part in one if isinstance(one, list | tuple) else (one,):
            if isinstance(part, EmptyValue):
                raise CaptureError(
                    f"operator {node.target} reads a tensor of shape {list(part.shape)}, which has "
                    f"no elements{_line(node)}",
                    expected="extents of at least 1",
                )
    return args


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_static(value: Any) -> bool:
    return all(isinstance(extent, int) for extent in value.shape)


def _tensor(name: str, value: Any, role: Role, node: Any = None) -> Tensor:
    where = _line(node) if node is not None else ""
    made_by = f"operator {node.target}: " if node is not None else ""
    if not _is_static(value):
        raise CaptureError(
            f"{made_by}{name} has a shape that depends on tensor values{where}",
            expected="a model whose shapes are static",
        )
    dtype = dtype_name(value.dtype)
    if dtype not in DTYPE_BYTES:
        raise CaptureError(
            f"{made_by}{name} has the dtype {dtype}{where}", expected=", ".join(DTYPE_BYTES)
        )
    if 0 in value.shape:
        raise CaptureError(
            f"{made_by}{name} has no elements{where}", expected="extents of at least 1"
        )
    return Tensor(name, tuple(int(e) for e in value.shape), dtype, role)


def _line(node: Any) -> str:
    """Returns ` at file.py, line 12`: the innermost line of the model that made the node."""
    frames = [
        line.strip()
        for line in str(node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File ") and "/torch/" not in line
    ]
    if not frames:
        return ""
    path, _, rest = frames[-1].removeprefix("File ").partition(", ")
    return f" at {path.strip(chr(34)).rpartition('/')[2]}, {rest.partition(',')[0]}"
