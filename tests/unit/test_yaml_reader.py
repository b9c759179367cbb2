"""The one reader of YAML: plain values, and bounded whatever a text says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardwise import yaml_reader
from shardwise.errors import LONGEST, BadInput
from shardwise.yaml_reader import read_yaml

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 20)
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    # Not 1e3: PyYAML writes it plain, since it is a text in YAML 1.1.
    st.text(st.characters(max_codepoint=0xD7FF, exclude_categories=["Cc", "Nd"]), max_size=20),
    st.sampled_from(["yes", "1:30", "0x1f", "010", "~", "<<", "2020-01-01", "*a", "&a", "7"]),
)
KEYS = st.one_of(st.text("abc<~19:", max_size=5), st.integers(0, 99), st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


def same(ours: Any, theirs: Any) -> bool:
    """Equality that tells 1 from True and from 1.0."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        pairs = zip(ours.items(), theirs.items(), strict=True)
        return all(same(a, b) and same(x, y) for (a, x), (b, y) in pairs)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


@given(VALUES, st.sampled_from([True, False, None]))
def test_what_pyyaml_writes_is_read_as_it_was(value: Any, flow: bool | None) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, allow_unicode=True)
    if "&id" in text:  # equal parts that PyYAML writes once
        return
    assert same(read_yaml(text), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: ", {"a": None}),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1e-8", 1e-8),
        (".5", 0.5),
        ("1.", 1.0),
        ("+12", 12),
        ("yes", True),
        ("OFF", False),
        ("'yes'", "yes"),
        ("! 12", "12"),
        ("!!str 12", "12"),
        ("!!int 12", 12),
        ("2020-01-01", "2020-01-01"),
        ("18446744073709551615", 2**64 - 1),
        ("-.inf", -math.inf),
        ("&a x", "x"),
        ("%YAML 1.2\n--- 5%", "5%"),
        ("a: |\n  %TAG here", {"a": "%TAG here"}),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    assert same(read_yaml(text), value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "an alias (*) in line 2"),
        ("a: &a [*a]", "an alias"),
        ("a: 1\nb: {<<: {c: 1}}", "a merge key (<<) in line 2"),
        ("a: 1\na: 2", "'a' occurs twice in line 2"),
        ("1: a\n0x1: b", "'1' occurs twice"),
        ("? [a]\n: 1", "a key that is a list"),
        ("a\n---\nb", "a second document in line 2"),
        ("!!python/object/apply:os.system [ls]", "the tag"),
        ("!!int x", "the tag"),
        ("!!set {a}", "the tag"),
        # libyaml compares each with all before it: a megabyte took 17 s.
        ("".join(f"%TAG !{n}! x\n" for n in range(70_000)) + "--- a", "a %TAG directive"),
        ("a: 1\n...\n%TAG !a! x\n--- b", "a %TAG directive"),
        ("\ufeff%TAG !a! x\n--- b", "a %TAG directive"),
        ("#\r%TAG !a! x\r--- b", "a %TAG directive"),
        ("#\u2028%TAG !a! x\n--- b", "a %TAG directive"),
        ("- " * 30, "nested too deeply in line 1"),
        ("[" * 10**6, "not YAML"),
        ("{a: " * 21 + "}" * 21, "nested too deeply"),
        ("9" * 5000, "a number of 5000 digits"),
        ("9" * 300, "a whole number of 300 digits"),
        ("18446744073709551616", "more than 64 bits|at most 64 bits"),
        ("0x" + "f" * 17, "at most 64 bits"),
        ("[" + "1," * yaml_reader.MOST_VALUES + "]", "too many values"),
        ("x" * (yaml_reader.MOST_CHARACTERS + 1), "too long"),
        ("x" * 2000 + ": 1", "not YAML|a key too long"),
        ("? " + "x" * 2000 + "\n: 1", "a key too long"),
        ("a: [1", "not YAML in line"),
        ("a:\n\tb: 1", "a tab before a value in line 2 (expected spaces"),
        ("a: \x07", "not YAML"),
        ('a: [b, "c\\0"]', "the character 0 in line 1"),
        ('? "a\\x00"\n: b', "the character 0"),
        ("a: \ud800", "not YAML that can be read"),
        ("@", "not YAML in line 1"),
    ],
)
def test_what_is_refused_says_so_in_one_short_line(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_yaml(text, field="task")
    said = str(refused.value)
    assert said.startswith("task: ")
    assert any(part in said for part in says.split("|")), said
    assert len(said) < 250


def test_sexagesimal_numbers_are_text_of_any_length() -> None:
    text = "1:" * 200_000 + "1"
    assert read_yaml(f"a: {text}") == {"a": text}


def test_errors_are_never_longer_than_a_screen() -> None:
    error = BadInput("x" * 10**6, field="f" * 10**6, expected="e" * 10**6)
    assert len(str(error)) < 3 * LONGEST
    assert str(error).count("…") == 3
