"""OTel GenAI spans as OTLP-JSON, in the conventions of today, in those of before, and in OpenInference's.

Sessions are told apart by `gen_ai.conversation.id` (or `session.id`), else by trace id. Content is on the spans or on
their events, as JSON or as its text. What a span says in today's attributes wins over what it says in older ones
(`otel_legacy.py`); a span in OpenInference's words is read by `openinference_spans.py`.

Source: opentelemetry.io/docs/specs/semconv/gen-ai (attributes, events, messages as JSON schemas).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers import openinference_spans, otel_legacy
from rlkit.logs.readers.kept import kept_links
from rlkit.logs.readers.otel_messages import from_message
from rlkit.logs.readers.otlp import Attributes, Decoded, decode_spans, ids, raw_spans
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.spans import MISSING, Dialect, Kind, Span, read_span_logs
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace

_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_KINDS: dict[Any, Kind] = {
    "chat": "llm", "generate_content": "llm", "text_completion": "llm", "execute_tool": "tool",
    "invoke_agent": "agent", "invoke_workflow": "agent", "create_agent": "agent", "embeddings": "other",
}  # fmt: skip
_LOOP_KINDS: dict[Any, Kind] = {"tool": "tool", "agent": "agent", "workflow": "agent"}
_NOT_METADATA = ("gen_ai.input.", "gen_ai.output.", "gen_ai.system_instructions", "gen_ai.tool.", "gen_ai.evaluation.",
                 "gen_ai.conversation.id", "gen_ai.operation.name", "rlkit.", "gen_ai.prompt", "gen_ai.completion",
                 "llm.request.functions", "traceloop.entity.", "traceloop.span.kind")  # fmt: skip


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and isinstance(record.get("resourceSpans"), list)


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a conversation (and one a branch), as soon as the last record that belongs to it was read."""
    return read_span_logs(source, report, DIALECT)


def _spans(record: Record, notes: Notes) -> list[Span]:
    return [to_span(decoded, notes) for decoded in decode_spans(record, notes)]


def to_span(decoded: Decoded, notes: Notes) -> Span:
    """A span in whichever conventions describe it."""
    if openinference_spans.is_openinference(decoded.attributes):
        span = openinference_spans.to_span(decoded, notes)
    else:
        span = _to_span(decoded, notes)
    span.outcomes += _outcomes(decoded)
    return span


def _to_span(decoded: Decoded, notes: Notes) -> Span:
    attributes = decoded.attributes
    span = Span(
        trace_id=decoded.trace_id, session_id=decoded.session_id, span_id=decoded.span_id, name=decoded.name,
        parent_id=decoded.parent_id, start=decoded.start, kind="other", record=decoded.record, raw=decoded.raw,
    )  # fmt: skip
    kind = (
        _KINDS.get(attributes.get("gen_ai.operation.name")) if _is_text(attributes, "gen_ai.operation.name") else None
    )
    for key, kinds in (("traceloop.span.kind", _LOOP_KINDS), (openinference_spans.KIND, openinference_spans.KINDS)):
        kind = kind or (kinds.get(attributes[key]) if _is_text(attributes, key) else None)
    if kind != "tool":
        _read_content(span, decoded, notes)
        kind = kind or ("llm" if span.input or span.output or span.system else "other")
    else:
        _read_tool(span, decoded)
    span.kind = kind
    if kind == "llm":
        model = attributes.get("gen_ai.request.model", attributes.get("gen_ai.response.model"))
        span.model = model if isinstance(model, str) else None
    if kind == "agent" or not span.parent_id:
        span.metadata = _metadata(decoded, notes)
        span.links = kept_links(attributes)
    return span


def _is_text(attributes: Attributes, key: str) -> bool:
    return isinstance(attributes.get(key), str)


