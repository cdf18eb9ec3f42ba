"""What LLM calls were asked and answered, as LangSmith and Langfuse log it, as OpenAI-style messages.

Three layers: the payload of a call (a list, `{"messages", "tools"}`, `{"choices"}`, `{"generations"}`, a string, …),
one message (`{"lc", "id", "kwargs"}`, `{"type", "data"}`, `{"type", "content"}`, `{"role", "content"}`,
`[role, text]`), and one message's content (text, thinking and tool blocks in one list).

Source: langchain-core 1.8 (`dumpd`, `messages_to_dict`, `model_dump`), docs.langchain.com/langsmith/log-llm-trace.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rlkit.logs.jsontext import dumps, unpacked

Plain = Any
"""An OpenAI-style message, or whatever stood in its place."""

_ROLES = {
    "human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "system": "system",
    "developer": "developer", "tool": "tool", "function": "function", "chat": "chat",
}  # fmt: skip
_OWN = frozenset({"role", "type", "content", "tool_calls", "invalid_tool_calls", "additional_kwargs"})
_OFTEN_EMPTY = frozenset(
    {"response_metadata", "usage_metadata", "tool_call_chunks", "artifact", "example", "id", "name"}
)
_CALL_BLOCKS = {"tool_use": "input", "tool_call": "args"}
_THOUGHTS = {"thinking": "thinking", "reasoning": "reasoning"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(value: Any) -> int | None:
    """Of ISO 8601 in its many forms, with or without a zone (then it is UTC); None where it is no time."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        passed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        return None
    return (passed.days * 86_400_000_000 + passed.seconds * 1_000_000 + passed.microseconds) * 1000


def as_object(value: Any) -> dict[str, Any]:
    """An object, or the text of one; else an empty one."""
    value = unpacked(value)
    return value if isinstance(value, dict) else {}


def payload(value: Any) -> Any:
    """JSON text as what it says where that holds messages, else as it is: it may be what someone wrote."""
    found = unpacked(value)
    return found if found is not value and holds_messages(found) else value


def is_message(value: Any) -> bool:
    """Whether this is one message in any of the shapes that `plain_messages` reads."""
    return isinstance(value, dict) and _fields(value) is not None


def holds_messages(value: Any) -> bool:
    """Whether this is a payload of messages rather than of arguments or of text alone."""
    if isinstance(value, dict):
        if is_message(value) or isinstance(value.get("tool_calls"), list):
            return True
        return any(
            holds_messages(value[key]) for key in ("messages", "choices", "generations", "message") if key in value
        )
    return isinstance(value, list) and len(value) > 0 and (_is_pair(value[0]) or holds_messages(value[0]))


def asked(value: Any) -> list[Any]:
    """The messages of a call's input, each as logged; a text is what the user said."""
    if isinstance(value, list):
        if value and isinstance(value[0], list) and not _is_pair(value[0]):
            return value[0]  # LangChain logs a batch of one conversation
        return [{"role": "user", "content": item} if isinstance(item, str) else item for item in value]
    if isinstance(value, dict) and not is_message(value):
        for key in ("messages", "input", "prompt", "prompts"):
            if value.get(key) is not None:
                system = value.get("system", value.get("instructions"))
                return [*([{"role": "system", "content": system}] if system else []), *asked(value[key])]
    if isinstance(value, dict) and is_message(value):
        return [value]
    return [{"role": "user", "content": value}] if value else []


def answered(value: Any) -> list[Any]:
    """The messages of a call's output, each as logged; a text is what the agent said."""
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, dict) and isinstance(first.get("type"), str) and not holds_messages(first):
            return [{"role": "assistant", "content": value}]  # blocks of one message
        return [message for choice in (first if isinstance(first, list) else value) for message in _choice(choice)]
    if isinstance(value, dict) and not is_message(value):
        for key in ("choices", "generations", "messages", "message", "output"):
            if value.get(key) is not None:
                return answered(value[key])
        if "content" in value or "tool_calls" in value:
            return [{"role": "assistant", **value}]
        text = value.get("text", value.get("completion"))
        return [{"role": "assistant", "content": text if isinstance(text, str) else value}] if value else []
    if isinstance(value, dict):
        return [value]
    return [{"role": "assistant", "content": value}] if value else []


