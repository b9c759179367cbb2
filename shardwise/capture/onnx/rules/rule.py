"""What a translation rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.capture.onnx.builder import Builder
from shardwise.capture.onnx.program import Node

Translate = Callable[[Builder, Node], None]


@dataclass(frozen=True)
class Rule:
    """`translate` emits operators or raises NotTranslated; `becomes` names them for the docs."""

    translate: Translate
    becomes: str

    def __call__(self, builder: Builder, node: Node) -> None:
        self.translate(builder, node)
