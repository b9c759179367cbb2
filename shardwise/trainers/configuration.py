"""A trainer's configuration as it was read, and how its fields are checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.near import near
from shardwise.trainers.interpolation import unresolved

LARGEST = 2**30
"""The largest number that a configuration may have."""

MOST_UNREAD = 40
_MISSPELT = 0.88
"""The likeness from which an unknown key counts as a known one misspelt."""

_MOST_DIGITS = 12
"""Those of a number that is compared with its limits."""

ON_GPU = "priced with parameters and states on the GPU"
"""What is said of offloading."""

_NOT_PRICED = "1: this kind of parallelism is not priced from such a file yet"


@dataclass(frozen=True)
class NamedModel:
    """The model that a file names, with a name of its own or by its sizes.

    `config` is the class of transformers that has these `fields`, empty where none is known here;
    `missing` says what the file would have to give besides.
    """

    name: str = ""
    config: str = ""
    fields: Mapping[str, int | bool] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class Launched:
    """The devices that a file launches, on how many nodes if it says so, and by which fields."""

    devices: int
    nodes: int | None
    fields: str


@dataclass(frozen=True)
class Configuration:
    """What a trainer's file says of a step.

    A reader may give the parallelism in any form; `read_configuration` makes it canonical.
    `batch` is in samples of a whole step, `sequence_length` in tokens; None where the file does not
    say. `unread` says in plain words what in the file has no part in the rest. With `stages` above
    1 it is a pipeline of equal layers under `schedule`, but for the first and the last stage of all
    where `ends` has their layers, or `less` how many fewer they have than those between, and
    `parallelism` is that of each stage.
    Where devices have several stages, the file says how many, `stages_per_rank`, or how many layers
    each has, `layers_per_stage`; `stages` counts groups of devices.

    `stated` are options of the step that the file sets, by the name and value of ours. `left_out`
    says what changes memory or time in the trainer and is priced otherwise here, `model` which
    sizes the file gives its model, by their names in `shardwise.trainers.model_sizes`, `named` what
    a graph of that model is captured from, `launched` the devices that it names.
    """

    trainer: str
    parallelism: Parallelism
    batch: int | None
    sequence_length: int | None
    unread: list[str] = field(default_factory=list)
    stages: int = 1
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    layers_per_stage: int | None = None
    ends: tuple[int, int] | None = None
    less: tuple[int, int] | None = None
    stated: Mapping[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    model: Mapping[str, int] = field(default_factory=dict)
    named: NamedModel = field(default_factory=NamedModel)
    launched: Launched | None = None


class Section:
    """One mapping of a file, whose members are read one by one; `path` names it in errors."""

    def __init__(self, value: Any, path: str = "", known: Collection[str] = ()) -> None:
        """`known` are all keys that the trainer takes here, to find misspelt ones; () for any.

        Raises `BadInput` for what is not a mapping, and for a misspelt key.
        """
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise BadInput(f"got {type(value).__name__}", field=path or None, expected="a mapping")
        self._value = value
        self._path = path
        self._read: set[str] = set()
        self._looked_for: set[str] = set()
        self._inner: dict[str, Section] = {}
        for key in value if known else ():
            _check_spelling(str(key), self._named(str(key)), known)

    def section(self, key: str, known: Collection[str] = ()) -> Section:
        """Returns the mapping under a key, empty where it is missing."""
        if key not in self._inner:
            self._inner[key] = Section(self._get(key), self._named(key), known)
        return self._inner[key]

    def has(self, key: str) -> bool:
        self._looked_for.add(key)
        return self._value.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Keeps keys out of `unread`: they do not bear on time or memory."""
        self._read.update(keys)

    def ignore_all(self) -> None:
        """Keeps everything in this mapping out of `unread`; raises as `check_spelling`."""
        self.check_spelling()
        self._read.update(self._value)

    def count(self, key: str, default: int, least: int = 1, most: int = LARGEST) -> int:
        """Returns a whole number. Raises `BadInput` for anything else, or out of range."""
        value = self.maybe_count(key, least, most)
        return default if value is None else value

    def maybe_count(self, key: str, least: int = 1, most: int = LARGEST) -> int | None:
        """Returns a whole number, None where it is missing or `auto`."""
        value = self._get(key)
        if value is None or value == "auto":
            return None
        return whole_number(value, self._named(key), least, most)

    def flag(self, key: str, default: bool = False) -> bool:
        """Returns true or false, also as text. Raises `BadInput` for anything else."""
        value = self._get(key)
        if value is None:
            return default
        if unresolved(value):
            raise not_resolved(value, self._named(key))
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise BadInput(f"got {value!r:.40}", field=self._named(key), expected="true or false")
        return value

    def word(self, key: str, default: str, known: Collection[str] = ()) -> str:
        """Returns a text, one of `known` unless that is empty."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str) or (known and value not in known):
            expected = " or ".join(known) or "a text"
            raise BadInput(f"got {value!r:.60}", field=self._named(key), expected=expected)
        return value

    def one(self, *keys: str) -> None:
        """Raises `BadInput` for a degree above 1 of what Shardwise does not plan."""
        for key in keys:
            only_one(self.count(key, 1, least=0), self._named(key))

    def given(self, key: str) -> Any:
        """Returns the value of a key as it is, None where it is missing."""
        return self._get(key)

    def path(self, key: str) -> str:
        """Returns how errors and notes name a key."""
        return self._named(key)

    def empty(self, *keys: str, expected: str) -> None:
        """Raises `BadInput` for a key with a list or a text that is not empty."""
        for key in keys:
            if self._get(key):
                raise BadInput("is not priced yet", field=self._named(key), expected=expected)

    def check_spelling(self) -> None:
        """Raises `BadInput` for a key that was not read and is nearly one that was looked for in
        vain: the program would take its default, or refuse the file."""
        asked = self._read | self._looked_for
        missing = sorted(key for key in asked if key not in self._value)
        for key in map(str, self._value):
            if key not in self._read and key not in self._inner:
                _check_spelling(key, self._named(key), missing)

    def unread(self) -> Iterator[str]:
        """Yields the paths of the members that were not read, those of inner mappings too; raises
        as `check_spelling`."""
        self.check_spelling()
        for key, value in self._value.items():
            if key in self._inner:
                yield from self._inner[key].unread()
            elif key not in self._read:
                yield from _leaves(value, self._named(str(key)[:60]))

    def _get(self, key: str) -> Any:
        self._read.add(key)
        return self._value.get(key)

    def _named(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def bounded(unread: list[str]) -> list[str]:
    """Returns at most `MOST_UNREAD` of the lines, the last of which says how many are left."""
    if len(unread) <= MOST_UNREAD:
        return unread
    kept = unread[: MOST_UNREAD - 1]
    return [*kept, f"and {len(unread) - len(kept)} more"]


def only_one(degree: int, path: str) -> None:
    """Raises `BadInput` for a degree above 1 of what is not priced from a trainer's file."""
    if degree > 1:
        raise BadInput(f"got {degree}", field=path, expected=_NOT_PRICED)


