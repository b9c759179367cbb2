"""Sets that are joined: which items belong together (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Forest(Generic[Item]):
    """The sets as trees of parents; the item without another parent names its set."""

    def __init__(self) -> None:
        self._parent: dict[Item, Item] = {}

    def find(self, item: Item) -> Item:
        """Returns the item that names the set of this one."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item


class NamedSets(Forest[str]):
    """Union-find that remembers each set's members; the earliest member names the set."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._parent |= {name: name for name in names}
        self.order = {name: position for position, name in enumerate(self._parent)}
        self.members = {name: [name] for name in self._parent}

    def join(self, a: str, b: str) -> str:
        first, second = sorted((self.find(a), self.find(b)), key=self.order.__getitem__)
        if first != second:
            self._parent[second] = first
            self.members[first] += self.members.pop(second)
        return first


class VariableLinks(Forest[tuple[str, int]]):
    """Union-find over (operator, variable) and (tensor, dimension)."""

    def add(self, item: tuple[str, int]) -> None:
        self._parent.setdefault(item, item)

    def tie(self, variable: tuple[str, int], dimension: tuple[str, int]) -> None:
        # Both kinds of item share one name space; a dimension is marked as such.
        self.join(variable, ("tensor:" + dimension[0], dimension[1]))

    def join(self, a: tuple[str, int], b: tuple[str, int]) -> None:
        self.add(a)
        self.add(b)
        root_a, root_b = self.find(a), self.find(b)
        if root_a != root_b:
            self._parent[root_b] = root_a
