"""Maps test modules to the rooms of the code: `make test-of ROOM=service` runs those of one room.

A room is a package of `shardwise/`, an app, or another top-level folder. Patterns match paths below
`tests/`. A module belongs to at least one room and may belong to several.
"""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent

ROOMS: dict[str, tuple[str, ...]] = {
    "answers": (
        "golden/*", "integration/models/test_labels_of_families.py",
        "unit/test_advice.py", "unit/test_advice_tables.py", "unit/test_allocation.py",
        "unit/test_calibrate.py",
        "unit/test_answers.py", "unit/test_cluster.py", "unit/test_experts.py",
        "unit/test_labels.py",
        "unit/test_bundle_curve.py", "unit/test_bundle_pipelines.py", "unit/test_curve_parts.py",
        "unit/test_label_law.py", "unit/test_named_strategies.py",
        "unit/test_mixed_quote.py",
        "unit/test_mixed_search.py", "unit/test_neighbours.py", "unit/test_outline.py",
        "unit/test_plan_order.py", "unit/test_ranges.py", "unit/test_published_steps.py",
        "unit/test_remedies.py", "unit/test_expected.py",
        "unit/test_strategy_document.py", "unit/test_summary.py",
    ),
    "agent": (
        "integration/agent/*", "unit/agent/*", "unit/test_child_process.py", "unit/test_logs.py",
        "unit/test_sizes.py",
    ),
    "benchmarks": (
        "integration/models/test_gpu_report.py", "integration/models/test_heterog_models.py",
        "integration/models/test_paper.py", "integration/models/test_paper_heterog.py",
        "integration/models/test_published_predictions.py", "unit/test_heterog_tables.py",
        "unit/test_paper_page.py", "unit/test_published_page.py", "unit/test_published_runs.py",
        "unit/test_published_statistics.py",
    ),
    "capture": (
        "integration/models/test_models_table.py", "integration/models/test_onnx_frontiers.py",
        "integration/models/test_capture_*", "unit/test_capture_*", "unit/test_shipped_presets.py",
        "unit/trainers/test_named_models.py",
    ),
    "cli": (
        "end_to_end/test_cli.py", "property/test_question_codecs.py",
        "unit/test_advice_tables.py", "unit/test_fewer_tokens.py", "unit/test_imports.py",
        "unit/test_error_texts.py",
        "unit/test_internal_errors.py", "unit/test_linear_fit.py", "unit/test_options.py",
        "unit/test_output.py", "unit/test_output_option.py", "unit/test_plan_page.py",
        "unit/test_policy*",
        "unit/test_sizes.py",
    ),
    "client": (
        "integration/service/test_client.py", "integration/service/test_launch_client.py",
        "property/test_question_codecs.py", "unit/client/*",
    ),
    "cost": (
        "unit/test_collective_tables.py", "unit/test_configurations.py", "unit/test_host.py",
        "unit/test_fast_convolution.py", "unit/test_fused_memory.py", "unit/test_kernels.py",
        "unit/test_mixed_costs.py",
        "unit/test_never.py",
        "unit/test_offloading.py", "unit/test_operator_times.py", "unit/test_program.py",
        "unit/test_recipes.py",
        "unit/test_options.py", "unit/test_packing.py", "unit/test_reschedule.py",
        "unit/test_shares.py", "unit/test_space.py", "unit/test_staging.py",
        "unit/test_step_settings.py",
    ),
    "deploy": (
        "containers/*", "integration/deploy/*", "integration/schedulers/test_samples.py",
        "unit/test_fault_plan.py",
    ),
    "docs": (
        "unit/test_glossary.py", "unit/test_references.py",
        "integration/docs/*",
        "integration/schedulers/test_schedulers_docs.py", "unit/agent/test_agent_documentation.py",
        "unit/service/test_reference_pages.py", "unit/test_reference_python.py",
    ),
    "documents": (
        "unit/test_documents.py",
        "unit/test_folded_plans.py",
        "unit/test_plan_forms.py",
    ),
    "execute": (
        "integration/execute/*", "unit/test_accumulate.py", "unit/test_agreement.py",
        "unit/test_context.py",
        "unit/test_block_mesh.py",
        "unit/test_cross_entropy_rows.py",
        "unit/test_execution_order.py", "unit/test_extremes.py",
        "unit/test_kept_memory.py", "unit/test_run_launcher.py", "unit/test_saved_tensors.py",
        "unit/test_step_timing.py",
        "unit/test_windows.py",
    ),
    "graph": (
        "integration/models/test_adapters.py", "unit/test_tuning.py",
        "fuzz/*", "property/test_graph_roundtrip.py", "unit/test_blocks.py", "unit/test_graph_*",
        "unit/test_validation.py",
    ),
    "hardware": (
        "unit/test_aiconfigurator.py", "unit/test_collective_tables.py", "unit/test_hardware*",
        "unit/test_linear_fit.py", "unit/test_offers.py", "unit/test_operator_times.py",
        "unit/test_power_limit.py", "unit/test_refit.py", "unit/test_skypilot_offers.py",
    ),
    "mcp": (
        "end_to_end/test_mcp.py", "integration/service/test_assistants.py",
        "property/test_question_codecs.py",
    ),
    "measure": (
        "containers/test_hosts.py",
        "integration/test_measure_gloo.py", "integration/test_measure_kinds.py",
        "integration/test_operator_tables.py",
        "unit/test_child_process.py", "unit/test_cores.py", "unit/test_labels.py",
        "unit/test_measure.py",
        "unit/test_rank_starts.py", "unit/test_slowed.py", "unit/test_trackers.py",
    ),
    "pictures": ("end_to_end/test_cli.py", "unit/test_blocks.py", "unit/test_pictures.py"),
    "peers": (
        "integration/models/test_compare*", "integration/service/page/test_page_comparison.py",
        "integration/service/test_comparison_questions.py",
        "property/test_mixed_law.py", "unit/test_compare_*",
    ),
    "question": ("property/test_combinations.py", "property/test_question_codecs.py"),
    "pipeline": (
        "integration/service/test_pipeline_questions.py", "property/test_pipeline_laws.py",
        "unit/pipelines/*", "unit/test_pipeline_*",
    ),
    "policy": ("unit/test_policy*",),
    "replay": (
        "integration/models/test_replay*", "unit/test_layers_of_a_program.py",
        "unit/test_made_once.py", "unit/test_mixed_bound.py", "unit/test_mixed_replay.py",
        "unit/test_order.py", "unit/test_replay*",
        "unit/test_search_kernels.py",
    ),
    "schedulers": (
        "containers/test_ray.py", "containers/test_slurm.py", "integration/schedulers/*",
        "unit/test_plan_exports.py", "unit/test_schedulers.py",
    ),
    "search": (
        "golden/*", "integration/models/test_onnx_frontiers.py",
        "integration/models/test_tofu_models.py", "property/test_tofu_elements.py",
        "unit/test_mixed_bound.py", "unit/test_mixed_search.py", "unit/test_mixed_time.py",
        "unit/test_chosen.py", "unit/test_neighbours.py", "unit/test_replayed_search.py",
        "unit/test_search_kernels.py",
        "unit/test_solver_problem.py", "unit/test_tofu.py", "unit/test_turning_point.py",
    ),
    "service": (
        "integration/docs/test_docs_backup.py", "integration/service/*",
        "property/test_question_codecs.py", "unit/service/*",
        "unit/test_child_process.py", "unit/test_logs.py", "unit/test_page_*", "unit/test_sizes.py",
        "unit/test_validation.py",
    ),
    "sharding": (
        "integration/models/test_coarsening.py", "unit/test_coarsen.py", "unit/test_context.py",
        "unit/test_experts.py",
        "unit/test_layout.py", "unit/test_recipes.py", "unit/test_rerun.py", "unit/test_routing.py",
        "unit/test_recomputed_parts.py",
        "unit/test_strides.py",
    ),
    "solver": (
        "golden/*", "property/test_solver*", "unit/test_search_kernels.py",
        "unit/test_solver_problem.py",
    ),
    "tdl": ("property/test_tdl_*", "unit/test_tdl*"),
    "tests": (
        "unit/test_cases.py", "unit/test_commit_subjects.py", "unit/test_shortened.py",
        "unit/test_suite.py",
        "unit/test_suite_runs.py", "unit/test_tiers.py",
    ),
    "trainers": (
        "unit/test_yaml_reader.py",
        "integration/service/test_trainer_questions.py", "integration/trainers/*",
        "unit/trainers/*",
    ),
    "worker": (
        "integration/service/test_bundles.py", "integration/service/test_chaos.py",
        "integration/service/test_end_to_end.py",
        "integration/service/test_jobs_survive.py", "integration/service/test_leases.py",
        "integration/service/test_refused_writes.py",
        "integration/service/test_rolling_upgrade.py", "unit/test_child_process.py",
        "unit/test_logs.py",
    ),
}  # fmt: skip


@cache
def rooms_of(module: Path) -> list[str]:
    """Returns the names of the rooms that a test module belongs to."""
    path = module.relative_to(TESTS).as_posix()
    return [
        room
        for room, patterns in ROOMS.items()
        if any(fnmatch(path, pattern) for pattern in patterns)
    ]
