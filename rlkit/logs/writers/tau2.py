"""A session as a tau2-bench result: `{"info", "tasks", "simulations"}`, a simulation for each of its traces.

What the format has no place for, and all that its reader would have to guess, is under `rlkit`: of a simulation, of a
message that has something else by one of tau2's names, and of a call whose arguments were no JSON object or not written
compactly. Reasoning is an extra key of a message.

Source: github.com/sierra-research/tau2-bench (src/tau2/data_model/{simulation,message}.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.trace import Message, ToolCall, Trace
from rlkit.logs.writers.openai import to_openai

_SCHEMA = ["name", "description", "parameters"]
_TAKEN = {"id", "turn_idx", "requestor", "error", "is_audio", "is_final_chunk", "contains_speech", "tool_messages"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """One document."""
    main = traces[0]
    shared = main.tools if all(_is_plain(tool) for tool in main.tools) else []
    if len({tool["name"] for tool in shared}) < len(shared):
        shared = []
    signatures = {
        tool["name"]: {"name": tool["name"], "doc": tool["description"], "params": tool["parameters"], "returns": None}
        for tool in shared
    }
    yield {
        "info": {"environment_info": {"domain_name": "rlkit", "policy": "", "tool_defs": signatures}},
        "tasks": [{"id": _task(main)}],
        "simulations": [_simulation(trace, main, shared) for trace in traces],
    }


def _is_plain(tool: dict[str, Any]) -> bool:
    """Whether a tool is all that a signature of tau2 holds, in its order."""
    return list(tool) == _SCHEMA and isinstance(tool["description"], str) and isinstance(tool["parameters"], dict)


def _task(trace: Trace) -> Any:
    return trace.metadata.get("task_id", trace.id)


def _simulation(trace: Trace, main: Trace, shared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kept = to_openai(trace)
    said = kept.pop("messages")
    if trace.tools == shared:
        kept.pop("tools", None)
    else:
        kept["tools"] = trace.tools
    score = trace.outcome.score
    return {
        "id": trace.id,
        "task_id": _task(main),
        "trial": trace.metadata.get("trial", 0),
        "termination_reason": "max_steps" if trace.outcome.status == "truncated" else "agent_stop",
        "reward_info": None if score is None else {"reward": score, "reward_basis": None},
        "messages": [_message(*pair, index) for index, pair in enumerate(zip(trace.messages, said, strict=True))],
        "rlkit": kept,
    }


def _message(message: Message, said: dict[str, Any], index: int) -> dict[str, Any]:
    """A message in tau2's words; what it has no word for stays as `to_openai` says it."""
    aside = {key: item for key, item in (message.extra or {}).items() if key in _TAKEN}
    said = {key: item for key, item in said.items() if key not in _TAKEN}
    said["turn_idx"] = index
    if message.role == "tool":
        said["id"], said["requestor"] = said.pop("tool_call_id", None), "assistant"
    if message.tool_calls:
        said["tool_calls"] = [_call(call, message.role) for call in message.tool_calls]
    return said | {"rlkit": aside} if aside else said


def _call(call: ToolCall, role: str) -> dict[str, Any]:
    said = {"id": call.id, "name": call.name, "arguments": call.arguments or {}, "requestor": role}
    if call.raw_arguments is not None or call.arguments is None:
        said["rlkit"] = {"arguments": call.raw_arguments}
    return said | (call.extra or {})
