"""OpenHands events: `{"id", "timestamp", "source", "action" | "observation", "args" | "content", "extras", "cause"}`.

They come as an array or as lines of a file (a session each), as one event a file (`events/0.json`, `events/1.json`, …:
a session a folder), or as the `history` of a document, which is what its evaluations write (`output.jsonl`: then
`instance_id` is the id and `report.resolved` or `test_result.report.resolved` the outcome). How events become messages
is in `openhands_events.py`.

A run that ended with its last iteration or its budget is `truncated`, and all else stays unknown. Times have no zone
and are taken as UTC. Fields as in github.com/All-Hands-AI/OpenHands (openhands/events/serialization/event.py) up to
version 0.62; the events of its later SDK (with `kind`) are others. Our own writer puts what has no place under `rlkit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

from rlkit.logs.readers.kept import Ids, kept_in, restored
from rlkit.logs.readers.openai_chat import parse_tools, traces_of
from rlkit.logs.readers.openhands_events import Conversation, conversations, is_event
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport, diagnostic
from rlkit.logs.trace import Outcome, Trace

_QUIET = frozenset({"arguments_object", "tool_calls_wrong_role", "timestamp_naive"})
_HISTORIES = ("history", "trajectory")
_ONE_EVENT = re.compile(r"\d+\.json(\.gz|\.zst)?")
_CUT = re.compile(r"(reached|exceeded) (the )?max(imum)?[ _](allowed )?(iteration|budget)", re.IGNORECASE)


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and (_is_plainly_event(record) or _is_document(record))


def _is_plainly_event(value: Any) -> bool:
    """An event that says who it came from, and what was done or seen."""
    if not is_event(value) or not isinstance(value.get("source"), str):
        return False
    return isinstance(value.get("args"), dict) or ("observation" in value and "content" in value)


def _is_document(value: dict[str, Any]) -> bool:
    """Whether a record holds events; older ones have `[action, observation]` pairs."""
    for key in _HISTORIES:
        events = value.get(key)
        if isinstance(events, list) and events:
            first = events[0]
            if _is_plainly_event(first[0] if isinstance(first, list) and first else first):
                return True
    return False


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """A trace a document or session, and one for each agent that it delegated to."""
    ids = Ids()
    for (is_document, name), group in groupby(source.records(report), _session):
        records = list(group)
        if is_document:
            for record in records:
                yield from traces_of(record, report, partial(_document, ids), _QUIET)
        else:
            yield from _events(name, records, ids, report)


def _session(record: Record) -> tuple[bool, str]:
    """(whether it is a document, the file or folder that holds the session)."""
    value, path = record.value, PurePath(record.file)
    if isinstance(value, dict) and not is_event(value) and any(isinstance(value.get(key), list) for key in _HISTORIES):
        return True, record.place
    if path.parent.name in ("events", "event_cache"):
        return False, str(path.parent.parent)
    return False, str(path.parent if record.line is not None and _ONE_EVENT.fullmatch(path.name) else path)


def _document(ids: Ids, record: Record, notes: Notes) -> list[Trace]:
    if not record.strict:
        notes.add("json_not_strict")
    key = next(key for key in _HISTORIES if isinstance(record.value.get(key), list))
    flat = []
    for index, item in enumerate(record.value[key]):
        several = enumerate(item) if isinstance(item, list) else None
        flat += [(one, f"{key}[{index}][{n}]") for n, one in several] if several else [(item, f"{key}[{index}]")]
    return _traces(flat, _fields(record, flat, ids, notes), notes, record.value, record.place)


def _fields(record: Record, events: Sequence[tuple[Any, str]], ids: Ids, notes: Notes) -> dict[str, Any]:
    """What a document says of its trace."""
    value = record.value
    kept = kept_in(value)
    fields: dict[str, Any] = {}
    if kept is not None:
        fields = restored(kept, notes)
    else:
        fields["outcome"] = _outcome(value, events, notes)
        fields["metadata"] = {name: item for name, item in value.items() if name not in (*_HISTORIES, "instance_id")}
    if "id" not in fields:
        own = next((value[name] for name in ("instance_id", "id") if isinstance(value.get(name), int | str)), "")
        if own == "":
            notes.add("id_missing", "instance_id")
        fields["id"] = ids.new(Path(record.place).name if own == "" else str(own), notes)
    return fields


def _events(name: str, records: Sequence[Record], ids: Ids, report: ReadReport) -> Iterator[Trace]:
    """One session's events, each a record."""
    good = []
    for record in records:
        if is_event(record.value):
            good.append(record)
        else:
            report.skip(diagnostic("event_unknown", record.root, record.line), record.file)
    if not good:
        return
    notes = Notes(good[0].line, "", _QUIET)
    if any(not record.strict for record in good):
        notes.add("json_not_strict")
    ordered = _in_order(good, notes) if len({record.file for record in good}) > 1 else good
    flat = [(record.value, f"[{index}]") for index, record in enumerate(ordered)]
    fields = {"id": ids.new(PurePath(name).name.partition(".")[0] or name, notes), "outcome": _outcome({}, flat, notes)}
    try:
        made = _traces(flat, fields, notes, [event for event, _ in flat], good[0].place)
    except RecursionError:
        notes.add("json_too_deep")
        made = []
    if not made:
        for note in notes[:-1]:
            report.note(note, good[0].file)
        for record in good:
            report.skip(diagnostic(notes[-1].code, record.root, record.line), record.file)
    yield from made