def _read_content(span: Span, decoded: Decoded, notes: Notes) -> None:
    """The messages, the instructions and the tools, wherever the span keeps them."""
    asked, answered, instructions = (_content(decoded, key) for key in (_INPUT, _OUTPUT, _SYSTEM))
    if asked is None and answered is None and instructions is None:
        otel_legacy.read_content(span, decoded)
    else:
        span.input = asked if isinstance(asked, str) else _as_list(asked, _INPUT, span, notes)
        answers = _as_list(answered, _OUTPUT, span, notes)
        if len(answers) > 1 and all(isinstance(item, dict) and item.get("role") == "assistant" for item in answers):
            answers, span.alternatives = answers[:1], [[item] for item in answers[1:]]  # each is a choice of its own
        span.output = answers
        if isinstance(instructions, str):
            span.system = _instructions(instructions)
        elif parts := _as_list(instructions, _SYSTEM, span, notes):
            span.system = [{"role": "system", "parts": parts}]
    tools = _content(decoded, "gen_ai.tool.definitions")
    if tools is not None:
        span.tools = _as_list(tools, "gen_ai.tool.definitions", span, notes)
    elif span.tools is None:
        span.tools = otel_legacy.functions(decoded.attributes)


@lru_cache(16)  # the same in every span of a session
def _instructions(text: str) -> list[Any]:
    """Parts as JSON text, or the plain text of the only one."""
    parts: Any = text
    with suppress(ValueError, RecursionError):
        parts = loads(text)
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, list):
        parts = [{"type": "text", "content": text}]
    return [{"role": "system", "parts": parts}] if parts else []


def _content(decoded: Decoded, key: str) -> Any:
    """From the span, or from one of its events (content may be captured on either)."""
    if key in decoded.attributes:
        return decoded.attributes[key]
    return next((attributes[key] for _, attributes in decoded.events if key in attributes), None)


def _as_list(value: Any, key: str, span: Span, notes: Notes) -> list[Any]:
    """A list, as such or as JSON text; anything else is noted and read as empty."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = loads(value)
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [value]
    if value is not None:
        notes.add("span_attribute_unreadable", f"span {span.span_id}: {key}")
    return []


def _read_tool(span: Span, decoded: Decoded) -> None:
    attributes = decoded.attributes
    call_id, name = attributes.get("gen_ai.tool.call.id"), attributes.get("gen_ai.tool.name")
    span.call_id = call_id if isinstance(call_id, str) and call_id else None
    name = name if isinstance(name, str) else attributes.get("traceloop.entity.name")
    span.tool_name = name if isinstance(name, str) else span.name or None
    span.result = attributes.get("gen_ai.tool.call.result", MISSING)
    if span.result is MISSING:
        span.result = otel_legacy.tool_result(decoded)


def _outcomes(decoded: Decoded) -> list[dict[str, Any]]:
    """`gen_ai.evaluation.*`, on an event or on the span itself."""
    outcomes = []
    for attributes in (decoded.attributes, *(found for _, found in decoded.events)):
        if any(key.startswith("gen_ai.evaluation.") for key in attributes):
            source = attributes.get("rlkit.outcome.source")
            if not isinstance(source, str):
                source = f"evaluation:{attributes.get('gen_ai.evaluation.name', '')}".rstrip(":")
            outcomes.append({
                "label": attributes.get("gen_ai.evaluation.score.label"),
                "score": attributes.get("gen_ai.evaluation.score.value"),
                "source": source,
            })  # fmt: skip
    return outcomes


def _metadata(decoded: Decoded, notes: Notes) -> dict[str, Any]:
    """What our writer kept; of a stranger's span, the resource and all of its attributes that are not content."""
    own = decoded.attributes.get("rlkit.metadata")
    if own is not None:
        try:
            value = loads(own) if isinstance(own, str) else own
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        notes.add("metadata_wrong_type", f"span {decoded.span_id}: rlkit.metadata")
    kept = {key: value for key, value in decoded.attributes.items() if not key.startswith(_NOT_METADATA)}
    return decoded.resource | kept


DIALECT = Dialect(
    raw_spans=lambda value: (span for span, _ in raw_spans(value)),
    ids=ids,
    read=_spans,
    plain=from_message,
    quiet=frozenset({"arguments_object"}),
    unfold=openinference_spans.unfold,
    names=(_INPUT, _OUTPUT, _SYSTEM),
    model_key="gen_ai.request.model",
)
