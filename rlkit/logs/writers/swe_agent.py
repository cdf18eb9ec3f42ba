"""Traces as SWE-agent trajectories, one trace a record: `{"environment", "history", "info"}`.

There is no `trajectory`, as in SWE-agent's own demonstrations: it would say the same again, and how long each action
took is not known. What the format has no place for is under `rlkit`, of the record and of an item that has something
else by one of SWE-agent's names. Reasoning, names and times are extra keys of an item.

Source: github.com/SWE-agent/SWE-agent (sweagent/types.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.trace import Message, Trace
from rlkit.logs.writers.openai import to_openai

_TYPES = {"system": "system_prompt", "user": "observation", "assistant": "action", "tool": "observation"}
_TAKEN = {"agent", "message_type", "thought", "thinking_blocks", "tool_call_ids"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `rlkit.parent_id`."""
    for trace in traces:
        kept = to_openai(trace)
        items = [_item(*pair) for pair in zip(trace.messages, kept.pop("messages"), strict=True)]
        known = trace.metadata
        yield {
            "environment": known.get("environment", "main"),
            "history": items,
            "info": known["info"] if isinstance(known.get("info"), dict) else {},
            "rlkit": kept,
        }


def _item(message: Message, said: dict[str, Any]) -> dict[str, Any]:
    """An item in SWE-agent's words; what it has no word for stays as `to_openai` says it."""
    aside = {key: item for key, item in (message.extra or {}).items() if key in _TAKEN}
    said = {key: item for key, item in said.items() if key not in _TAKEN}
    said["agent"] = "main"
    if said["role"] in _TYPES:
        said["message_type"] = _TYPES[said["role"]]
    if message.role == "tool":
        said["tool_call_ids"] = [said.pop("tool_call_id", None)]
    if message.role == "assistant":
        said["thought"] = message.content
    if message.reasoning is not None and "thinking_blocks" in aside:
        aside["reasoning_content"] = said.pop("reasoning_content")
    return said | {"rlkit": aside} if aside else said
