"""Trajectories that `writers/atif.py` wrote: the very traces again, fast, and nothing guessed.

Anything unexpected raises inside, and the record is then read like anyone's: see `atif.py`.
"""

from __future__ import annotations

from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers.source import Record
from rlkit.logs.report import CODES
from rlkit.logs.trace import Message, Outcome, Role, ToolCall, Trace

OURS = "rlkit"
"""The key of an `extra` under which `writers/atif.py` keeps what ATIF has no place for."""
VERSION = 1
"""Of what stands under that key."""

SOURCES: dict[str, Role] = {"user": "user", "agent": "assistant", "system": "system"}
"""Who says a step, and the role that has here."""
_STEP = frozenset({
    "step_id", "source", "message", "timestamp", "reasoning_content", "tool_calls", "observation", "extra",
})  # fmt: skip
_ROOT = frozenset({"schema_version", "trajectory_id", "agent", "steps", "extra"})
_TEXTS = frozenset({"content", "name", "reasoning", "timestamp", "tool_call_id"})


def exact_trace(record: Record) -> Trace | None:
    """The very trace that was written; None where the record is not ours or was damaged since."""
    value = record.value
    try:
        ours = value["extra"][OURS]
        if ours["version"] != VERSION:
            return None
        metadata = _whole(ours.get("metadata", {}))
        if not value.keys() <= _ROOT:  # somebody added to it
            metadata = {key: item for key, item in value.items() if key not in _ROOT} | metadata
        tools = [tool["function"] for tool in value["agent"].get("tool_definitions", ())]
        outcome = ours.get("outcome")
        return Trace(
            id=value["trajectory_id"],
            messages=_exact_messages(value["steps"]),
            tools=_whole(ours["tools"]) if "tools" in ours else tools,
            outcome=Outcome() if outcome is None else Outcome(**_whole(outcome)),
            parent_id=ours.get("parent_id"),
            relation=ours.get("relation"),
            parent_call_id=ours.get("parent_call_id"),
            metadata=metadata,
            source=record.place,
            raw=value,
            diagnostics=[_diagnostic(item) for item in ours["diagnostics"]] if "diagnostics" in ours else [],
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _whole(value: Any) -> Any:
    """A value that was written as its text where JSON has no words for it."""
    return loads(value) if value.__class__ is str else value


def _diagnostic(item: dict[str, Any]) -> Any:
    severity, sentence = CODES.get(item["code"], ("warning", ""))
    return {"severity": severity, "detail": sentence} | item


def _exact_messages(steps: list[dict[str, Any]]) -> list[Message]:
    messages: list[Message] = []
    add = messages.append
    for step in _list(steps):
        role, content = SOURCES[step["source"]], step["message"]
        if content.__class__ is not str:
            raise ValueError("no text")
        size, timestamp = len(step), step.get("timestamp")
        if size == 3:  # number, source and text is nearly all that there is, with a time or without
            add(Message(role, content))
            continue
        if size == 4 and timestamp.__class__ is str:
            add(Message(role, content, [], None, None, None, timestamp))
            continue
        calls, observation, extra = step.get("tool_calls"), step.get("observation"), step.get("extra")
        if role != "system" or observation is None:  # else the step only holds results
            calls = [] if calls is None else _exact_calls(calls)
            text, reasoning = None if calls and not content else content, _text(step.get("reasoning_content"))
            message = Message(role, text, calls, None, None, reasoning, _text(timestamp))
            if not step.keys() <= _STEP:  # somebody added to it
                extra = {key: item for key, item in step.items() if key not in _STEP} | (extra or {})
            if extra is not None:
                _put(message, extra)
            add(message)
        if observation is not None:
            for result in _list(observation["results"]):
                text, call_id, extra = result.get("content"), result.get("source_call_id"), result.get("extra")
                if text.__class__ is not str or call_id.__class__ is not str:
                    text, call_id = _text(text), _text(call_id)
                message = Message("tool", text, [], call_id)
                if extra is not None:
                    _put(message, extra)
                add(message)
    return messages


def _exact_calls(logged: list[dict[str, Any]]) -> list[ToolCall]:
    calls = []
    for item in _list(logged):
        call_id, name, arguments = item["tool_call_id"], item["function_name"], item["arguments"]
        if call_id.__class__ is not str or name.__class__ is not str or arguments.__class__ is not dict:
            raise ValueError("not a call")
        call = ToolCall(call_id, name, arguments)
        if "extra" in item:
            ours, call.extra = _ours(item["extra"])
            if "arguments" in ours:
                call.arguments = _object(ours["arguments"])
            call.raw_arguments = _text(ours.get("raw_arguments"))
        calls.append(call)
    return calls


def _put(message: Message, logged: dict[str, Any]) -> None:
    """What stood beside a message, into it."""
    ours, message.extra = _ours(logged)
    for key, value in ours.items():
        if key in _TEXTS:
            setattr(message, key, value if value.__class__ is str else _text(value))
        elif key == "tool_calls":
            message.tool_calls = _exact_calls(value)
        elif key != "extra":
            raise ValueError("nothing of ours")


def _ours(extra: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What an `extra` says in our own words, and the `extra` of the message or the call."""
    if OURS not in extra:
        return {}, _object(extra)
    ours = extra[OURS]
    own = _object(ours["extra"]) if "extra" in ours else None
    if len(extra) == 1:
        return ours, own
    return ours, {key: value for key, value in extra.items() if key != OURS} | (own or {})


def _object(value: Any) -> dict[str, Any] | None:
    value = _whole(value)
    if value is None or value.__class__ is dict:
        return value
    raise ValueError("no object")


def _list(value: Any) -> Any:
    if value.__class__ is list:
        return value
    raise ValueError("no list")


def _text(value: Any) -> str | None:
    if value is None or value.__class__ is str:
        return value
    raise ValueError("no text")
