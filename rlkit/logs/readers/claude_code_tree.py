"""The lines of a Claude Code session as a forest of turns.

A line names the line before it in `parentUuid`, but that is no list and not quite a tree. One response of the model is
written as several lines that share `message.id`: here they are one turn. The results of its calls, one line each, hang
on different ones of those lines: here they follow the turn one after the other, in the order in which they were
written, and what came next follows the last of them. A line that was written twice counts once; a parent that is
missing, or that is a descendant, counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.readers.source import Record
from rlkit.logs.report import Notes

SPEAKERS = ("user", "assistant")
"""The types of the lines that hold messages."""
Agent = str | bool | None
"""Whose line it is: None for the session's own, a sub-agent's id, or True where it has none."""


@dataclass(slots=True, eq=False)
class Turn:
    """A message (of one or more lines), or a line without a message."""

    index: int
    """Of its first line in the session."""
    agent: Agent
    speaks: bool
    """Whether it holds a message."""
    exact: bool
    """Whether our writer wrote it, whose parents are a plain tree."""
    lines: dict[str, Record] = field(default_factory=dict)
    """Its lines by uuid."""
    parent: Turn | None = None
    """The turn before this one; at the end the one before that holds a message."""
    answers: Turn | None = None
    """For the first results: the turn that called the tools."""
    repeats: bool = False
    """Whether it answers calls that were answered before."""
    results: list[Turn] = field(default_factory=list)
    """The first answers to the calls of this turn."""
    origin: Turn | None = None
    """For the beginning of a sub-agent's conversation: the turn of another agent that it hangs on, if any."""
    compacted: dict[str, Any] | None = None
    """For the first message after a compaction: the line that says so."""
    end: int = 0
    """Index of its last line."""

    @property
    def first(self) -> Record:
        """Its first line."""
        return next(iter(self.lines.values()))


def grow(records: list[Record], notes: Notes) -> tuple[list[Turn], dict[str, Turn]]:
    """(The turns that hold a message, in the order of their first line; the turn of every uuid)."""
    turns, by_uuid, parents = _turns(records, notes)
    for turn in turns:
        if len(turn.lines) > 1:
            _sort(turn, parents)
        _find_parent(turn, by_uuid, parents, notes)
    for turn in turns:
        _part_agents(turn)
    _chain_results(turns)
    for turn in turns:
        if turn.speaks:
            _pass_over_silent(turn)
    spoken = [turn for turn in turns if turn.speaks]
    _cut_cycles(spoken, notes)
    return spoken, by_uuid


