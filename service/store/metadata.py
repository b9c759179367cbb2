"""All tables of the service's database as one, for migrations and backups."""

from __future__ import annotations

from service.store.launch_tables import Launch
from service.store.webhook_tables import Webhook

METADATA = Launch.metadata
"""Tables of `tables.py` and, since one of each is imported, of the other modules of tables."""

assert Webhook.metadata is METADATA
