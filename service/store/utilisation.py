"""Model flops utilisation of the last day's runs: predicted, and measured.

measured = predicted · predicted step / measured step = predicted / (1 + iteration error)
"""

from __future__ import annotations

from collections import Counter, defaultdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.database import now
from service.store.launch_tables import Run
from service.store.runs import RECENT_S, counts

MOST_RUNS = 1000
CHUNK = 200


class Utilisations:
    """Reads them; what the plans of runs predicted is read from their documents once."""

    def __init__(self, most_kinds: int) -> None:
        """Agents name their devices: kinds beyond the `most_kinds` most used are `other`."""
        self._most_kinds = most_kinds
        self._predicted: dict[str, float | None] = {}

    def read(self, session: Session) -> dict[tuple[str, str], list[float]]:
        """Returns the utilisations of the newest runs, by source and device kind."""
        query = (
            select(Run.id, Run.device_kind, Run.iteration_error)
            .where(Run.created_at > now() - RECENT_S, Run.iteration_error.is_not(None), counts())
            .order_by(Run.created_at.desc())
            .limit(MOST_RUNS)
        )
        rows = session.execute(query).all()
        self._learn(session, [row[0] for row in rows])
        named = {kind for kind, _ in Counter(r[1] for r in rows).most_common(self._most_kinds)}
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for run_id, kind, error in rows:
            predicted = self._predicted[run_id]
            if predicted is None or error is None or error <= -1:
                continue
            label = (kind or "unknown") if kind in named else "other"
            found["predicted", label].append(predicted)
            found["measured", label].append(predicted / (1 + error))
        return dict(found)

    def _learn(self, session: Session, ids: list[str]) -> None:
        """Reads the predictions of runs that are not known, and forgets those of older ones."""
        self._predicted = {run: self._predicted[run] for run in ids if run in self._predicted}
        new = [run for run in ids if run not in self._predicted]
        member = Run.document["predicted"]["model_flops_utilisation"].as_float()
        for first in range(0, len(new), CHUNK):
            query = select(Run.id, member).where(Run.id.in_(new[first : first + CHUNK]))
            self._predicted.update((row[0], row[1]) for row in session.execute(query))
        for run in ids:
            self._predicted.setdefault(run, None)
