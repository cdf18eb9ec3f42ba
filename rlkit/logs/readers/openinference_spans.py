"""OpenInference's attributes: lists flattened into numbers, as in `llm.input_messages.0.message.role`.

An LLM span without messages has its `input.value` and `output.value` read instead.

Source: Arize-ai/openinference, spec/{semantic_conventions,annotations,tool_calling,multimodal_attributes}.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from rlkit.logs.jsontext import unpacked
from rlkit.logs.readers.kept import kept_links
from rlkit.logs.readers.langchain import answered, asked, plain_messages
from rlkit.logs.readers.otlp import Attributes, Decoded, is_number, text_or_none, unflatten
from rlkit.logs.readers.spans import MISSING, Kind, Span
from rlkit.logs.report import Notes

KIND = "openinference.span.kind"
KINDS: dict[Any, Kind] = {"LLM": "llm", "TOOL": "tool", "AGENT": "agent"}
_INPUT, _OUTPUT, _TOOLS = "llm.input_messages.", "llm.output_messages.", "llm.tools."
_FEEDBACK = tuple(f"{scope}{what}s." for scope in ("", "trace.", "session.") for what in ("annotation", "evaluation"))
_NOT_PLAIN = frozenset({"contents", "tool_calls", "rlkit", "function_call_name", "function_call_arguments_json"})
_NAMED = frozenset({"name", "function", "toolSpec"})
_NOT_METADATA = (
    "llm.", "input.", "output.", "openinference.", "session.", "tool.", "tool_call.", "metadata", "rlkit.",
    "gen_ai.input.", "gen_ai.output.", "gen_ai.system_instructions", *_FEEDBACK,
)  # fmt: skip


def is_openinference(attributes: Attributes) -> bool:
    """Whether a span is best read by these conventions: it may have a kind of theirs and OTel's messages."""
    if KIND not in attributes:
        return False
    if not any(key in attributes for key in ("gen_ai.input.messages", "gen_ai.output.messages")):
        return True
    return any(key.startswith((_INPUT, _OUTPUT)) for key in attributes)


def to_span(decoded: Decoded, notes: Notes) -> Span:
    """A span with OpenInference's attributes."""
    attributes = decoded.attributes
    kind = attributes.get(KIND)
    known = KINDS.get(kind, "other") if isinstance(kind, str) else "other"
    span = Span(
        trace_id=decoded.trace_id, session_id=decoded.session_id, span_id=decoded.span_id,
        parent_id=decoded.parent_id, start=decoded.start, kind=known,
        name=decoded.name, record=decoded.record, raw=decoded.raw,
    )  # fmt: skip
    if span.kind == "tool":
        call_id, name = attributes.get("tool_call.id"), attributes.get("tool.name")
        span.call_id, span.tool_name = text_or_none(call_id), text_or_none(name) or span.name or None
        span.result = attributes.get("output.value", MISSING)
    elif span.kind != "other":
        asking = {key: value for key, value in attributes.items() if key.startswith(_INPUT)}
        said = {key: value for key, value in attributes.items() if key.startswith(_OUTPUT)}
        answers = unfold(said)
        span.input = asking or _payload(asked, attributes.get("input.value"))
        span.output = [answers[n] for n in sorted(answers)] or _payload(answered, attributes.get("output.value"))
        offered = {key: item for key, item in attributes.items() if key.startswith(_TOOLS)}
        span.tools = partial(_tools, offered) if offered else None
    span.outcomes = _feedback(attributes)
    if span.kind == "llm":
        span.model = text_or_none(attributes.get("llm.model_name"))
    if span.kind == "agent" or not span.parent_id:
        span.metadata = _metadata(decoded, notes)
        span.links = kept_links(attributes)
        own = unpacked(attributes.get("rlkit.outcome"))
        if isinstance(own, dict):
            span.outcomes = [{"label": own.get("status"), "score": own.get("score"), "source": own.get("source")}]
    return span


def unfold(attributes: Attributes) -> dict[int, Any]:
    """Messages by number: `llm.….0.message.role`, `llm.….0.message.tool_calls.0.…`.

    What `unflatten` does, but the usual attributes, of which there are many, are taken directly.
    """
    messages: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, dict[str, Any]]] = {}
    nested: dict[str, Attributes] = {}
    for key, value in attributes.items():
        index, _, field = key.split("_messages.", 1)[1].partition(".message.")
        if "." not in field:
            messages.setdefault(index, {})[field] = value
            continue
        path = field.split(".")
        if path[0] == "tool_calls" and path[2:3] == ["tool_call"] and 4 <= len(path) <= 5:
            call = calls.setdefault(index, {}).setdefault(path[1], {})
            inner = call if len(path) == 4 else call.setdefault(path[3], {})
            if isinstance(inner, dict):
                inner[path[-1]] = value
        else:
            nested.setdefault(index, {})[f"_.0.{field}"] = value
    for index, found in nested.items():
        inner = unflatten(found, "_")[0]
        messages[index] = (inner if isinstance(inner, dict) else {"parts": inner}) | messages.get(index, {})
    for index, numbered in calls.items():
        listed = [{"tool_call": numbered[number]} for number in _in_order(numbered)]
        messages[index] = messages.get(index, {}) | {"tool_calls": listed}
    return {int(index): _message(messages[index]) for index in _in_order(messages)}


