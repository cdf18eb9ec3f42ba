"""A `Trace` as an Anthropic Messages record: what the reader `anthropic` reads back without loss.

A record a trace, since a request holds no branches. What the blocks of a message can't hold (a text that is no JSON
object as arguments, a name, what another product logged) stands beside them, as an OpenAI-style message, under the key
`rlkit.message`. A trace of text alone is the same record in OpenAI's format, and is recognised as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers.anthropic_blocks import BLOCKS, EXACT, QUIET, parse_blocks, unfold
from rlkit.logs.report import Notes
from rlkit.logs.trace import Message, Trace
from rlkit.logs.writers.openai import to_openai


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `parent_id`."""
    return map(_record, traces)


def _record(trace: Trace) -> dict[str, Any]:
    said = to_openai(trace)
    record: dict[str, Any] = {"id": trace.id}
    messages, exact = trace.messages, exact_messages(trace.messages, said["messages"])
    if messages and (system := _system(messages[0])) is not None:
        record["system"] = system
        messages, exact = messages[1:], exact[1:]
    record["messages"] = _fold(messages, exact)
    if trace.tools:
        record["tools"] = [_tool(tool) for tool in trace.tools]
    return record | {key: item for key, item in said.items() if key not in ("id", "messages", "tools")}


def exact_messages(messages: list[Message], said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What OpenAI's format says of the messages, but the blocks as logged beside the text, not instead of it."""
    return [
        openai | {"content": message.content, BLOCKS: message.extra["content"]}
        if message.extra is not None and "content" in message.extra
        else openai
        for message, openai in zip(messages, said, strict=True)
    ]


def native(message: Message, exact: dict[str, Any]) -> dict[str, Any]:
    """A message in Anthropic's words; with `exact`, the same in OpenAI's, where it would not read back the same."""
    if message.role == "tool":
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if message.content is not None:
            block["content"] = message.content
        rest = _rest(message)
        if isinstance(kind := rest.pop("block_type", None), str) and message.content is not None:
            block |= {"type": kind, "content": _json(message.content)}
        if message.extra is not None and "content" in message.extra:
            block["content"] = message.extra["content"]
        block = rest | block
        if not _reads_back({"role": "user", "content": [block]}, message):
            block = {
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": message.content,
                EXACT: exact,
            }
        return {"role": "user", "content": [block]}
    record = {"role": message.role, "content": _content(message)}
    if _reads_back(_rest(message) | record, message):
        return _rest(message) | record
    return record | {EXACT: exact}


def _system(first: Message) -> str | list[Any] | None:
    """The first message as the request's `system`, where that holds all of it."""
    if first.role != "system":
        return None
    system = (first.extra or {}).get("content", first.content)
    whole = isinstance(system, str | list) and _reads_back({"role": "system", "content": system}, first)
    return system if whole else None


def _fold(messages: list[Message], exact: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, results that follow each other in one."""
    folded: list[dict[str, Any]] = []
    before: Message | None = None
    for message, said in zip(messages, exact, strict=True):
        record = native(message, said)
        if message.role == "tool" and before is not None and before.role == "tool":
            folded[-1]["content"] += record["content"]
        else:
            folded.append(record)
        before = message
    return folded


def _content(message: Message) -> Any:
    """The blocks as they were logged, where we have them; else text, or blocks where there is more than that."""
    if isinstance(logged := (message.extra or {}).get("content"), list):
        return logged
    if message.role != "assistant" or not (message.tool_calls or message.reasoning):
        return message.content
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning})
    if message.content is not None:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        extra = dict(call.extra or {})
        kind = extra.pop("block_type", "tool_use")
        blocks.append(extra | block | {"type": kind if isinstance(kind, str) else "tool_use"})
    return blocks


def _rest(message: Message) -> dict[str, Any]:
    """What stands beside role and content."""
    rest = {key: item for key, item in (message.extra or {}).items() if key not in ("role", "content")}
    return rest if message.timestamp is None else rest | {"timestamp": message.timestamp}


def _reads_back(record: dict[str, Any], message: Message) -> bool:
    items, paths, notes = list[Any](), list[str](), Notes(quiet=QUIET)
    unfold(record, "", notes, items, paths)
    return parse_blocks(items, paths, notes) == [message]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"input_schema" if key == "parameters" else key: item for key, item in tool.items()}


def _json(text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text
