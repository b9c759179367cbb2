"""HeteroG Table 5: whole trainings. A training has as many iterations with every system (§6.4)."""

from __future__ import annotations

from paper.heterog_published import CNNS, END_TO_END
from paper.heterog_times import lines
from paper.result import Claim, Result, Table

AT = {"cp-ps": 1, "cp-ar": 2}
"""Where the paper's figures of a baseline are."""


def make() -> Result:
    result = Result("heterog_table5", "HeteroG Table 5: whole trainings (baseline ÷ ours)")
    for gpus, printed in END_TO_END.items():
        of_models = {line.model: line for line in lines(gpus) if line.model in CNNS}
        if not all(line.is_searched for line in of_models.values()):
            continue
        rows = [
            (
                model,
                *(_cell(line.speed_up(m), printed[model][0], printed[model][AT[m]]) for m in AT),
            )
            for model, line in of_models.items()
        ]
        headers = (f"{method.upper()} ÷ ours (paper)" for method in AT)
        result.tables.append(Table((f"{gpus} GPUs", *headers), rows))
        for method, at in AT.items():
            least = min(times[at] / times[0] for times in printed.values())
            ours = {model: line.speed_up(method) for model, line in of_models.items()}
            result.claims.append(
                Claim(
                    f"{gpus} GPUs: with {method.upper()} a training takes at least "
                    f"{least - 1.0:.0%} longer",
                    min(ours.values()) >= least,
                    ", ".join(f"{model} {by - 1.0:.0%}" for model, by in ours.items()),
                )
            )
        result.data[str(gpus)] = {
            model: {method: line.speed_up(method) for method in AT}
            for model, line in of_models.items()
        }
    return result


def _cell(ours: float, heterog: float, theirs: float) -> str:
    return f"**{ours:.2f}** ({theirs / heterog:.2f})"