def _in_order(numbered: Iterable[str]) -> list[str]:
    return sorted(filter(is_number, numbered), key=int)


def _message(logged: dict[str, Any]) -> dict[str, Any]:
    """`{"role", "content", "contents", "tool_calls", …}` as an OpenAI-style message."""
    if not logged.keys() & _NOT_PLAIN:
        return logged if "content" in logged else logged | {"content": None}
    message = {key: value for key, value in logged.items() if key not in _NOT_PLAIN}
    calls = logged.get("tool_calls")
    calls = [_call(call) for call in calls] if isinstance(calls, list) else []
    parts, thoughts = _contents(logged.get("contents"), calls)
    if message.setdefault("content", parts) is not parts and parts:
        message["contents"] = parts
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif "function_call_name" in logged:  # as it was before `tool_calls`
        written = logged.get("function_call_arguments_json")
        message["function_call"] = {"name": logged["function_call_name"], "arguments": written}
    return message | _extra(logged)


def _call(item: Any) -> Any:
    call = item.get("tool_call") if isinstance(item, dict) else None
    if not isinstance(call, dict):
        return item
    return {key: value for key, value in call.items() if key != "rlkit"} | _extra(call)


def _extra(logged: dict[str, Any]) -> dict[str, Any]:
    """What our writer kept under `rlkit.extra`, as JSON."""
    own = logged.get("rlkit")
    extra = unpacked(own.get("extra")) if isinstance(own, dict) else None
    return extra if isinstance(extra, dict) else {}


def _contents(logged: Any, calls: list[Any]) -> tuple[list[Any] | None, list[str]]:
    """(parts, thoughts) of `message.contents`; a call that stands among them only is added to `calls`."""
    parts: list[Any] = []
    thoughts: list[str] = []
    known = {call["id"] for call in calls if isinstance(call, dict) and isinstance(call.get("id"), str)}
    for item in logged if isinstance(logged, list) else []:
        part = item.get("message_content", item) if isinstance(item, dict) else item
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "reasoning" and isinstance(part.get("text"), str):
            thoughts.append(part["text"])
        elif kind == "tool_use" and isinstance(item.get("tool_call"), dict):
            if item["tool_call"].get("id") not in known:
                calls.append(_call(item))
        else:
            parts.append(part)
    return parts or None, thoughts


def _payload(read: Any, value: Any) -> list[Any]:
    """What `input.value` or `output.value` says, where the messages themselves were not logged."""
    if value is None or value == "":
        return []
    return [plain for message in read(unpacked(value)) for plain in plain_messages(message)]


def _tools(offered: Attributes) -> list[Any]:
    """`llm.tools.0.tool.json_schema`: the whole definition, or only the parameters of a tool named beside it."""
    tools: list[Any] = []
    for item in unflatten(offered, _TOOLS[:-1]):
        tool = item.get("tool") if isinstance(item, dict) else None
        schema = unpacked(tool.get("json_schema")) if isinstance(tool, dict) else item
        if isinstance(tool, dict) and "name" in tool and not (isinstance(schema, dict) and _NAMED & schema.keys()):
            named = {key: tool[key] for key in ("name", "description") if key in tool}
            schema = named | ({"parameters": schema} if isinstance(schema, dict) else {})
        tools.append(schema)
    return tools


def _feedback(attributes: Attributes) -> list[dict[str, Any]]:
    """`annotations.0.annotation.label` and its like as outcomes: of the span, its trace or its session."""
    outcomes: list[dict[str, Any]] = []
    logged = {key: value for key, value in attributes.items() if key.startswith(_FEEDBACK)}
    for prefix in _FEEDBACK if logged else ():
        what = prefix.rpartition(".")[0].rpartition(".")[2].removesuffix("s")
        for item in unflatten(logged, prefix[:-1]):
            said = item.get(what) if isinstance(item, dict) else None
            if isinstance(said, dict):
                outcomes += judged(what, said, prefix.startswith(("trace.", "session.")))
    return outcomes


def judged(what: str, said: dict[str, Any], of_session: bool) -> list[dict[str, Any]]:
    """`{"name", "label", "score"}` as an outcome; none where it is but an explanation."""
    label, score = said.get("label"), said.get("score")
    if label is None and score is None:
        return []
    source = f"{what}:{said.get('name') or ''}".rstrip(":")
    return [{"label": label, "score": score, "source": source, "of_session": of_session}]


def _metadata(decoded: Decoded, notes: Notes) -> dict[str, Any]:
    """What our writer kept, else `metadata` and all attributes that are not content."""
    own, logged = (decoded.attributes.get(key) for key in ("rlkit.metadata", "metadata"))
    if isinstance(kept := unpacked(own), dict):
        return kept
    if own is not None:
        notes.add("metadata_wrong_type", f"span {decoded.span_id}: rlkit.metadata")
    others = {key: value for key, value in decoded.attributes.items() if not key.startswith(_NOT_METADATA)}
    if logged is not None and not isinstance(unpacked(logged), dict):
        others["metadata"] = logged
    nested = {key[9:]: value for key, value in decoded.attributes.items() if key.startswith("metadata.")}
    more = unpacked(logged)
    return decoded.resource | others | nested | (more if isinstance(more, dict) else {})
