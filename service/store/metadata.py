"""All tables of the service's database as one, for migrations and backups."""

from __future__ import annotations

from service.store.launch_tables import Launch
from service.store.webhook_tables import Webhook
from shardwise.errors import InternalError

METADATA = Launch.metadata
"""Tables of `tables.py` and, since one of each is imported, of the other modules of tables."""

if Webhook.metadata is not METADATA:
    raise InternalError("the tables of launches and webhooks belong to different databases")
