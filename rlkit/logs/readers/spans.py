"""Logs that are spans: from spans in any order, over lines and files, to one trace a session and one a branch.

What a format calls its spans, their kinds and their messages is its `Dialect`; all of them share what is here: which
session a span belongs to, which spans were exported twice, which conversation an LLM call goes on with
(`trajectories.py`), which agent it belongs to, and what to make of spans whose times or parents are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import parse_tools
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.trajectories import Trajectory, fill_in_results, grow
from rlkit.logs.report import CODES, Notes, ReadReport, diagnostic
from rlkit.logs.trace import Outcome, Relation, Trace

Kind = Literal["llm", "tool", "agent", "other"]
MISSING: Any = object()
"""The result of a tool's span that says nothing of one."""


@dataclass(slots=True, eq=False)
class Span:
    """One span of any format, as its dialect read it."""

    trace_id: str | None
    session_id: str | None
    """The conversation that the span itself names."""
    span_id: str
    parent_id: str
    start: int | None
    """Nanoseconds since 1970, or None where unreadable."""
    kind: Kind
    name: str
    record: Record
    raw: Any
    input: list[Any] | str | dict[str, Any] = field(default_factory=list)
    """What the model was asked: messages as logged, their JSON text, or flat attributes for `Dialect.unfold`; of the
    latter two only what is new is looked at."""
    output: list[Any] = field(default_factory=list)
    """What it answered."""
    system: list[Any] = field(default_factory=list)
    """Instructions that stand beside the messages, as a message."""
    tools: list[Any] | Callable[[], list[Any]] | None = None
    """The tools offered, or how to find them; None where the span says nothing of any."""
    call_id: str | None = None
    tool_name: str | None = None
    result: Any = MISSING
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    """Verdicts, as `parse_outcome` takes them, with their `source`; `of_session` is true of one on more than a span."""
    metadata: dict[str, Any] = field(default_factory=dict)
    alternatives: list[list[Any]] = field(default_factory=list)
    """Other answers to the same question (n > 1)."""
    model: str | None = None
    """For the metadata, where the session's own do not say."""
    links: tuple[str | None, Relation | None, str | None] = (None, None, None)
    """`(parent_id, relation, parent_call_id)` where our writer kept them."""


@dataclass(frozen=True)
class Dialect:
    """How a format writes spans."""

    raw_spans: Callable[[Any], Iterable[Any]]
    """The spans of a record's value, as logged."""
    ids: Callable[[Any], tuple[str | None, str | None]]
    """(trace id, session id) of a span as logged; cheap, and never raises."""
    read: Callable[[Record, Notes], list[Span]]
    """The spans of a record, decoded."""
    plain: Callable[[Any, str, Notes], list[Any]]
    """A message as logged, standing at a path, as OpenAI-style messages."""
    quiet: frozenset[str] = frozenset()
    """Codes of what is normal here."""
    names: tuple[str, str, str] = ("input", "output", "system")
    """What the format calls the three, for paths."""
    unfold: Callable[[dict[str, Any]], dict[int, Any]] = lambda attributes: {}
    """Flat attributes as messages by their numbers."""
    model_key: str = ""
    """Under which `Span.model` goes to the metadata."""


def read_span_logs(source: Source, report: ReadReport, dialect: Dialect) -> Iterator[Trace]:
    """One trace a session (and one a branch), as soon as the last record that belongs to it was read.

    Reads the files twice: first for which record is a session's last, so that only open ones are in memory.
    """
    sessions, last = _index(source, dialect)
    groups: dict[str, _Group] = {}
    for index, record in enumerate(source.records(report)):
        notes = Notes(record.line, record.root)
        sorted_in = _sort_in(record, index, sessions, dialect, notes)
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
            if last.get(key) == index:
                yield from _close(key, groups.pop(key), dialect, report)
    for key, group in groups.items():  # whose last record held only unreadable spans
        yield from _close(key, group, dialect, report)


@dataclass
class _Pending:
    """A record, how many of its groups are still open, and whether any of it was of use."""

    record: Record
    open: int
    used: bool = False


@dataclass
class _Group:
    """The spans of one session so far, and the records they came in."""

    spans: list[Span]
    records: list[_Pending]


