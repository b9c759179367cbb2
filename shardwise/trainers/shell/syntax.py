"""The syntax of shell scripts (POSIX shell with bash's arrays, `[[ ]]` and `(( ))`) as a tree.

A parser of our own: the well-kept grammar (tree-sitter-bash) takes minutes for some texts of
64 KiB and cannot be stopped meanwhile, and the other parsers of PyPI are unmaintained or not under
a licence that we can ship. This one reads every character a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
    Part,
    Simple,
    Test,
    While,
    Word,
)
from shardwise.trainers.shell.words import DEEPEST, ENDS_WORD, NAME, NAME_START, Words, parse_word

_OPENING = ("if", "case", "for", "while", "until", "function", "{", "[[", "select")
_CLOSING = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ";;"))


def parse(text: str) -> Block:
    """Returns the commands of a script. Raises `BadInput` naming the line that cannot be read."""
    reader = _Reader(text.replace("\r\n", "\n"))
    body = reader.block(())
    if reader.at < len(reader.text):
        raise reader.error(f"unexpected {reader.text[reader.at : reader.at + 10]!r}")
    return body


class _Reader(Words):
    """Reads commands."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._pending: list[tuple[str, bool, bool, list[Word]]] = []

    def _lines(self) -> None:
        """Skips blanks and ends of lines, with the here-documents that begin there."""
        while True:
            self._spaces()
            if not self._take("\n"):
                return
            self._documents()

    def _nested(self, what: Callable[[], Block]) -> Block:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self.error(f"nested more than {DEEPEST} deep")
        body = what()
        self._depth -= 1
        return body

    # Commands

    def block(self, until: Iterable[str]) -> Block:
        """Reads commands up to one of the words `until`, which is left."""
        return self._nested(lambda: self._block(tuple(until)))

    def _block(self, until: tuple[str, ...]) -> Block:
        commands: list[Node] = []
        while True:
            self._lines()
            if self._single(";") or self._single("&"):
                self.at += 1
                continue
            if self.at >= len(self.text) or self._ahead(")") or self._ahead(";;"):
                break
            word = self._plain_word()
            if word in until:
                break
            if word in _CLOSING:
                raise self.error(f"{word!r} without its beginning")
            commands.append(self._chain())
        return Block(tuple(commands))

    def _single(self, operator: str) -> bool:
        return self._ahead(operator) and not self._ahead(2 * operator)

    def _plain_word(self) -> str:
        """Returns the reserved word or the name that comes next, without taking it."""
        end = self.at
        while end < len(self.text) and self.text[end] not in ENDS_WORD and end - self.at < 12:
            end += 1
        return self.text[self.at : end]

    def _reserved(self, word: str) -> bool:
        """Takes a reserved word if it comes next, after ends of lines."""
        self._lines()
        if self._plain_word() != word:
            return False
        self.at += len(word)
        return True

    def _require(self, word: str) -> None:
        if not self._reserved(word):
            raise self.error(f"expected {word!r}")

    def _chain(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[bool, Node]] = []
        while True:
            self._spaces()
            both = self._ahead("&&")
            if not both and not self._ahead("||"):
                return Chain(first, tuple(rest)) if rest else first
            self.at += 2
            self._lines()
            rest.append((both, self._pipeline()))

    def _pipeline(self) -> Node:
        if self._plain_word() == "!":
            self.at += 1
            self._spaces()
            return Not(self._pipeline_of_one())
        first = self._pipeline_of_one()
        parts = [first]
        while True:
            self._spaces()
            if not self._ahead("|") or self._ahead("||"):
                break
            self.at += 2 if self._ahead("|&") else 1
            self._lines()
            parts.append(self._pipeline_of_one())
        return first if len(parts) == 1 else Block(tuple(parts), apart=True)

    def _pipeline_of_one(self) -> Node:
        node = self._command()
        if not isinstance(node, Simple):
            documents: list[Word] = []
            while self._redirection(documents):
                pass
        return node

    def _command(self) -> Node:
        self._spaces()
        word = self._plain_word()
        if self._take("(("):
            return Arithmetic(self._until_closed("((", "))"))
        if self._take("("):
            body = self.block(())
            if not self._take(")"):
                raise self.error("'(' without ')'")
            return Block(body.commands, apart=True)
        if word not in _OPENING:
            return self._simple()
        self.at += len(word)
        if word == "if":
            return self._if()
        if word == "case":
            return self._case()
        if word in ("for", "select"):
            return self._for()
        if word in ("while", "until"):
            condition = self.block(("do",))
            return While(condition, self._do(), word == "until")
        if word == "function":
            self._spaces()
            return self._function(self._name())
        if word == "[[":
            return self._test()
        body = self.block(("}",))
        self._require("}")
        return body

    def _if(self) -> If:
        branches = []
        otherwise = Block(())
        word = "if"
        while word in ("if", "elif"):
            condition = self.block(("then",))
            self._require("then")
            branches.append((condition, self.block(("elif", "else", "fi"))))
            word = self._plain_word()
            self.at += len(word)
        if word == "else":
            otherwise = self.block(("fi",))
            self._require("fi")
        elif word != "fi":
            raise self.error("'if' without 'fi'")
        return If(tuple(branches), otherwise)

    def _case(self) -> Case:
        self._spaces()
        word = self._word()
        self._require("in")
        items = []
        while not self._reserved("esac"):
            self._take("(")
            patterns = []
            while True:
                self._spaces()
                before = self.at
                patterns.append(self._word())
                self._spaces()
                if self._take(")"):
                    break
                if not self._take("|") or self.at == before:
                    raise self.error("a pattern without ')'")
            items.append((tuple(patterns), self.block(("esac",))))
            if self._take(";;"):
                self._take("&")
        return Case(word, tuple(items))

    def _for(self) -> For:
        self._spaces()
        if self._take("(("):
            self._until_closed("((", "))")
            self._take(";")
            return For("", (), self._do())
        name = self._name()
        words: list[Word] | None = None
        if self._reserved("in"):
            words = []
            while self._word_ahead():
                words.append(self._word())
        self._spaces()
        self._take(";")
        return For(name, None if words is None else tuple(words), self._do())

    def _do(self) -> Block:
        self._require("do")
        body = self.block(("done",))
        self._require("done")
        return body

    def _function(self, name: str) -> Function:
        self._spaces()
        if self._take("("):
            self._spaces()
            if not self._take(")"):
                raise self.error("'(' without ')'")
        self._lines()
        body = self._nested(lambda: Block((self._command(),)))
        return Function(name, body)

    def _test(self) -> Test:
        words: list[Word] = []
        while True:
            self._lines()
            if self.at >= len(self.text):
                raise self.error("'[[' without ']]'")
            operator = next(
                (one for one in ("&&", "||", "(", ")", "<", ">") if self._ahead(one)), ""
            )
            if operator:
                self.at += len(operator)
                words.append((Part("text", operator, False),))
                continue
            word = self._word(ends=" \t\n;&<>" if self._after_match(words) else ENDS_WORD)
            if not word:
                raise self.error("'[[' without ']]'")
            if word == (Part("text", "]]", False),):
                return Test(tuple(words))
            words.append(word)

    @staticmethod
    def _after_match(words: list[Word]) -> bool:
        return bool(words) and words[-1] == (Part("text", "=~", False),)

    def _simple(self) -> Node:
        assignments: list[Assignment] = []
        words: list[Word] = []
        documents: list[Word] = []
        while True:
            self._spaces()
            if self._redirection(documents):
                continue
            assignment = None if words else self._assignment()
            if assignment is not None:
                assignments.append(assignment)
                continue
            if not self._word_ahead():
                break
            if words and self._declares(words):
                assignment = self._assignment()
                if assignment is not None:
                    assignments.append(assignment)
                    continue
            words.append(self._word())
            if len(words) == 1 and not assignments and self._empty_parentheses():
                return self._function("".join(part.text for part in words[0]))
        if not words and not assignments and not documents:
            ahead = self.text[self.at : self.at + 10]
            raise self.error(f"unexpected {ahead!r}" if ahead else "unexpected end")
        return Simple(tuple(assignments), tuple(words), documents)

    @staticmethod
    def _declares(words: list[Word]) -> bool:
        return words[0][0].text in ("export", "declare", "local", "readonly", "typeset")

    def _empty_parentheses(self) -> bool:
        before = self.at
        self._spaces()
        if self._take("("):
            self._spaces()
            if self._take(")"):
                return True
        self.at = before
        return False

    def _redirection(self, documents: list[Word]) -> bool:
        """Takes a redirection if one comes next; notes a here-document for the end of the line."""
        self._spaces()
        start = self.at
        while self.at < len(self.text) and self.text[self.at].isdigit():
            self.at += 1
        if self._ahead("&>"):
            self.at += 1
        if not self._ahead("<") and not self._ahead(">"):
            self.at = start
            return False
        if self._take("<<<"):
            self._spaces()
            self._word()
            return True
        if self._take("<<"):
            strips = self._take("-")
            self._spaces()
            word = self._word()
            quoted = any(part.quoted for part in word)
            name = "".join(part.text for part in word)
            self._pending.append((name, strips, quoted, documents))
            return True
        if self._ahead("<(") or self._ahead(">("):
            self.at = start
            return False
        for operator in (">>", ">&", "<&", ">|", "<>", ">", "<"):
            if self._take(operator):
                break
        self._spaces()
        self._word()
        return True

    def _documents(self) -> None:
        """Takes the here-documents that begin on this line."""
        pending, self._pending = self._pending, []
        for name, strips, quoted, documents in pending:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                line = line.lstrip("\t") if strips else line
                if line == name:
                    break
                lines.append(line)
            body = "\n".join(lines)
            if quoted:
                documents.append((Part("text", body, True),))
            else:
                documents.append(parse_word(body, True, self._depth))

    def _name(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ENDS_WORD:
            self.at += 1
        return self.text[start : self.at]

    def _assignment(self) -> Assignment | None:
        """Takes `name=value` if it comes next."""
        end = self.at
        text, size = self.text, len(self.text)
        if end >= size or text[end] not in NAME_START:
            return None
        while end < size and text[end] in NAME:
            end += 1
        name = text[self.at : end]
        if end < size and text[end] == "[":
            close = text.find("]", end, end + 40)
            end = close + 1 if close > 0 else end
        appends = text.startswith("+=", end)
        if not appends and not text.startswith("=", end):
            return None
        self.at = end + (2 if appends else 1)
        if not self._take("("):
            return Assignment(name, self._word(), None, appends)
        words: list[Word] = []
        while True:
            self._lines()
            if self._take(")"):
                return Assignment(name, (), tuple(words), appends)
            if not self._word_ahead():
                raise self.error(f"{name}=( without ')'")
            words.append(self._word())
