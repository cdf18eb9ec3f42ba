"""Langfuse: rows of the blob-storage export, the trace download of the UI, and objects as the API returns them.

Read are JSON and JSONL (the export's Parquet and CSV must be converted first):

- `observations_v2/` alone, or the legacy `observations/`, `traces/` and `scores/` together, joined on `trace_id`;
  columns can be deselected, so any of them may be missing;
- one object with a trace, its `observations` and its `scores`, as the UI downloads and `GET /traces/{id}` returns;
- pages of the API, `{"data": [...]}`, and the tables that the UI exports as one JSON array.

Observations are grouped by session, else by trace. The LLM calls are those of type GENERATION, and those of type SPAN
that name a model or count tokens and were asked messages (as litellm's `langfuse_otel` exports them). Scores of a
trace or a session are its outcome; one of a single observation counts where there is no other. Free text is no score.

Source: langfuse.com/docs/api-and-data-platform/features/{blob-storage-export-fields,export-from-ui}, langfuse 5.0
(`langfuse.langchain`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rlkit.logs.jsontext import unpacked
from rlkit.logs.readers.langchain import (
    answered,
    as_object,
    asked,
    holds_messages,
    nanoseconds,
    offered,
    payload,
    plain_messages,
    stamped,
    tool_answer,
)
from rlkit.logs.readers.openai_chat import parse_links
from rlkit.logs.readers.otlp import text_or_none
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.spans import MISSING, Dialect, Kind, Span, read_span_logs
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace

_KINDS: dict[str, Kind] = {
    "GENERATION": "llm", "TOOL": "tool", "AGENT": "agent", "SPAN": "other", "EVENT": "other", "CHAIN": "other",
    "RETRIEVER": "other", "EVALUATOR": "other", "EMBEDDING": "other", "GUARDRAIL": "other",
}  # fmt: skip
_CAMEL = {
    "trace_id": "traceId", "parent_observation_id": "parentObservationId", "start_time": "startTime",
    "end_time": "endTime", "session_id": "sessionId", "user_id": "userId", "trace_name": "traceName",
    "data_type": "dataType", "string_value": "stringValue", "observation_id": "observationId",
    "usage_details": "usageDetails", "model_parameters": "modelParameters", "tool_definitions": "toolDefinitions",
    "status_message": "statusMessage", "provided_model_name": "providedModelName",
}  # fmt: skip
_SCORES = frozenset({"NUMERIC", "BOOLEAN", "CATEGORICAL", "TEXT"})
_OF_A_TRACE = ("session_id", "sessionId", "user_id", "userId", "bookmarked", "release", "tags", "public", "htmlPath")
_KEPT = ("environment", "user_id", "tags", "release", "version")


class Row(NamedTuple):
    """One observation, score or trace, and the trace that the same record put it in."""

    kind: str
    value: dict[str, Any]
    trace: dict[str, Any]


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return any(row.kind != "" for row in rows(record))


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a session (and one a branch); a session is what shares a session id, else a trace id."""
    return read_span_logs(source, report, DIALECT)


def rows(value: Any) -> Iterator[Row]:
    """Every row of a record; what is none has no kind."""
    if not isinstance(value, dict):
        return
    observations = value.get("observations")
    if isinstance(observations, list) and (not observations or any(isinstance(item, dict) for item in observations)):
        trace = value["trace"] if isinstance(value.get("trace"), dict) else value
        yield Row("trace" if text_or_none(trace.get("id")) else "", trace, {})
        for key, kind in (("observations", "observation"), ("scores", "score")):
            items = value.get(key)
            for item in items if isinstance(items, list) else []:
                yield Row(kind if isinstance(item, dict) else "", item if isinstance(item, dict) else {}, trace)
    elif isinstance(value.get("data"), list) and isinstance(value.get("meta"), dict):
        for item in value["data"]:
            yield Row(_kind(item), item, {}) if isinstance(item, dict) else Row("", {}, {})
    else:
        yield Row(_kind(value), value, {})


