"""Arithmetic of shells on whole numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|\*\*|<=|>=|==|!=|&&|\|\||[-+*/%()<>!?:])")
_LARGEST = 2**63
_MOST_TOKENS = 200


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: tuple[Mapping[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
    {"**": operator.pow},
)
"""Binary operators from the loosest to the tightest."""


def value_of(expression: str, variable: Callable[[str], int | None]) -> int | None:
    """Returns the value of an expression; None where it is unknown or is not one.

    `variable` gives the value of a name, None where it is unknown.
    """
    tokens: list[str] = []
    at = 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) >= _MOST_TOKENS:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        value = _Reader(tokens, variable).all()
    except (_NoValue, ZeroDivisionError, RecursionError):
        return None
    return value


class _NoValue(Exception):
    """An expression has no known value."""


class _Reader:
    def __init__(self, tokens: list[str], variable: Callable[[str], int | None]) -> None:
        self._tokens = tokens
        self._variable = variable
        self._at = 0

    def all(self) -> int:
        value = self._choice()
        if self._at < len(self._tokens):
            raise _NoValue
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self._at += 1
        return True

    def _choice(self) -> int:
        value = self._binary(0)
        if not self._take("?"):
            return value
        first = self._choice()
        if not self._take(":"):
            raise _NoValue
        second = self._choice()
        return first if value else second

    def _binary(self, level: int) -> int:
        if level == len(_OPERATORS):
            return self._single()
        value = self._binary(level + 1)
        while self._next() in _OPERATORS[level]:
            apply = _OPERATORS[level][self._next()]
            self._at += 1
            other = self._binary(level + 1)
            if apply is operator.pow and not 0 <= other < 64:
                raise _NoValue
            value = apply(value, other)
            if abs(value) >= _LARGEST:
                raise _NoValue
        return value

    def _single(self) -> int:
        token = self._next()
        self._at += 1
        if token in ("-", "+", "!"):
            value = self._single()
            return {"-": -value, "+": value, "!": int(not value)}[token]
        if token == "(":
            value = self._choice()
            if not self._take(")"):
                raise _NoValue
            return value
        if token.isdecimal() and len(token) < 19:
            return int(token)
        if token[:1].isalpha() or token[:1] == "_":
            known = self._variable(token)
            if known is not None:
                return known
        raise _NoValue
