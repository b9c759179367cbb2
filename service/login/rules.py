"""The tenants of the provider's groups: a TOML file, read once at the start.

    [[rule]]
    group = "research"
    tenant = "research"
    scopes = ["read", "submit"]

A rule names one group. A person with several groups has every tenant that their rules name, and in
a tenant the scopes of all its rules; tenants are in the order of the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.store.keys import SCOPES, is_tenant_name
from shardwise.errors import BadInput

MAX_FILE_BYTES = 2**20
MAX_RULES = 1000
MAX_GROUP = 1024
ALLOWED = tuple(scope for scope in SCOPES if scope != "agent")
"""Scopes that people may have. `agent` is only for agents, which have their own keys."""

_FIELDS = {"group", "tenant", "scopes"}


@dataclass(frozen=True)
class Rule:
    """Members of `group` have `scopes` in `tenant`."""

    group: str
    tenant: str
    scopes: tuple[str, ...]


class Rules:
    """The rules in the order of their file."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._known = {rule.group for rule in self._rules}

    def known(self, groups: Iterable[str]) -> list[str]:
        """Returns the groups that a rule names, sorted: the groups that a session stores."""
        return sorted(self._known.intersection(groups))

    def tenants(self, groups: Iterable[str]) -> dict[str, frozenset[str]]:
        """Returns the scopes by tenant that a person with these groups has."""
        mine = set(groups)
        tenants: dict[str, frozenset[str]] = {}
        for rule in self._rules:
            if rule.group in mine:
                tenants[rule.tenant] = tenants.get(rule.tenant, frozenset()).union(rule.scopes)
        return tenants


def read_rules(file: str) -> Rules:
    """Returns the rules of a file. Raises BadInput with the file and the field."""
    try:
        path = Path(file)
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInput("too large", file=file, expected=f"at most {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(
            reason, file=file, field="oidc_rules_file", expected="a file that the service can read"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"not TOML: {error}", file=file, expected="TOML") from None
    for name in document.keys() - {"rule"}:
        raise BadInput("unknown", file=file, field=name[:80], expected="[[rule]]")
    rules = document.get("rule", [])
    if not isinstance(rules, list) or not 1 <= len(rules) <= MAX_RULES:
        raise BadInput("no rules", file=file, field="rule", expected=f"1 to {MAX_RULES} [[rule]]")
    return Rules(_rule(one, file, f"rule[{place}]") for place, one in enumerate(rules))


def _rule(given: Any, file: str, where: str) -> Rule:
    if not isinstance(given, Mapping):
        raise BadInput("not a table", file=file, field=where, expected="[[rule]]")
    for name in given.keys() - _FIELDS:
        expected = ", ".join(sorted(_FIELDS))
        raise BadInput("unknown", file=file, field=f"{where}.{name[:80]}", expected=expected)
    group, tenant, scopes = (given.get(name) for name in ("group", "tenant", "scopes"))
    if not (isinstance(group, str) and 0 < len(group) <= MAX_GROUP):
        expected = f"1 to {MAX_GROUP} characters"
        raise BadInput("not a group", file=file, field=f"{where}.group", expected=expected)
    if not (isinstance(tenant, str) and is_tenant_name(tenant)):
        expected = "lower-case letters, digits, '.', '_', '-'"
        raise BadInput("not a tenant", file=file, field=f"{where}.tenant", expected=expected)
    if not (isinstance(scopes, list) and scopes and all(scope in ALLOWED for scope in scopes)):
        expected = f"a list of {', '.join(ALLOWED)}"
        raise BadInput("not scopes", file=file, field=f"{where}.scopes", expected=expected)
    return Rule(group, tenant, tuple(scopes))
