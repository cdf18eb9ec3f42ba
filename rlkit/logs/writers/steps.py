"""A session as the steps that an observability product logs: agents, LLM calls that repeat their prefix, tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from rlkit.logs.trace import Message, ToolCall, Trace

_START = datetime(2026, 1, 1, tzinfo=UTC)  # messages without a time get a clock that only orders them
_TICK = timedelta(milliseconds=1)


@dataclass(slots=True)
class Step:
    """One thing that happened, below the step `parent` (none for the session's root)."""

    kind: Literal["agent", "llm", "tool"]
    id: str
    parent: str
    trace: Trace
    start: datetime
    input: Sequence[Message] = ()
    """For an LLM call: the conversation so far."""
    output: Message | None = None
    """For an LLM call: the answer, None where it has none; for a tool: the result."""
    call: ToolCall | None = None
    """For a tool: the call that it answers."""

    @property
    def end(self) -> str | None:
        """When it ended, where the log says so."""
        return None if self.output is None else self.output.timestamp


def session_steps(traces: Sequence[Trace]) -> list[Step]:
    """The steps of a session's traces, the main one first, ordered by time.

    A fork's steps hang below the agent it belongs to, a sub-agent below the tool call that started it. Branches stand
    before the last LLM call of the main trace, so that the main one both begins first and ends last.
    """
    main = traces[0]
    root = Step("agent", hashed("agent", main.id), "", main, _START)
    steps, agents, own = [root], {main.id: root.id}, _trace_steps(main, root.id)
    tools = {step.call.id: step.id for step in own if step.call is not None}
    last = max((index for index, step in enumerate(own) if step.kind == "llm"), default=0)
    steps += own[:last]
    for branch in traces[1:]:
        above = agents.get(branch.parent_id or "", root.id)
        if branch.relation == "subagent":
            above = tools.get(branch.parent_call_id or "", above)
            steps.append(Step("agent", hashed("agent", branch.id), above, branch, _START))
            above = steps[-1].id
        agents[branch.id] = above
        added = _trace_steps(branch, above)
        tools |= {step.call.id: step.id for step in added if step.call is not None and step.call.id not in tools}
        steps += added
    steps += own[last:]
    now = _START
    for step in steps:
        now = max(now + _TICK, _clock(step))
        step.start = now
    return steps


def _trace_steps(trace: Trace, parent: str) -> list[Step]:
    """An LLM call for every reply, a tool call for every result whose call is known, and one call left unanswered."""
    steps: list[Step] = []
    called: dict[str, ToolCall] = {}

    def step(kind: Literal["llm", "tool"], **more: Any) -> Step:
        return Step(kind, hashed(f"step {len(steps)}", trace.id), parent, trace, _START, **more)

    for index, message in enumerate(trace.messages):
        if message.role == "assistant":
            steps.append(step("llm", input=trace.messages[:index], output=message))
            called |= {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.tool_call_id in called:
            steps.append(step("tool", output=message, call=called[message.tool_call_id]))
    if not trace.messages or trace.messages[-1].role != "assistant":
        steps.append(step("llm", input=trace.messages))
    return steps


def _clock(step: Step) -> datetime:
    """The time that the log has for a step, to the microsecond."""
    try:
        logged = datetime.fromisoformat(step.end) if step.end else _START
    except ValueError:
        return _START
    return logged if logged.tzinfo else logged.replace(tzinfo=UTC)


def hashed(what: str, trace_id: str, size: int = 16) -> str:
    """An id that is the same every time: `size` bytes in hex."""
    text = f"{what} of {trace_id}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=size).hexdigest()
