"""OpenAI Responses: one response a record, `{"id", "instructions", "input", "output", "tools", ...}`.

`input` is a text or items; the request may stand beside the response (`{"request": {...}, "response": {...}}`), and all
items may be under `items`. Records that name another one of the files in `previous_response_id` continue it: a chain is
one trace named after its first response, and where two records continue the same one, each end is a trace. A chain
whose beginning is not in the files is read from where it starts. Outcome, links and other keys are as in the format
`openai`; a chain's outcome and metadata are those of its last record, over those of the records before.

Source: platform.openai.com/docs/api-reference/responses (object, create, input items).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import parse_links, parse_tools, read_each
from rlkit.logs.readers.opening import open_log
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.responses_items import QUIET, Items, fits
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport, diagnostic
from rlkit.logs.trace import Outcome, Trace

_OUTCOMES = ("outcome", "feedback", "reward", "score")
_OWN = frozenset({"id", "object", "input", "output", "items", "instructions", "tools", "metadata", "request",
                  "response", "previous_response_id", "parent_id", "relation", "parent_call_id"})  # fmt: skip
_OTHERS = ("messages", "trace_id", "traceId")  # chat formats, and products that log responses as steps
_CHAINED = b'"previous_response_id"'


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    if not isinstance(record, dict) or not record.keys().isdisjoint(_OTHERS):
        return False
    response, request = _parts(record)
    if response.get("object") == "response" and isinstance(response.get("output"), list):
        return True
    lists = [response.get("output"), request.get("input"), record.get("items")]
    items = [item for logged in lists if isinstance(logged, list) for item in logged]
    return any(map(fits, items))


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a chain of records (and one a branch), as soon as the last record that belongs to it was read.

    Files in which nothing names a response before it are read once; others twice, first for what continues what, so
    that only open chains are in memory.
    """
    if not _chained(source):
        yield from read_each(source, report, _alone, QUIET)
        return
    chains, last = _index(source)
    open_chains: dict[str, list[_Link]] = {}
    for index, record in enumerate(source.records(report)):
        if not isinstance(record.value, dict):
            report.skip(diagnostic("record_not_object", record.root, record.line), record.file)
            continue
        link = _Link(record, _own_id(record) or f"record {index}", _previous(record.value))
        chain = chains.get(link.id, link.id)
        open_chains.setdefault(chain, []).append(link)
        if last.get(chain, index) <= index:
            yield from _close(chain, open_chains.pop(chain), report)


@dataclass(slots=True, eq=False)
class _Link:
    """A record of a chain."""

    record: Record
    id: str
    previous: str | None
    before: _Link | None = None
    continued: bool = False


def _chained(source: Source) -> bool:
    """Whether any file names a response before another one; looked up at memory speed."""
    for file in source.files:
        try:
            with open_log(file) as stream:
                for line in stream:
                    at = line.find(_CHAINED)
                    while at >= 0:
                        rest = line[at + len(_CHAINED) : at + len(_CHAINED) + 16].lstrip(b" \t:")
                        if rest and not rest.startswith(b"null"):
                            return True
                        at = line.find(_CHAINED, at + 1)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError):
            continue  # counted when the file is read
    return False


def _index(source: Source) -> tuple[dict[str, str], dict[str, int]]:
    """(response → its chain, chain → index of the last record that belongs to it)."""
    chains: dict[str, str] = {}
    at: list[tuple[int, str]] = []

    def top(name: str) -> str:
        while (above := chains.setdefault(name, name)) != name:
            chains[name] = chains[above]
            name = above
        return name

    for index, record in enumerate(source.records()):
        own = _own_id(record) or f"record {index}"
        at.append((index, own))
        if (previous := _previous(record.value)) is not None:
            chains[top(own)] = top(previous)
    last: dict[str, int] = {}
    for index, own in at:
        last[top(own)] = index
    return {name: top(name) for name in chains}, last


def _close(chain: str, links: list[_Link], report: ReadReport) -> Iterator[Trace]:
    """Every way through a chain's records, the one that ends last first; records of no use are counted."""
    by_id: dict[str, _Link] = {}
    for link in links:
        by_id.setdefault(link.id, link)
    for link in links:
        link.before = by_id.get(link.previous or "")
        if link.before is link:
            link.before = None
    for link in links:
        if link.before is not None:
            link.before.continued = True
    ends = [link for link in links if not link.continued] or links[-1:]
    used: set[int] = set()
    taken: set[str] = set()
    traces = []
    for way in map(_way, [ends[-1], *ends[:-1]]):
        notes = Notes(way[0].record.line, way[0].record.root if len(way) == 1 else "", QUIET)
        try:
            trace = _trace(way, notes)
        except RecursionError:
            trace = None
        if trace is not None:
            used |= {id(link) for link in way}
            traces.append(trace)
    main = traces[0].id if traces else ""
    for number, trace in enumerate(traces):
        if number and trace.id in taken:
            trace.id = f"{main}#{number}"
        if number and trace.parent_id is None:
            trace.parent_id, trace.relation = main, "fork"
        taken.add(trace.id)
    for link in links:
        if id(link) not in used:
            report.skip(diagnostic("no_messages", link.record.root, link.record.line), link.record.file)
    yield from traces


