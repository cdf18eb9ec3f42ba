"""OpenInference spans (Phoenix, Arize): a span a line with flat or nested attributes, or inside OTLP-JSON.

Spans are grouped by `session.id`, else by trace; what their attributes mean is in `openinference_spans.py`. Those of a
span that only OTel's conventions describe, as where two instrumentations ran, are read as `otel.py` reads them.
Annotations and evaluations with a score or a label are the outcome: of a trace or a session, else the last of a span.

Source: Arize-ai/openinference, spec/{semantic_conventions,annotations}.md; Phoenix, `client.spans.get_spans` (a span a
row).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlkit.logs.readers import otel
from rlkit.logs.readers.langchain import nanoseconds
from rlkit.logs.readers.openinference_spans import KIND, judged, unfold
from rlkit.logs.readers.otel_messages import from_message
from rlkit.logs.readers.otlp import Attributes, Decoded, decode_spans, text_or_none
from rlkit.logs.readers.otlp import ids as otlp_ids
from rlkit.logs.readers.otlp import raw_spans as otlp_spans
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.spans import Dialect, Span, read_span_logs
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace


def matches(record: Any) -> bool:
    """Whether a record is a span of Phoenix's, a page of them, or OTLP-JSON that has spans with `KIND`."""
    for raw in _raw_spans(record):
        if not isinstance(raw, dict):
            continue
        if _is_row(raw):
            return True
        attributes = raw.get("attributes")
        if isinstance(attributes, list) and any(isinstance(a, dict) and a.get("key") == KIND for a in attributes):
            return True
    return False


def _is_row(raw: Any) -> bool:
    if not isinstance(raw, dict):
        return False
    if isinstance(context := raw.get("context"), dict):
        return isinstance(raw.get("attributes"), dict) and "trace_id" in context and "span_id" in context
    return "context.trace_id" in raw and "context.span_id" in raw


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a session (and one a branch), as soon as the last record that belongs to it was read."""
    return read_span_logs(source, report, DIALECT)


def _raw_spans(value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and isinstance(value.get("resourceSpans"), list):
        yield from (span for span, _ in otlp_spans(value))
    elif isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from value["data"]
    else:
        yield value


def _ids(raw: Any) -> tuple[str | None, str | None]:
    """(trace id, session id) of a row, or of a span in OTLP-JSON."""
    if not _is_row(raw):
        return otlp_ids(raw)
    context, attributes = raw.get("context"), raw.get("attributes")
    trace = context.get("trace_id") if isinstance(context, dict) else raw.get("context.trace_id")
    session = raw.get("attributes.session.id")
    if isinstance(attributes, dict):
        nested = attributes.get("session")
        session = attributes.get("session.id", nested.get("id") if isinstance(nested, dict) else None)
    return text_or_none(trace), text_or_none(session)


def _spans(record: Record, notes: Notes) -> list[Span]:
    if isinstance(record.value, dict) and isinstance(record.value.get("resourceSpans"), list):
        return [otel.to_span(decoded, notes) for decoded in decode_spans(record, notes)]
    spans = []
    for number, raw in enumerate(_raw_spans(record.value)):
        if not _is_row(raw):
            notes.add("span_unreadable", f"[{number}]")
            continue
        span = otel.to_span(_decoded_row(raw, record), notes)
        span.outcomes += _annotations(raw)
        spans.append(span)
    return spans


def _decoded_row(raw: dict[str, Any], record: Record) -> Decoded:
    """A row as an OTLP span would be; its attributes may be columns, flat or nested."""
    columns = {key.removeprefix("attributes."): item for key, item in raw.items() if key.startswith("attributes.")}
    attributes = _flat(raw.get("attributes")) | _flat(columns)
    context = raw["context"] if isinstance(raw.get("context"), dict) else {}
    if KIND not in attributes and isinstance(raw.get("span_kind"), str):
        attributes[KIND] = raw["span_kind"]
    trace_id, session_id = _ids(raw)
    logged = raw["events"] if isinstance(raw.get("events"), list) else []
    events = [(str(item.get("name")), _flat(item.get("attributes"))) for item in logged if isinstance(item, dict)]
    return Decoded(
        trace_id=trace_id, session_id=session_id,
        span_id=text_or_none(context.get("span_id", raw.get("context.span_id"))) or "",
        parent_id=text_or_none(raw.get("parent_id")) or "", start=nanoseconds(raw.get("start_time")),
        name=text_or_none(raw.get("name")) or "", attributes=attributes, events=events, resource={}, raw=raw,
        record=record,
    )  # fmt: skip


def _flat(value: Any, prefix: str = "") -> Attributes:
    """Nested objects, and lists of them, as attributes with dots."""
    found: Attributes = {}
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if isinstance(item, dict) or (isinstance(item, list) and any(isinstance(part, dict) for part in item)):
            found |= _flat(item, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = item
    return found


def _annotations(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """`annotations` as Phoenix's API returns them: `{"name", "result": {"label", "score"}}`."""
    outcomes = []
    for item in raw["annotations"] if isinstance(raw.get("annotations"), list) else []:
        if isinstance(item, dict):
            said = item["result"] if isinstance(item.get("result"), dict) else item
            outcomes += judged("annotation", {"name": item.get("name")} | said, of_session=False)
    return outcomes


DIALECT = Dialect(
    raw_spans=_raw_spans,
    ids=_ids,
    read=_spans,
    plain=from_message,
    quiet=frozenset({"arguments_object", "content_parts", "timestamp_naive"}),
    unfold=unfold,
    names=("llm.input_messages", "llm.output_messages", "llm.system"),
    model_key="llm.model_name",
)
