"""OpenTelemetry traces, only where an exporter is configured.

That is: one of OpenTelemetry's own variables names an exporter and the `otel` extra is installed.
Otherwise every function here does nothing, and nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def configured() -> bool:
    """Whether traces are to be exported."""
    return any(os.environ.get(name) for name in VARIABLES) or os.environ.get(
        "OTEL_TRACES_EXPORTER", "none"
    ) not in ("none", "")


@cache
def _tracer() -> Any | None:
    if not configured():
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    except ImportError as error:
        from shardwise.errors import BadInput

        raise BadInput(
            f"an exporter is configured but {error.name} is not installed",
            field="OTEL_TRACES_EXPORTER",
            expected="pip install 'shardwise[otel]'",
        ) from None
    exporter: SpanExporter
    if os.environ.get("OTEL_TRACES_EXPORTER") == "console":
        import sys

        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        exporter = ConsoleSpanExporter(out=sys.stderr)
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "shardwise"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider.get_tracer("shardwise")


def set_up_traces() -> None:
    """Start exporting, if an exporter is configured; BadInput when it is not installed."""
    _tracer()


@contextmanager
def span(name: str, parent: Mapping[str, str] | None = None, **attributes: Any) -> Iterator[None]:
    """A span around a block; `parent` are the headers that carry the caller's."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    from opentelemetry.propagate import extract

    context = extract(dict(parent)) if parent else None
    with tracer.start_as_current_span(name, context=context, attributes=attributes):
        yield


def inject() -> dict[str, str]:
    """The headers that carry the current span to whoever is called."""
    if _tracer() is None:
        return {}
    from opentelemetry.propagate import inject as fill

    headers: dict[str, str] = {}
    fill(headers)
    return headers


def current_parent() -> str | None:
    """The current span's `traceparent`, to be stored with a job."""
    return inject().get("traceparent")
