"""Checks the tests themselves: names, rooms, and that `make test` guards every promise."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import budgets
import conftest
import packages
import pytest
from rooms import ROOMS, TESTS, rooms_of

from harness.suite.record import Record

ROOT = TESTS.parent
MODULES = sorted(TESTS.rglob("test_*.py"))

AGENT, EXECUTE, SERVICE = "integration/agent/", "integration/execute/", "integration/service/"
PROMISES: dict[str, tuple[str, ...]] = {
    "a description proves what it says against the real operator": (
        "property/test_tdl_against_torch.py::test_every_split_is_as_described",
    ),
    "coarsening changes no answer": (
        "integration/models/test_coarsening.py::test_coarsening_changes_no_frontier",
    ),
    "the frontier is exact, or within its certificate": (
        "property/test_solver_oracles.py::test_frontiers_equal_highs_at_memory_caps",
        "golden/test_frontiers.py::test_the_frontier_is_as_it_was",
    ),
    "replayed peaks are those of a real step": (
        "integration/models/test_replay_accuracy.py::test_the_peak_is_that_of_a_real_step",
        EXECUTE + "test_peaks.py::test_no_random_strategy_needs_much_more_than_predicted",
    ),
    "a plan computes what one device computes": (
        EXECUTE + "test_equality.py::test_random_strategies_compute_what_one_device_computes",
        EXECUTE + "test_parallel.py::test_a_users_module_computes_what_it_computes_on_one_device",
        EXECUTE + "test_checkpoint.py::test_saved_on_four_ranks_loaded_on_two_and_one",
    ),
    "measured, planned, run, compared and refitted over two hosts": (
        AGENT + "test_whole_way.py::test_measure_plan_run_compare_refit",
    ),
    "an accepted job is recorded once, whatever dies": (
        SERVICE + "test_jobs_survive.py::test_a_worker_killed_in_mid_solve",
        SERVICE + "test_jobs_survive.py::test_the_service_killed_and_started_again",
        SERVICE + "test_jobs_survive.py::test_rings_that_are_lost_are_rung_again",
        SERVICE + "test_jobs_survive.py::test_a_job_that_kills_its_worker_three_times_fails",
        SERVICE + "test_chaos.py::test_the_broker_killed_in_mid_solve",
        SERVICE + "test_chaos.py::test_postgresql_restarted_in_mid_solve",
        SERVICE + "test_chaos.py::test_the_service_killed_in_mid_request",
        SERVICE + "test_chaos.py::test_two_services_and_skewed_workers_race_for_one_job",
        SERVICE + "test_chaos.py::test_a_full_disk_under_sqlite",
        SERVICE + "test_refused_writes.py::test_postgresql_on_a_full_disk",
        SERVICE + "test_refused_writes.py::test_a_full_disk_under_postgresqls_log",
        SERVICE + "test_refused_writes.py::test_a_broker_that_refuses_writes",
        SERVICE + "test_leases.py::test_a_worker_that_lost_its_lease_writes_nothing",
    ),
    "a curve keeps each count that it knows, and computes it once": (
        SERVICE + "test_curve_points.py::"
        "test_a_curve_whose_workers_are_killed_computes_each_count_once",
        SERVICE + "test_curve_points.py::test_questions_that_overlap_share_their_counts",
        SERVICE + "test_curve_points.py::test_a_limit_of_the_job_ends_it_with_what_is_known",
        SERVICE + "test_growing_curves.py::test_a_curve_that_is_computed_shows_what_is_known",
    ),
    "the same question is computed once and cached with an ETag": (
        SERVICE + "test_end_to_end.py::test_a_hundred_at_once_cost_one_computation",
        SERVICE + "test_end_to_end.py::test_a_curve_by_query",
    ),
    "a solve can be cancelled, is bounded, and tells how far it is": (
        SERVICE + "test_jobs_survive.py::test_a_running_job_is_cancelled",
        SERVICE + "test_jobs_survive.py::test_time_and_memory_of_a_solve_are_bounded",
        SERVICE + "test_end_to_end.py::test_events_tell_of_progress_and_end",
    ),
    "errors are problem documents, and what fits nowhere is an answer": (
        SERVICE + "test_limits.py::test_questions",
        SERVICE + "test_end_to_end.py::test_plans_and_infeasible_ones",
    ),
    "a tenant sees nothing of another": (
        SERVICE + "test_tenancy.py::test_a_route_tells_nothing_of_another_tenant",
        SERVICE + "test_tenancy.py::test_a_page_tells_nothing_of_another_tenant",
        SERVICE + "test_tenants.py::test_another_tenants_resource_is_like_a_missing_one",
    ),
    "keys are hashed and scoped, and needed elsewhere than on loopback": (
        SERVICE + "test_tenants.py::test_scopes",
        SERVICE + "test_tenants.py::test_the_secret_is_nowhere_in_the_folder",
        SERVICE + "test_tenants.py::test_elsewhere_than_on_loopback_keys_are_needed",
    ),
    "uploads are data, and bounded": (
        SERVICE + "test_malformed.py::test_five_hundred_malformed_uploads",
        SERVICE + "test_limits.py::test_uploads",
    ),
    "an agent runs what its administrator allows, and leaves no orphan": (
        AGENT + "test_launches.py::test_what_the_host_does_not_allow_is_refused",
        AGENT + "test_launches.py::test_arguments_arrive_literally_and_the_environment_is_filtered",
        AGENT
        + "test_faults.py::test_a_killed_agent_takes_its_jobs_along_and_says_so_at_its_restart",
        AGENT + "test_scopes.py::test_a_users_modules_are_not_taken_for_ours",
    ),
    "an expired lease stops the job on both sides": (
        AGENT + "test_faults.py::test_an_expired_lease_stops_the_job",
        AGENT + "test_agent_cluster.py::"
        "test_a_cut_link_loses_the_launch_and_stops_it_on_both_sides",
    ),
    "the page leads from a question to a plan and is accessible": (
        SERVICE + "page/test_page_questions.py::test_from_an_upload_to_a_points_plan",
        SERVICE + "page/test_page_for_everybody.py::test_every_view_is_accessible_and_fits",
        SERVICE + "page/test_page_access.py::test_signing_in_and_out",
    ),
    "people sign in at an identity provider, and forged answers open nothing": (
        SERVICE + "test_login.py::test_from_the_link_to_the_sign_out",
        SERVICE + "test_login.py::test_the_session_opens_the_page_alone",
        SERVICE + "test_login.py::test_a_forged_token_opens_nothing",
        SERVICE + "test_login.py::test_an_answer_that_this_browser_did_not_ask_for",
        SERVICE + "page/test_page_login.py::test_a_login_with_a_choice_of_tenant",
    ),
    "one tenant at a limit of a process stops neither another nor an operator": (
        SERVICE + "test_tenant_shares.py"
        "::test_slow_readers_of_one_tenant_stop_no_other_and_no_operator",
        SERVICE + "test_tenant_shares.py::test_the_calls_of_operators_take_their_lane_in_each_pool",
        SERVICE + "test_tenant_shares.py"
        "::test_waiting_agents_of_one_tenant_leave_room_for_anothers",
    ),
    "no body is answered with a defect": (
        SERVICE + "test_fuzzed_bodies.py::test_no_body_is_answered_with_a_defect",
    ),
    "errors of predictions are metrics, on dashboards with alerts": (
        SERVICE + "test_recent_errors.py::test_the_first_run_is_seen",
        "integration/deploy/test_dashboards.py::test_a_dashboard_holds_together",
        "integration/deploy/test_dashboards.py::test_rules_pass_their_promtool_tests",
    ),
    "the commands of the documentation run": (
        "integration/docs/test_docs_commands.py::test_commands_of",
    ),
    "the base install needs no torch and no app": (
        "unit/test_imports.py::test_advice_and_the_command_line_work_without_torch",
        "unit/test_imports.py::test_the_list_of_commands_loads_no_app_and_no_command",
    ),
}
"""Promises to users, each with the tests of `make test` that fail if it is broken."""


def is_full(node: ast.expr) -> bool:
    """Returns True if an expression is `pytest.mark.full` or contains it."""
    return any(isinstance(n, ast.Attribute) and n.attr == "full" for n in ast.walk(node))


def guards(test: str) -> bool:
    """Returns True if `make test` runs a test, or some of its parameters."""
    path, _, name = test.partition("::")
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert name in functions, f"{path} has no {name}"
    marks = [
        n.value
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
    ]
    alone = [d for d in functions[name].decorator_list if ast.unparse(d) == "pytest.mark.full"]
    return not alone and not any(map(is_full, marks))


@pytest.mark.parametrize("promise", PROMISES)
def test_make_test_guards_every_promise(promise: str) -> None:
    assert all(map(guards, PROMISES[promise]))


def test_every_module_is_about_a_room_and_every_room_has_modules() -> None:
    assert [path for path in MODULES if not rooms_of(path)] == []
    paths = [path.relative_to(TESTS).as_posix() for path in MODULES]
    for patterns in ROOMS.values():
        for pattern in patterns:
            assert any(fnmatch(path, pattern) for path in paths), pattern


def test_every_room_of_the_code_is_named() -> None:
    library = {p.parent.name for p in (ROOT / "shardwise").glob("*/__init__.py")}
    apps = {p.parent.name for p in ROOT.glob("*/__init__.py")} - {
        "shardwise",
        "migrations",
        "tools",
        "harness",
    }
    assert library | apps | {"solver", "deploy", "docs", "benchmarks", "tests"} == ROOMS.keys()


def pytest_of(*arguments: str) -> str:
    """Returns what pytest with these arguments prints, which must be a success."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_a_room_selects_its_tests() -> None:
    selected = ("-m", "sharding and not full", "tests/unit/test_coarsen.py")
    assert "test_coarsen.py::" in pytest_of("--collect-only", *selected)


