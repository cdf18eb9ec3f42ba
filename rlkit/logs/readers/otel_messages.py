"""The messages of OTel's GenAI conventions of today: lists of parts, as OpenAI-style messages."""

from __future__ import annotations

from typing import Any

from rlkit.logs.readers.trajectories import Plain, result_message
from rlkit.logs.report import Notes

EXTRA = "rlkit.extra"
"""The key under which our writer keeps what else a message or a call says."""
_TAKEN = frozenset({"role", "parts", "name", "finish_reason", EXTRA})


def from_message(message: Any, where: str, notes: Notes) -> list[Plain]:
    """One GenAI message as OpenAI-style ones: its results, then the rest. Without `parts` it is passed on as it is."""
    if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
        return [message]
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Plain] = []
    results: list[Plain] = []
    others: list[Any] = []
    name = message.get("name")
    for index, part in enumerate(message["parts"]):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "reasoning") and isinstance(part.get("content"), str):
            (texts if kind == "text" else thoughts).append(part["content"])
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            call = {"id": part.get("id"), "type": "function", "function": function}
            calls.append(call | part[EXTRA] if isinstance(part.get(EXTRA), dict) else call)
        elif kind == "tool_call_response":
            results.append(result_message(part.get("id"), part.get("response", part.get("result")), name))
        else:
            detail = f"A part of type {kind!r} is not text; kept in `Message.extra`."
            notes.add("content_part_skipped", f"{where}.parts[{index}]", detail)
            others.append(part)
    more = {key: value for key, value in message.items() if key not in _TAKEN}
    if thoughts:
        more["reasoning_content"] = "".join(thoughts)
    if others:
        more["parts"] = others
    if isinstance(message.get(EXTRA), dict):
        more |= message[EXTRA]
    if results and not texts and not calls:
        return [*results[:-1], results[-1] | more]
    rest = {"role": message.get("role"), "content": "".join(texts) if texts else None, "name": name}
    return [*results, rest | ({"tool_calls": calls} if calls else {}) | more]