def _kind(row: dict[str, Any]) -> str:
    """`observation`, `score`, `trace`, or nothing."""
    kind, of_trace = row.get("type"), text_or_none(_get(row, "trace_id"))
    if isinstance(kind, str) and kind in _KINDS and of_trace and "id" in row:
        return "observation"
    if (scored := _get(row, "data_type")) is not None:
        known = isinstance(scored, str) and scored in _SCORES and "name" in row
        return "score" if known and (of_trace or text_or_none(_get(row, "session_id"))) else ""
    own = isinstance(row.get("timestamp"), str) and text_or_none(row.get("id")) and "messages" not in row
    return "trace" if own and sum(key in row for key in _OF_A_TRACE) > 1 else ""


def ids(row: Row) -> tuple[str | None, str | None]:
    """(trace id, session id) of a row."""
    session = text_or_none(_get(row.value, "session_id")) or text_or_none(_get(row.trace, "session_id"))
    if row.kind == "trace":
        return text_or_none(row.value.get("id")), session
    return text_or_none(_get(row.value, "trace_id")) or text_or_none(row.trace.get("id")) or session, session


def _spans(record: Record, notes: Notes) -> list[Span]:
    """The rows of a record as spans, in its order; what is no row is noted and left out."""
    spans = []
    for number, row in enumerate(rows(record.value)):
        if row.kind == "":
            notes.add("span_unreadable", f"[{number}]", "Neither an observation nor a score nor a trace; left out.")
            continue
        trace_id, session_id = ids(row)
        span = Span(
            trace_id=trace_id, session_id=session_id, span_id=text_or_none(row.value.get("id")) or "",
            parent_id=text_or_none(_get(row.value, "parent_observation_id")) or "", start=nanoseconds(_time(row.value)),
            kind="other", name=text_or_none(row.value.get("name")) or "", record=record, raw=row.value,
            input=[], output=[], system=[], tools=None, call_id=None, tool_name=None, result=MISSING, outcomes=[],
            metadata={},
        )  # fmt: skip
        _READ[row.kind](span, row.value, notes)
        if not span.parent_id:
            span.links = parse_links(as_object(as_object(row.value.get("metadata")).get("rlkit")))
        spans.append(span)
    return spans


def _read_trace(span: Span, row: dict[str, Any], notes: Notes) -> None:
    """A trace sums up its observations, so its messages count only where none of them has any."""
    span.span_id = f"trace {span.span_id}"
    span.metadata = _metadata(row)
    _read_agent(span, row)


def _read_score(span: Span, row: dict[str, Any], notes: Notes) -> None:
    """A score as an outcome; it hangs below what it scores, so that it never passes for the root."""
    of_observation = text_or_none(_get(row, "observation_id"))
    span.span_id, span.parent_id = f"score {span.span_id}", of_observation or f"trace {span.trace_id}"
    if of_observation or span.start is None:
        span.start = 0  # the last outcome is the one that counts
    kind, own = _get(row, "data_type"), as_object(as_object(row.get("metadata")).get("rlkit"))
    if own:
        span.outcomes = [{"label": own.get("status"), "score": own.get("score"), "source": own.get("source")}]
        return
    if kind == "TEXT":
        return
    said = {"label": _get(row, "string_value")} if kind == "CATEGORICAL" else {"score": row.get("value")}
    span.outcomes = [said | {"source": f"score:{span.name}"}]


def _read_observation(span: Span, row: dict[str, Any], notes: Notes) -> None:
    kind = row.get("type")
    span.kind = _KINDS.get(kind, "other") if isinstance(kind, str) else "other"
    span.metadata = _metadata(row)
    if span.kind == "tool":
        _read_tool(span, row)
    elif span.kind == "agent":
        _read_agent(span, row)
    elif span.kind == "llm" or (kind == "SPAN" and (_model(row) or _get(row, "usage_details"))):
        _read_generation(span, row, notes)


def _read_agent(span: Span, row: dict[str, Any]) -> None:
    """The messages of what sums up LLM calls, where it has any."""
    given, said = payload(row.get("input")), payload(row.get("output"))
    if holds_messages(given):
        span.kind, span.input, span.output = "agent", asked(given), answered(said)


