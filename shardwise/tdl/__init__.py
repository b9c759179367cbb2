"""TDL: what each operator computes, and from that how it may be split (Tofu §4)."""

from shardwise.tdl.intervals import NotAffine
from shardwise.tdl.language import Max, Min, Opaque, Prod, Sum, apply
from shardwise.tdl.registry import analyse, described_kinds, description, op, table

__all__ = [
    "Max",
    "Min",
    "NotAffine",
    "Opaque",
    "Prod",
    "Sum",
    "analyse",
    "apply",
    "described_kinds",
    "description",
    "op",
    "table",
]
