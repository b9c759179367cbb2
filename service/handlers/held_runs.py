"""Runs that are held: an administrator accepts them, or rejects them for good."""

from __future__ import annotations

from service.cluster.measurements import Errors
from service.edge.context import RequestContext, Result
from service.edge.state import State
from service.handlers.launches import whole_launch
from service.store.launches import find_launch
from service.store.runs import QUANTITIES, judge_run


def accept_run(context: RequestContext, launch_id: str, run_id: str) -> Result:
    """Returns 200 with the launch: the run counts from now on."""
    launch = find_launch(context.session, context.tenant, launch_id[:80])
    run, first = judge_run(context.session, launch, run_id[:80], accepted=True)
    errors = Errors(**{name: getattr(run, f"{name}_error") for name in QUANTITIES})
    kind = run.device_kind

    def count(state: State) -> None:
        state.metrics.agents.observe(kind, errors)

    return Result(200, whole_launch(context, launch), after=[count] if first else [])


def reject_run(context: RequestContext, launch_id: str, run_id: str) -> Result:
    """Returns 200 with the launch: the run is kept and never counts."""
    launch = find_launch(context.session, context.tenant, launch_id[:80])
    judge_run(context.session, launch, run_id[:80], accepted=False)
    return Result(200, whole_launch(context, launch))