def _index(source: Source, dialect: Dialect) -> tuple[dict[str, str], dict[str, int]]:
    """(trace id → session id, group → index of the last record that belongs to it)."""
    sessions: dict[str, str] = {}
    last: dict[str, int] = {}
    last_of_trace: dict[str, int] = {}
    for index, record in enumerate(source.records()):
        for raw in dialect.raw_spans(record.value):
            logged, session = dialect.ids(raw)
            trace_id = logged or f"record-{index}"
            last_of_trace[trace_id] = index
            if session is not None:
                sessions.setdefault(trace_id, session)
                last[session] = index
    for trace_id, index in last_of_trace.items():
        key = sessions.get(trace_id, trace_id)
        last[key] = max(index, last.get(key, 0))
    return sessions, last


def _sort_in(
    record: Record, index: int, sessions: dict[str, str], dialect: Dialect, notes: Notes
) -> dict[str, list[Span]]:
    """The record's spans by group."""
    try:
        spans = dialect.read(record, notes)
    except RecursionError:
        notes.add("json_too_deep")
        return {}
    groups: dict[str, list[Span]] = {}
    for span in spans:
        if span.trace_id is None:
            notes.add("span_trace_missing", f"span {span.span_id}")
        trace_id = span.trace_id or f"record-{index}"
        groups.setdefault(span.session_id or sessions.get(trace_id, trace_id), []).append(span)
    return groups


def _close(key: str, group: _Group, dialect: Dialect, report: ReadReport) -> Iterator[Trace]:
    """Build a group's traces, and count the records that are done with it and were of no use."""
    first = group.spans[0].record
    try:
        traces = build_traces(key, group.spans, dialect)
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


# --- a session --------------------------------------------------------------------------------------------------------


def build_traces(key: str, spans: list[Span], dialect: Dialect) -> list[Trace]:
    """The traces of one session: the main one first, then its branches; none where no span holds a message.

    The main one is the conversation of the outermost agent that ends last. A branch that shares its beginning is a
    `fork`, one that a tool call or a nested agent started a `subagent`.
    """
    first = spans[0].record
    notes = Notes(first.line, first.root, dialect.quiet)
    spans = _in_order(spans, notes)
    tree = _Tree(spans)
    calls = [span for span in spans if span.kind == "llm" and _holds_messages(span)]
    # An agent's own span sums up its LLM calls, and counts only where there are none.
    calls = calls or [span for span in spans if span.kind == "agent" and _holds_messages(span)]
    grown = [t for t in grow(calls, tree.caller, dialect, notes) if t.all_messages]
    if not grown:
        return []
    if len(grown) > 1 and any(span.start is None for span in calls):
        notes.add("order_unknown")
    tools = [span for span in spans if span.kind == "tool"]
    fill_in_results(grown, tools, [span for span in tools if span.result is not MISSING], tree.caller, notes)
    main = _main(grown, tree)
    root = next((span for span in spans if not span.parent_id), None) or next(
        (span for span in spans if tree.parent(span) is None), spans[0]
    )
    raw = [root.raw, *(span.raw for span in spans if span is not root)]
    model = next((span.model for span in calls if span.model is not None), None)
    named = {} if model is None else {dialect.model_key: model}
    outcomes = [(span, said) for span in spans for said in span.outcomes]

    def trace(id: str, grown: Trajectory, own: Notes, links: tuple[Any, Any, Any], outcome: Outcome) -> Trace:
        parent, relation, call = links
        offered = _tools(grown, spans, tree)
        return Trace(
            id=id, messages=parse_messages(grown.all_messages, own),
            tools=parse_tools(offered, own, f"span {grown.span.span_id}: tools"),
            outcome=outcome, parent_id=parent, relation=relation, parent_call_id=call,
            metadata=named | _metadata(grown, main, root, tree), source=root.record.place, raw=raw, diagnostics=own,
        )  # fmt: skip

    traces = [trace(key, main, notes, root.links, _outcome(outcomes, notes))]
    branches = sorted((t for t in grown if t is not main), key=lambda branch: branch.parted(main))
    for number, branch in enumerate(branches, 1):
        record = branch.span.record
        own = Notes(record.line, record.root, dialect.quiet)
        own.add("span_branch", f"span {branch.span.span_id}")
        traces.append(trace(f"{key}#{number}", branch, own, (key, *_relation(branch, main, tree)), Outcome()))
    return [trace for trace in traces if trace.messages]


def _holds_messages(span: Span) -> bool:
    return bool(span.input or span.output or span.system)


