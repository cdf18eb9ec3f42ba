"""OpenTelemetry GenAI spans as OTLP-JSON: one `{"resourceSpans": [...]}` a line, or one for the whole file.

Spans are grouped by `gen_ai.conversation.id`, else by trace id, wherever in the files they stand. Every chat span
repeats the whole conversation so far, so a group is one trajectory that grows by prefix extension; a span that
continues none of what was seen (a retry that was answered otherwise, a sub-agent, a rewritten history) begins a trace
of its own with `parent_id`. The deprecated dialects (`gen_ai.prompt.0.role`, …) are not read.

Source: open-telemetry/semantic-conventions-genai v0.1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import parse_tools
from rlkit.logs.readers.otel_messages import (
    fill_in_results,
    grow,
    holds_messages,
    structured,
)
from rlkit.logs.readers.otlp import Span, conversation_id, raw_spans, read_spans, text_or_none
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import CODES, Notes, ReadReport, diagnostic
from rlkit.logs.trace import Outcome, Trace

_AGENT = frozenset({"invoke_agent", "invoke_workflow", "create_agent"})
_NOT_METADATA = ("gen_ai.input.", "gen_ai.output.", "gen_ai.system_instructions", "gen_ai.tool.", "gen_ai.evaluation.",
                 "gen_ai.conversation.id", "gen_ai.operation.name", "rlkit.")  # fmt: skip


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and isinstance(record.get("resourceSpans"), list)


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a conversation (and one a branch), as soon as the last record that belongs to it was read.

    Reads the files twice: first for which record is a conversation's last, so that only open ones are in memory.
    """
    conversations, last = _index(source)
    groups: dict[str, _Group] = {}
    for index, record in enumerate(source.records(report)):
        notes = Notes(record.line, record.root)
        sorted_in = _sort_in(record, index, conversations, notes)
        for note in notes:
            report.note(note, record.file)
        if not sorted_in:
            report.skip(diagnostic("no_messages", record.root, record.line, "No span could be read."), record.file)
            continue
        pending = _Pending(record, len(sorted_in))
        for key, spans in sorted_in.items():
            group = groups.setdefault(key, _Group([], []))
            group.spans += spans
            group.records.append(pending)
            if last[key] == index:
                yield from _close(key, groups.pop(key), report)
    for key, group in groups.items():  # whose last record held only unreadable spans
        yield from _close(key, group, report)


@dataclass
class _Pending:
    """A record, how many of its groups are still open, and whether any of it was of use."""

    record: Record
    open: int
    used: bool = False


@dataclass
class _Group:
    """The spans of one conversation so far, and the records they came in."""

    spans: list[Span]
    records: list[_Pending]


def _index(source: Source) -> tuple[dict[str, str], dict[str, int]]:
    """(trace id → conversation id, group → index of the last record that belongs to it)."""
    conversations: dict[str, str] = {}
    last: dict[str, int] = {}
    last_of_trace: dict[str, int] = {}
    for index, record in enumerate(source.records()):
        for span, _ in raw_spans(record.value):
            trace_id = _trace_id(span.get("traceId") if isinstance(span, dict) else None, index)
            last_of_trace[trace_id] = index
            conversation = conversation_id(span)
            if conversation is not None:
                conversations.setdefault(trace_id, conversation)
                last[conversation] = index
    for trace_id, index in last_of_trace.items():
        key = conversations.get(trace_id, trace_id)
        last[key] = max(index, last.get(key, 0))
    return conversations, last


def _trace_id(logged: Any, index: int) -> str:
    return text_or_none(logged) or f"record-{index}"


def _sort_in(record: Record, index: int, conversations: dict[str, str], notes: Notes) -> dict[str, list[Span]]:
    """The record's spans by group."""
    try:
        spans = read_spans(record, notes)
    except RecursionError:
        notes.add("json_too_deep")
        return {}
    groups: dict[str, list[Span]] = {}
    for span in spans:
        if span.trace_id is None:
            notes.add("span_trace_missing", f"span {span.span_id}")
        trace_id = _trace_id(span.trace_id, index)
        groups.setdefault(conversation_id(span.raw) or conversations.get(trace_id, trace_id), []).append(span)
    return groups


def _close(key: str, group: _Group, report: ReadReport) -> Iterator[Trace]:
    """Build a group's traces, and count the records that are done with it and were of no use."""
    first = group.spans[0].record
    try:
        traces = build_traces(key, group.spans)
    except RecursionError:
        report.note(diagnostic("json_too_deep", first.root, first.line), first.file)
        traces = []
    if not traces:
        report.note(diagnostic("spans_without_messages", first.root, first.line), first.file)
    for pending in group.records:
        pending.open -= 1
        pending.used = pending.used or bool(traces)
        if not pending.open and not pending.used:
            item = pending.record
            why = CODES["spans_without_messages"][1]
            report.skip(diagnostic("no_messages", item.root, item.line, why), item.file)
    yield from traces


