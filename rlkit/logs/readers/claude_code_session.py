"""The traces of one Claude Code session: every way through its turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.readers.anthropic_blocks import QUIET, parse_blocks, unfold_blocks
from rlkit.logs.readers.claude_code_tree import SPEAKERS, Turn, blocks, grow, spot
from rlkit.logs.readers.openai_chat import parse_links, parse_tools
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record
from rlkit.logs.report import Notes
from rlkit.logs.trace import Message, Relation, Trace

_FLAGS = ("isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "isApiErrorMessage", "toolUseResult")
_METADATA = ("cwd", "gitBranch", "version", "slug", "entrypoint")
_TITLES = {"summary": "summary", "custom-title": "customTitle", "ai-title": "aiTitle"}
_NOT_REST = frozenset({"role", "content", "type"})


@dataclass(slots=True, eq=False)
class _Way:
    """A way from a beginning to an end, and the trace it becomes."""

    turns: list[Turn]
    id: str = ""
    parent_id: str | None = None
    relation: Relation | None = None
    call: str | None = None
    told: dict[str, Any] | None = None
    """What our writer says of the trace."""
    notes: Notes = field(default_factory=Notes)
    messages: list[Message] = field(default_factory=list)


def build_traces(key: str, records: list[Record], started: dict[str, str]) -> list[Trace]:
    """The traces of the session `key`, the main one first; none where no line holds a message.

    `started`: by sub-agent, the tool call that started it, where another file says so.
    """
    notes = Notes(records[0].line, quiet=QUIET)
    if not all(record.strict for record in records):
        notes.add("json_not_strict")
    turns, by_uuid = grow(records, notes)
    raw = [record.value for record in records]
    others = [line for line in raw if line.get("type") not in SPEAKERS]
    ways = _ways(key, turns, by_uuid, others)
    _parse(ways, notes)
    ways = [way for way in ways if way.messages]
    if any(way.relation == "subagent" for way in ways):
        _link(ways, _starts(raw) | started)
    titles = _titles(others, by_uuid)
    return [_trace(way, raw, titles if way.parent_id is None else {}) for way in ways]


def _ways(key: str, turns: list[Turn], by_uuid: dict[str, Turn], others: list[dict[str, Any]]) -> list[_Way]:
    """Every way, with the id of its trace: those of our writer first, then the session's own, then its sub-agents'."""
    ways = []
    for line in others:
        told, leaf = line.get("trace"), line.get("leafUuid")
        if line.get("type") == "rlkit" and type(told) is dict and type(leaf) is str:
            end = by_uuid.get(leaf)
            if end is not None and end.speaks and type(name := told.get("id")) is str:
                parent, relation, call = parse_links(told)
                ways.append(_Way(_up(end), name, parent, relation, call, told))
    inner = {id(turn.parent) for turn in turns} | {id(way.turns[-1]) for way in ways}
    groups: dict[Any, list[list[Turn]]] = {}
    for turn in turns:
        if id(turn) not in inner:
            path = _up(turn)
            agent = path[0].agent
            groups.setdefault(id(path[0]) if agent is True else agent, []).append(path)
    taken = {way.id for way in ways}
    number = 0
    for agent in sorted(groups, key=lambda agent: (agent is not None, min(path[0].index for path in groups[agent]))):
        paths = groups[agent]
        main = max(paths, key=_ended)
        of_group = ""
        for path in [main, *(path for path in paths if path is not main)]:
            own = key
            while own in taken or (agent is not None and own == key):
                number += 1
                own = f"{key}#{number}"
            taken.add(own)
            way = _Way(path, own)
            if own != key:
                way.relation = "fork" if of_group or agent is None else "subagent"
                way.parent_id = of_group or key
            of_group = of_group or own
            ways.append(way)
    return ways


def _up(turn: Turn) -> list[Turn]:
    """The way from the beginning to a turn."""
    way = [turn]
    while (before := way[-1].parent) is not None:
        way.append(before)
    return way[::-1]


def _ended(path: list[Turn]) -> tuple[str, int]:
    time = list(path[-1].lines.values())[-1].value.get("timestamp")
    return time if type(time) is str else "", path[-1].end


def _parse(ways: list[_Way], notes: Notes) -> None:
    """The messages of every way. What ways share is the same object, and what is odd in it is noted once."""
    said: dict[int, tuple[list[Any], list[str]]] = {}
    noted: set[tuple[str, str]] = set()
    firsts: dict[int, list[Message]] = {}
    for way in ways:
        own = notes if way is ways[0] else Notes(way.turns[0].first.line, quiet=QUIET)
        items, paths = list[Any](), list[str]()
        for turn in way.turns:
            if turn.compacted is not None:
                own.add("history_compacted", spot(turn.first).rstrip(": "), line=turn.first.line)
            if (found := said.get(id(turn))) is None:
                found = said[id(turn)] = ([], [])
                _say(turn, own, *found)
            items += found[0]
            paths += found[1]
        way.messages = parse_blocks(items, paths, own)
        if len(ways) > 1:
            own[:] = [note for note in own if (note.code, note.path) not in noted]
            noted |= {(note.code, note.path) for note in own}
            shared = firsts.setdefault(id(way.turns[0]), way.messages)
            for index, (one, other) in enumerate(zip(shared, way.messages, strict=False)):
                if one != other:
                    break
                way.messages[index] = one
        way.notes = own


def _say(turn: Turn, notes: Notes, items: list[Any], paths: list[str]) -> None:
    """A turn as OpenAI-style messages."""
    record = turn.first
    line, where = record.value, f"{spot(record)}message"
    told = line["rlkit"] if turn.exact else None
    if told is not None and "message" in told:
        items.append(told["message"])
        paths.append(where)
        return
    message = line["message"]
    rest: dict[str, Any] = {}
    if told is not None:
        rest |= extra if type(extra := told.get("extra")) is dict else {}
    else:
        for other in turn.lines.values() if len(turn.lines) > 1 else (record,):
            for key, value in other.value["message"].items():
                if value is not None and key not in _NOT_REST:
                    rest[key] = value
        for flag in _FLAGS:
            if flag in line:
                rest[flag] = line[flag]
    if (time := line.get("timestamp")) is not None and (told is None or told.get("timestamp") is not False):
        rest["timestamp"] = time
    role = message.get("role") or line["type"]
    content = message.get("content") if len(turn.lines) == 1 else _joined(turn)
    if type(content) is list:
        unfold_blocks(role, content, rest, where, notes, items, paths)
    else:
        items.append(rest | {"role": role, "content": content})
        paths.append(where)


def _joined(turn: Turn) -> list[Any]:
    """The blocks of all lines of a response; a call that was written again counts once."""
    joined: list[Any] = []
    calls: set[str] = set()
    for record in turn.lines.values():
        content = record.value["message"].get("content")
        if type(content) is not list:
            content = [{"type": "text", "text": content}] if type(content) is str else []
        for block in content:
            if type(block) is dict and block.get("type") == "tool_use" and type(call := block.get("id")) is str:
                if call in calls and not turn.exact:
                    continue
                calls.add(call)
            joined.append(block)
    return joined


def _starts(lines: list[dict[str, Any]]) -> dict[str, str]:
    """By sub-agent: the call that started it, as results and progress lines tell."""
    starts: dict[str, str] = {}
    for line in lines:
        data = line.get("toolUseResult", line.get("data"))
        if type(data) is not dict or type(agent := data.get("agentId")) is not str:
            continue
        found = line.get("parentToolUseID")
        if "toolUseResult" in line:
            found = next((block.get("tool_use_id") for block in blocks(line, "tool_result")), None)
        if type(found) is str:
            starts.setdefault(agent, found)
    return starts


def _link(ways: list[_Way], starts: dict[str, str]) -> None:
    """Tie each sub-agent to the call that started it, and to the trace of that call."""
    callers: dict[str, str] = {}
    prompts: dict[str, list[str]] = {}
    for way in ways:
        for message in way.messages:
            for call in message.tool_calls:
                if callers.setdefault(call.id, way.id) == way.id and call.name in ("Task", "Agent"):
                    prompt = (call.arguments or {}).get("prompt")
                    if type(prompt) is str:
                        prompts.setdefault(prompt, []).append(call.id)
    for way in ways:
        if way.relation != "subagent" or way.told is not None:
            continue
        first = way.turns[0]
        way.call = starts.get(first.agent) if type(first.agent) is str else None
        if way.call is None and (same := prompts.get(way.messages[0].content or "")):
            way.call = same.pop(0)
        if way.call is None and first.origin is not None:
            called = [call for record in first.origin.lines.values() for call in blocks(record.value, "tool_use")]
            way.call = called[0]["id"] if len(called) == 1 and type(called[0].get("id")) is str else None
        if (parent := callers.get(way.call or "")) is not None and parent != way.id:
            way.parent_id = parent


def _trace(way: _Way, raw: list[Any], titles: dict[str, Any]) -> Trace:
    told, notes = way.told, way.notes
    first = way.turns[0].first
    if told is not None:
        metadata = told.get("metadata")
        return Trace(
            id=way.id, messages=way.messages, tools=parse_tools(told.get("tools"), notes),
            outcome=parse_outcome(told.get("outcome"), "", notes, "outcome"), parent_id=way.parent_id,
            relation=way.relation, parent_call_id=way.call, metadata=metadata if type(metadata) is dict else {},
            source=first.place, raw=raw, diagnostics=notes,
        )  # fmt: skip
    metadata = {name: value for name in _METADATA if (value := first.value.get(name)) not in (None, "")} | titles
    lines = list(_lines(way))
    if type(agent := way.turns[0].agent) is str:
        metadata["agent_id"] = agent
    if (
        type(model := next((line["message"].get("model") for line in lines if line["type"] == "assistant"), None))
        is str
    ):
        metadata["model"] = model
    if compactions := [turn.compacted.get("compactMetadata") for turn in way.turns if turn.compacted is not None]:
        metadata["compactions"] = compactions
    if way.parent_id is None:
        way.parent_id = next(filter(None, map(_forked_from, lines)), None)
        way.relation = way.relation or ("fork" if way.parent_id is not None else None)
    return Trace(
        id=way.id, messages=way.messages, parent_id=way.parent_id, relation=way.relation, parent_call_id=way.call,
        metadata=metadata, source=first.place, raw=raw, diagnostics=notes,
    )  # fmt: skip


def _lines(way: _Way) -> Iterator[dict[str, Any]]:
    return (turn.first.value for turn in way.turns if not turn.exact)


def _forked_from(line: dict[str, Any]) -> str | None:
    """The session that a line was copied from."""
    origin = line.get("forkedFrom")
    session = origin.get("sessionId") if type(origin) is dict else None
    return session if type(session) is str and session != line.get("sessionId") else None


def _titles(lines: list[dict[str, Any]], by_uuid: dict[str, Turn]) -> dict[str, Any]:
    """What the product called the session: the last title of each kind, but not those of another session's ends."""
    titles: dict[str, Any] = {}
    for line in lines:
        kind = line.get("type")
        name = _TITLES.get(kind) if type(kind) is str else None
        leaf = line.get("leafUuid")
        if name is not None and line.get(name) is not None and (type(leaf) is not str or leaf in by_uuid):
            titles[name] = line[name]
    return titles
