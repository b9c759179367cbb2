"""Sizes for the dimensions that a file names and leaves open (`batch`, `sequence_length`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.errors import CaptureError

_SEQUENCE_WORDS = ("seq", "len", "time", "token")


@dataclass(frozen=True)
class Sizes:
    """What the user gave: `batch` and `seq` as for every model, `named` by the file's own names."""

    batch: int | None = None
    seq: int | None = None
    named: Mapping[str, int] = field(default_factory=dict)

    def bind(self, inputs: Mapping[str, tuple[int | str, ...]]) -> dict[str, int]:
        """Returns a size for each open dimension of `inputs`; raises CaptureError if one has none.

        The first dimension of an input is the batch. Of the others, those named like a sequence, or
        the only one, have the sequence length.
        """
        first = {shape[0] for shape in inputs.values() if shape and isinstance(shape[0], str)}
        names = [d for shape in inputs.values() for d in shape if isinstance(d, str)]
        others = [d for d in dict.fromkeys(names) if d not in first]
        bound: dict[str, int | None] = dict.fromkeys(first, self.batch)
        for name in others:
            called = any(word in name.lower() for word in _SEQUENCE_WORDS)
            bound[name] = self.seq if called or len(others) == 1 else None
        bound |= {name: self.named[name] for name in bound if name in self.named}
        self._check(bound, inputs)
        return {name: size for name, size in bound.items() if size is not None}

    def _check(
        self, bound: Mapping[str, int | None], inputs: Mapping[str, tuple[int | str, ...]]
    ) -> None:
        for name in self.named:
            if name not in bound:
                raise CaptureError(
                    f"no open dimension is called {name!r}",
                    field=name,
                    expected=", ".join(bound) or "nothing: every dimension of the file is fixed",
                )
        for name, shape in inputs.items():
            for dim, extent in enumerate(shape):
                if isinstance(extent, str) and bound[extent] is None:
                    flag = "--batch N" if dim == 0 else "--seq N"
                    raise CaptureError(
                        f"dimension {dim} ({extent}) is left open",
                        field=f"graph.input {name}",
                        expected=f"{flag}, or FILE.onnx:{extent}=N",
                    )
        self._check_fixed(bound, list(inputs.values()))

    def _check_fixed(
        self, bound: Mapping[str, int | None], shapes: list[tuple[int | str, ...]]
    ) -> None:
        """Refuses given sizes that no open dimension takes, unless they are the file's own."""
        for name, wanted, place in (("batch", self.batch, 0), ("seq", self.seq, 1)):
            if wanted is None or wanted in bound.values():
                continue
            fixed = [shape[place] for shape in shapes if len(shape) > place]
            if wanted not in fixed:
                raise CaptureError(
                    f"the file has fixed sizes {list(shapes[0]) if shapes else []}",
                    field=name,
                    expected="a file exported with that size, or with a dynamic one",
                )
