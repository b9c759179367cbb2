"""What a launch script would run: its commands with their variables put in.

Nothing is executed. Assignments, defaults, arithmetic, `if`, `case`, loops and functions are
followed where the script itself decides them. Where it does not (an argument, a command's output, a
file of the machine), all branches are followed, and what they disagree on is an `Unknown` that
names what decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from shardwise.errors import BadInput
from shardwise.trainers.shell.conditions import Conditions
from shardwise.trainers.shell.expansion import Expander, Value, matches
from shardwise.trainers.shell.syntax import parse
from shardwise.trainers.shell.tree import (
    Arithmetic,
    Assignment,
    Block,
    Case,
    Chain,
    For,
    Function,
    If,
    Node,
    Not,
    Simple,
    Test,
    While,
    Word,
)
from shardwise.trainers.shell.values import Texts, Unknown, known, without_marks
from shardwise.trainers.shell.words import DEEPEST

MOST_STEPS = 20_000
"""Commands that are followed, those of loops each time."""

MOST_ROUNDS = 1_000

_SILENT = frozenset(("echo", "printf", "cd", "mkdir", "cat", "rm", "cp", "set", "shift", "trap"))
_SHELLS = frozenset(("bash", "sh", "zsh", "sbatch", "ssh"))
_SETTINGS = ("activate", ".", "profile", "conda", "modules", "setvars", "lmod")
"""How files begin that set up a shell or its programs and no options of a launch."""
_DECLARING = frozenset(("export", "declare", "local", "readonly", "typeset"))


@dataclass
class Commands:
    """The words of every command that a script runs or may run, in its order, and its variables.

    What `texts` marks in a word is unknown.
    """

    texts: Texts
    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)


class _Left(Exception):
    """The script ends here."""


class _Returned(_Left):
    """The function ends here, or the script outside of one."""


class _Broken(Exception):
    """The round of a loop ends here, and the loop too unless it `continues`."""

    def __init__(self, continues: bool) -> None:
        super().__init__()
        self.continues = continues


def commands_of(script: str) -> Commands:
    """Returns the commands of a script.

    Raises `BadInput` for what is no shell script, and for one that takes more than `MOST_STEPS`.
    """
    evaluator = _Evaluator(Texts())
    evaluator.run(parse(without_marks(script)))
    return Commands(evaluator.texts, evaluator.commands, evaluator.expander.variables)


class _Evaluator:
    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.expander = Expander(texts)
        self.commands: list[list[str]] = []
        self._functions: dict[str, Node] = {}
        self._steps = 0
        self._depth = 0
        self._conditions = Conditions(self.expander)
        self._by_command = False
        """Whether an ordinary command succeeded last, which decides no condition."""

    def run(self, body: Block) -> None:
        """Follows a script to its end."""
        try:
            self._node(body)
        except (_Left, _Broken):
            return

    def _asked(self, node: Node) -> bool | None:
        """Follows a condition. Returns whether it holds, None where that is unknown."""
        self._by_command = False
        holds = self._node(node)
        return None if self._by_command else holds

    def _node(self, node: Node) -> bool | None:
        """Follows one command. Returns whether it succeeds, None where that is unknown."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise BadInput(f"it takes more than {MOST_STEPS} steps", expected="a launch script")
        self._depth += 1
        if self._depth > 4 * DEEPEST:
            raise BadInput("its functions call each other without end", expected="a launch script")
        try:
            return self._kind(node)
        finally:
            self._depth -= 1

    def _kind(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case Block():
                return self._block(node)
            case Chain():
                return self._chain(node)
            case Not():
                succeeds = self._node(node.command)
                return None if succeeds is None else not succeeds
            case If():
                return self._if(node)
            case Case():
                return self._case(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case Test():
                self._by_command = False
                return self._conditions.words(node.words)
            case Arithmetic():
                self._by_command = False
                value = self.expander.arithmetic(node.expression)
                return self._conditions.truth(value)
            case Function():
                self._functions[node.name] = node.body
                return True

    def _block(self, block: Block) -> bool | None:
        before = dict(self.expander.variables)
        succeeds: bool | None = True
        for command in block.commands:
            succeeds = self._node(command)
        if block.apart:
            self.expander.variables = before
        return succeeds

    def _chain(self, chain: Chain) -> bool | None:
        succeeds = self._node(chain.first)
        for both, command in chain.rest:
            if succeeds is None:
                self._either([partial(self._node, command), _nothing])
            elif succeeds == both:
                succeeds = self._node(command)
        return succeeds

    def _if(self, node: If) -> bool | None:
        bodies: list[Block] = []
        for condition, body in node.branches:
            holds = self._asked(condition)
            if holds is False:
                continue
            bodies.append(body)
            if holds:
                break
        else:
            bodies.append(node.otherwise)
        return self._either([partial(self._node, body) for body in bodies])

    def _case(self, node: Case) -> bool | None:
        text = self.expander.text(node.word)
        patterns = [[self.expander.text(one) for one in patterns] for patterns, _ in node.items]
        if known(text):
            for alternatives, (_, body) in zip(patterns, node.items, strict=True):
                if any(matches(text[:1000], one[:100]) for one in alternatives):
                    return self._node(body)
            return True
        values = [one for alternatives in patterns for one in alternatives if one != "*"]
        self._conditions.blame(text, values)
        bodies = [body for _, body in node.items]
        if ["*"] not in patterns:
            bodies.append(Block(()))
        return self._either([partial(self._node, body) for body in bodies])

    def _for(self, node: For) -> bool | None:
        if node.words is None:
            words = list(self.expander.arguments or ())
        else:
            words = [one for word in node.words for one in self.expander.fields(word)]
        for word in words:
            self.expander.variables[node.name] = word
            if not self._round(node.body):
                break
        return True

    def _while(self, node: While) -> bool | None:
        for _ in range(MOST_ROUNDS):
            holds = self._asked(node.condition)
            # A loop over what is not known, such as the arguments: defaults stand.
            if holds is None or holds == node.until:
                break
            before = dict(self.expander.variables)
            if not self._round(node.body) or self.expander.variables == before:
                break
        return True

    def _round(self, body: Block) -> bool:
        """Follows a loop's body once. Returns whether the loop goes on."""
        try:
            self._node(body)
        except _Broken as broken:
            return broken.continues
        return True

    def _either(self, branches: Sequence[Callable[[], bool | None]]) -> bool | None:
        """Follows one of the branches, and where there are several each from the same state."""
        if len(branches) == 1:
            return branches[0]()
        cause = self._conditions.cause
        before = self.expander.variables
        after: list[dict[str, Value]] = []
        for branch in branches:
            self.expander.variables = dict(before)
            try:
                branch()
            except (_Left, _Broken):
                continue
            after.append(self.expander.variables)
        if not after:
            raise _Left
        self.expander.variables = self._merged(after, cause)
        return None

    def _merged(self, after: list[dict[str, Value]], cause: Unknown) -> dict[str, Value]:
        merged: dict[str, Value] = {}
        for name in dict.fromkeys(name for one in after for name in one):
            values = [one.get(name) for one in after]
            first = values[0]
            if first is not None and all(value == first for value in values):
                merged[name] = first
            else:
                texts = tuple(_text(value) for value in values)
                merged[name] = self.texts.mark(Unknown(cause.what, cause.values, texts=texts))
        return merged

    def _simple(self, node: Simple) -> bool | None:
        if not node.words:
            for one in node.assignments:
                self._assign(one)
            return True
        words = [one for word in node.words for one in self.expander.fields(word)]
        name = words[0] if words else ""
        if name in _DECLARING:
            for one in node.assignments:
                self._assign(one)
            return True
        if name in ("exit", "return"):
            raise _Left if name == "exit" else _Returned
        if name in ("break", "continue"):
            raise _Broken(name == "continue")
        if name in ("[", "test"):
            self._by_command = False
            return self._conditions.words(node.words[1:], closed=name == "[")
        if name in ("true", "false", ":"):
            self._by_command = False
            return name != "false"
        if name in self._functions:
            return self._call(self._functions[name], words[1:])
        if name in ("unset", "read"):
            for word in words[1:]:
                self.expander.variables.pop(word, None)
        if name in ("source", ".") and len(words) > 1:
            file = words[1].rsplit("/", 1)[-1]
            if not file.startswith(_SETTINGS):
                self.expander.sourced = file if known(file) else "a file"
        inner = self._inner(words, node.documents)
        for script in inner:
            self._node(parse(script))
        if words and not inner and name not in _SILENT:
            self.commands.append(words)
        self._conditions.blame_command(words)
        self._by_command = True
        return True

    def _inner(self, words: list[str], documents: Iterable[Word]) -> list[str]:
        """Returns scripts that a command is given, as text or as a here-document."""
        names = {word.rsplit("/", 1)[-1] for word in words}
        if words and words[0] == "eval":
            return [" ".join(words[1:])]
        if not names & _SHELLS:
            return []
        scripts = [
            words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-c", "-lc", "-ic")
        ]
        return [*scripts, *(self.expander.text(one) for one in documents)]

    def _call(self, body: Node, arguments: list[str]) -> bool | None:
        before, self.expander.arguments = self.expander.arguments, arguments
        try:
            return self._node(body)
        except _Returned:
            return None
        finally:
            self.expander.arguments = before

    def _assign(self, one: Assignment) -> None:
        variables = self.expander.variables
        made: Value
        if one.words is not None:
            words = [text for word in one.words for text in self.expander.fields(word)]
            before = variables.get(one.name, []) if one.appends else []
            made = [*([before] if isinstance(before, str) else before), *words]
        else:
            made = self._named_after(one.name, self.expander.text(one.word))
            if one.appends:
                before = variables.get(one.name, "")
                if isinstance(before, list):
                    made = [f"{before[0]}{made}" if before else made, *before[1:]]
                else:
                    made = self.texts.made(before + made)
        variables[one.name] = made

    def _named_after(self, name: str, text: str) -> str:
        """Returns a text whose unknown says which variable took it from where."""
        only = self.texts.only(text)
        if only is None and not known(text):
            return self.texts.without(text, f"${name}")
        if only is None or not only.unset or only.what in (f"${name}", name):
            return text
        given = f"{name}={only.what}"
        return self.texts.mark(Unknown(given, only.values, unset=True, file=only.file))


def _nothing() -> bool | None:
    """Does what a command does that does not run."""
    return None


def _text(value: Value | None) -> str:
    return "" if value is None else value if isinstance(value, str) else " ".join(value)