def _choice(choice: Any) -> list[Any]:
    """One of several answers: a message, a text, `{"message": …}`, or `{"text": …}` of a completion."""
    return answered(choice) if isinstance(choice, dict | str) else [choice]


def offered(*values: Any) -> list[Any] | None:
    """The tools of the first of these that has any: a list, `{"tools"}` or `{"functions"}`, `{name: schema}`."""
    for value in map(unpacked, values):
        logged = value
        if isinstance(value, dict):
            logged = unpacked(value.get("tools") or value.get("functions"))
        if isinstance(logged, list) and logged:
            return [_definition(tool) for tool in logged]
    return None


def _definition(tool: Any) -> Any:
    """A tool's schema in OpenAI's words, whether it came as such, in Anthropic's, or as the text of either."""
    tool = unpacked(tool)
    if isinstance(tool, dict) and "input_schema" in tool and "parameters" not in tool:
        rest = {key: value for key, value in tool.items() if key not in ("input_schema", "type")}
        return rest | {"parameters": tool["input_schema"]}
    return tool


def plain_messages(message: Any) -> list[Plain]:
    """One logged message as OpenAI-style ones: the results in it first, then the rest.

    What is none of the shapes we know is passed on as it is.
    """
    if type(message) is dict and len(message) == 2 and type(message.get("content")) is str:
        role = message.get("role")
        if type(role) is str and role == _ROLES.get(role):
            return [message]
    if _is_pair(message):
        message = {"role": message[0], "content": message[1]}
    found = _fields(message) if isinstance(message, dict) else None
    if found is None:
        return [message]
    role, fields = found
    more = fields.get("additional_kwargs")
    more = dict(more) if isinstance(more, dict) else {}
    plain: dict[str, Any] = {"role": role, "content": fields.get("content")}
    results = _read_content(plain, _calls(fields, more))
    if results and plain["content"] is None and "tool_calls" not in plain:
        return results
    for key in ("function_call", "refusal", "reasoning_content"):
        if key in more and key not in fields:
            plain[key] = more.pop(key)
    for key, value in fields.items():
        if key not in _OWN and (value or key not in _OFTEN_EMPTY) and not (key == "status" and value == "success"):
            plain[key] = value
    if more:
        plain["additional_kwargs"] = more
    if "tool_calls" not in plain and fields.get("tool_calls") and not isinstance(fields["tool_calls"], list):
        plain["tool_calls"] = fields["tool_calls"]
    return [*results, plain]


