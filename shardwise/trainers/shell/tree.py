"""The tree of a shell script: its commands and their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PartKind = Literal["text", "parameter", "arithmetic", "command"]


@dataclass(frozen=True)
class Part:
    """A piece of a word: text, or what stands inside `${ }`, `$(( ))` or `$( )`."""

    kind: PartKind
    text: str
    quoted: bool


Word = tuple[Part, ...]


@dataclass(frozen=True)
class Assignment:
    """`name=word`, `name+=word`, or an array `name=(…)` with its `words`."""

    name: str
    word: Word
    words: tuple[Word, ...] | None
    appends: bool


@dataclass(frozen=True)
class Simple:
    """A simple command: assignments, words, and the bodies of its here-documents, which are read
    after it."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    documents: Sequence[Word]


@dataclass(frozen=True)
class Chain:
    """`first && next || next …`: with each next command whether the former has to succeed."""

    first: Node
    rest: tuple[tuple[bool, Node], ...]


@dataclass(frozen=True)
class Not:
    """`! command`."""

    command: Node


@dataclass(frozen=True)
class Block:
    """Commands one after another; `apart` in a subshell or a pipeline, whose variables are lost."""

    commands: tuple[Node, ...]
    apart: bool = False


@dataclass(frozen=True)
class If:
    """Conditions with what runs where they hold, and what runs where none does."""

    branches: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True)
class Case:
    """A word, and bodies by their patterns."""

    word: Word
    items: tuple[tuple[tuple[Word, ...], Block], ...]


@dataclass(frozen=True)
class For:
    """A loop over words; None: over the arguments."""

    name: str
    words: tuple[Word, ...] | None
    body: Block


@dataclass(frozen=True)
class While:
    """A loop while its condition holds, or `until` it does."""

    condition: Block
    body: Block
    until: bool


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: Node


@dataclass(frozen=True)
class Arithmetic:
    """`(( expression ))`."""

    expression: str


@dataclass(frozen=True)
class Test:
    """`[[ … ]]`: its words, operators among them."""

    words: tuple[Word, ...]


Node = Simple | Chain | Not | Block | If | Case | For | While | Function | Arithmetic | Test