def _read_generation(span: Span, row: dict[str, Any], notes: Notes) -> None:
    given = payload(row.get("input"))
    if span.kind != "llm" and not holds_messages(given):
        return  # something that cost tokens, but no LLM call
    logged = asked(given)
    tools = [item["content"] for item in logged if _is_tool(item)]  # as the LangChain handler logs them
    span.input = [item for item in logged if not _is_tool(item)] if tools else logged
    asking = given if isinstance(given, dict) else None
    span.tools = offered(_defined(row), tools, asking, as_object(_get(row, "model_parameters")))
    ended = _get(row, "end_time")
    span.output = stamped(answered(payload(row.get("output"))), ended)
    if not span.input or (not span.output and ended is not None and row.get("level") != "ERROR"):
        notes.add("span_content_missing", f"observation {span.span_id}")
    span.kind = "llm"
    if not span.input:
        span.kind, span.output = "other", []  # an answer alone would pass for a conversation of its own


def _read_tool(span: Span, row: dict[str, Any]) -> None:
    given = as_object(row.get("input"))
    span.tool_name = text_or_none(given.get("name")) if "args" in given else None
    span.tool_name = span.tool_name or span.name
    result, call_id = tool_answer(row.get("output"))
    if not result and row.get("level") == "ERROR":
        result = text_or_none(_get(row, "status_message"))
    own = as_object(row.get("metadata"))
    span.call_id = call_id or text_or_none(own.get("tool_call_id")) or text_or_none(own.get("toolCallId"))
    if span.call_id is None and "args" in given:
        span.call_id = text_or_none(given.get("id"))
    span.result = result or MISSING  # the export writes an empty text where nothing was logged


def _is_tool(item: Any) -> bool:
    """Whether a message is really the definition of a tool."""
    if not isinstance(item, dict) or item.get("role") != "tool" or item.get("tool_call_id") is not None:
        return False
    content = item.get("content")
    return isinstance(content, dict) and ("function" in content or "input_schema" in content or "parameters" in content)


def _defined(row: dict[str, Any]) -> list[Any]:
    """The column `tool_definitions`: name → the text of `{"description", "parameters"}`, parameters text again."""
    tools = []
    for name, text in as_object(_get(row, "tool_definitions")).items():
        schema = as_object(text)
        parts = {key: unpacked(schema[key]) for key in ("description", "parameters") if schema.get(key)}
        tools.append({"name": name} | parts)
    return tools


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says of its session: the columns of the trace, the model, and what the user attached."""
    name = text_or_none(_get(row, "trace_name")) or text_or_none(row.get("name"))
    kept = {key: value for key in _KEPT if (value := _get(row, key)) not in (None, "", [])}
    own = unpacked(row.get("metadata"))
    if isinstance(own, dict) and isinstance(own.get("rlkit"), dict):
        return as_object(own["rlkit"].get("metadata"))
    named = ({"name": name} if name else {}) | ({"model": _model(row)} if _model(row) else {}) | kept
    return named | (own if isinstance(own, dict) else {"metadata": own} if own else {})


def _model(row: dict[str, Any]) -> str | None:
    return text_or_none(row.get("model")) or text_or_none(_get(row, "provided_model_name"))


def _get(row: dict[str, Any], key: str) -> Any:
    """A field by its name in the export, else by its name in the API."""
    value = row.get(key)
    return row.get(_CAMEL.get(key, key)) if value is None else value


def _time(row: dict[str, Any]) -> Any:
    started = _get(row, "start_time")
    return row.get("timestamp") if started is None else started


def _plain(message: Any, where: str, notes: Notes) -> list[Any]:
    return plain_messages(message)


_READ = {"trace": _read_trace, "score": _read_score, "observation": _read_observation}
DIALECT = Dialect(
    raw_spans=rows,
    ids=ids,
    read=_spans,
    plain=_plain,
    quiet=frozenset({"arguments_object", "content_parts", "timestamp_naive"}),
)
