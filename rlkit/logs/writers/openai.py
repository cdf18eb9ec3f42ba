"""A `Trace` as an OpenAI chat record: what the reader `openai` reads back without loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `parent_id`."""
    return map(to_openai, traces)


def to_openai(trace: Trace) -> dict[str, Any]:
    """`id`, `messages`, `tools`, `metadata`, `outcome` as `{"status", "score", "source"}`, and where it came from.

    Arguments come as the agent wrote them, else as compact JSON; `extra` goes back where it came from. Empty fields
    are left out.
    """
    record: dict[str, Any] = {"id": trace.id, "messages": [_message(message) for message in trace.messages]}
    if trace.tools:
        record["tools"] = [{"type": "function", "function": tool} for tool in trace.tools]
    if trace.outcome != Outcome():
        record["outcome"] = trace.outcome.model_dump()
    record |= links(trace)
    if trace.metadata:
        record["metadata"] = trace.metadata
    return record


def links(trace: Trace) -> dict[str, str]:
    """Where a trace came from, in the words of `Trace`; what is unknown is left out."""
    known = {"parent_id": trace.parent_id, "relation": trace.relation, "parent_call_id": trace.parent_call_id}
    return {key: value for key, value in known.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [_call(call) for call in message.tool_calls]
    for key, value in (
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
        ("reasoning_content", message.reasoning),
        ("timestamp", message.timestamp),
    ):
        if value is not None:
            record[key] = value
    return record | message.extra if message.extra else record


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": written_arguments(call)}
    return {"id": call.id, "type": "function", "function": function} | (call.extra or {})


def written_arguments(call: ToolCall) -> str | None:
    """The arguments as text: as the agent wrote them where we know, else as compact JSON."""
    if call.raw_arguments is not None or call.arguments is None:
        return call.raw_arguments
    return dumps(call.arguments)
