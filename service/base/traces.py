"""OpenTelemetry traces, exported where one of OpenTelemetry's own variables names an exporter.

Elsewhere OpenTelemetry's API records nothing: a span then only hands on the caller's trace, which
is what the API does without its SDK.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import propagate, trace

from shardwise.errors import BadInput

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NAME = "shardwise"

# It asks for the provider at the first span: the provider may be set until then.
_tracer = trace.get_tracer(NAME)


def configured() -> bool:
    """Returns True if traces are to be exported."""
    return any(os.environ.get(name) for name in VARIABLES) or os.environ.get(
        "OTEL_TRACES_EXPORTER", "none"
    ) not in ("none", "")


def set_up_traces() -> None:
    """Starts to export, if an exporter is configured. Raises `BadInput` if it is not installed."""
    if not configured():
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError as error:
        raise BadInput(
            f"an exporter is configured but {error.name} is not installed",
            field="OTEL_TRACES_EXPORTER",
            expected="pip install 'shardwise[otel]'",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": NAME}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def _exporter() -> Any:
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def span(
    name: str, parent: Mapping[str, str] | None = None, **attributes: Any
) -> AbstractContextManager[Any]:
    """Returns a span around a block; `parent` are the headers that carry the caller's span."""
    context = propagate.extract(parent) if parent else None
    started: AbstractContextManager[Any] = _tracer.start_as_current_span(
        name, context=context, attributes=attributes
    )
    return started


def inject() -> dict[str, str]:
    """Returns the headers that carry the current span to the called service."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def current_parent() -> str | None:
    """Returns the current span's `traceparent`, to be stored with a job, or None without one."""
    return inject().get("traceparent")
