"""The OTLP-JSON envelope: `{"resourceSpans": [...]}` into plain spans with plain attributes.

Source: opentelemetry-proto, `trace/v1/trace.proto` in its JSON encoding (camelCase, ids in hex, 64-bit integers as
strings, attributes as `[{"key", "value": {"stringValue" | "intValue" | …}}]`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlkit.logs.readers.source import Record
from rlkit.logs.report import Notes

Attributes = dict[str, Any]


@dataclass(slots=True)
class Span:
    """One span: its attributes decoded, its events as (name, attributes)."""

    trace_id: str | None
    span_id: str
    parent_id: str
    start: int | None
    """Nanoseconds since 1970, or None where unreadable."""
    attributes: Attributes
    events: list[tuple[str, Attributes]]
    resource: Attributes
    raw: Any
    record: Record

    @property
    def operation(self) -> Any:
        """`gen_ai.operation.name`: `chat`, `invoke_agent`, `execute_tool`, …"""
        return self.attributes.get("gen_ai.operation.name")


def raw_spans(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (span, resource) of an OTLP object as logged, whatever their types."""
    for resource_spans in _list(value, "resourceSpans"):
        resource = resource_spans.get("resource") if isinstance(resource_spans, dict) else None
        for scope_spans in _list(resource_spans, "scopeSpans"):
            for span in _list(scope_spans, "spans"):
                yield span, resource


def read_spans(record: Record, notes: Notes) -> list[Span]:
    """The spans of a record, in its order; what is no span is noted and left out."""
    spans = []
    for number, (raw, resource) in enumerate(raw_spans(record.value)):
        if not isinstance(raw, dict) or not isinstance(raw.get("attributes", []), list):
            notes.add("span_unreadable", f"spans[{number}]")
            continue
        events = [
            (str(event.get("name")), decode_attributes(event.get("attributes")))
            for event in _list(raw, "events")
            if isinstance(event, dict)
        ]
        owner = resource.get("attributes") if isinstance(resource, dict) else None
        spans.append(Span(
            trace_id=text_or_none(raw.get("traceId")),
            span_id=text_or_none(raw.get("spanId")) or "",
            parent_id=text_or_none(raw.get("parentSpanId")) or "",
            start=_nanoseconds(raw.get("startTimeUnixNano")),
            attributes=decode_attributes(raw.get("attributes")),
            events=events,
            resource=decode_attributes(owner),
            raw=raw,
            record=record,
        ))  # fmt: skip
    return spans


def conversation_id(span: Any) -> str | None:
    """`gen_ai.conversation.id` of a span as logged, without decoding the rest."""
    for item in _list(span, "attributes"):
        if isinstance(item, dict) and item.get("key") == "gen_ai.conversation.id":
            value = item.get("value")
            return text_or_none(value.get("stringValue")) if isinstance(value, dict) else None
    return None


def decode_attributes(logged: Any) -> Attributes:
    """`[{"key", "value"}]` as a dict; items of another shape are left out."""
    if not isinstance(logged, list):
        return {}
    return {
        item["key"]: decode_value(item.get("value"))
        for item in logged
        if isinstance(item, dict) and isinstance(item.get("key"), str)
    }


def decode_value(value: Any) -> Any:
    """An OTLP AnyValue as plain JSON; a value that is none stays as it is."""
    if not isinstance(value, dict) or not value:
        return None if isinstance(value, dict) else value
    kind, inner = next(iter(value.items()))
    if kind == "intValue" and isinstance(inner, str):
        try:
            return int(inner)
        except ValueError:
            return inner
    if kind == "arrayValue":
        return [decode_value(item) for item in _list(inner, "values")]
    if kind == "kvlistValue":
        return decode_attributes(_list(inner, "values"))
    return inner


def text_or_none(value: Any) -> str | None:
    """A non-empty string, or None."""
    return value if isinstance(value, str) and value else None


def _list(value: Any, key: str) -> list[Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else []


def _nanoseconds(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
