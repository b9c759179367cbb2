"""What a handler is called with, and what it returns; both are free of HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy.orm import Session
from starlette.datastructures import QueryParams

from service.base.settings import Settings
from service.edge.state import State
from service.questions.ingest_process import Reading
from service.store.keys import Principal
from service.store.quotas import Room
from service.store.records import record


@dataclass
class RequestContext:
    """What a handler is called with."""

    state: State
    session: Session
    principal: Principal
    request_id: str
    body: bytes = b""
    content_type: str = ""
    query: QueryParams = field(default_factory=QueryParams)
    trace: str | None = None
    parsed: Any = None
    idempotency_key: str | None = None
    reading: Reading = field(default_factory=Reading)

    @property
    def tenant(self) -> str:
        """Whose request this is."""
        return self.principal.tenant

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.state.settings

    @property
    def room(self) -> Room:
        """What the tenant may store."""
        return Room(self.tenant, self.settings, self.principal.limits)

    def record(self, tenant: str, action: str, target: str, status: int) -> None:
        """Adds a line to a tenant's audit: who asks, what was done to what, and how it ended."""
        record(
            self.session,
            tenant=tenant,
            key_id=self.principal.key_id,
            request_id=self.request_id,
            action=action,
            target=target,
            status=status,
            actor=self.principal.actor,
        )

    def limit(self, name: str) -> Any:
        """A setting, or the tenant's own value of it."""
        return self.principal.limits.get(name, getattr(self.settings, name))


@dataclass
class Result:
    """What a handler gives.

    `ring` are the jobs that workers are to be told of; `after` is done when the answer's
    transaction stands, off the event loop. `stores`: the request's body counts to the bytes that
    the tenant had stored today. `recall` names what an answer is of (job or launch, and its id),
    and `repeatable` says that the handler may run again: how a large answer is given again for
    its Idempotency-Key (service/edge/idempotency.py).
    """

    status: int = 200
    document: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ring: list[str] = field(default_factory=list)
    media_type: str = "application/json"
    after: list[Callable[[State], None]] = field(default_factory=list)
    stores: bool = True
    recall: tuple[str, str] | None = None
    repeatable: bool = False

    def sent(self) -> bytes:
        """Returns the body's bytes."""
        if self.content is not None:
            return self.content
        return b"" if self.status == 204 else msgspec.json.encode(self.document)


Handler = Callable[[RequestContext], Result]
