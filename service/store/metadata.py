"""All tables of the service's database as one, for migrations and backups."""

from __future__ import annotations

from service.store.launch_tables import Launch

METADATA = Launch.metadata
"""Of `tables.py` and, by having asked for `Launch`, of `launch_tables.py`."""
