"""Sessions that branch: all traces of one session as a tree, in which a shared beginning stands once.

A retry, an edit or a rewritten history gives a session several endings; readers yield each as a trace of its own. A
`SessionTree` puts them together again, and gives each of them back unchanged.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.trace import Message, Relation, Trace

WINDOW = 32
"""How many sessions `session_trees` holds open."""
WIDTH = 110
"""Characters a line of a drawn tree."""


@dataclass(slots=True)
class Node:
    """A message of a session, once, however many of its traces hold it."""

    message: Message
    parent: int | None
    """The node before it; None at the beginning of a conversation."""
    children: list[int] = field(default_factory=list)
    """What came next, in the order in which it was first seen."""


@dataclass(slots=True)
class Branch:
    """One trace of the session as a way through the tree."""

    head: Trace
    """The trace, but without its messages."""
    relation: Relation | None
    """None for the main one; whatever else did not start as a sub-agent is a fork."""
    nodes: list[int]
    """Its own nodes, those that no earlier branch has."""
    leaf: int | None
    """The node of its last message; None where it has none."""
    origin: int | None
    """Where it left the tree: the last node that a fork shares, the call that started a sub-agent; None if unknown."""
    details: dict[int, Message]
    """By node: its own version of a shared message that differs in time, reasoning, name or `extra` only."""


class SessionTree:
    """All traces of one session: the main one, its forks and its sub-agents.

    Two traces share a message where all messages before it are shared and role, text, calls (with ids and arguments)
    and the call answered are the same. Ids that a reader made up are made of the position, and so agree too. A
    sub-agent shares nothing with the agent that started it, only with forks of its own.
    """

    def __init__(self, nodes: list[Node], branches: list[Branch]) -> None:
        self.nodes = nodes
        self.branches = branches
        """The main one first, the others in the order in which they came."""

    @classmethod
    def from_traces(cls, traces: Iterable[Trace]) -> SessionTree:
        """The tree of the traces of one session, in any order. Raises `ValueError` where there are none.

        The main one is the first without a parent, else the first whose parent is not among them. The traces are not
        changed; their messages become the tree's.
        """
        given = list(traces)
        if not given:
            raise ValueError("a session has at least one trace")
        main = _main(given)
        ordered = [main, *(trace for trace in given if trace is not main)]
        tree, conversations = cls([], []), _conversations(ordered)
        index = _Index()
        for trace in ordered:
            relation: Relation | None = None if trace is main else trace.relation or "fork"
            tree._add(trace, relation, conversations[trace.id], index)
        for branch in tree.branches:
            if branch.relation == "subagent" and (caller := tree._caller(branch, conversations, index)) is not None:
                branch.origin = None if tree._comes_from(caller, branch, index) else caller
        return tree

    @property
    def id(self) -> str:
        """The main trace's id."""
        return self.branches[0].head.id

    @property
    def roots(self) -> list[int]:
        """The nodes that begin a conversation."""
        return [index for index, node in enumerate(self.nodes) if node.parent is None]

    @property
    def leaves(self) -> list[int]:
        """The nodes after which nothing came. A trace that another one goes on from ends at no leaf."""
        return [index for index, node in enumerate(self.nodes) if not node.children]

    @property
    def main(self) -> Trace:
        """What the product shows as the session."""
        return self.path(self.branches[0])

    @property
    def forks(self) -> list[Trace]:
        """The other endings, and whatever else has a parent and is no sub-agent."""
        return [self.path(branch) for branch in self.branches if branch.relation == "fork"]

    @property
    def subagents(self) -> list[Trace]:
        """The conversations of agents that were started by a tool call of this session."""
        return [self.path(branch) for branch in self.branches if branch.relation == "subagent"]

    @property
    def saved(self) -> float:
        """The share of the traces' messages that the tree need not repeat, in [0, 1)."""
        total = sum(len(self._way(branch)) for branch in self.branches)
        return 1 - len(self.nodes) / total if total else 0.0

    def __len__(self) -> int:
        """The number of different messages."""
        return len(self.nodes)

    def paths(self) -> Iterator[Trace]:
        """Every trace of the session, equal to the one it came from; the main one first."""
        return map(self.path, self.branches)

    def path(self, branch: Branch) -> Trace:
        """The trace that a branch came from. Message objects are shared with the tree and with other paths."""
        messages = [branch.details.get(index) or self.nodes[index].message for index in self._way(branch)]
        return branch.head.model_copy(update={"messages": messages})

    def leaving(self) -> dict[int | None, list[Branch]]:
        """By node: the branches that leave the tree there; under None those of which nobody knows where."""
        leaving: dict[int | None, list[Branch]] = {}
        for branch in self.branches[1:]:
            leaving.setdefault(branch.origin, []).append(branch)
        return leaving

    def draw(self, width: int = WIDTH) -> str:
        """The tree as text: a line a message, at most `width` characters; forks and sub-agents stand indented.

        What cannot be printed (half a character, an escape sequence) is drawn as `�`.
        """
        from rlkit.logs.session_text import draw

        return draw(self, width)

    __str__ = draw

    def __repr__(self) -> str:
        return f"<SessionTree {reprlib.repr(self.id)}: {len(self)} messages, {len(self.branches)} paths>"

    def _add(self, trace: Trace, relation: Relation | None, conversation: str, index: _Index) -> None:
        """Lay a trace over the tree: along what is there as far as it goes, then on nodes of its own."""
        at, origin = None, None
        own, details = list[int](), dict[int, Message]()
        for message in trace.messages:
            call = message.tool_calls[0].id if message.tool_calls else None
            place = conversation if at is None else at
            alike = index.nexts.setdefault((place, message.role, message.content, message.tool_call_id, call), [])
            found = next((i for i in alike if _calls_same(self.nodes[i].message, message)), None)
            if found is None:
                found = len(self.nodes)
                self.nodes.append(Node(message, at))
                index.owners.append(len(self.branches))
                if at is not None:
                    self.nodes[at].children.append(found)
                for made in message.tool_calls:
                    index.callers.setdefault((conversation, made.id), []).append(found)
                alike.append(found)
                own.append(found)
            else:
                origin = found
                if not _is_same(self.nodes[found].message, message):
                    details[found] = message
            at = found
        head = trace.model_copy(update={"messages": []})
        self.branches.append(Branch(head, relation, own, at, origin, details))

    def _way(self, branch: Branch) -> list[int]:
        way, at = list[int](), branch.leaf
        while at is not None:
            way.append(at)
            at = self.nodes[at].parent
        return way[::-1]

    def _caller(self, subagent: Branch, conversations: dict[str, str], index: _Index) -> int | None:
        """The node whose call started a sub-agent: one of its parent's, else of the parent's forks."""
        call, parent = subagent.head.parent_call_id, subagent.head.parent_id
        if call is None or parent is None:
            return None
        callers = index.callers.get((conversations.get(parent, parent), call), [])
        if len(callers) > 1:
            ways = [self._way(branch) for branch in self.branches if branch.head.id == parent]
            return next((node for way in ways for node in way if node in callers), callers[0])
        return callers[0] if callers else None

    def _comes_from(self, node: int | None, branch: Branch, index: _Index) -> bool:
        """Whether a node hangs on a branch: agents that started each other hang nowhere."""
        while node is not None:
            owner = self.branches[index.owners[node]]
            if owner is branch:
                return True
            node = owner.origin
        return False


