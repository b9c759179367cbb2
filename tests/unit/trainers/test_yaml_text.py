"""YAML that is written without PyYAML is read by it as the same values."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardwise.trainers.yaml_text import yaml_text

KEYS = st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda key: key not in ("_", "__"))
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(max_codepoint=0xD7FF), max_size=20),
    st.sampled_from(["yes", "no", "on", "off", "null", "1e-3", "x: y", "# no comment", "~"]),
)
DOCUMENTS = st.recursive(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=4),
    max_leaves=8,
)


@given(DOCUMENTS)
def test_yaml_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(document)) == document
