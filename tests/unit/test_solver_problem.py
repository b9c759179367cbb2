"""Problem files: what is read, what is refused and how, and the document that comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.errors import BadInput, SolverError
from shardwise.search.problem import ProblemFile, read_problem, solve_problem


def cost(memory: float, time: float) -> dict[str, Any]:
    return {"memory_bytes": memory, "time_s": time}


def contract_example() -> dict[str, Any]:
    return {
        "schema": "shardwise.problem/1",
        "operators": [
            {"name": "a", "choices": [cost(10, 1.5), cost(4, 2.0)]},
            {"name": "b", "choices": [cost(1, 1.0), cost(3, 0.5)]},
        ],
        "edges": [
            {
                "source": "a",
                "target": "b",
                "choices": [
                    [[cost(0, 0.1)], [cost(3, 0.0), cost(0, 0.4)]],
                    [[cost(2, 0.0)], [cost(0, 0.25)]],
                ],
            }
        ],
    }


def written(folder: Path, document: Any) -> Path:
    file = folder / "problem.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def read(folder: Path, document: Any) -> ProblemFile:
    return read_problem(written(folder, document))


def refused(folder: Path, document: Any) -> BadInput:
    file = written(folder, document)
    with pytest.raises(BadInput) as caught:
        read_problem(file)
    assert caught.value.file == str(file)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("method", ["auto", "elimination", "ldp", "heuristic", "brute-force"])
def test_the_frontier_of_a_small_problem(tmp_path: Path, method: str) -> None:
    document = solve_problem(read(tmp_path, contract_example()), method=method)
    assert document["schema"] == "shardwise.frontier/1"
    assert document["certificate"] == {"exact": True, "epsilon": 0.0, "status": "exact"}
    # By hand: (a0,b0) 11 2.6; (a0,b1) 16 2.0 or 13 2.4; (a1,b0) 7 3.0; (a1,b1) 7 2.75.
    assert [(p["memory_bytes"], p["time_s"]) for p in document["points"]] == [
        (7.0, 2.75),
        (11.0, pytest.approx(2.6)),
        (13.0, pytest.approx(2.4)),
        (16.0, 2.0),
    ]
    assert document["points"][0]["choices"] == {"a": 1, "b": 1}
    assert [p["edge_choices"] for p in document["points"]] == [[0], [0], [1], [0]]
    assert document["search"]["status"] == "exact"
    assert document["search"]["seconds"] >= 0
    assert document["search"]["peak_rss_bytes"] > 2**20
    json.dumps(document, allow_nan=False)


def test_no_operators_are_one_free_strategy(tmp_path: Path) -> None:
    empty = {"schema": "shardwise.problem/1", "operators": [], "edges": []}
    points = solve_problem(read(tmp_path, empty))["points"]
    assert points == [{"memory_bytes": 0.0, "time_s": 0.0, "choices": {}, "edge_choices": []}]


def test_many_alternatives_in_one_cell(tmp_path: Path) -> None:
    document = contract_example()
    cells = document["edges"][0]["choices"]
    cells[0][0] = [cost(i / 1024, (1000 - i) / 4096) for i in range(1000)]
    points = solve_problem(read(tmp_path, document))["points"]
    through = [p for p in points if p["choices"] == {"a": 0, "b": 0}]
    assert [p["edge_choices"] for p in through] == [[i] for i in range(1000)][-len(through) :]
    assert len(through) > 255


PLACES = [
    (("operators", 0, "choices", 1, "time_s"), "operators[0].choices[1].time_s"),
    (("operators", 1, "choices", 0, "memory_bytes"), "operators[1].choices[0].memory_bytes"),
    (
        ("edges", 0, "choices", 0, 1, 1, "time_s"),
        "edges[0].choices[0][1][1].time_s",
    ),
    (
        ("edges", 0, "choices", 1, 0, 0, "memory_bytes"),
        "edges[0].choices[1][0][0].memory_bytes",
    ),
]


@pytest.mark.parametrize(("path", "field"), PLACES)
@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "-1", "-1e-9", "1e999"])
def test_costs_that_are_none_are_refused_by_field(
    tmp_path: Path, path: tuple[Any, ...], field: str, bad: str
) -> None:
    document = contract_example()
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = "HERE"
    error = refused(tmp_path, json.dumps(document).replace('"HERE"', bad))
    assert error.field == field


@pytest.mark.parametrize(("bad", "expected"), [("1", "float"), (True, "float"), (None, "float")])
def test_costs_of_another_type_are_refused_by_field(
    tmp_path: Path, bad: Any, expected: str
) -> None:
    document = contract_example()
    document["edges"][0]["choices"][0][1][0]["time_s"] = bad
    error = refused(tmp_path, document)
    assert error.field == "edges[0].choices[0][1][0].time_s"
    assert expected in str(error)


def changed(**changes: Any) -> dict[str, Any]:
    return {**contract_example(), **changes}


def with_edge(**changes: Any) -> dict[str, Any]:
    document = contract_example()
    document["edges"][0].update(changes)
    return document


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        (changed(schema="shardwise.problem/2"), "schema", "shardwise.problem/2"),
        (changed(schema="shardwise.graph/1"), "schema", "shardwise.problem/1"),
        (with_edge(source="c"), "edges[0].source", "'c'"),
        (with_edge(target="c"), "edges[0].target", "'c'"),
        (with_edge(target="a"), "edges[0].target", "itself"),
        (with_edge(choices=[[[cost(0, 0)], [cost(0, 0)]]]), "edges[0].choices", "2, one per"),
        (
            with_edge(choices=[[[cost(0, 0)]], [[cost(0, 0)], [cost(0, 0)]]]),
            "edges[0].choices[0]",
            "one per choice of 'b'",
        ),
        (
            with_edge(choices=[[[cost(0, 0)], []], [[cost(0, 0)], [cost(0, 0)]]]),
            "edges[0].choices[0][1]",
            "at least one",
        ),
        (
            changed(operators=[{"name": "a", "choices": [cost(1, 1)]}] * 2, edges=[]),
            "operators[1].name",
            "unique",
        ),
        (
            changed(operators=[{"name": "a", "choices": []}], edges=[]),
            "operators[0].choices",
            "at least one",
        ),
        ({"schema": "shardwise.problem/1", "edges": []}, "operators", "missing"),
        ({"operators": [], "edges": []}, "schema", "missing"),
        (changed(schema=None), "schema", "str"),
        (changed(operators={}), "operators", "array"),
        ([], None, "object"),
        ("3", None, "object"),
    ],
)
def test_broken_documents_are_refused_by_field(
    tmp_path: Path, document: Any, field: str | None, says: str
) -> None:
    error = refused(tmp_path, document)
    assert error.field == field
    assert says in str(error)


def test_malformed_json_is_placed(tmp_path: Path) -> None:
    error = refused(tmp_path, '{"schema": "shardwise.problem/1",\n "operators": [}')
    assert "line 2, column 16" in str(error)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"schema": "shardwise.problem/1"'])
def test_malformed_documents_are_refused(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_bytes(b'{"schema": "\xff\xfe"}')
    with pytest.raises(BadInput):
        read_problem(file)


def test_the_size_of_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, contract_example())
    monkeypatch.setenv("SHARDWISE_MAX_FILE_BYTES", "100")
    with pytest.raises(BadInput, match="at most 100 bytes"):
        read_problem(file)


def test_a_sparse_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as stream:
        stream.truncate(2**30)
    with pytest.raises(BadInput, match="1073741824 bytes"):
        read_problem(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(BadInput) as caught:
            read_problem(path)
        assert caught.value.file == str(path)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"method": "magic"}, "method"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"time_limit_s": 0.0}, "time_limit_s"),
        ({"time_limit_s": float("inf")}, "time_limit_s"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, settings: dict[str, Any], field: str) -> None:
    problem = read(tmp_path, contract_example())
    with pytest.raises(BadInput) as caught:
        solve_problem(problem, **settings)
    assert caught.value.field == field


def wide_problem() -> dict[str, Any]:
    """Forty operators with two choices: too many strategies for brute force."""
    choices = [cost(1, 2), cost(2, 1)]
    operators = [{"name": f"o{i}", "choices": choices} for i in range(40)]
    return {"schema": "shardwise.problem/1", "operators": operators, "edges": []}


def test_brute_force_on_a_large_problem_says_why_not(tmp_path: Path) -> None:
    with pytest.raises(SolverError, match="brute force"):
        solve_problem(read(tmp_path, wide_problem()), method="brute-force")


def test_alike_operators_collapse(tmp_path: Path) -> None:
    points = solve_problem(read(tmp_path, wide_problem()))["points"]
    assert [(p["memory_bytes"], p["time_s"]) for p in points] == [
        (40.0 + i, 80.0 - i) for i in range(41)
    ]