@dataclass(slots=True)
class _Index:
    """What is looked up while a tree is built."""

    nexts: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    """By (node before it or conversation, role, text, call answered, first call): the nodes that may say the same."""
    owners: list[int] = field(default_factory=list)
    """By node: the number of its branch."""
    callers: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By (conversation, call): the nodes that made the call."""


def session_trees(traces: Iterable[Trace], window: int = WINDOW) -> Iterator[SessionTree]:
    """Group a stream of traces by session (those linked by `parent_id`, and those of one id); a tree each.

    Memory is bounded: the `window` sessions that were last added to are held open, so that a session's traces may
    come in any order and a little apart from each other, as in a log of concurrent sessions. Traces that come further
    apart give trees of their own; so `window=1` groups only what stands together. Traces whose parent never comes
    (held back by the reader, in another file) are a tree all the same. Sessions come out in the order of their last
    trace. Raises `ValueError` where `window` is below 1.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    held: list[tuple[set[str], list[Trace]]] = []  # (ids of the traces and of their parents, traces)
    for trace in traces:
        names = {trace.id} if trace.parent_id is None else {trace.id, trace.parent_id}
        related = [session for session in held if not names.isdisjoint(session[0])]
        if related:
            held = [session for session in held if all(session is not other for other in related)]
        known, members = related[0] if related else (set[str](), list[Trace]())
        for others, more in related[1:]:  # this trace is what links them
            known |= others
            members += more
        known |= names
        members.append(trace)
        held.append((known, members))
        if len(held) > window:
            yield SessionTree.from_traces(held.pop(0)[1])
    for _, members in held:
        yield SessionTree.from_traces(members)


def _main(traces: list[Trace]) -> Trace:
    ids = {trace.id for trace in traces}
    top = (trace for trace in traces if trace.parent_id is None or trace.parent_id == trace.id)
    orphan = (trace for trace in traces if trace.parent_id not in ids)
    return next(top, None) or next(orphan, None) or traces[0]


def _conversations(traces: list[Trace]) -> dict[str, str]:
    """By trace id: the conversation it belongs to, named by the first of the traces that forked from each other.

    A fork of a trace that is not there counts as one of the main trace, which is the first of `traces`.
    """
    parents: dict[str, str | None] = {}
    for trace in traces:
        parents.setdefault(trace.id, None if trace.relation == "subagent" else trace.parent_id)
    names: dict[str, str] = {}
    for start in parents:
        passed: dict[str, None] = {}
        at = start
        while at not in names and at not in passed:  # ids that are their own ancestors end where they meet
            passed[at] = None
            at = parents.get(at) or at
        name = names.get(at, at)
        names |= dict.fromkeys(passed, name)
    main = names[traces[0].id]
    return {id: names[id] if names[id] in parents else main for id in parents}


def _calls_same(one: Message, other: Message) -> bool:
    """Whether two messages call the same tools with the same arguments under the same ids."""
    if one is other:
        return True
    ours, theirs = ([(call.id, call.name, call.raw_arguments) for call in m.tool_calls] for m in (one, other))
    pairs = zip(one.tool_calls, other.tool_calls, strict=False)
    return ours == theirs and all(_same_json(a.arguments, b.arguments) for a, b in pairs)


def _is_same(one: Message, other: Message) -> bool:
    """Whether two messages that say the same agree in all else too."""
    return one is other or (
        (one.name, one.reasoning, one.timestamp) == (other.name, other.reasoning, other.timestamp)
        and _same_json(one.extra, other.extra)
        and all(_same_json(a.extra, b.extra) for a, b in zip(one.tool_calls, other.tool_calls, strict=True))
    )


def _same_json(one: object, other: object) -> bool:
    """Equal to the letter: 1 is not True, 1.0 is not 1, the order of keys counts, and NaN is NaN."""
    try:
        return one is other or repr(one) == repr(other)
    except RecursionError:
        return False
