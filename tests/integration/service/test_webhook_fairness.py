"""Senders of webhooks, when the receivers of some tenants hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from harness.service.service_harness import wait_until
from service.base.public_address import Reach
from service.base.settings import Settings
from service.base.webhook_signing import fingerprint_of
from service.edge.metrics import WorkerMetrics
from service.store.database import Database
from service.store.keys import make_tenant
from service.store.schema import migrate
from service.store.webhook_tables import WebhookDelivery
from service.store.webhooks import make_test_delivery, make_webhook
from worker.deliverer import Deliverer
from worker.webhook_post import Outcome, Poster

KEY = "k" * 32
HOOKS = 4
"""Of each tenant."""

HOSTILE = ("hostile1", "hostile2", "hostile3", "hostile4")


class Receivers(Poster):
    """Answer at once, but those of hostile tenants not before they are let go."""

    def __init__(self) -> None:
        super().__init__(Reach(), 60.0)
        self.held: Counter[str] = Counter()
        self.let_go = threading.Event()

    def post(self, url_text: str, owner: str, headers: dict[str, str], body: bytes) -> Outcome:
        if owner in HOSTILE:
            self.held[owner] += 1
            self.let_go.wait(120)
        return Outcome(204, "")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'one.sqlite'}")
    migrate(opened)
    yield opened
    opened.close()


def announce(database: Database, tenant: str) -> None:
    """Something for each of a tenant's receivers."""
    with database.write() as session:
        make_tenant(session, tenant)
        for number in range(HOOKS):
            webhook, _ = make_webhook(
                session, tenant, name="", url="https://example.com/",
                authority=f"{tenant}{number}", events=["job.ended"], kinds=[], states=[],
                max_webhooks=HOOKS, once_hash=None, once_s=1.0,
                key_fingerprint=fingerprint_of(KEY.encode()),
            )  # fmt: skip
            make_test_delivery(session, webhook)


def delivered(database: Database, tenant: str) -> bool:
    which = (WebhookDelivery.state == "delivered", WebhookDelivery.tenant_id == tenant)
    with database.read() as session:
        return session.scalar(select(func.count()).where(*which)) == HOOKS


def test_four_tenants_whose_receivers_hang_leave_senders_to_a_fifth(database: Database) -> None:
    settings = Settings(webhook_key=KEY, webhook_senders=8)
    deliverer = Deliverer(settings, database, WorkerMetrics().webhooks)
    deliverer._poster = receivers = Receivers()
    for tenant in HOSTILE:
        announce(database, tenant)
    deliverer.start()
    try:
        wait_until(lambda: len(receivers.held) == len(HOSTILE), "each holds a sender")
        announce(database, "quiet")
        wait_until(lambda: delivered(database, "quiet"), "all of the quiet tenant's", 30.0)
        assert receivers.held == dict.fromkeys(HOSTILE, 1)
        receivers.let_go.set()
        wait_until(lambda: delivered(database, HOSTILE[0]), "the others' arrive as well")
    finally:
        receivers.let_go.set()
        deliverer.stop()