def blocks(line: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The content blocks of one type in a line."""
    message = line.get("message")
    content = message.get("content") if type(message) is dict else None
    if type(content) is not list:
        return []
    return [block for block in content if type(block) is dict and block.get("type") == kind]


def spot(record: Record) -> str:
    """Where a line stands, for a diagnostic's path."""
    return f"line {record.line}: " if record.line is not None else record.root


def _turns(records: list[Record], notes: Notes) -> tuple[list[Turn], dict[str, Turn], dict[str, str]]:
    """(All turns, the turn of every uuid, the parent that every uuid names).

    A message without a uuid gets one of its position, and follows the line before it.
    """
    turns: list[Turn] = []
    by_uuid: dict[str, Turn] = {}
    parents: dict[str, str] = {}
    heads: dict[tuple[Agent, str], Turn] = {}
    before = None
    for index, record in enumerate(records):
        line = record.value
        kind, message, told = line.get("type"), line.get("message"), line.get("rlkit")
        exact = type(told) is dict
        speaks = (type(message) is dict and kind in SPEAKERS) or (exact and "message" in told)
        uuid, parent = line.get("uuid"), line.get("parentUuid")
        if type(uuid) is not str:
            if not speaks:
                continue
            uuid, parent = f"line {index}", before
        elif uuid in by_uuid:
            # Of the two that /branch writes, one has no parent.
            notes.add("line_repeated", f"{spot(record)}uuid", line=record.line)
            if type(parent) is str:
                parents.setdefault(uuid, parent)
            continue
        if type(parent) is str:
            parents[uuid] = parent
        agent: Agent = None
        if line.get("isSidechain") is True:
            agent = named if type(named := line.get("agentId")) is str else True
        head, name = None, message.get("id") if speaks and kind == "assistant" and type(message) is dict else None
        if type(name) is str and name:
            head = heads.get((agent, name))
        if head is None or _is_copy(uuid, line, head, parents):
            head = Turn(index, agent, speaks, exact)
            turns.append(head)
            if type(name) is str:
                heads[agent, name] = head
        head.lines[uuid] = record
        head.end = index
        by_uuid[uuid] = head
        before = uuid
    return turns, by_uuid, parents


def _is_copy(uuid: str, line: dict[str, Any], head: Turn, parents: dict[str, str]) -> bool:
    """Whether a line copies one of a response, as where a history is written again under new uuids."""
    parent = parents.get(uuid)
    if parent in head.lines or any(parents.get(other) in (parent, uuid) for other in head.lines):
        return False
    content = line["message"].get("content")
    return any(record.value["message"].get("content") == content for record in head.lines.values())


def _sort(turn: Turn, parents: dict[str, str]) -> None:
    """A response's lines in the order of their parents, whatever the order in which they were written."""
    ordered: dict[str, Record] = {}
    for uuid in turn.lines:
        waiting: dict[str, None] = {}
        at: str | None = uuid
        while at in turn.lines and at not in ordered and at not in waiting:
            waiting[at] = None
            at = parents.get(at)
        ordered |= {one: turn.lines[one] for one in reversed(waiting)}
    turn.lines = ordered


def _find_parent(turn: Turn, by_uuid: dict[str, Turn], parents: dict[str, str], notes: Notes) -> None:
    """The turn that one of its lines names, the first that is there."""
    missing = None
    for uuid, record in turn.lines.items():
        named = parents.get(uuid)
        if named is None:
            continue
        parent = by_uuid.get(named)
        if parent is None:
            missing = missing or record
        elif parent is not turn:
            turn.parent = parent
            return
    if missing is not None:
        notes.add("parent_missing", f"{spot(missing)}parentUuid", line=missing.line)


def _part_agents(turn: Turn) -> None:
    """An agent's line follows a line of its own; where there is none before it, its conversation begins."""
    parent, passed = turn.parent, set[int]()
    while parent is not None and parent.agent != turn.agent and id(parent) not in passed:
        passed.add(id(parent))
        parent = parent.parent
    if parent is not turn.parent:
        found = parent is not None and parent.agent == turn.agent
        turn.origin = None if found else turn.parent
        turn.parent = parent if found else None


def _chain_results(turns: list[Turn]) -> None:
    """The results of one response follow it one after the other, and what came next follows the last."""
    callers: dict[str, Turn] = {}
    answers: list[tuple[Turn, list[str]]] = []
    for turn in turns:
        if not turn.speaks or turn.exact:
            continue
        made, given = _calls(turn)
        for call in made:
            callers.setdefault(call, turn)
        if given:
            answers.append((turn, given))
    answered: set[str] = set()
    for turn, given in answers:
        caller = next((callers[call] for call in given if call in callers), turn)
        if caller is turn or caller.agent != turn.agent:
            continue
        if not answered.isdisjoint(given):
            turn.repeats = True
            continue
        answered.update(given)
        turn.parent = caller.results[-1] if caller.results else caller
        turn.answers = caller
        caller.results.append(turn)
    for turn in turns:
        if turn.parent is None or turn.answers is not None or turn.repeats or turn.exact:
            continue
        asked = turn.parent if turn.parent.results else turn.parent.answers
        if asked is not None:
            turn.parent = asked.results[-1]


def _calls(turn: Turn) -> tuple[list[str], list[str]]:
    """The ids of the calls that a turn makes, and of those that it answers."""
    made, given = list[str](), list[str]()
    for record in turn.lines.values():
        content = record.value["message"].get("content")
        if type(content) is list:
            for block in content:
                kind = block.get("type") if type(block) is dict else None
                if kind == "tool_use" and type(call := block.get("id")) is str:
                    made.append(call)
                elif kind == "tool_result" and type(call := block.get("tool_use_id")) is str:
                    given.append(call)
    return made, given


def _pass_over_silent(turn: Turn) -> None:
    """The parent is the last turn before that holds a message."""
    parent, passed = turn.parent, set[int]()
    while parent is not None and not parent.speaks and id(parent) not in passed:
        passed.add(id(parent))
        if parent.first.value.get("subtype") == "compact_boundary":
            turn.compacted = parent.first.value
        parent = parent.parent
    turn.parent = parent if parent is not None and parent.speaks else None


def _cut_cycles(turns: list[Turn], notes: Notes) -> None:
    """A turn that is its own ancestor has no parent."""
    walk_of: dict[int, int] = {}
    for walk, start in enumerate(turns):
        at = start
        while id(at) not in walk_of:
            walk_of[id(at)] = walk
            if at.parent is not None and walk_of.get(id(at.parent)) == walk:
                notes.add("parent_cycle", f"{spot(at.first)}parentUuid", line=at.first.line)
                at.parent = None
            if at.parent is None:
                break
            at = at.parent
