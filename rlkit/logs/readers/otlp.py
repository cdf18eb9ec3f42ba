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
CONVERSATION = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id")
"""The attributes that name a session; where there are several, the first of these or the last of the others."""


@dataclass(slots=True)
class Decoded:
    """One span: its attributes decoded, its events as (name, attributes)."""

    trace_id: str | None
    session_id: str | None
    span_id: str
    parent_id: str
    start: int | None
    """Nanoseconds since 1970, or None where unreadable."""
    name: str
    attributes: Attributes
    events: list[tuple[str, Attributes]]
    resource: Attributes
    raw: Any
    record: Record


def raw_spans(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (span, resource) of an OTLP object as logged, whatever their types."""
    for resource_spans in _list(value, "resourceSpans"):
        resource = resource_spans.get("resource") if isinstance(resource_spans, dict) else None
        for scope_spans in _list(resource_spans, "scopeSpans"):
            for span in _list(scope_spans, "spans"):
                yield span, resource


def decode_spans(record: Record, notes: Notes) -> list[Decoded]:
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
        trace_id, session_id = ids(raw)
        spans.append(Decoded(
            trace_id=trace_id,
            session_id=session_id,
            span_id=text_or_none(raw.get("spanId")) or "",
            parent_id=text_or_none(raw.get("parentSpanId")) or "",
            start=_nanoseconds(raw.get("startTimeUnixNano")),
            name=text_or_none(raw.get("name")) or "",
            attributes=decode_attributes(raw.get("attributes")),
            events=events,
            resource=decode_attributes(owner),
            raw=raw,
            record=record,
        ))  # fmt: skip
    return spans


def ids(span: Any) -> tuple[str | None, str | None]:
    """(trace id, conversation id) of a span as logged, without decoding the rest."""
    if not isinstance(span, dict):
        return None, None
    found = None
    for item in _list(span, "attributes"):
        if isinstance(item, dict) and item.get("key") in CONVERSATION:
            value = item.get("value")
            found = text_or_none(value.get("stringValue")) if isinstance(value, dict) else None
            if item["key"] == CONVERSATION[0]:
                break
    return text_or_none(span.get("traceId")), found


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


def is_number(key: str) -> bool:
    """Whether a key is the place in a list."""
    return key.isdecimal() and len(key) < 10


def unflatten(attributes: Attributes, prefix: str) -> list[Any]:
    """The list under `prefix`, in the order of numbers, of attributes such as `prefix.10.role`."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix) or key[len(prefix) : len(prefix) + 1] != ".":
            continue
        *path, last = key[len(prefix) + 1 :].split(".")
        node = root
        for step in path:
            inner = node.setdefault(step, {})
            node = inner if isinstance(inner, dict) else {}  # a value where others have more: the value wins
        node.setdefault(last, value)
    listed = _listed(root)
    return listed if isinstance(listed, list) else []


def _listed(node: Any) -> Any:
    """Objects whose keys are all numbers as lists."""
    if not isinstance(node, dict) or not node:
        return node
    inner = {key: _listed(value) for key, value in node.items()}
    if all(map(is_number, inner)):
        return [inner[key] for key in sorted(inner, key=int)]
    return inner


def _list(value: Any, key: str) -> list[Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else []


def _nanoseconds(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