def test_no_module_takes_more_than_its_budget() -> None:
    whole = Record.read().whole
    assert whole is not None, "no whole run is on record: `make test` writes it"
    over = {
        path: f"{seconds:.0f} of {budgets.budget(path)} s"
        for path, seconds in whole.modules.items()
        if seconds > budgets.budget(path) and (ROOT / path).exists()
    }
    assert over == {}


def test_budgets_are_of_modules_that_need_them() -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in MODULES}
    assert budgets.LARGER.keys() <= modules
    assert all(seconds > budgets.USUAL_S and why for seconds, why in budgets.LARGER.values())


def test_long_modules_come_first() -> None:
    seconds = {"tests/unit/test_a.py": 1.0, "tests/unit/test_b.py": 50.0}
    known = [ROOT / "tests/unit" / f"test_{name}.py" for name in "acb"]
    ranked = sorted(known, key=lambda path: conftest.rank(path, seconds))
    assert [path.name for path in ranked] == ["test_b.py", "test_c.py", "test_a.py"]


def test_packages_are_named_as_they_are_marked() -> None:
    marked = {
        ast.literal_eval(argument)
        for path in TESTS.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.needs"
        for argument in call.args
    }
    assert marked == packages.PROGRAMS.keys()


def test_missing_packages_are_named_with_their_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.missing() == list(packages.PROGRAMS)
    assert packages.command(["chromium", "curl"]) == "sudo apt-get install chromium curl"
    for program in packages.PROGRAMS["prometheus"]:
        (tmp_path / program).touch(mode=0o755)
    assert "prometheus" not in packages.missing()