def build_traces(key: str, spans: list[Span]) -> list[Trace]:
    """The traces of one conversation: the main one first, then its branches; none where no span holds a message."""
    notes = Notes(spans[0].record.line, spans[0].record.root, quiet=frozenset({"arguments_object"}))
    spans = _in_order(spans, notes)
    chats = [span for span in spans if span.operation not in (*_AGENT, "execute_tool") and holds_messages(span)]
    # An agent's own span sums up its chat spans, and counts only where there are none.
    grown = grow(chats or [span for span in spans if span.operation in _AGENT and holds_messages(span)], notes)
    if len(grown) > 1 and any(span.start is None for span in chats):
        notes.add("order_unknown")
    if not grown or not any(trajectory.all_messages for trajectory in grown):
        return []
    root = next((span for span in spans if not span.parent_id), spans[0])
    tools = [span for span in spans if span.operation == "execute_tool"]
    fill_in_results(grown, tools, notes)
    shared: dict[str, Any] = {
        "tools": _tools(spans, notes),
        "metadata": _metadata(spans, root, notes),
        "source": root.record.place,
        "raw": [span.raw for span in spans],
    }
    outcome, parent = _outcome(spans, notes), text_or_none(root.attributes.get("rlkit.parent_id"))
    messages = parse_messages(grown[0].all_messages, notes)
    traces = [Trace(id=key, messages=messages, outcome=outcome, parent_id=parent, diagnostics=notes, **shared)]
    for number, branch in enumerate(grown[1:], 1):
        own = Notes(branch.span.record.line, branch.span.record.root, notes.quiet)
        own.add("span_branch", f"span {branch.span.span_id}")
        messages = parse_messages(branch.all_messages, own)
        traces.append(Trace(id=f"{key}#{number}", messages=messages, parent_id=key, diagnostics=own, **shared))
    return [trace for trace in traces if trace.messages]


def _in_order(spans: list[Span], notes: Notes) -> list[Span]:
    """Each span once, by start time; by length of its messages where a time is unreadable."""
    once: dict[str, Span] = {}
    for number, span in enumerate(spans):
        if span.start is None:
            notes.add("span_time_unreadable", f"span {span.span_id}", line=span.record.line)
        if once.setdefault(f"{span.trace_id}/{span.span_id or number}", span) is not span:
            notes.add("span_repeated", f"span {span.span_id}", line=span.record.line)
    if any(span.start is None for span in once.values()):
        return sorted(once.values(), key=lambda span: len(structured(span, "gen_ai.input.messages", Notes())))
    return sorted(once.values(), key=lambda span: span.start or 0)


def _tools(spans: list[Span], notes: Notes) -> list[dict[str, Any]]:
    """The tools last offered."""
    for span in reversed(spans):
        if span.attributes.get("gen_ai.tool.definitions") is not None:
            logged = structured(span, "gen_ai.tool.definitions", notes)
            return parse_tools(logged, notes, f"span {span.span_id}: gen_ai.tool.definitions")
    return []


def _outcome(spans: list[Span], notes: Notes) -> Outcome:
    """The last `gen_ai.evaluation.*`, on an event or on a span."""
    found = [
        (span, attributes)
        for span in spans
        for attributes in (span.attributes, *(a for _, a in span.events))
        if any(key.startswith("gen_ai.evaluation.") for key in attributes)
    ]
    if not found:
        return Outcome()
    if len(found) > 1:
        notes.add("evaluations_several")
    span, evaluation = found[-1]
    said = {
        "label": evaluation.get("gen_ai.evaluation.score.label"),
        "score": evaluation.get("gen_ai.evaluation.score.value"),
        "source": evaluation.get("rlkit.outcome.source"),
    }
    source = f"evaluation:{evaluation.get('gen_ai.evaluation.name', '')}".rstrip(":")
    return parse_outcome(said, source, notes, f"span {span.span_id}: gen_ai.evaluation")


def _metadata(spans: list[Span], root: Span, notes: Notes) -> dict[str, Any]:
    """What our writer kept; of a stranger's spans, the resource and all of the root span that is not content."""
    own = root.attributes.get("rlkit.metadata")
    if own is not None:
        try:
            value = loads(own) if isinstance(own, str) else own
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        notes.add("metadata_wrong_type", f"span {root.span_id}: rlkit.metadata")
    model = next((m for span in spans if (m := span.attributes.get("gen_ai.request.model")) is not None), None)
    found = root.resource | {k: v for k, v in root.attributes.items() if not k.startswith(_NOT_METADATA)}
    return found if model is None else {"gen_ai.request.model": model} | found
