"""All that a service returns: the types of its OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shardwise.documents import administration, jobs, launches, problems, stored, webhooks

SERVICE_TYPES: tuple[type[msgspec.Struct], ...] = tuple(
    kind
    for module in (problems, stored, jobs, launches, administration, webhooks)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and kind.__module__ == module.__name__
)

SERVICE_DOCUMENTS: Mapping[str, type[msgspec.Struct]] = {
    "accuracy": launches.Accuracy,
    "agent": launches.Agent,
    "allocation": jobs.Allocation,
    "curves": jobs.Curves,
    "assignment": launches.Assignment,
    "audit": administration.AuditLine,
    "graph": stored.Graph,
    "graph-summary": stored.GraphSummary,
    "hardware": stored.Hardware,
    "hardware-summary": stored.HardwareSummary,
    "job": jobs.Job,
    "key": administration.Key,
    "key-summary": administration.KeySummary,
    "launch": launches.Launch,
    "log": launches.LaunchLog,
    "me": administration.Me,
    "tenant": administration.Tenant,
    "usage": jobs.Usage,
    "watch": jobs.Watch,
    "webhook": webhooks.Webhook,
    "webhook-delivery": webhooks.WebhookDelivery,
}
"""By the word in the `schema` member, as `DOCUMENTS`."""
