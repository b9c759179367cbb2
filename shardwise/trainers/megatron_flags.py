"""Megatron's flags: of a launch script, of a list, or of a mapping, and what their values are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardwise.errors import BadInput
from shardwise.trainers.configuration import misspelt, not_resolved, whole_number
from shardwise.trainers.interpolation import unresolved
from shardwise.trainers.shell import Commands, Unknown, commands_of, known

Flags = dict[str, list[str]]
"""The values of each flag, the last that is given (argparse)."""

_SHOWN = 60
_DEEPEST = 6
"""Levels of variables that branches set from others that branches set."""

_ALONE = re.compile(
    r"--(?:bf16|fp16|swiglu|sequence-parallel|group-query-attention|recompute-activations|mock-data"
    r"|(?:no|use|untie|overlap|disable|create)-.*)"
)
"""Flags that take no value."""


_TRUTHS = {"true": True, "false": False}


class MegatronFlags:
    """Flags by name, without `--`."""

    def __init__(
        self,
        flags: Mapping[str, Sequence[str]],
        commands: Commands | None = None,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        """`commands` are those of a script that gives the flags, `paths` what a file calls them."""
        self._flags = flags
        self._commands = commands
        self._paths = paths or {}
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Raises `BadInput` where a mapping gives a reference that it does not resolve."""
        self._read.add(name)
        given = self._flags.get(name)
        if given and self._commands is None and unresolved(given[0]):
            raise not_resolved(given[0], self.path(name))
        return given is not None

    @property
    def commands(self) -> Commands | None:
        """Returns the script that gives the flags, None of a mapping."""
        return self._commands

    def gives(self, name: str) -> bool:
        """Returns whether a flag is given; it counts as unread still."""
        return name in self._flags

    def path(self, name: str) -> str:
        """Returns how errors and notes name a flag: as the file has it."""
        return self._paths.get(name, f"--{name[:80]}")

    def values(self, name: str, default: str | None = None) -> list[str]:
        """Returns the values of a flag, `default` where it is not given.

        Raises `BadInput` where the script leaves open what they are.
        """
        if name not in self:
            return [] if default is None else [default]
        values = list(self._flags[name])
        for value in values:
            self._check_known(name, value)
        return values

    def check_alone(self) -> None:
        """Raises `BadInput` for a switch with `true` or `false` behind it: argparse takes none."""
        for name, values in self._flags.items():
            if values and values[0].lower() in _TRUTHS and _ALONE.fullmatch(f"--{name}"):
                raise BadInput(
                    f"got {values[0]!r}, and takes no value",
                    field=self.path(name),
                    expected=f"--{name} alone, or not at all",
                )

    def word(self, name: str, default: str, known_words: Collection[str] = ()) -> str:
        """Returns the one value of a flag, one of `known_words` unless these are empty."""
        values = self.values(name, default)
        if not values or (known_words and values[0] not in known_words):
            given = repr(values[0][:_SHOWN]) if values else "no value"
            expected = " or ".join(known_words) or "a value"
            raise BadInput(f"got {given}", field=self.path(name), expected=expected)
        return values[0]

    def number(self, name: str, default: int, least: int = 1) -> int:
        """Returns a whole number of at least `least`."""
        if name not in self:
            return default
        values = self.values(name)
        return whole_number(values[0] if values else None, self.path(name), least)

    def maybe_number(self, name: str) -> int | None:
        """Returns a flag's positive integer, or None if the flag is absent."""
        return self.number(name, 1) if name in self else None

    def ignore(self, *names: str) -> None:
        """Keeps flags out of `unread`."""
        self._read.update(names)

    def unread(self) -> Iterator[str]:
        """Yields the names of flags that were not read."""
        return (name for name in self._flags if name not in self._read)

    def _check_known(self, name: str, value: str) -> None:
        if self._commands is None or known(value):
            return
        unknown = next(self._commands.texts.inside(value))
        raise left_open(unknown, self.path(name))


def left_open(unknown: Unknown, field: str) -> BadInput:
    """Returns the error for what a script does not decide."""
    named = unknown.what.partition("=")[0].strip("${}") or "X"
    values = ", ".join(value[:20] for value in unknown.values[:8])
    compared = f", which it compares with {values}" if values else ""
    example = f"{named}={unknown.values[0][:20] if unknown.values else '…'}"
    where = f", unless {unknown.file[:_SHOWN]} does, which is not read" if unknown.file else ""
    return BadInput(
        f"depends on {unknown.what[:_SHOWN]}{compared}; the script does not set it{where}",
        field=field,
        expected=f"a script that does, such as with the line {example}"
        if named.isidentifier()
        else "a script without that condition",
    )


