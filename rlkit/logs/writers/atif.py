"""A `Trace` as an ATIF v1.8 trajectory (fields as in the package `atif`), which `readers/atif.py` reads back equal.

A tool's result stands in the observation of the step it follows, so the order of the messages is that of the steps.
What ATIF has no place for is under one key, `rlkit`, of an `extra`: the outcome, the metadata, the parent and the
diagnostics of the trace; a message's name or a result's time; arguments that are no object, and the text of those
that the agent did not write compactly; values with NaN or infinity in them, as JSON text. Unset fields are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rlkit.logs.jsontext import is_finite
from rlkit.logs.readers.atif_exact import OURS, VERSION
from rlkit.logs.report import CODES
from rlkit.logs.trace import Diagnostic, Message, Outcome, ToolCall, Trace
from rlkit.logs.writers.openai import links

_AGENT = {"name": "unknown", "version": "unknown"}  # a trace does not say, and ATIF wants both
_SOURCES = {"user": "user", "assistant": "agent", "system": "system"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `extra.rlkit.parent_id`."""
    return map(to_atif, traces)


def to_atif(trace: Trace) -> dict[str, Any]:
    """The trajectory; `source` and `raw` are not written. Nested values are shared with the trace."""
    finite = is_finite(_free_values(trace))
    ours: dict[str, Any] = {"version": VERSION} | links(trace)
    if (outcome := _set_fields(trace.outcome)) is not None:
        ours["outcome"] = outcome if finite else _exact(outcome)
    if trace.metadata:
        ours["metadata"] = trace.metadata if finite else _exact(trace.metadata)
    if trace.diagnostics:
        ours["diagnostics"] = [_diagnostic(item) for item in trace.diagnostics]
    agent: dict[str, Any] = dict(_AGENT)
    if trace.tools:
        if finite or is_finite(trace.tools):
            agent["tool_definitions"] = [{"type": "function", "function": tool} for tool in trace.tools]
        else:
            ours["tools"] = _exact(trace.tools)
    return {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": trace.id,
        "agent": agent,
        "steps": _steps(trace.messages, finite),
        "extra": {OURS: ours},
    }


def _set_fields(outcome: Outcome) -> dict[str, Any] | None:
    """What is said of the outcome; None where that is nothing."""
    said: dict[str, Any] = {}
    if outcome.status != "unknown":
        said["status"] = outcome.status
    if outcome.score is not None:
        said["score"] = outcome.score
    if outcome.source:
        said["source"] = outcome.source
    return said or None


def _diagnostic(item: Diagnostic) -> dict[str, Any]:
    """A diagnostic without what its code says anyway."""
    severity, sentence = CODES.get(item.code, (None, None))
    fields = {"code": item.code, "severity": item.severity, "path": item.path, "line": item.line, "detail": item.detail}
    implied = {"severity": severity, "path": "", "line": None, "detail": sentence}
    return {key: value for key, value in fields.items() if key == "code" or value != implied[key]}


def _steps(messages: list[Message], finite: bool) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    results: list[dict[str, Any]] | None = None  # of the last step, where it may have some
    calls: list[ToolCall] = []
    for message in messages:
        role = message.role
        if role == "tool":
            if results is None:
                holder = {"step_id": len(steps) + 1, "source": "system", "message": "", "observation": {"results": []}}
                steps.append(holder)
                results, calls = holder["observation"]["results"], []  # type: ignore[index]
            elif not results and "observation" not in steps[-1]:
                steps[-1]["observation"] = {"results": results}
            results.append(_result(message, calls, finite))
            continue
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": _SOURCES[role], "message": message.content or ""}
        if (time := message.timestamp) is not None and _is_time(time):
            step["timestamp"] = time
        if role == "assistant":
            results, calls = [], message.tool_calls
            if message.reasoning is not None:
                step["reasoning_content"] = message.reasoning
            if calls:
                step["tool_calls"] = [_call(call, finite) for call in calls]
        else:
            results = None
        if (extra := _extra(message, step, finite)) is not None:
            step["extra"] = extra
        steps.append(step)
    return steps


def _result(message: Message, calls: list[ToolCall], finite: bool) -> dict[str, Any]:
    """The result, with the id of the call it answers where that is one of its step's `calls`."""
    result: dict[str, Any] = {}
    call_id = message.tool_call_id
    for call in calls:
        if call.id == call_id:
            result["source_call_id"] = call_id
            break
    if message.content is not None:
        result["content"] = message.content
    if (extra := _extra(message, result, finite)) is not None:
        result["extra"] = extra
    return result


def _extra(message: Message, placed: dict[str, Any], finite: bool) -> dict[str, Any] | None:
    """What has no place in a step or a result: the message's own `extra`, or ours with that in it."""
    ours: dict[str, Any] = {}
    content, calls, role = message.content, message.tool_calls, message.role
    if not content and role != "tool" and content != ("" if not calls or role != "assistant" else None):
        ours["content"] = content
    if message.name is not None:
        ours["name"] = message.name
    if message.timestamp is not None and "timestamp" not in placed:
        ours["timestamp"] = message.timestamp
    if message.tool_call_id is not None and "source_call_id" not in placed:
        ours["tool_call_id"] = message.tool_call_id
    if role != "assistant":
        if message.reasoning is not None:
            ours["reasoning"] = message.reasoning
        if calls:
            ours["tool_calls"] = [_call(call, finite) for call in calls]
    return _with_extra(ours, message.extra, finite)


def _call(call: ToolCall, finite: bool) -> dict[str, Any]:
    ours: dict[str, Any] = {}
    arguments = call.arguments
    if arguments is None or not (finite or is_finite(arguments)):
        ours["arguments"] = None if arguments is None else _text(arguments)
        arguments = {}
    if call.raw_arguments is not None:
        ours["raw_arguments"] = call.raw_arguments
    record = {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments}
    if (extra := _with_extra(ours, call.extra, finite)) is not None:
        record["extra"] = extra
    return record


def _with_extra(ours: dict[str, Any], extra: dict[str, Any] | None, finite: bool) -> dict[str, Any] | None:
    if extra is not None:
        if not ours and OURS not in extra and (finite or is_finite(extra)):
            return extra
        ours["extra"] = extra if finite else _exact(extra)
    return {OURS: ours} if ours else None


def _is_time(text: str) -> bool:
    """Whether ATIF takes it for a time."""
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return True


def _free_values(trace: Trace) -> list[Any]:
    """Whatever may hold NaN or an infinity."""
    free: list[Any] = [trace.metadata, trace.tools]
    if trace.outcome.score is not None:
        free.append(trace.outcome.score)
    for message in trace.messages:
        if message.extra is not None:
            free.append(message.extra)
        for call in message.tool_calls:
            if call.arguments is not None:
                free.append(call.arguments)
            if call.extra is not None:
                free.append(call.extra)
    return free


def _exact(value: Any) -> Any:
    """The value, or its text where it is not finite."""
    return value if is_finite(value) else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
