"""Anthropic's messages of content blocks as OpenAI-style ones, for every format that carries them.

Thinking, then text, then calls is what a `Message` says; where the blocks say more, or in another order, they are kept
as logged in `extra["content"]`. Results become tool messages of their own, in order: those in a user's message as well
as those that a server-run tool gave in the middle of an assistant's.
"""

from __future__ import annotations

from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.report import Notes
from rlkit.logs.trace import Message

QUIET = frozenset({"arguments_object", "content_parts"})
"""Codes of what is normal in these formats."""
EXACT = "rlkit.message"
"""The key under which our writers put an OpenAI-style message that the blocks can't hold."""
BLOCKS = "rlkit.blocks"
"""The key that becomes `extra["content"]`, since `parse_messages` takes `content` for the text."""

_CALL = frozenset({"type", "id", "name", "input"})
_CALL_TAKEN = _CALL | {"function", "arguments"}
_RESULT = frozenset({"type", "tool_use_id", "content"})
_RESULT_TAKEN = _RESULT | {"role", "tool_call_id", "tool_calls", "function_call"}


def parse_blocks(items: list[Any], paths: list[str], notes: Notes) -> list[Message]:
    """What `unfold` gave, as messages."""
    messages = parse_messages(items, notes, paths=paths)
    for message in messages:
        if message.extra is not None and BLOCKS in message.extra:
            message.extra["content"] = message.extra.pop(BLOCKS)
    return messages


def unfold(message: Any, where: str, notes: Notes, items: list[Any], paths: list[str]) -> None:
    """Append to `items` the OpenAI-style messages that an Anthropic message is, and to `paths` where each stands."""
    if type(message) is not dict or EXACT in message or type(content := message.get("content")) is not list:
        items.append(message[EXACT] if type(message) is dict and EXACT in message else message)
        paths.append(where)
        return
    rest = None
    if len(message) > 2:
        rest = {key: item for key, item in message.items() if key not in ("role", "content")}
        if rest.get("type") == "message":
            del rest["type"]
    unfold_blocks(message.get("role"), content, rest, where, notes, items, paths)


def unfold_blocks(
    role: Any, content: list[Any], rest: dict[str, Any] | None, where: str, notes: Notes, items: list[Any],
    paths: list[str],
) -> None:  # fmt: skip
    """As `unfold`, for a message in pieces. Of `rest`, the first message gets all, and the others the `timestamp`."""
    before = len(items)
    if role == "assistant":
        _unfold_reply(content, where, notes, items, paths)
    else:
        _unfold_turn(role, content, where, items, paths)
    if rest and type(items[before]) is dict:
        items[before] = rest | items[before]
        if len(items) > before + 1 and (time := rest.get("timestamp")) is not None:
            for index in range(before + 1, len(items)):
                if type(items[index]) is dict and "timestamp" not in items[index]:
                    items[index] = items[index] | {"timestamp": time}


def _unfold_turn(role: Any, blocks: list[Any], where: str, items: list[Any], paths: list[str]) -> None:
    """A user's message: results, and what was said before, between and after them."""
    if len(blocks) == 1 and type(block := blocks[0]) is dict and block.get("type") == "tool_result":  # nearly always
        items.append(block[EXACT] if EXACT in block else _result(block, "tool_result"))
        paths.append(where)
        return
    said: list[Any] = []
    before = len(items)
    for index, block in enumerate(blocks):
        kind = block.get("type") if type(block) is dict else None
        if type(kind) is str and kind.endswith("tool_result"):
            if said:
                items.append({"role": role, "content": _simple(said)})
                paths.append(f"{where}.content[{index - len(said)}:]")
                said = []
            items.append(block[EXACT] if EXACT in block else _result(block, kind))
            paths.append(f"{where}.content[{index}]")
        else:
            said.append(block)
    if said or len(items) == before:
        items.append({"role": role, "content": _simple(said) if said else None})
        paths.append(where if len(said) == len(blocks) else f"{where}.content[{len(blocks) - len(said)}:]")


def _unfold_reply(blocks: list[Any], where: str, notes: Notes, items: list[Any], paths: list[str]) -> None:
    """An assistant's message; more than one where a server-run tool answered in the middle of it."""
    start = 0
    while start < len(blocks) or not start:
        item, end = _reply(blocks, start, where, notes)
        if end > start or not blocks:
            items.append(item)
            paths.append(where)
        if end < len(blocks):
            block = blocks[end]
            items.append(block[EXACT] if EXACT in block else _result(block, block["type"]))
            paths.append(f"{where}.content[{end}]")
        start = end + 1


def _reply(blocks: list[Any], start: int, where: str, notes: Notes) -> tuple[dict[str, Any], int]:
    """Thinking, text and calls as one message, with the blocks where that does not say it all; up to the next result.

    The second value is the index of that result, or the number of blocks.
    """
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    plain, end = True, len(blocks)
    for index in range(start, end):
        block = blocks[index]
        kind = block.get("type") if type(block) is dict else None
        if kind == "text" and type(text := block.get("text")) is str:
            plain = plain and len(block) == 2 and not texts and not calls
            texts.append(text)
        elif kind == "tool_use" or kind == "server_tool_use" or kind == "mcp_tool_use":
            calls.append(_call(block, kind))
        elif kind == "thinking" and type(text := block.get("thinking")) is str:
            plain = plain and len(block) == 2 and text != "" and not (texts or calls or thoughts)
            if text:
                thoughts.append(text)
        elif type(kind) is str and kind.endswith("tool_result"):
            end = index
            break
        else:
            plain = False
            if kind != "redacted_thinking":
                detail = f"A block of type {kind!r} is not text; kept in `Message.extra`."
                notes.add("content_part_skipped", f"{where}.content[{index}]", detail)
    item: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if calls:
        item["tool_calls"] = calls
    if thoughts:
        item["reasoning_content"] = "\n\n".join(thoughts)
    if not plain:
        item[BLOCKS] = blocks if end - start == len(blocks) else blocks[start:end]
    return item, end


def _call(block: dict[str, Any], kind: str) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    call = {"id": block.get("id"), "type": "function", "function": function}
    if not block.keys() <= _CALL:
        call |= {key: item for key, item in block.items() if key not in _CALL_TAKEN}
    if kind != "tool_use":
        call["block_type"] = kind
    return call


def _result(block: dict[str, Any], kind: str) -> dict[str, Any]:
    """A result as a tool message; a server's, which is made of objects, as JSON."""
    content = block.get("content")
    item = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    if kind != "tool_result":
        item["block_type"] = kind
        if content is not None and type(content) is not str:
            item["content"] = dumps(content)
    elif type(content) is list:
        item["content"] = _simple(content) if content else None
    if not block.keys() <= _RESULT:
        item = {key: value for key, value in block.items() if key not in _RESULT_TAKEN} | item
    return item


def _simple(parts: list[Any]) -> Any:
    """The text of one part that is nothing but text; else the parts."""
    if len(parts) == 1 and type(part := parts[0]) is dict and len(part) == 2 and part.get("type") == "text":
        return part["text"] if type(part.get("text")) is str else parts
    return parts
