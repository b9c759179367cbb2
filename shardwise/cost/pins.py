"""Pins: rules that require or forbid choices, for an operator, a scope or the whole graph.

    RULE     [PATTERN:]KEY=VALUE[,VALUE…]      only these
             [PATTERN:]KEY!=VALUE[,VALUE…]     all but these

PATTERN is a glob (`*`, `?`, `[…]`) on operator names and scopes; without one the rule is for the
whole graph. A rule on any operator of a group binds the group, since its operators share one
configuration.

    KEY          VALUE
    split        variables that may be split (`batch`, `out`, … as `explain` prints), or `none`
    AXIS         what a mesh axis (`m0`, `m0*m1`), all axes `inside` a node or `between` nodes
                 split: variables, or `none`; with more levels of links, all axes at the levels
                 whose names begin with that word
    zero         0, 1, 2, 3
    recompute    yes, no
    reuse        before, after, both: the copy kept of a re-scheduled tensor that the operator makes
    partial      all_reduce, reduce_scatter: how partial sums that the operator makes are resolved
    precision    captured: the operator keeps the dtypes of the graph (with `precision` set);
                 bf16: it has no recipe; or the recipe of a linear layer (`fp8:rowwise`)
    stage        0, 1, …, last: the stages of a pipeline that may have the operator
    cut          before, after: where a stage of a pipeline begins or ends

The last two are for pipelines (`search/pipelines/rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shardwise.errors import BadInput
from shardwise.graph.graph import Operator
from shardwise.sharding.coarsen import Coarsened, Group
from shardwise.sharding.precision import OF_OPERATORS
from shardwise.sharding.recipes import RECIPES

NO_VARIABLE = "none"
LEVELS = ("inside", "between")
_VALUES = {
    "zero": ("0", "1", "2", "3"),
    "recompute": ("yes", "no"),
    "reuse": ("before", "after", "both"),
    "partial": ("all_reduce", "reduce_scatter"),
    "precision": OF_OPERATORS,
    "cut": ("before", "after"),
}
STAGE = "stage"
LAST = "last"
PIPELINE_KEYS = (STAGE, "cut")
"""Keys of rules for pipelines only."""

KEYS = ("split", *_VALUES, STAGE, *LEVELS)
_EXPECTED = "[PATTERN:]KEY=VALUE[,VALUE…] or KEY!=VALUE, such as 'layers.*:zero=3' or 'm0=batch'"


class NoSuchAxis(BadInput):
    """A rule names a mesh axis that this mesh does not have."""


@dataclass(frozen=True)
class Pin:
    """One rule; `values` are the allowed values, or with `forbids` the forbidden ones."""

    pattern: str
    key: str
    values: frozenset[str]
    forbids: bool

    def allows(self, value: str) -> bool:
        return (value in self.values) != self.forbids

    def binds(self, operator: Operator) -> bool:
        """Returns whether the rule is for this operator."""
        return fnmatchcase(operator.name, self.pattern) or fnmatchcase(operator.scope, self.pattern)

    def __str__(self) -> str:
        values = ",".join(sorted(self.values))
        return f"{self.pattern}:{self.key}{'!=' if self.forbids else '='}{values}"


def parse_pin(rule: str) -> Pin:
    """Parses a rule as the user writes it. Raises `BadInput`, which says what was expected."""
    head, equals, tail = rule.partition("=")
    forbids = head.endswith("!")
    pattern, colon, key = head.removesuffix("!").rpartition(":")
    values = frozenset(value.strip() for value in tail.split(",") if value.strip())
    if not equals or not key or not values or (colon and not pattern):
        raise BadInput(f"{rule!r} is not a rule", field="pin", expected=_EXPECTED)
    known = _VALUES.get(key)
    if known is not None and not values <= set(known):
        wrong = ", ".join(sorted(values - set(known)))
        raise BadInput(f"{rule!r}: unknown {key} {wrong}", field="pin", expected=", ".join(known))
    if key == STAGE and not all(value == LAST or value.isdecimal() for value in values):
        raise BadInput(f"{rule!r}: stages are numbers", field="pin", expected=f"0, 1, … or {LAST}")
    if key in PIPELINE_KEYS and (pattern or "*") == "*":
        raise BadInput(
            f"{rule!r} is for the whole graph", field="pin", expected=f"PATTERN:{key}=VALUE"
        )
    if key == "precision" and (forbids or len(values) > 1):
        raise BadInput(
            f"{rule!r} does not say which precision",
            field="pin",
            expected="PATTERN:precision=captured, or another one",
        )
    if key == "precision" and (pattern or "*") == "*" and not values <= RECIPES.keys():
        raise BadInput(
            f"{rule!r} is for the whole graph",
            field="pin",
            expected="PATTERN:precision=captured; the option precision is for all of it",
        )
    return Pin(pattern or "*", key, values, forbids)


def pinned_precision(rules: Iterable[Pin], operator: Operator) -> str | None:
    """Returns the precision that the first of these rules on it gives an operator, if any."""
    return next(
        (
            value
            for rule in rules
            if rule.key == "precision" and rule.binds(operator)
            for value in rule.values
        ),
        None,
    )


class Pins:
    """The rules of a search, by the group that they bind."""

    def __init__(self, rules: Iterable[Pin], coarsened: Coarsened) -> None:
        self._by_group: dict[int, tuple[Pin, ...]] = {}
        rules = tuple(rules)
        for rule in rules:
            if rule.key in PIPELINE_KEYS:
                raise BadInput(
                    f"{rule} applies only to pipelines",
                    field="pin",
                    expected="--stages with numbers of stages, for plan",
                )
            if not any(rule.binds(op) for op in coarsened.graph.operators):
                raise no_operator(rule, [op.name for op in coarsened.graph.operators[:SOME]])
        variables: dict[Pin, set[str]] = {rule: set() for rule in rules}
        for group in coarsened.groups if rules else ():
            binding = tuple(r for r in rules if any(r.binds(m.operator) for m in group.members))
            if binding:
                self._by_group[group.index] = binding
            for rule in binding:
                variables[rule].update(group.variables)
        for rule in rules:
            require_variables(rule, variables[rule])

    def of(self, group: Group, key: str) -> tuple[Pin, ...]:
        """Returns the rules with that key that bind the group."""
        return tuple(rule for rule in self.all_of(group) if rule.key == key)

    def all_of(self, group: Group) -> tuple[Pin, ...]:
        """Returns all rules that bind the group."""
        return self._by_group.get(group.index, ())

    def allows(self, group: Group, key: str, value: str) -> bool:
        """Returns whether every rule with that key lets the group take the value."""
        return all(rule.allows(value) for rule in self.of(group, key))


SOME = 3
"""Number of example operator names in an error."""


def no_operator(rule: Pin, names: Iterable[str]) -> BadInput:
    """Returns the error for a rule that binds no operator; `names` are examples of operators."""
    return BadInput(
        f"{rule} matches no operator",
        field="pin",
        expected=f"a glob on operator names or scopes such as {', '.join(names)}",
    )


def require_variables(rule: Pin, variables: Set[str]) -> None:
    """Raises `BadInput` for a rule that requires a variable which none of its groups has.

    A rule that forbids such a variable holds trivially: a dimension of one element, such as the
    batch of a single sample, is no variable.
    """
    if rule.forbids:
        return
    unknown = rule.values - variables - {NO_VARIABLE}
    if rule.key not in _VALUES and unknown:
        raise BadInput(
            f"{rule}: no variable {', '.join(sorted(unknown))}",
            field="pin",
            expected=", ".join([*sorted(variables), NO_VARIABLE]),
        )


def no_axis(rule: Pin, axes: Sequence[str]) -> NoSuchAxis:
    """Returns the error for a rule on a mesh axis that is not among these."""
    names = ", ".join(axes) or "none on one GPU"
    return NoSuchAxis(
        f"{rule}: no mesh axis {rule.key!r}",
        field="pin",
        expected=f"one of {', '.join(KEYS)}, or an axis of this mesh: {names}",
    )


def axis_rules(rules: Iterable[Pin]) -> tuple[Pin, ...]:
    """Returns the rules whose key names mesh axes."""
    return tuple(rule for rule in rules if rule.key != "split" and rule.key not in _VALUES)


def forbidden_end(pins: Pins, group: Group) -> str | None:
    """Returns the collective that the rules forbid to end the group's partial sums, if any."""
    ends = [end for end in _VALUES["partial"] if not pins.allows(group, "partial", end)]
    if len(ends) > 1:
        raise no_end(group.name)
    return ends[0] if ends else None


def no_end(group: str) -> BadInput:
    """Returns the error for rules that forbid both collectives that end partial sums of a group."""
    return BadInput(
        f"partial sums of {group} may not be resolved at all",
        field="pin",
        expected="all_reduce or reduce_scatter allowed",
    )


def without_end(rules: Iterable[Pin]) -> bool:
    """Returns whether these rules forbid every collective that ends partial sums."""
    partial_rules = [rule for rule in rules if rule.key == "partial"]
    return bool(partial_rules) and not any(
        all(rule.allows(end) for rule in partial_rules) for end in _VALUES["partial"]
    )
