"""docs/reference/execute-operators.md: how every described operator runs on shares.

The forms are those of tools/operator_forms.json, which `make tables` writes with torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from shardwise.tdl.coverage import shipped
from tools.execute_operators_table import COLUMNS, FILE, Forms

TEXT = """# Operators on shares

Made by `make reference`. A plan says for every operator which of its loops each mesh axis splits \
([Operators](operators.md)). When the plan [runs](../execute.md), every rank runs the operator on \
local parts, in one of these forms:

- **plain**: torch's own overload with local sizes, wherever no share needs anything of another. \
A sum over a split loop leaves a term of the sum; the first rank alone adds a bias.
- **own**: an exact distributed form. Means, variances, norms, softmax and cross entropy reduce \
their statistics over the shares, forward and backward. Convolutions and pooling fetch the rows \
of their neighbours and pad outer borders only. Lookups and scatters take what falls into their \
own rows. Extremes over a split loop are reduced at once. Batch normalisation keeps the running \
statistics of one device.
- **by chance**: dropout and other random operators. Replicas draw the same numbers, shares draw \
others, and recomputation draws the same again; torch's own random stream is not used. The \
numbers are not those of one device.
- **gathered**: the inputs are made whole, the operator runs whole, and every rank keeps its part. \
Always right, but slower than the plan's price; the program lists these operators with the reason.

Every operator with an example is run on real process groups and compared with the whole operator, \
outputs and all gradients in float64 (`pytest tests/integration/execute/test_local_operators.py`): \
each loop in two parts and in three uneven ones, and random pairs of loops on a 2×2 mesh. In 16 \
bits sums have another order than on one device, so the last bits may differ. `embedding_bag` \
split over bags reads where its part of the indices begins, which on a GPU waits for the device; \
its results after the first are those of each rank alone.

## Which operator runs how

The first table counts kinds: *own* if any loop of an example needs it, *gathered* if any loop \
does. Every other loop of a gathered operator runs as it should.
"""


def page() -> str:
    """Returns the whole page."""
    forms: Forms = json.loads(FILE.read_text("utf-8"))
    return f"{TEXT}\n{_counts(forms)}\n{_reasons(forms)}"


def _counts(forms: Forms) -> str:
    """Returns the number of kinds by family and form."""
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    known = sorted(shipped(), key=lambda described: described.family)
    for family, members in groupby(known, key=lambda described: described.family):
        row = [_column(forms[described.kind]) for described in members]
        lines.append(_count(family.replace("_", " "), row))
    lines.append(_count("**all**", [_column(forms[described.kind]) for described in known]))
    return "\n".join(lines) + "\n"


def _column(form: str | Mapping[str, str]) -> str:
    return form if isinstance(form, str) else "gathered"


def _count(name: str, forms: Sequence[str]) -> str:
    return f"| {name} | " + " | ".join(str(forms.count(c) or "–") for c in COLUMNS) + " |"


def _reasons(forms: Forms) -> str:
    """Returns what is gathered, and why."""
    lines = ["| operator | split along | gathered because |", "|---|---|---|"]
    for kind, form in forms.items():
        if isinstance(form, str):
            continue
        for why, names in _by_reason(form.items()).items():
            lines.append(f"| `{kind}` | {', '.join(names)} | {why} |")
    return "\n".join(lines) + "\n"


def _by_reason(gathered: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for variable, why in gathered:
        reasons.setdefault(why, []).append(variable)
    return reasons
