"""OpenInference spans (Phoenix, Arize): a span a line with flat or nested attributes, or inside OTLP-JSON.

Lists are flattened into attributes with numbers (`llm.input_messages.0.message.role`). Spans are grouped by
`session.id`, else by trace. An LLM span without messages has its `input.value` and `output.value` read instead.
Annotations and EVALUATOR spans with a score or a label are the outcome.

Source: Arize-ai/openinference, spec/semantic_conventions.md; Phoenix, `client.spans.get_spans` (a span a row).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers.langchain import answered, asked, nanoseconds, plain_messages
from rlkit.logs.readers.openai_chat import parse_links
from rlkit.logs.readers.otlp import Attributes, Decoded, decode_spans, text_or_none, unflatten
from rlkit.logs.readers.otlp import ids as otlp_ids
from rlkit.logs.readers.otlp import raw_spans as otlp_spans
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.spans import MISSING, Dialect, Kind, Span, read_span_logs
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace

KIND = "openinference.span.kind"
_INPUT, _OUTPUT = "llm.input_messages.", "llm.output_messages."
_KINDS: dict[Any, Kind] = {"LLM": "llm", "TOOL": "tool", "AGENT": "agent"}
_NOT_METADATA = (
    "llm.",
    "input.",
    "output.",
    "openinference.",
    "session.id",
    "tool.",
    "tool_call.",
    "metadata",
    "rlkit.",
)


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
        return [to_span(decoded, notes) for decoded in decode_spans(record, notes)]
    spans = []
    for number, raw in enumerate(_raw_spans(record.value)):
        if not _is_row(raw):
            notes.add("span_unreadable", f"[{number}]")
            continue
        span = to_span(_decoded_row(raw, record), notes)
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
    return Decoded(
        trace_id=_ids(raw)[0], span_id=text_or_none(context.get("span_id", raw.get("context.span_id"))) or "",
        parent_id=text_or_none(raw.get("parent_id")) or "", start=nanoseconds(raw.get("start_time")),
        name=text_or_none(raw.get("name")) or "", attributes=attributes, events=[], resource={}, raw=raw, record=record,
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
            name = f"annotation:{item.get('name') or ''}".rstrip(":")
            outcomes.append({"label": said.get("label"), "score": said.get("score"), "source": name})
    return outcomes


def to_span(decoded: Decoded, notes: Notes) -> Span:
    """A span with OpenInference's attributes."""
    attributes = decoded.attributes
    kind = attributes.get(KIND)
    known = _KINDS.get(kind, "other") if isinstance(kind, str) else "other"
    span = Span(
        trace_id=decoded.trace_id, session_id=text_or_none(attributes.get("session.id")), span_id=decoded.span_id,
        parent_id=decoded.parent_id, start=decoded.start, kind=known,
        name=decoded.name, record=decoded.record, raw=decoded.raw,
    )  # fmt: skip
    if span.kind == "tool":
        call_id, name = attributes.get("tool_call.id"), attributes.get("tool.name")
        span.call_id, span.tool_name = text_or_none(call_id), text_or_none(name) or span.name or None
        span.result = attributes.get("output.value", MISSING)
    elif span.kind != "other":
        asking = {key: value for key, value in attributes.items() if key.startswith(_INPUT)}
        said = {key: value for key, value in attributes.items() if key.startswith(_OUTPUT)}
        answers = unfold(said)
        span.input = asking or _payload(asked, attributes.get("input.value"))
        span.output = [answers[n] for n in sorted(answers)] or _payload(answered, attributes.get("output.value"))
        tools = [_tool(item) for item in unflatten(attributes, "llm.tools")]
        span.tools = tools or None
    if span.kind == "llm":
        span.model = text_or_none(attributes.get("llm.model_name"))
    if span.kind == "agent" or not span.parent_id:
        span.metadata = _metadata(decoded, notes)
        kept = {key: attributes.get(f"rlkit.{key}") for key in ("parent_id", "relation", "parent_call_id")}
        span.links = parse_links(kept)
        own = _parsed(attributes.get("rlkit.outcome"))
        if isinstance(own, dict):
            span.outcomes = [{"label": own.get("status"), "score": own.get("score"), "source": own.get("source")}]
    return span


