"""Operator tables: the calls that a graph's plans need, measured on this machine."""

from shardwise.measure.operators.effort import Effort
from shardwise.measure.operators.measuring import Measured, measure_operators
from shardwise.measure.operators.needed import OperatorItem, needed_operators
from shardwise.measure.operators.profile import add_operators

__all__ = [
    "Effort",
    "Measured",
    "OperatorItem",
    "add_operators",
    "measure_operators",
    "needed_operators",
]