def has_whole_experts(given: int, tensor: int, expert: int, path: str) -> bool:
    """Returns whether experts over several devices are whole beside tensor parallelism; raises
    `BadInput` where they are in other parts than the rest."""
    if expert > 1 and given not in (1, tensor):
        raise BadInput(
            f"got {given}: experts over {expert} devices are in other parts than the rest of the "
            "model, which is not priced",
            field=path,
            expected=f"{tensor}, as the rest has, or 1",
        )
    return expert > 1 and given < tensor


def whole_number(value: Any, path: str, least: int = 1, most: int = LARGEST) -> int:
    """Returns a whole number, also from a text of digits. Raises `BadInput` for anything else."""
    text = str(value).strip() if isinstance(value, (int, str)) else ""
    digits = text.removeprefix("-")
    if unresolved(value):
        raise not_resolved(value, path)
    if isinstance(value, bool) or not (digits.isascii() and digits.isdecimal()):
        raise BadInput(f"got {value!r:.40}", field=path, expected="a whole number")
    if len(text) > _MOST_DIGITS:
        raise BadInput(f"got {text[:40]}", field=path, expected=f"{least} to {most}")
    if not least <= int(text) <= most:
        raise BadInput(f"got {text}", field=path, expected=f"{least} to {most}")
    return int(text)


def not_resolved(value: Any, path: str) -> BadInput:
    """Returns the error for a reference that is no key of its file."""
    return BadInput(
        f"got {value!r:.60}, which the file does not resolve", field=path, expected="its value"
    )


def divided(whole: int, part: int, what: str, path: str) -> int:
    """Returns whole / part. Raises `BadInput` with `what` if that is not a whole number."""
    if part < 1 or whole % part:
        raise BadInput(
            f"{whole} {what} do not divide by {part}", field=path, expected=f"a multiple of {part}"
        )
    return whole // part


def misspelt(key: str, known: Collection[str]) -> str | None:
    """Returns the known key that an unknown one is nearly alike, if there is one."""
    if key in known:
        return None
    return next(iter(near(key, known, 1, least=_MISSPELT, parts=False)), None)


def _check_spelling(key: str, path: str, known: Collection[str]) -> None:
    meant = misspelt(key, known)
    if meant is not None:
        raise BadInput(
            f"unknown key: did you mean {meant}?", field=path[:100], expected="a key of the trainer"
        )


def _leaves(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{str(key)[:60]}")
