"""A session as OTel GenAI spans in OTLP-JSON, one record a session.

Id, messages, tools, outcome and metadata survive exactly, provided that every call has its own id and every result
names the call it answers, as `read_traces` makes sure of; a fork has no metadata and no outcome of its own. What the
conventions have no name for is under `rlkit.*`: metadata, the outcome's source, the parent, `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace
from rlkit.logs.writers.openai import links, written_arguments
from rlkit.logs.writers.steps import Step, hashed, session_steps

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LASTS = 1_000_000  # nanoseconds: traces don't say how long anything took
_OPERATIONS = {"agent": "invoke_agent", "llm": "chat", "tool": "execute_tool"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """The session as one record: agent spans over a chat span a reply and a tool span a result.

    Every chat span repeats the conversation so far in `gen_ai.input.messages`, as real instrumentations do. A
    conversation that does not end with the agent has one more chat span, without an answer. Ids are hashes of the
    traces' ids.
    """
    said = {trace.id: _Said(trace) for trace in traces}
    spans = [_span(step, traces[0], said[step.trace.id]) for step in session_steps(traces)]
    if traces[0].outcome != Outcome():
        spans[0]["events"] = [_evaluation(traces[0].outcome, spans[-1]["endTimeUnixNano"])]
    scope = {"scope": {"name": "rlkit"}, "spans": spans}
    yield {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def to_otlp(trace: Trace) -> dict[str, Any]:
    """A session of one trace as OTLP-JSON: see `session_records`."""
    return next(session_records([trace]))


class _Said:
    """A trace's messages in the conventions' words, written once for all the spans that repeat them."""

    def __init__(self, trace: Trace) -> None:
        system, history = _split_system(trace.messages)
        self.instructions = {} if system is None else {"gen_ai.system_instructions": dumps([_text_part(system)])}
        self.skipped = len(trace.messages) - len(history)
        self.messages = [_otel_message(message) for message in history]

    def until(self, end: int) -> list[dict[str, Any]]:
        return self.messages[: end - self.skipped]


def _span(step: Step, main: Trace, said: _Said) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.conversation.id": main.id, "gen_ai.operation.name": _OPERATIONS[step.kind],
    }  # fmt: skip
    name = _OPERATIONS[step.kind]
    if step.kind == "agent":
        attributes |= _agent_attributes(step, main)
    elif step.kind == "llm":
        attributes |= said.instructions | {"gen_ai.input.messages": dumps(said.until(len(step.input)))}
        if step.output is not None:
            reason = "tool_call" if step.output.tool_calls else "stop"
            answer = said.messages[len(step.input) - said.skipped] | {"finish_reason": reason}
            attributes["gen_ai.output.messages"] = dumps([answer])
    elif step.call is not None and step.output is not None:
        name += f" {step.call.name}"
        attributes |= _tool_attributes(step.call, step.output)
    start = (step.start - _EPOCH) // (_EPOCH.resolution) * 1000
    return {
        "traceId": hashed("trace", main.id), "spanId": step.id[:16],
        **({"parentSpanId": step.parent[:16]} if step.parent else {}), "name": name, "kind": 1,
        "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + _LASTS), "attributes": _attributes(attributes),
    }  # fmt: skip


def _agent_attributes(step: Step, main: Trace) -> dict[str, Any]:
    trace, attributes = step.trace, dict[str, Any]()
    if trace.tools:
        attributes["gen_ai.tool.definitions"] = dumps([{"type": "function", **tool} for tool in trace.tools])
    if trace.metadata or step.parent:
        attributes["rlkit.metadata"] = dumps(trace.metadata)
    if not step.parent:
        attributes |= {f"rlkit.{key}": link for key, link in links(main).items()}
    return attributes


def _otel_message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.reasoning is not None:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.content is not None:
        parts.append(_text_part(message.content))
    for call in message.tool_calls:
        arguments = call.arguments if call.raw_arguments is None else call.raw_arguments
        part = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
        parts.append(part | {"rlkit.extra": call.extra} if call.extra else part)
    record: dict[str, Any] = {"role": message.role, "parts": parts}
    more = {"name": message.name, "timestamp": message.timestamp, "rlkit.extra": message.extra}
    return record | {key: value for key, value in more.items() if value is not None}


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def _split_system(messages: list[Message]) -> tuple[str | None, list[Message]]:
    """The instructions, if the conversation opens with plain ones, and the rest."""
    first = messages[0] if messages else None
    if first is None or first != Message("system", first.content) or first.content is None:
        return None, messages
    if any(second.role == "system" and (second.content or "") == first.content for second in messages[1:2]):
        return None, messages  # a reader takes instructions that the messages repeat for the same ones
    return first.content, messages[1:]


def _tool_attributes(call: ToolCall, result: Message) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
    }
    if (written := written_arguments(call)) is not None:
        attributes["gen_ai.tool.call.arguments"] = written
    if result.content is not None:
        attributes["gen_ai.tool.call.result"] = result.content
    return attributes


def _evaluation(outcome: Outcome, now: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.evaluation.name": outcome.source or "outcome",
        "gen_ai.evaluation.score.label": outcome.status,
        "rlkit.outcome.source": outcome.source,
    }
    if outcome.score is not None:
        attributes["gen_ai.evaluation.score.value"] = outcome.score
    return {"name": "gen_ai.evaluation.result", "timeUnixNano": now, "attributes": _attributes(attributes)}


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Strings and floats as OTLP attributes."""
    return [
        {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
        for key, value in values.items()
    ]