def _in_order(records: Sequence[Record], notes: Notes) -> list[Record]:
    """By the events' numbers where all have one, each once: pages of a cache repeat what lies in files of its own."""
    numbers = [record.value.get("id") for record in records]
    if not all(type(number) is int for number in numbers):
        return list(records)
    kept: list[Record] = []
    for record in sorted(records, key=lambda record: record.value["id"]):
        if kept and _equal(kept[-1].value, record.value):
            notes.add("line_repeated", f"{Path(record.file).name}: ")
        else:
            kept.append(record)
    return kept


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _traces(
    events: Sequence[tuple[Any, str]], fields: dict[str, Any], notes: Notes, raw: Any, place: str
) -> list[Trace]:
    """The main conversation and the delegates'; where there is none the last of `notes` says why."""
    main, *others = conversations(events, notes)
    if not main.messages:
        notes.add("no_messages", "history")
        return []
    fields["tools"] = fields.get("tools") or parse_tools(main.tools, notes, "args.tools")
    traces = [Trace(messages=main.messages, source=place, raw=raw, diagnostics=notes, **fields)]
    for other in others:
        if other.messages:
            traces.append(_delegate(other, f"{traces[0].id}#{len(traces)}", traces[0], notes))
    return traces


def _delegate(other: Conversation, id: str, main: Trace, notes: Notes) -> Trace:
    trace = Trace(id=id, messages=other.messages, parent_id=main.id, relation="subagent", source=main.source)
    trace.parent_call_id, trace.raw = other.call_id, other.events
    trace.tools = parse_tools(other.tools, notes, "args.tools")
    return trace


def _outcome(value: dict[str, Any], events: Sequence[tuple[Any, str]], notes: Notes) -> Outcome:
    """What the evaluation says, else whether the run was cut short."""
    result = value.get("test_result")
    places = (("report", value.get("report")), ("test_result.report", _get(result, "report")), ("test_result", result))
    for path, place in places:
        if isinstance(resolved := _get(place, "resolved"), bool):
            return parse_outcome(resolved, "openhands", notes, f"{path}.resolved")
    error = value.get("error")
    if (isinstance(error, str) and _CUT.search(error)) or _was_cut(events):
        return Outcome(status="truncated", source="openhands")
    return Outcome()


def _was_cut(events: Sequence[tuple[Any, str]]) -> bool:
    """Whether the last state that the agent came to is an error for want of iterations or money."""
    for event, _ in reversed(events):
        if _get(event, "observation") == "agent_state_changed":
            extras = event.get("extras")
            reason = _get(extras, "reason")
            return _get(extras, "agent_state") == "error" and isinstance(reason, str) and bool(_CUT.search(reason))
    return False


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
