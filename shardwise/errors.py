"""Errors that a user may see: one clear line each, with file, field and what was expected."""

from __future__ import annotations

LONGEST = 1000
"""Characters of a problem, or of what was expected, that an error has; 300 of a field."""


def excerpt(text: str, most: int = LONGEST) -> str:
    """Returns a text of at most `most` characters: a longer one without its middle."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}…{text[-half:]}"


class ShardwiseError(Exception):
    """Base of every error that Shardwise raises on purpose; `exit_code` is the command line's."""

    exit_code = 2


class InternalError(Exception):
    """A state that no input reaches: a defect in Shardwise itself, and what is wrong.

    It is no `ShardwiseError`, since nothing that its reader could change would help: commands end
    with exit code 70, and the service answers 500 without saying more.
    """


def defect_text(error: BaseException) -> str:
    """Returns one line about an error that is none of Shardwise's for its users."""
    what = " ".join(str(error).split())
    if not isinstance(error, InternalError):
        what = f"{type(error).__name__}: {what}"
    return f"internal error: {what}; please report it"


class BadInput(ShardwiseError):
    """An input that is refused.

    `file` is the path as the user gave it, `field` a path inside the document such as
    `operators[3].inputs[0]`, `expected` what would have been accepted. What comes from outside is
    never printed whole: long texts lose their middle.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        field: str | None = None,
        expected: str | None = None,
    ) -> None:
        self.problem = excerpt(problem)
        self.file = file
        self.field = field and excerpt(field, 300)
        self.expected = expected and excerpt(expected)
        super().__init__(str(self))

    def __str__(self) -> str:
        where = [part for part in (self.file, self.field) if part]
        text = ": ".join([*where, self.problem])
        if self.expected:
            text += f" (expected {self.expected})"
        return " ".join(text.split())

    def in_file(self, file: str) -> BadInput:
        """Returns the same error, naming `file`."""
        return type(self)(self.problem, file=file, field=self.field, expected=self.expected)

    def inside(self, field: str) -> BadInput:
        """Returns the same error of a document that stands in a field of another."""
        inner = field if self.field is None else f"{field}.{self.field}"
        return type(self)(self.problem, file=self.file, field=inner, expected=self.expected)


class CaptureError(BadInput):
    """A model that cannot be captured; the message names the cause and a way out."""


class CaptureWarning(UserWarning):
    """What a captured model lacks, or what was assumed."""


class UnknownOperator(ShardwiseError):
    """An operator kind without a TDL description was asked for by name."""


class NotFound(ShardwiseError):
    """A thing that was asked for by name does not exist, or no answer exists (exit code 1)."""

    exit_code = 1


class Cancelled(ShardwiseError):
    """The caller cancelled before there was an answer."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted")


class SolverError(ShardwiseError):
    """The solver gave up; the message says which limit was met."""
