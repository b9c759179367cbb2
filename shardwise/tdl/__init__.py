"""TDL: what each operator computes, and from that how it may be split (Tofu §4)."""

from shardwise.tdl.claims import Mismatch
from shardwise.tdl.describe import op, replicated
from shardwise.tdl.example import Example
from shardwise.tdl.intervals import NotAffine
from shardwise.tdl.language import Max, Min, NotCovered, Opaque, Prod, Sum, apply, named
from shardwise.tdl.plugins import PluginError
from shardwise.tdl.registry import analyse, described_kinds, description
from shardwise.tdl.verification import Verified, verify

__all__ = [
    "Example",
    "Max",
    "Min",
    "Mismatch",
    "NotAffine",
    "NotCovered",
    "Opaque",
    "PluginError",
    "Prod",
    "Sum",
    "Verified",
    "analyse",
    "apply",
    "described_kinds",
    "description",
    "named",
    "op",
    "replicated",
    "verify",
]
