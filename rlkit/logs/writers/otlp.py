"""A `Trace` as OTel GenAI spans in OTLP-JSON.

Id, messages, tools, outcome and metadata survive exactly, provided that every call has its own id and every result
names the call it answers, as `read_traces` makes sure of.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace
from rlkit.logs.writers.openai import written_arguments

_START = 1_767_225_600_000_000_000  # 2026-01-01: a trace keeps no clock, so the spans get one that only orders them
_SECOND = 1_000_000_000


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace."""
    return map(to_otlp, traces)


def to_otlp(trace: Trace) -> dict[str, Any]:
    """OTLP-JSON in the current `gen_ai.*` dialect: one agent span over a chat span a reply and a tool span a result.

    Every chat span repeats the conversation so far in `gen_ai.input.messages`, as real instrumentations do. A
    conversation that does not end with the agent has one more chat span, without an answer. Ids are hashes of the
    trace's id. What the conventions have no name for is under `rlkit.*`: metadata, the outcome's source, the parent.
    """
    spans = _Spans(trace.id)
    root = {"gen_ai.operation.name": "invoke_agent"}
    if trace.tools:
        root["gen_ai.tool.definitions"] = dumps([{"type": "function", **tool} for tool in trace.tools])
    if trace.metadata:
        root["rlkit.metadata"] = dumps(trace.metadata)
    if trace.parent_id is not None:
        root["rlkit.parent_id"] = trace.parent_id
    spans.add("invoke_agent", root)
    system, history = _split_system(trace.messages)
    instructions = {} if system is None else {"gen_ai.system_instructions": dumps([_text_part(system)])}
    said = [_otel_message(message) for message in history]
    names: dict[str, ToolCall] = {}
    for index, message in enumerate(history):
        if message.role == "assistant":
            sent = instructions | {"gen_ai.input.messages": dumps(said[:index])}
            answer = said[index] | {"finish_reason": "tool_call" if message.tool_calls else "stop"}
            spans.add("chat", {"gen_ai.operation.name": "chat", **sent, "gen_ai.output.messages": dumps([answer])})
            names |= {call.id: call for call in message.tool_calls}
        elif message.role == "tool" and message.tool_call_id in names:
            spans.add(*_tool_span(names[message.tool_call_id], message))
    if not history or history[-1].role != "assistant":
        sent = instructions | {"gen_ai.input.messages": dumps(said)}
        spans.add("chat", {"gen_ai.operation.name": "chat", **sent})
    if trace.outcome != Outcome():
        spans.all[0]["events"] = [_evaluation(trace.outcome, spans.now)]
    spans.all[0]["endTimeUnixNano"] = str(spans.now)
    scope = {"scope": {"name": "rlkit"}, "spans": spans.all}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def _otel_message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message.role == "tool":
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.content is not None:
        parts.append(_text_part(message.content))
    for call in message.tool_calls:
        arguments = call.arguments if call.raw_arguments is None else call.raw_arguments
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    record: dict[str, Any] = {"role": message.role, "parts": parts}
    return record if message.name is None else record | {"name": message.name}


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


def _split_system(messages: list[Message]) -> tuple[str | None, list[Message]]:
    """The instructions, if the conversation opens with plain ones, and the rest."""
    first = messages[0] if messages else None
    if first is None or first.role != "system" or first.content is None or first.name is not None:
        return None, messages
    if any(second.role == "system" and (second.content or "") == first.content for second in messages[1:2]):
        return None, messages  # a reader takes instructions that the messages repeat for the same ones
    return first.content, messages[1:]


def _tool_span(call: ToolCall, result: Message) -> tuple[str, dict[str, Any]]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
    }
    if (written := written_arguments(call)) is not None:
        attributes["gen_ai.tool.call.arguments"] = written
    if result.content is not None:
        attributes["gen_ai.tool.call.result"] = result.content
    return f"execute_tool {call.name}", attributes


def _evaluation(outcome: Outcome, now: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.evaluation.name": outcome.source or "outcome",
        "gen_ai.evaluation.score.label": outcome.status,
        "rlkit.outcome.source": outcome.source,
    }
    if outcome.score is not None:
        attributes["gen_ai.evaluation.score.value"] = outcome.score
    return {"name": "gen_ai.evaluation.result", "timeUnixNano": str(now), "attributes": _attributes(attributes)}


class _Spans:
    """The spans of one trace, a second apart: the first is the root, the others its children."""

    def __init__(self, trace_id: str) -> None:
        self.conversation = trace_id
        self.trace_id = self._hash("trace", 16)
        self.all: list[dict[str, Any]] = []
        self.now = _START

    def add(self, name: str, attributes: dict[str, Any]) -> None:
        """Append a span that lasts a second."""
        parent = {"parentSpanId": self.all[0]["spanId"]} if self.all else {}
        start, self.now = self.now, self.now + _SECOND
        self.all.append({
            "traceId": self.trace_id, "spanId": self._hash(f"span {len(self.all)}", 8), **parent, "name": name,
            "kind": 1, "startTimeUnixNano": str(start), "endTimeUnixNano": str(self.now),
            "attributes": _attributes({"gen_ai.conversation.id": self.conversation, **attributes}),
        })  # fmt: skip

    def _hash(self, what: str, size: int) -> str:
        text = f"{what} of {self.conversation}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=size).hexdigest()


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Strings and floats as OTLP attributes."""
    return [
        {"key": key, "value": {"doubleValue" if isinstance(value, float) else "stringValue": value}}
        for key, value in values.items()
    ]
