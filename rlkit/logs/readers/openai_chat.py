"""OpenAI chat JSONL: one session a record, `{"messages": [...], "tools": [...], "id", "metadata", "outcome"}`.

Only `messages` is required. The outcome is read from `outcome`, `feedback`, `reward` or `score`, the first there;
`functions` is the legacy name of `tools`; any other key goes to `Trace.metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Relation, Trace

_OUTCOMES = ("outcome", "feedback", "reward", "score")
_OWN = frozenset({"id", "messages", "tools", "functions", "metadata", "parent_id", "relation", "parent_call_id"})
_RELATIONS = get_args(Relation)
_NONE: frozenset[str] = frozenset()


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and isinstance(record.get("messages"), list)


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a record; a record without any message is counted in `report` and skipped."""
    return read_each(source, report, to_trace)


def read_each(
    source: Source, report: ReadReport, to_trace: Callable[[Record, Notes], Trace | None], quiet: frozenset[str] = _NONE
) -> Iterator[Trace]:
    """For formats with a session a record: `to_trace(record, notes)` or, where that is None, why in the last note."""

    def one(record: Record, notes: Notes) -> list[Trace]:
        trace = to_trace(record, notes)
        return [] if trace is None else [trace]

    for record in source.records(report):
        yield from traces_of(record, report, one, quiet)


def traces_of(
    record: Record, report: ReadReport, to_traces: Callable[[Record, Notes], list[Trace]], quiet: frozenset[str] = _NONE
) -> list[Trace]:
    """`to_traces(record, notes)`; a record that gives none is skipped for the reason in its last note."""
    notes = Notes(record.line, record.root, quiet)
    try:
        traces = to_traces(record, notes)
    except RecursionError:
        notes.add("json_too_deep")
        traces = []
    if not traces:
        for note in notes[:-1]:
            report.note(note, record.file)
        report.skip(notes[-1], record.file)
    return traces


def to_trace(record: Record, notes: Notes) -> Trace | None:
    """One record as a trace, or None where it holds no message; the last of `notes` then says why.

    Nested values are shared with `record.value`, which is not changed.
    """
    value = object_of(record, notes)
    if value is None:
        return None
    logged = value.get("messages")
    messages = parse_messages(logged, notes) if isinstance(logged, list) else []
    if not messages:
        notes.add("no_messages", "messages")
        return None
    key = next((key for key in _OUTCOMES if value.get(key) is not None), "")
    parent, relation, parent_call = parse_links(value)
    return Trace(
        id=_id(record, notes),
        messages=messages,
        tools=parse_tools(value.get("tools", value.get("functions")), notes),
        outcome=parse_outcome(value.get(key), key, notes, key),
        parent_id=parent,
        relation=relation,
        parent_call_id=parent_call,
        metadata=_metadata(value, key, notes),
        source=record.place,
        raw=value,
        diagnostics=notes,
    )


def object_of(record: Record, notes: Notes) -> dict[str, Any] | None:
    """A record's object; None, with the reason noted, where it is something else."""
    value = record.value
    if not isinstance(value, dict):
        notes.add("record_not_object", detail=f"Expected an object, found {type(value).__name__}.")
        return None
    if not record.strict:
        notes.add("json_not_strict")
    return value


Links = tuple[str | None, Relation | None, str | None]


def parse_links(value: dict[str, Any]) -> Links:
    """`(parent_id, relation, parent_call_id)` of a record in which we, or someone like us, wrote them."""
    parent, call, relation = value.get("parent_id"), value.get("parent_call_id"), value.get("relation")
    known = cast(Relation, relation) if relation in _RELATIONS else None
    return parent if isinstance(parent, str) else None, known, call if isinstance(call, str) else None


def parse_tools(logged: Any, notes: Notes, path: str = "tools") -> list[dict[str, Any]]:
    """Tool definitions as bare function schemas, whether wrapped (`{"type", "function"}`) or flat."""
    if logged is None:
        return []
    if not isinstance(logged, list):
        notes.add("tool_definition_unreadable", path)
        return []
    tools = []
    for index, tool in enumerate(logged):
        schema = tool["function"] if isinstance(tool, dict) and isinstance(tool.get("function"), dict) else tool
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            tools.append({key: value for key, value in schema.items() if key != "type"})
        else:
            notes.add("tool_definition_unreadable", f"{path}[{index}]")
    return tools


def _id(record: Record, notes: Notes) -> str:
    """The record's own id, or `file.jsonl:7`."""
    logged = record.value.get("id")
    if isinstance(logged, str) and logged:
        return logged
    if isinstance(logged, int) and not isinstance(logged, bool):
        return str(logged)
    notes.add("id_missing", "id")
    return Path(record.place).name


def _metadata(value: dict[str, Any], outcome: str, notes: Notes) -> dict[str, Any]:
    """`metadata`, and every key of the record that we have no place for, further outcomes included."""
    logged = value.get("metadata")
    if logged is not None and not isinstance(logged, dict):
        notes.add("metadata_wrong_type", "metadata")
        logged = None
    others = {key: item for key, item in value.items() if key not in _OWN and key != outcome}
    return others | (logged or {})