def flags_of_script(text: str, deciding: Collection[str]) -> MegatronFlags:
    """Returns the flags that a script or a list of flags gives Megatron.

    `deciding` are the flags by which a command counts as a launch. Raises `BadInput` for a script
    that cannot be followed, with launches that differ in these flags, or of which part depends on
    what it does not say.
    """
    script = commands_of(text)
    commands: list[list[str]] = []
    for words in script.commands:
        words = split_words(words)
        if words[0].startswith("--") and commands:
            # Lines that begin with a flag go on with a list of flags.
            commands[-1] += words
        else:
            commands.append(words)
    launches = []
    for words in commands:
        flags = _flags(words, script, deciding)
        if any(name in flags for name in deciding):
            _check_sourced(words, script)
            launches.append(flags)
    if not launches:
        values = script.variables.values()
        texts = [one for value in values for one in ([value] if isinstance(value, str) else value)]
        launches = [_flags(split_words(texts), script, deciding)]
    first = launches[0]
    for other in launches[1:]:
        for name in deciding:
            if first.get(name) != other.get(name):
                raise BadInput(
                    f"{_shown(first, name)} in one command and {_shown(other, name)} in another",
                    field=f"--{name}",
                    expected="a script of one launch",
                )
    return MegatronFlags(first, script)


def flags_of_mapping(mapping: Mapping[str, Any], paths: Mapping[str, str]) -> MegatronFlags:
    """Returns the flags of a mapping by their names, such as `MODEL_ARGS` of Megatron's tests.

    `true` is a flag without a value; false and null are flags that are not given, truths in quotes
    too. `paths` say what
    the file calls a key, where that is not its name.
    """
    flags: Flags = {}
    named: dict[str, str] = {}
    for key, value in mapping.items():
        name = str(key)[:80].removeprefix("--").replace("_", "-")
        value = _TRUTHS.get(value.lower(), value) if isinstance(value, str) else value
        if value is None or value is False or (value == 0 and _ALONE.fullmatch(f"--{name}")):
            continue
        named[name] = paths.get(str(key), str(key)[:80])
        if isinstance(value, Mapping):
            raise BadInput("got a mapping", field=named[name], expected="the value of a flag")
        values = value if isinstance(value, list) else [] if value is True else [value]
        flags[name] = [str(one)[:_SHOWN] for one in values]
    return MegatronFlags(flags, paths=named)


def check_spelling(flags: MegatronFlags, read: Collection[str]) -> None:
    """Raises `BadInput` for a flag that is nearly one of those that are `read`, or its beginning:
    Megatron takes no abbreviations (`allow_abbrev=False`) and no underscores."""
    for name in flags.unread():
        near = _meant(name, read)
        if near is not None:
            raise BadInput(
                f"unknown flag: did you mean --{near}?",
                field=flags.path(name),
                expected=f"--{near}, or a flag of Megatron-LM",
            )


def _meant(name: str, read: Collection[str]) -> str | None:
    """Returns the flag that an unknown one stands for, None if it may be another of Megatron's."""
    hyphened = name.replace("_", "-")
    if name in read:
        return None
    if hyphened in read:
        return hyphened
    whole = [one for one in read if one.startswith(hyphened + "-") and "-" in hyphened]
    if whole:
        return whole[0]
    near = misspelt(name, read)
    if near is not None and near.replace("-", "") == hyphened.replace("-", ""):
        return near
    # Flags that differ by "no-" or in one word only are Megatron's own.
    return near if near is not None and name.count("-") == near.count("-") else None


def split_words(words: Sequence[str]) -> list[str]:
    """Returns words, those that hold whole commands split as well."""
    made = [
        one
        for word in words
        for one in (word.split() if " --" in word or word.startswith("--") else [word])
    ]
    return [one.strip("\"',") for one in made] or [""]


def _flags(
    words: Sequence[str], script: Commands, deciding: Collection[str], depth: int = 0
) -> Flags:
    flags: Flags = {}
    current: list[str] = []
    for word in words:
        unknown = script.texts.only(word)
        if unknown is not None and any("--" in text for text in unknown.texts):
            flags.update(_of_branches(unknown, script, deciding, depth + 1))
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            current = flags[name] = [value] if equals else []
        else:
            current.append(word)
    return flags


def _check_sourced(words: Sequence[str], script: Commands) -> None:
    """Raises `BadInput` where a launch has a word that another file may set to flags: one that is
    no option of its launcher and no value of a flag."""
    program = max((at for at, word in enumerate(words) if word.endswith(".py")), default=-1)
    for before, word in pairwise(words[max(program, 0) :]):
        unknown = script.texts.only(word)
        takes = before.startswith("--") and "=" not in before and not _ALONE.fullmatch(before)
        if unknown is not None and unknown.file and not takes:
            raise left_open(unknown, "the launch")


def _of_branches(
    unknown: Unknown, script: Commands, deciding: Collection[str], depth: int
) -> Flags:
    """Returns the flags of a variable that branches set, none of which is known to be taken.

    Raises `BadInput` where they disagree on flags that decide.
    """
    if depth > _DEEPEST:
        raise left_open(unknown, "the script")
    branches = [_flags(text.split(), script, deciding, depth) for text in unknown.texts]
    for name in deciding:
        if any(one.get(name) != branches[0].get(name) for one in branches):
            raise left_open(unknown, f"--{name}")
    return {name: values for one in branches for name, values in one.items()}


def _shown(flags: Flags, name: str) -> str:
    if name not in flags:
        return "not given"
    return " ".join(flags[name])[:_SHOWN] or "given"
