"""The messages of GenAI spans: parts into OpenAI-style messages, spans that repeat their prefix into trajectories."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.readers.otlp import Span
from rlkit.logs.report import Notes

_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
Plain = Any
"""An OpenAI-style message, or whatever stood in its place."""


@dataclass
class Trajectory:
    """A conversation as it grew from span to span."""

    span: Span
    """The span that began it."""
    system: list[Plain]
    """From `gen_ai.system_instructions`, of the first span that has them."""
    messages: list[Plain] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    """What makes a message the same in two spans; parallel to `messages`."""

    @property
    def all_messages(self) -> list[Plain]:
        """Instructions first, unless the messages begin with the same ones."""
        if self.keys and [_key(message) for message in self.system] == self.keys[:1]:
            return self.messages
        return self.system + self.messages


def holds_messages(span: Span) -> bool:
    """Whether the span carries any content."""
    return any(_attribute(span, key) is not None for key in (_INPUT, _OUTPUT, _SYSTEM))


def grow(spans: list[Span], notes: Notes) -> list[Trajectory]:
    """Trajectories of spans in order: each span extends the longest one that it repeats, or begins its own."""
    grown: list[Trajectory] = []
    seen: list[Any] = []  # the last input as logged, and what was made of it: the next one mostly begins with it
    plain: list[Plain] = []
    keys: list[Any] = []
    for span in spans:
        logged = structured(span, _INPUT, notes)
        known = bool(seen) and logged[: len(seen)] == seen
        new = _from_messages(logged, len(seen) if known else 0, span, _INPUT, notes)
        plain = plain + new if known else new
        keys = keys + [_key(message) for message in new] if known else [_key(message) for message in new]
        seen = logged
        said = _from_messages(structured(span, _OUTPUT, notes), 0, span, _OUTPUT, notes)
        whole, whole_keys = plain + said, keys + [_key(message) for message in said]
        if any(other.keys[: len(whole)] == whole_keys for other in grown):
            continue  # says nothing new: a request sent again, or one whose answer was not captured
        begun = [other for other in grown if whole_keys[: len(other.keys)] == other.keys]
        if begun:
            longest = max(begun, key=lambda other: len(other.keys))
        else:
            longest = Trajectory(span, [])
            grown.append(longest)
        longest.system = longest.system or _from_instructions(span, notes)
        longest.messages += whole[len(longest.keys) :]
        longest.keys = whole_keys
    return grown


def fill_in_results(grown: list[Trajectory], tools: list[Span], notes: Notes) -> None:
    """Put the results that only an `execute_tool` span has after the call they answer."""
    called: set[Any] = set()
    for trajectory in grown:
        logged = [m.get("tool_call_id") for m in trajectory.messages if isinstance(m, dict) and m.get("role") == "tool"]
        answered = Counter(call_id for call_id in logged if _is_text(call_id))
        left = [span for span in tools if "gen_ai.tool.call.result" in span.attributes]
        if answered.total() < len(logged):
            left = []  # some results don't say what they answer, so we can't say what is missing
        filled: list[Plain] = []
        results: list[Plain] = []
        for message in trajectory.messages:
            if results and not (isinstance(message, dict) and message.get("role") == "tool"):
                filled += results  # after the results that were logged, before whatever comes next
                results = []
            filled.append(message)
            for call_id, name in _calls(message):
                called.add(call_id)
                if call_id is not None and answered[call_id] > 0:
                    answered[call_id] -= 1
                elif (span := _take(left, call_id, name)) is not None:
                    notes.add("span_tool_result", f"span {span.span_id}", line=span.record.line)
                    results.append(_result(call_id, span.attributes["gen_ai.tool.call.result"], name))
        trajectory.messages = filled + results
    for span in tools:
        call_id = span.attributes.get("gen_ai.tool.call.id")
        if _is_text(call_id) and call_id not in called:
            notes.add("span_tool_unmatched", f"span {span.span_id}", line=span.record.line)


def structured(span: Span, key: str, notes: Notes) -> list[Any]:
    """An attribute that holds a list, as such or as a JSON string; anything else is noted and read as empty."""
    value = _attribute(span, key)
    if isinstance(value, str):
        try:
            value = loads(value)
        except (ValueError, RecursionError):
            value = [{"type": "text", "content": value}] if key == _SYSTEM else value
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return [value]
    if value is not None:
        notes.add("span_attribute_unreadable", f"span {span.span_id}: {key}", line=span.record.line)
    return []


def _attribute(span: Span, key: str) -> Any:
    """From the span, or from one of its events (content may be captured on either)."""
    if key in span.attributes:
        return span.attributes[key]
    return next((attributes[key] for _, attributes in span.events if key in attributes), None)


def _from_instructions(span: Span, notes: Notes) -> list[Plain]:
    parts = structured(span, _SYSTEM, notes)
    return _from_message({"role": "system", "parts": parts}, f"span {span.span_id}: {_SYSTEM}", notes) if parts else []


def _from_messages(logged: list[Any], start: int, span: Span, key: str, notes: Notes) -> list[Plain]:
    return [
        plain
        for index in range(start, len(logged))
        for plain in _from_message(logged[index], f"span {span.span_id}: {key}[{index}]", notes)
    ]


def _from_message(message: Any, where: str, notes: Notes) -> list[Plain]:
    """One GenAI message as OpenAI-style ones: its results, then the rest. Without `parts` it is passed on as it is."""
    if not isinstance(message, dict) or not isinstance(message.get("parts"), list):
        return [message]
    texts: list[str] = []
    calls: list[Plain] = []
    results: list[Plain] = []
    name = message.get("name")
    for index, part in enumerate(message["parts"]):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("content"), str):
            texts.append(part["content"])
        elif kind == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_call_response":
            results.append(_result(part.get("id"), part.get("response", part.get("result")), name))
        else:
            detail = f"A part of type {kind!r} is not text; left in the raw span."
            notes.add("content_part_skipped", f"{where}.parts[{index}]", detail)
    if results and not texts and not calls:
        return results
    rest = {"role": message.get("role"), "content": "".join(texts) if texts else None, "name": name}
    return [*results, rest | {"tool_calls": calls} if calls else rest]


def _result(call_id: Any, response: Any, name: Any) -> Plain:
    content = response if response is None or isinstance(response, str) else dumps(response)
    return {"role": "tool", "tool_call_id": call_id, "content": content, "name": name}


def _calls(message: Plain) -> list[tuple[str | None, Any]]:
    """(id, name) of every call in a message; an id that is no text is None."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    found = []
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            function = call.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            found.append((call.get("id") if _is_text(call.get("id")) else None, name))
    return found


def _take(left: list[Span], call_id: str | None, name: Any) -> Span | None:
    """The span of a call: by id, else the first of the same tool where one of the two has no id."""
    for span in left:
        logged = span.attributes.get("gen_ai.tool.call.id")
        same_tool = span.attributes.get("gen_ai.tool.name") == name and (call_id is None or not _is_text(logged))
        if (call_id is not None and logged == call_id) or same_tool:
            left.remove(span)
            return span
    return None


def _key(message: Plain) -> Any:
    """Equal for the same message logged twice: as an output and, later, as part of an input."""
    if not isinstance(message, dict):
        return dumps(message)
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else dumps(content)
    calls = message.get("tool_calls")
    return (str(message.get("role")), text, tuple(_call_key(call) for call in calls) if isinstance(calls, list) else ())


def _call_key(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return dumps(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = loads(arguments)
    return str(function.get("name")), dumps(arguments)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""
