"""A `Trace` as an OpenAI Responses record: what the reader `responses` reads back without loss.

A record a trace, with the whole history in `input` and the last reply in `output`: every trace can be read alone, and
no record names another in `previous_response_id`. What items can't hold stands beside them, as a chat message, under
the key `rlkit.message`; a reply that directly follows another one says so in `rlkit.new_message`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.responses_items import EXACT, MADE_UP, NEW, QUIET, Items
from rlkit.logs.report import Notes
from rlkit.logs.trace import Message, ToolCall, Trace
from rlkit.logs.writers.openai import to_openai, written_arguments


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `parent_id`."""
    return map(_record, traces)


def _record(trace: Trace) -> dict[str, Any]:
    said = to_openai(trace)
    record: dict[str, Any] = {"id": trace.id, "object": "response"}
    pairs = list(zip(trace.messages, said["messages"], strict=True))
    if pairs and pairs[0][0].content is not None and pairs[0][0] == Message("system", pairs[0][0].content):
        record["instructions"] = pairs[0][0].content
        pairs = pairs[1:]
    custom = {call.id for call in trace.tool_calls if (call.extra or {}).get("item_type") == "custom_tool_call"}
    made = [_items(message, exact, custom, f"{index} of {trace.id}") for index, (message, exact) in enumerate(pairs)]
    for before, after, items in zip(pairs, pairs[1:], made[1:], strict=False):
        if before[0].role == after[0].role == "assistant":
            items[0][NEW] = True
    last = pairs and pairs[-1][0].role == "assistant"
    record["input"] = [item for items in (made[:-1] if last else made) for item in items]
    record["output"] = made[-1] if last else []
    if trace.tools:
        record["tools"] = [{"type": "function"} | tool for tool in trace.tools]
    return record | {key: item for key, item in said.items() if key not in ("id", "messages", "tools")}


def _items(message: Message, exact: dict[str, Any], custom: set[str], name: str) -> list[dict[str, Any]]:
    """A message as items; with the chat message beside them where they would not read back the same."""
    if message.role == "tool":
        kind = "custom_tool_call_output" if message.tool_call_id in custom else "function_call_output"
        items = [_rest(message) | {"type": kind, "call_id": message.tool_call_id, "output": _content(message, "input")}]
    elif message.role != "assistant":
        said = {"type": "message", "role": message.role, "content": _content(message, "input")}
        items = [_rest(message) | said]
    else:
        items = _reply(message, name)
    if not _reads_back(items, message):
        items = [item | {EXACT: exact if number == 0 else None} for number, item in enumerate(items)]
    return items


def _reply(message: Message, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if message.reasoning is not None:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        items.append({"type": "reasoning", "id": _made_up("rs", name), "summary": summary})
    if message.content is not None or not message.tool_calls:
        said = {"type": "message", "role": "assistant", "content": _content(message, "output")}
        items.append({"id": _made_up("msg", name), "status": "completed"} | _rest(message) | said)
    return items + [_call(call, f"{number} of {name}") for number, call in enumerate(message.tool_calls)]


def _call(call: ToolCall, name: str) -> dict[str, Any]:
    extra = dict(call.extra or {})
    item = {"id": extra.pop("item_id", _made_up("fc", name)), "status": "completed"}
    custom = extra.pop("item_type", None) == "custom_tool_call"
    kind, key = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
    return item | extra | {"type": kind, "call_id": call.id, "name": call.name, key: written_arguments(call)}


def _content(message: Message, side: str) -> Any:
    """The parts as they were logged, where we have them; else the text as one part, or as it is for a result."""
    if isinstance(logged := (message.extra or {}).get("content"), list):
        return logged
    if message.role == "tool" or message.content is None:
        return message.content
    part: dict[str, Any] = {"type": f"{side}_text", "text": message.content}
    return [part | {"annotations": []} if side == "output" else part]


def _rest(message: Message) -> dict[str, Any]:
    """What stands beside the content."""
    rest = {key: item for key, item in (message.extra or {}).items() if key != "content"}
    return rest if message.timestamp is None else rest | {"timestamp": message.timestamp}


def _reads_back(items: list[dict[str, Any]], message: Message) -> bool:
    read = Items(Notes(quiet=QUIET))
    read.add(items, "")
    read.flush()
    return parse_messages(read.messages, Notes(), paths=read.paths) == [message]


def _made_up(kind: str, name: str) -> str:
    """An id that is the same every time."""
    digest = hashlib.blake2b(f"{kind} {name}".encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{kind}_{MADE_UP}{digest}"
