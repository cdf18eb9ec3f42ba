"""GenAI spans as they were written before today's conventions, and as some still are.

- flat attributes (OpenLLMetry): `gen_ai.prompt.0.role`, `gen_ai.completion.0.tool_calls.0.name`,
  `llm.request.functions.0.name`, `traceloop.entity.output`;
- JSON or plain text in `gen_ai.prompt` and `gen_ai.completion`, on the span or on the events `gen_ai.content.*`;
- one event a message: `gen_ai.system.message`, `gen_ai.user.message`, `gen_ai.assistant.message`,
  `gen_ai.tool.message`, `gen_ai.choice`; content may be in Bedrock's blocks (`text`, `toolUse`, `toolResult`), as
  Strands logs it.

Source: opentelemetry semantic conventions 1.28 (`docs/gen-ai/gen-ai-events.md`), openllmetry's
`opentelemetry-semantic-conventions-ai`.
"""

from __future__ import annotations

from typing import Any

from rlkit.logs.jsontext import dumps, unpacked
from rlkit.logs.readers.otlp import Attributes, Decoded, unflatten
from rlkit.logs.readers.spans import MISSING, Span

_ROLES = ("system", "user", "assistant", "tool")
_BODY = ("gen_ai.event.content", "event.body", "body")
_NAMED = ("role", "content", "tool_calls", "id", "name", "index", "message", "finish_reason")


def read_content(span: Span, decoded: Decoded) -> None:
    """Put into `span` what it was asked and what it answered."""
    attributes = decoded.attributes
    asked, choices = unflatten(attributes, "gen_ai.prompt"), unflatten(attributes, "gen_ai.completion")
    if asked or choices:
        span.input = [message for item in asked for message in messages(item)]
        _put_choices(span, [messages(_as_assistant(item)) for item in choices])
        return
    asked, choices = [], []
    for name, event in decoded.events:
        body = _body(event)
        kind = name.removeprefix("gen_ai.").removesuffix(".message")
        if name == "gen_ai.choice":
            choices.append(messages(_choice(body)))
        elif kind in _ROLES and name.startswith("gen_ai.") and name.endswith(".message"):
            own = {"tool_call_id": body.get("tool_call_id", body.get("id"))} if kind == "tool" else {}
            asked += messages({"role": kind} | {key: body[key] for key in _NAMED if key in body and key != "id"} | own)
    if not asked and not choices:
        text = next((a["gen_ai.prompt"] for a in _holders(decoded) if "gen_ai.prompt" in a), None)
        said = next((a["gen_ai.completion"] for a in _holders(decoded) if "gen_ai.completion" in a), None)
        asked, choices = _from_text(text, "user"), [part for item in _from_text(said, "assistant") if (part := [item])]
    span.input = asked
    _put_choices(span, choices)


def functions(attributes: Attributes) -> list[Any] | None:
    """The tools offered, `llm.request.functions.*`; None where there are none."""
    found = unflatten(attributes, "llm.request.functions")
    return [
        tool | {"parameters": unpacked(tool["parameters"])} if isinstance(tool, dict) and "parameters" in tool else tool
        for tool in found
    ] or None


def tool_result(decoded: Decoded) -> Any:
    """What a tool returned, where today's attribute is not there."""
    for name, event in decoded.events:
        if name == "gen_ai.choice":
            said = _body(event)
            content = messages({"role": "tool", "content": unpacked(said.get("message", said.get("content")))})
            return content[0].get("content")
    if "traceloop.entity.output" in decoded.attributes:
        said = unpacked(decoded.attributes["traceloop.entity.output"])
        return said["output"] if isinstance(said, dict) and set(said) <= {"output", "kwargs"} and said else said
    return MISSING


def messages(item: Any) -> list[Any]:
    """One message of any of these kinds as OpenAI-style ones; what is none comes back as it is."""
    if not isinstance(item, dict):
        return [item]
    content, calls = unpacked(item.get("content")), unpacked(item.get("tool_calls"))
    message = {key: value for key, value in item.items() if key != "finish_reason"}
    if isinstance(calls, list):
        message["tool_calls"] = calls
    if isinstance(content, list) and content and all(isinstance(part, dict) for part in content):
        if any(part.keys() & {"toolUse", "toolResult"} or set(part) == {"text"} for part in content):
            return _from_blocks(message, content)
        if all("type" in part for part in content):
            message["content"] = content
    return [message]


def _from_blocks(message: dict[str, Any], blocks: list[dict[str, Any]]) -> list[Any]:
    """Bedrock's blocks: results first, as messages of their own."""
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    uses = [block["toolUse"] for block in blocks if isinstance(block.get("toolUse"), dict)]
    results = [block["toolResult"] for block in blocks if isinstance(block.get("toolResult"), dict)]
    said: list[Any] = [
        {"role": "tool", "tool_call_id": result.get("toolUseId"), "content": _block_text(result.get("content"))}
        for result in results
    ]
    calls = [
        {
            "id": use.get("toolUseId"),
            "type": "function",
            "function": {"name": use.get("name"), "arguments": use.get("input")},
        }
        for use in uses
    ]
    if texts or calls or not said:
        rest = message | {"content": "".join(texts) if texts else None}
        said.append(rest | {"tool_calls": calls} if calls else rest)
    return said


def _block_text(content: Any) -> str | None:
    if isinstance(content, list):
        texts = [block.get("text") for block in content if isinstance(block, dict)]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    return content if content is None or isinstance(content, str) else dumps(content)


def _put_choices(span: Span, choices: list[list[Any]]) -> None:
    if choices:
        span.output, span.alternatives = choices[0], choices[1:]


def _as_assistant(item: Any) -> Any:
    return {"role": "assistant"} | item if isinstance(item, dict) else item


def _choice(body: dict[str, Any]) -> dict[str, Any]:
    """`{"index", "finish_reason", "message": {...}}`, or the message's own fields beside them."""
    inner = unpacked(body.get("message"))
    if isinstance(inner, dict):
        return {"role": "assistant"} | inner
    said = {key: body[key] for key in ("role", "content", "tool_calls") if key in body}
    return {"role": "assistant"} | ({"content": body["message"]} if inner is not None else {}) | said


def _body(event: Attributes) -> dict[str, Any]:
    """What an event says, in its attributes or in one that holds all of it."""
    whole = next((found for key in _BODY if isinstance(found := unpacked(event.get(key)), dict)), {})
    return event | whole


def _holders(decoded: Decoded) -> list[Attributes]:
    return [decoded.attributes, *(attributes for _, attributes in decoded.events)]


def _from_text(value: Any, role: str) -> list[Any]:
    """A prompt or an answer in one attribute: messages as JSON, `{"messages"}`, `{"choices"}`, or what was said."""
    logged = unpacked(value)
    if isinstance(logged, dict):
        logged = logged.get("messages", logged.get("choices", logged))
    items = logged if isinstance(logged, list) else [logged]
    items = [item["message"] if isinstance(item, dict) and "message" in item else item for item in items]
    if all(isinstance(item, dict) and ("role" in item or "content" in item) for item in items):
        return [message for item in items for message in messages(item if role == "user" else _as_assistant(item))]
    return [{"role": role, "content": value}] if isinstance(value, str) and value else []
