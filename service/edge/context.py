"""A handler's input and output, both independent of HTTP."""

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
    """The input of a handler."""

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
        """The tenant whose request this is."""
        return self.principal.tenant

    @property
    def lane(self) -> str:
        """The lane that the request counts against in shared resources."""
        return self.principal.lane

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.state.settings

    @property
    def room(self) -> Room:
        """The tenant's quotas."""
        return Room(self.tenant, self.settings, self.principal.limits)

    def record(self, tenant: str, action: str, target: str, status: int) -> None:
        """Adds a line to a tenant's audit: the caller, the action, its target and the status."""
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
        """Returns the tenant's own value of a setting, else the setting's value."""
        return self.principal.limits.get(name, getattr(self.settings, name))


@dataclass
class Result:
    """The output of a handler.

    `ring` lists the jobs to announce to workers; `after` runs once the answer's transaction is
    committed, off the event loop. `stores`: the request's body counts towards the bytes that the
    tenant has stored today. `recall` names the job or launch that an answer describes (kind, id),
    and `repeatable` says that the handler may run again: both are ways to repeat a large answer for
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