def _way(end: _Link) -> list[_Link]:
    """The records from a chain's beginning to one of its ends; ids that are their own ancestors end where they meet."""
    way, passed = [end], {id(end)}
    while (before := way[-1].before) is not None and id(before) not in passed:
        passed.add(id(before))
        way.append(before)
    return way[::-1]


def _alone(record: Record, notes: Notes) -> Trace | None:
    """A record that nothing chains, or None where it holds no message; the last of `notes` then says why."""
    if not isinstance(record.value, dict):
        notes.add("record_not_object", detail=f"Expected an object, found {type(record.value).__name__}.")
        return None
    trace = _trace([_Link(record, _own_id(record) or "", None)], notes)
    if trace is None:
        notes.add("no_messages", "output")
    return trace


def _trace(way: list[_Link], notes: Notes) -> Trace | None:
    """The records of a chain as one trace."""
    items = Items(notes)
    instructions = None
    for link in way:
        value = link.record.value
        response, request = _parts(value)
        if len(way) > 1:
            items.root = f"line {link.record.line}: " if link.record.line is not None else link.record.root
        if not link.record.strict:
            notes.add("json_not_strict", line=link.record.line)
        told = response.get("instructions", request.get("instructions"))
        if told is not None and told != instructions:
            items.instruct(told, "instructions")
            instructions = told
        for key, logged in (("items", value.get("items")), ("input", request.get("input")),
                            ("output", response.get("output"))):  # fmt: skip
            items.add(logged, key)
            items.flush()
    messages = parse_messages(items.messages, notes, paths=items.paths)
    if not messages:
        return None
    items.settle(notes)
    if way[0].previous is not None:
        notes.add("beginning_missing", "previous_response_id")
    last = way[-1].record.value
    response, request = _parts(last)
    key = next((key for key in _OUTCOMES if last.get(key) is not None), "")
    parent, relation, parent_call = parse_links(last)
    tools = response.get("tools") if response.get("tools") is not None else request.get("tools")
    return Trace(
        id=_trace_id(way, notes),
        messages=messages,
        tools=_tools(tools, notes),
        outcome=parse_outcome(last.get(key), key, notes, key) if key else Outcome(),
        parent_id=parent,
        relation=relation,
        parent_call_id=parent_call,
        metadata=_metadata(way, notes),
        source=way[0].record.place,
        raw=last if len(way) == 1 else [link.record.value for link in way],
        diagnostics=notes,
    )


def _parts(value: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(The response, the request); both the record itself where it is one object."""
    response, request = value.get("response"), value.get("request")
    return response if isinstance(response, dict) else value, request if isinstance(request, dict) else value


def _own_id(record: Record) -> str | None:
    """The response's id."""
    if not isinstance(record.value, dict):
        return None
    found = _parts(record.value)[0].get("id", record.value.get("id"))
    return found if isinstance(found, str) and found else None


def _previous(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    response, request = _parts(value)
    found = response.get("previous_response_id") or request.get("previous_response_id")
    return found if isinstance(found, str) and found else None


def _trace_id(way: list[_Link], notes: Notes) -> str:
    """The first response's id, else the record's, else `file.jsonl:7`."""
    if (own := _own_id(way[0].record)) is not None:
        return own
    logged = way[0].record.value.get("id")
    if isinstance(logged, str | int) and not isinstance(logged, bool) and logged != "":
        return str(logged)
    notes.add("id_missing", "id")
    return Path(way[0].record.place).name


def _tools(logged: Any, notes: Notes) -> list[dict[str, Any]]:
    """Functions as bare schemas; tools of other types, which may have no name, as they are."""
    if not isinstance(logged, list):
        return parse_tools(logged, notes)
    tools = []
    for tool in logged:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            tools.append(tool if isinstance(tool.get("name"), str) else {"name": kind} | tool)
        else:
            tools += parse_tools([tool], notes)
    return tools


def _metadata(way: list[_Link], notes: Notes) -> dict[str, Any]:
    """Every key of the request and the response that we have no place for, and `metadata`; later records win."""
    found: dict[str, Any] = {}
    own = _OWN | set(_OUTCOMES)
    for link in way:
        value = link.record.value
        response, request = _parts(value)
        parts = [value] if request is response else [request, response, value]
        for part in parts:
            found |= {key: item for key, item in part.items() if key not in own and item is not None}
            logged = part.get("metadata")
            if isinstance(logged, dict):
                found |= logged
            elif logged is not None and part is value:
                notes.add("metadata_wrong_type", "metadata")
    return found
