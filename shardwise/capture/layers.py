"""Lists of layers in a module: which of them repeat, and the module with fewer of them.

Layers repeat with period p from layer s on if layer i+p is built as layer i for every i ≥ s: the
same classes, shapes, data types and plain attributes in all parts, except that whole numbers may be
higher by p (the layer's own number). No parameter or buffer of theirs may be shared. Lists of the
configuration with one item per layer (`layer_types`) count as attributes of the layers.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_PERIOD = 8
"""Layers of the longest period that is looked for; published models alternate up to every 8th."""

HEAD = 2
"""Whole periods that are traced before the layers that are left out."""

WORTHWHILE = 0.75
"""The share of the layers up to which tracing a part twice is faster than tracing them all."""

Traits = Mapping[str, Any]


@dataclass(frozen=True)
class RepeatedLayers:
    """The `count` layers at `path` (`model.layers`) have period `period` from layer `start` on."""

    path: str
    count: int
    start: int
    period: int

    def end_of_head(self, periods: int = HEAD) -> int:
        """Returns the number of the first layer that is left out if this many periods are kept."""
        return self.start + periods * self.period

    @property
    def tail(self) -> int:
        """How many of the last layers are kept: at least one, at most a period.

        What is left out are whole periods, so that every kept layer keeps its place in its period.
        """
        return (self.count - self.start - 1) % self.period + 1

    def kept(self, periods: int = HEAD) -> list[int]:
        """Returns the numbers of the layers of which a shorter module consists."""
        head = range(self.end_of_head(periods))
        return [*head, *range(self.count - self.tail, self.count)]


def find_repeated_layers(module: Any, worthwhile: float = WORTHWHILE) -> list[RepeatedLayers]:
    """Returns the outermost lists of repeated layers that are worth shortening.

    That is where both shorter forms (`HEAD` periods, and one more) have together at most
    `worthwhile` times the layers of the list.
    """
    held = Counter(
        id(tensor)
        for listed in (module.named_parameters, module.named_buffers)
        for _, tensor in listed(remove_duplicate=False)
    )
    return list(_search(module, "", (), held, worthwhile))


@contextlib.contextmanager
def shortened(module: Any, lists: Sequence[RepeatedLayers], periods: int = HEAD) -> Iterator[None]:
    """Leaves out the middle layers of each list within this context.

    What is set on modules meanwhile is taken back: transformers adds hooks to the layers that it
    finds when a model first runs, and those that are left out now need theirs later.
    """
    whole = []
    before = [(part, dict(vars(part)), part._forward_hooks.copy()) for part in module.modules()]
    try:
        for layers in lists:
            path, _, name = layers.path.rpartition(".")
            parent = module.get_submodule(path)
            all_layers = getattr(parent, name)
            whole.append((parent, name, all_layers))
            setattr(parent, name, type(all_layers)([all_layers[i] for i in layers.kept(periods)]))
        yield
    finally:
        for parent, name, all_layers in whole:
            setattr(parent, name, all_layers)
        for part, attributes, hooks in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._forward_hooks.clear()
            part._forward_hooks.update(hooks)


def _search(
    module: Any, path: str, configs: tuple[Any, ...], held: Counter[int], worthwhile: float
) -> Iterator[RepeatedLayers]:
    import torch

    config = getattr(module, "config", None)
    known = configs if config is None else (*configs, config)
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if type(child) is torch.nn.ModuleList:
            repeated = _repeated(child, inner, known, held)
            if repeated is not None and _traced(repeated) <= worthwhile * repeated.count:
                yield repeated
                continue
        yield from _search(child, inner, known, held, worthwhile)


def _repeated(
    layers: Any, path: str, configs: Sequence[Any], held: Counter[int]
) -> RepeatedLayers | None:
    """Returns the period and the start for which the fewest layers have to be traced."""
    count = len(layers)
    traits = [_traits(layer, number, count, configs) for number, layer in enumerate(layers)]
    alone = [_holds_alone(layer, held) for layer in layers]
    best: RepeatedLayers | None = None
    for period in range(1, min(LONGEST_PERIOD, count - 1) + 1):
        if best is not None and _traced(best) <= _traced(RepeatedLayers(path, count, 0, period)):
            break
        start = count - period
        while (
            start > 0
            and alone[start - 1]
            and _same(traits[start - 1], traits[start - 1 + period], period)
        ):
            start -= 1
        repeated = RepeatedLayers(path, count, start, period)
        if repeated.end_of_head(HEAD + 1) + repeated.tail <= count and all(alone[start:]):
            best = min(best or repeated, repeated, key=_traced)
    return best


def _traced(layers: RepeatedLayers) -> int:
    """Returns how many layers both shorter forms have together."""
    return len(layers.kept()) + len(layers.kept(HEAD + 1))


def _holds_alone(layer: Any, held: Counter[int]) -> bool:
    """Returns whether every parameter and buffer of the layer has one path in the whole module."""
    return all(held[id(t)] == 1 for listed in (layer.parameters, layer.buffers) for t in listed())


def _same(first: Traits, second: Traits, period: int) -> bool:
    return first.keys() == second.keys() and all(
        _agree(value, second[key], period) for key, value in first.items()
    )


def _agree(first: Any, second: Any, period: int) -> bool:
    if type(first) is int and type(second) is int and second - first == period:
        return True
    return type(first) is type(second) and bool(first == second)


def _traits(layer: Any, number: int, count: int, configs: Sequence[Any]) -> Traits:
    """Returns how a layer is built, by the path of each of its parts."""
    traits: dict[str, Any] = {}
    for path, module in layer.named_modules():
        traits[f"{path}:"] = type(module)
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                for name, tensor in value.items():
                    traits[f"{path}:{key}.{name}"] = _plain(tensor)
            elif key != "_modules":
                traits[f"{path}:{key}"] = _plain(value)
    for place, config in enumerate(configs):
        for key, value in vars(config).items():
            if isinstance(value, list | tuple) and len(value) == count:
                traits[f"config {place}:{key}"] = _plain(value[number])
    return traits


def _plain(value: Any) -> Any:
    """Returns what can be compared of an attribute: its value, or its kind."""
    import torch

    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    if value is None or isinstance(value, bool | int | str | torch.dtype):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((str(key), _plain(item)) for key, item in value.items())
    return getattr(value, "__qualname__", None) or type(value)
