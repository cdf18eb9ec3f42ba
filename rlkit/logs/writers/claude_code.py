"""A session as a Claude Code transcript: what the reader `claude-code` reads back without loss.

A line for every block of a reply and for every result; forks share the lines of their beginning, sub-agents are
sidechains. What the product has no place for is under the key `rlkit` of a line (a message that its blocks can't hold,
such as a system prompt; what other products log beside a message; whether the time is made up), and in a line of type
`rlkit` for each trace (its id, outcome, metadata, tools and links).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rlkit.logs.readers.anthropic_blocks import EXACT
from rlkit.logs.trace import Message, Trace
from rlkit.logs.writers.anthropic import exact_messages, native
from rlkit.logs.writers.openai import to_openai

_START = datetime(2026, 1, 1, tzinfo=UTC)  # messages without a time get a clock that only orders them
_KEPT = ("id", "tools", "outcome", "metadata", "parent_id", "relation", "parent_call_id")


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """The session's lines: those of the main trace first, then what each of the others adds."""
    session = _Session(traces)
    for trace in traces:
        yield from session.lines(trace)


class _Session:
    """What was written of a session so far."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.id = traces[0].id
        self.agents = {trace.id: hashed("agent", trace.id)[:8] for trace in traces if trace.relation == "subagent"}
        for trace in traces:  # a fork of a sub-agent is that agent's
            if trace.relation != "subagent" and trace.parent_id in self.agents:
                self.agents[trace.id] = self.agents[trace.parent_id]
        self.called = {trace.parent_call_id: self.agents[trace.id] for trace in traces if trace.relation == "subagent"}
        self.next: dict[tuple[str | None, str], list[tuple[Message, str]]] = {}
        """By (agent, uuid of the line before): the messages that follow, each with the uuid of its last line."""
        self.count = 0
        self.now = _START

    def lines(self, trace: Trace) -> Iterator[dict[str, Any]]:
        """The lines of a trace that no earlier one has, and what we say of the trace."""
        said = to_openai(trace)
        agent, at = self.agents.get(trace.id), ""
        for message, exact in zip(trace.messages, exact_messages(trace.messages, said["messages"]), strict=True):
            following = self.next.setdefault((agent, at), [])
            known = next((last for other, last in following if _same(other, message)), None)
            if known is None:
                for line in self._message(message, exact, agent, at):
                    yield line
                    known = line["uuid"]
                following.append((message, known or at))
            at = known or at
        told = {key: said[key] for key in _KEPT if key in said}
        yield {"type": "rlkit", "sessionId": self.id, "leafUuid": at, "trace": told}

    def _message(self, message: Message, exact: dict[str, Any], agent: str | None, at: str) -> Iterator[dict[str, Any]]:
        record = native(message, exact)
        told: dict[str, Any] = {}
        kept = record["content"][0] if message.role == "tool" else record
        if message.role == "system" or EXACT in kept:
            told["message"] = exact
        else:
            rest = {key: item for key, item in record.items() if key not in ("role", "content", "timestamp")}
            told |= ({"extra": rest} if rest else {}) | ({} if message.timestamp else {"timestamp": False})
        for key in (EXACT, "timestamp"):
            kept.pop(key, None)
        content = record["content"]
        reply = message.role == "assistant"
        parts = [[block] for block in content] if reply and isinstance(content, list) and content else [content]
        time, name = self._time(message), hashed(f"message {self.count}", self.id)
        for number, part in enumerate(parts):
            own: dict[str, Any] = {"role": "assistant" if reply else "user", "content": part}
            if reply:
                own = {"id": f"msg_{name}", "type": "message"} | own
            line: dict[str, Any] = {
                "parentUuid": at or None, "isSidechain": agent is not None, "userType": "external",
                "sessionId": self.id, "type": "system" if message.role == "system" else own["role"], "message": own,
                "uuid": self._uuid(), "timestamp": time, "rlkit": told if number == 0 else {},
            }  # fmt: skip
            if message.role == "system":
                del line["message"]
                line |= {"subtype": "informational", "content": message.content or ""}
            if agent is not None:
                line["agentId"] = agent
            if message.tool_call_id in self.called:
                line["toolUseResult"] = {"agentId": self.called[message.tool_call_id]}
            at = line["uuid"]
            yield line

    def _time(self, message: Message) -> str:
        """The time that the log has, else one that comes after all before."""
        self.now += timedelta(milliseconds=1)
        return message.timestamp or f"{self.now:%Y-%m-%dT%H:%M:%S}.{self.now.microsecond // 1000:03d}Z"

    def _uuid(self) -> str:
        self.count += 1
        return str(uuid.UUID(hashed(f"line {self.count}", self.id)))


def _same(one: Message, other: Message) -> bool:
    """Equal to the letter: 1 is not True."""
    return one is other or (one == other and repr(one) == repr(other))


def hashed(what: str, trace_id: str) -> str:
    """An id that is the same every time: 16 bytes in hex."""
    text = f"{what} of {trace_id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