def _fields(message: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """(role, what the message says) of a message in any of its shapes, or None where it is no message."""
    role = message.get("role")
    if role is not None:
        return (_ROLES.get(role, role), message) if isinstance(role, str) else None
    kind, fields = message.get("type"), message
    if kind == "constructor":
        path, fields = message.get("id"), message.get("kwargs")  # type: ignore[assignment]
        kind = path[-1] if isinstance(path, list) and path else None
    elif isinstance(message.get("data"), dict):
        fields = message["data"]
    if not isinstance(kind, str) or not isinstance(fields, dict) or "content" not in fields:
        return None
    role = _ROLES.get(kind.removesuffix("Chunk").removesuffix("Message").lower())
    if role == "chat":
        role = fields.get("role")
        role = _ROLES.get(role, role) if isinstance(role, str) else None
    return None if role is None else (role, fields)


def _is_pair(value: Any) -> bool:
    """Whether this is LangChain's short form of a message, `["human", "hi"]`."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] in _ROLES


def _calls(fields: dict[str, Any], more: dict[str, Any]) -> list[Any]:
    """The calls of a message; where `more` has the same ones as the model wrote them, those, taken out of it."""
    logged, invalid, written = fields.get("tool_calls"), fields.get("invalid_tool_calls"), more.get("tool_calls")
    parsed = [*(logged if isinstance(logged, list) else []), *(invalid if isinstance(invalid, list) else [])]
    if isinstance(written, list) and written and (not parsed or _ids(written) == _ids(parsed)):
        return list(more.pop("tool_calls"))
    return [_call(call) for call in parsed]


def _ids(calls: list[Any]) -> list[str]:
    return sorted(str(call.get("id")) for call in calls if isinstance(call, dict))


def _call(call: Any) -> Any:
    """`{"name", "args", "id"}` as OpenAI writes it; what has no `args` as it is."""
    if not isinstance(call, dict) or "args" not in call or "function" in call:
        return call
    rest = {
        key: value for key, value in call.items() if key not in ("id", "name", "args", "type") and value is not None
    }
    return {"id": call.get("id"), "type": "function", "function": _function(call.get("name"), call["args"])} | rest


def _function(name: Any, arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _read_content(plain: dict[str, Any], calls: list[Any]) -> list[Plain]:
    """Sort a list of content blocks into text, calls and reasoning of `plain`; the tool results in it are returned."""
    content, results, texts, thoughts, kept = plain["content"], [], [], [], []
    if isinstance(content, list):
        known = {call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)}
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            kind = kind if isinstance(kind, str) else None
            if kind in _CALL_BLOCKS and "name" in block:
                if not (isinstance(block.get("id"), str) and block["id"] in known):
                    function = _function(block["name"], block.get(_CALL_BLOCKS[kind]))
                    calls.append({"id": block.get("id"), "type": "function", "function": function})
            elif kind in _THOUGHTS and isinstance(text := block.get(_THOUGHTS[kind]), str):
                thoughts.append(text)
                if len(block) > 2:
                    kept.append(block)  # a signature
            elif kind == "tool_result":
                results.append(_result(block))
            else:
                texts.append(block)
        plain["content"] = _joined(texts)
    if calls:
        plain["tool_calls"] = calls
    if thoughts:
        plain["reasoning_content"] = "\n".join(thoughts)
    if kept:
        plain["content_blocks"] = kept
    return results


def _joined(blocks: list[Any]) -> Any:
    """Blocks of nothing but text as that text; others as they are."""
    if all(isinstance(b, dict) and b.keys() == {"type", "text"} and isinstance(b["text"], str) for b in blocks):
        return "".join(block["text"] for block in blocks) if blocks else None
    return blocks


def _result(block: dict[str, Any]) -> Plain:
    """Anthropic's `tool_result` as a message."""
    content = block.get("content")
    rest = {key: value for key, value in block.items() if key not in ("type", "tool_use_id", "content")}
    if isinstance(content, list):
        content = _joined(content)
    return rest | {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}


def stamped(messages: list[Any], time: Any) -> list[Plain]:
    """Answers as OpenAI-style messages that were complete at `time`, where they don't say otherwise."""
    if not time:
        return messages
    plain = [one for message in messages for one in plain_messages(message)]
    return [{"timestamp": time} | one if isinstance(one, dict) else one for one in plain]


def tool_answer(value: Any) -> tuple[str | None, str | None]:
    """(text, call id) of what a tool returned: a text, any JSON, or a message that wraps either."""
    payload = unpacked(value)
    if isinstance(payload, dict) and payload.keys() == {"output"}:
        return tool_answer(payload["output"])
    if isinstance(payload, dict) and (found := _fields(payload)) is not None and found[0] == "tool":
        call_id, content = found[1].get("tool_call_id"), found[1].get("content")
        content = _joined(content) if isinstance(content, list) else content
        return _text(content), call_id if isinstance(call_id, str) else None
    return _text(value), None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else dumps(value)