def _in_order(spans: list[Span], notes: Notes) -> list[Span]:
    """Each span once, by start time, what asked for less first; by that alone where a time is unreadable."""
    once: dict[tuple[str | None, str], Span] = {}
    for number, span in enumerate(spans):
        if span.start is None:
            notes.add("span_time_unreadable", f"span {span.span_id}", line=span.record.line)
        if once.setdefault((span.trace_id, span.span_id or f" {number}"), span) is not span:
            notes.add("span_repeated", f"span {span.span_id}", line=span.record.line)
    known = all(span.start is not None for span in once.values())
    return sorted(once.values(), key=lambda span: (span.start if known else 0, len(span.input)))


class _Tree:
    """Who is whose parent; parents may be missing, and run in circles."""

    def __init__(self, spans: list[Span]) -> None:
        self._by_id = {(span.trace_id, span.span_id): span for span in spans if span.span_id}
        self._any_trace = {span.span_id: span for span in spans if span.span_id}
        self._found: dict[tuple[Span, Kind], Span | None] = {}
        self._with_calls = {agent for span in spans if span.kind == "llm" if (agent := self._nearest(span, "agent"))}

    def parent(self, span: Span) -> Span | None:
        """The span above, of the same trace or, where a product spreads a session over several, of any."""
        return self._by_id.get((span.trace_id, span.parent_id)) or self._any_trace.get(span.parent_id)

    def above(self, span: Span) -> Iterator[Span]:
        """All spans above, the nearest first."""
        seen = {span}
        while (parent := self.parent(span)) is not None and parent not in seen:
            seen.add(parent)
            yield parent
            span = parent

    def _nearest(self, span: Span, kind: Kind) -> Span | None:
        key = span, kind
        if key not in self._found:
            self._found[key] = next((above for above in self.above(span) if above.kind == kind), None)
        return self._found[key]

    def agent(self, span: Span) -> Span | None:
        """The agent that a span belongs to."""
        return self._nearest(span, "agent")

    def caller(self, span: Span) -> Span | None:
        """The tool call within which a span happened."""
        return self._nearest(span, "tool")

    def is_nested(self, span: Span) -> bool:
        """Whether a span belongs to an agent below another one that talks to a model itself."""
        agent = self.agent(span)
        return agent is not None and any(above in self._with_calls for above in self.above(agent))


def _main(grown: list[Trajectory], tree: _Tree) -> Trajectory:
    """Of the conversations that no tool call and no other agent started, the one that ends last."""
    outer = [t for t in grown if tree.caller(t.span) is None]
    outer = [t for t in outer if not tree.is_nested(t.span)] or outer
    return max(outer or grown, key=lambda t: t.end)


def _relation(branch: Trajectory, main: Trajectory, tree: _Tree) -> tuple[Relation | None, str | None]:
    """How a branch came about, and the call that started it; neither where the log does not say.

    The first message edited is a fork too: the same agent under the same instructions, in the same trace.
    """
    caller = tree.caller(branch.span)
    if caller is not None and caller is not tree.caller(main.span):
        return "subagent", caller.call_id
    asked_anew = tree.agent(branch.span) is tree.agent(main.span) and branch.span.trace_id == main.span.trace_id
    if branch.shares_beginning(main) or (asked_anew and branch.instructions == main.instructions):
        return "fork", None
    return ("subagent", None) if tree.is_nested(branch.span) else (None, None)


def _tools(grown: Trajectory, spans: list[Span], tree: _Tree) -> list[Any] | None:
    """The tools last offered: in the conversation itself, else to its agent, else elsewhere within the same call."""
    agent, caller = tree.agent(grown.span), tree.caller(grown.span)
    near = [*grown.spans[::-1], *([] if agent is None else [agent])]
    near += [span for span in reversed(spans) if tree.caller(span) is caller]
    tools = next((span.tools for span in near if span.tools is not None), None)
    return tools() if callable(tools) else tools


def _metadata(grown: Trajectory, main: Trajectory, root: Span, tree: _Tree) -> dict[str, Any]:
    """What another agent than the main one says of itself, else what the session's root says."""
    agent = tree.agent(grown.span)
    return root.metadata if agent is None or agent is tree.agent(main.span) else agent.metadata


def _outcome(found: list[tuple[Span, dict[str, Any]]], notes: Notes) -> Outcome:
    """The last verdict on the session, else on any of its spans."""
    if not found:
        return Outcome()
    if len(found) > 1:
        notes.add("evaluations_several")
    span, said = ([item for item in found if item[1].get("of_session")] or found)[-1]
    return parse_outcome(said, said.get("source") or "", notes, f"span {span.span_id}: evaluation")