def unfold(attributes: Attributes) -> dict[int, Any]:
    """Messages by number: `llm.….0.message.role`, `llm.….0.message.tool_calls.0.…`.

    What `unflatten` does, but the usual attributes, of which there are many, are taken directly.
    """
    messages: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, dict[str, Any]]] = {}
    nested: dict[str, Attributes] = {}
    for key, value in attributes.items():
        index, _, field = key.split("_messages.", 1)[1].partition(".message.")
        if "." not in field:
            messages.setdefault(index, {})[field] = value
            continue
        path = field.split(".")
        if path[0] == "tool_calls" and path[2:3] == ["tool_call"] and 4 <= len(path) <= 5:
            call = calls.setdefault(index, {}).setdefault(path[1], {})
            inner = call if len(path) == 4 else call.setdefault(path[3], {})
            if isinstance(inner, dict):
                inner[path[-1]] = value
        else:
            nested.setdefault(index, {})[f"_.0.{field}"] = value
    for index, found in nested.items():
        messages[index] = unflatten(found, "_")[0] | messages.get(index, {})
    for index, numbered in calls.items():
        listed = [{"tool_call": numbered[number]} for number in _in_order(numbered)]
        messages[index] = messages.get(index, {}) | {"tool_calls": listed}
    return {int(index): _message(messages[index]) for index in _in_order(messages)}


def _in_order(numbered: Iterable[str]) -> list[str]:
    return sorted(filter(str.isdecimal, numbered), key=int)


def _message(logged: dict[str, Any]) -> dict[str, Any]:
    """`{"role", "content", "contents", "tool_calls", …}` as an OpenAI-style message."""
    if not logged.keys() & {"contents", "tool_calls", "rlkit"}:
        return logged if "content" in logged else logged | {"content": None}
    message = {key: value for key, value in logged.items() if key not in ("tool_calls", "contents", "rlkit")}
    message.setdefault("content", _contents(logged.get("contents")))
    calls = logged.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_call(call) for call in calls]
    return message | _extra(logged)


def _call(item: Any) -> Any:
    call = item.get("tool_call") if isinstance(item, dict) else None
    if not isinstance(call, dict):
        return item
    return {key: value for key, value in call.items() if key != "rlkit"} | _extra(call)


def _extra(logged: dict[str, Any]) -> dict[str, Any]:
    """What our writer kept under `rlkit.extra`, as JSON."""
    own = logged.get("rlkit")
    extra = _parsed(own.get("extra")) if isinstance(own, dict) else None
    return extra if isinstance(extra, dict) else {}


def _contents(logged: Any) -> Any:
    """`message.contents` as parts; None where there are none."""
    if not isinstance(logged, list):
        return None
    return [item.get("message_content", item) if isinstance(item, dict) else item for item in logged]


def _payload(read: Any, value: Any) -> list[Any]:
    """What `input.value` or `output.value` says, where the messages themselves were not logged."""
    if value is None or value == "":
        return []
    return [plain for message in read(_parsed(value)) for plain in plain_messages(message)]


def _tool(item: Any) -> Any:
    tool = item.get("tool") if isinstance(item, dict) else None
    return _parsed(tool.get("json_schema")) if isinstance(tool, dict) else item


def _metadata(decoded: Decoded, notes: Notes) -> dict[str, Any]:
    """What our writer kept, else `metadata` and all attributes that are not content."""
    own, logged = (decoded.attributes.get(key) for key in ("rlkit.metadata", "metadata"))
    if isinstance(kept := _parsed(own), dict):
        return kept
    if own is not None:
        notes.add("metadata_wrong_type", f"span {decoded.span_id}: rlkit.metadata")
    others = {key: value for key, value in decoded.attributes.items() if not key.startswith(_NOT_METADATA)}
    if logged is not None and not isinstance(_parsed(logged), dict):
        others["metadata"] = logged
    nested = {key[9:]: value for key, value in decoded.attributes.items() if key.startswith("metadata.")}
    more = _parsed(logged)
    return decoded.resource | others | nested | (more if isinstance(more, dict) else {})


def _parsed(value: Any) -> Any:
    """JSON text of an object or a list as what it says; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return loads(value)
    return value


DIALECT = Dialect(
    raw_spans=_raw_spans,
    ids=_ids,
    read=_spans,
    plain=lambda message, where, notes: [message],
    quiet=frozenset({"arguments_object", "content_parts", "timestamp_naive"}),
    unfold=unfold,
    names=("llm.input_messages", "llm.output_messages", "llm.system"),
    model_key="llm.model_name",
)
