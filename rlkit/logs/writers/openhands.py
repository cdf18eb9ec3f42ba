"""Traces as documents of OpenHands events: `{"instance_id", "history": [...]}`, one trace a record.

An assistant's message with calls is an action for each of them, all with the same `model_response`; a result is an
observation. Branches and sub-agents are records of their own. What the format has no place for is under `rlkit`: of the
document, and of an event. Only messages with a time have a `timestamp`.

Source: github.com/All-Hands-AI/OpenHands (openhands/events/serialization/event.py, openhands/events/tool.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.trace import Message, Trace
from rlkit.logs.writers.openai import to_openai
from rlkit.logs.writers.steps import hashed

_SOURCES = {"system": "agent", "user": "user", "assistant": "agent", "tool": "environment"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `rlkit.parent_id`."""
    for trace in traces:
        kept = to_openai(trace)
        said = kept.pop("messages")
        yield {"instance_id": trace.id, "history": _events(trace, said), "rlkit": kept}


def _events(trace: Trace, said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    causes: dict[str, int] = {}
    called: dict[str, dict[str, Any]] = {}
    for index, message in enumerate(trace.messages):
        record = dict(said[index])
        time = {"timestamp": record.pop("timestamp")} if message.timestamp is not None else {}
        about = {"source": _SOURCES[message.role]} | time
        if message.role == "assistant" and message.tool_calls:
            response = {"id": hashed(f"answer {index}", trace.id), "choices": [{"index": 0, "message": record}]}
            for call in message.tool_calls:
                called[call.id] = {
                    "function_name": call.name, "tool_call_id": call.id, "model_response": response,
                    "total_calls_in_response": len(message.tool_calls),
                }  # fmt: skip
                causes[call.id] = len(events)
                action = {"action": "call_tool_mcp", "args": {"name": call.name, "arguments": call.arguments or {}}}
                events.append({"id": len(events)} | about | action | {"tool_call_metadata": called[call.id]})
        elif message.role == "tool":
            events.append({"id": len(events)} | about | _observation(message, record, causes, called))
        else:
            content = record.pop("content")
            events.append({"id": len(events)} | about | _message(message, record, content))
    return events


def _message(message: Message, record: dict[str, Any], content: Any) -> dict[str, Any]:
    action = "system" if message.role == "system" else "message"
    if record["role"] == message.role:
        del record["role"]
    return {"action": action, "args": {"content": content}} | ({"rlkit": record} if record else {})


def _observation(
    message: Message, record: dict[str, Any], causes: dict[str, int], called: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    call_id = record.pop("tool_call_id", None)
    about = called.get(call_id) or {"function_name": message.name, "tool_call_id": call_id}
    event = {"observation": "mcp", "content": record.pop("content"), "extras": {}, "tool_call_metadata": about}
    if call_id in causes:
        event["cause"] = causes[call_id]
    if record["role"] == message.role:
        del record["role"]
    name = record.pop("name", None)
    if name != about["function_name"]:
        record["name"] = name
    return event | ({"rlkit": record} if record else {})
