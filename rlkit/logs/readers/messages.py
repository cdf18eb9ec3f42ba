"""OpenAI-style messages of any age and health into `Message`, shared by every reader whose format comes near it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.report import Notes
from rlkit.logs.timestamps import is_canonical, parse_timestamp
from rlkit.logs.trace import Message, Role, ToolCall

_ROLES: dict[Any, Role] = {
    "user": "user", "assistant": "assistant", "tool": "tool", "system": "system",
    "developer": "system", "function": "tool",
}  # fmt: skip
_TEXT_PARTS = ("text", "input_text", "output_text")  # no set: a part of any type is looked up in it
_SPEAKERS = ("user", "assistant", "system")
_PLAIN = frozenset({"role", "content", "tool_calls"})
_KNOWN = _PLAIN | {"function_call", "tool_call_id", "name", "reasoning", "reasoning_content", "timestamp"}
_CALL_KNOWN = frozenset({"id", "type", "function", "name", "arguments"})


def parse_messages(
    raw: Sequence[Any], notes: Notes, path: str = "messages", paths: Sequence[str] | None = None
) -> list[Message]:
    """Read a list of OpenAI-style messages, in order; what is odd goes to `notes` with its path, never up as an error.

    A message is left out only where it is no object or its role is unknown. `raw` is not changed. Item i stands at
    `paths[i]` of the record, else at `path[i]`.
    """
    pairing = _Pairing(notes)
    messages: list[Message] = []
    add, waiting = messages.append, pairing.open
    for index, item in enumerate(raw):
        try:  # first what nearly all messages are, without a call: half of the time goes here
            role, content, size, time = item["role"], item["content"], len(item), None
            if size > 2 and "timestamp" in item:
                size, time = (size - 1, item["timestamp"]) if is_canonical(item["timestamp"]) else (0, None)
            if content.__class__ is str:
                if size == 2 and role in _SPEAKERS:
                    add(Message(role, content, [], None, None, None, time))
                    continue
                if role == "tool" and (call_id := item["tool_call_id"]) in waiting:
                    name = item.get("name")
                    if size == 3 + (name.__class__ is str):
                        del waiting[call_id]
                        add(Message(role, content, [], call_id, name, None, time))
                        continue
            if size == 3 and role == "assistant" and (content is None or content.__class__ is str):
                calls = _plain_calls(item["tool_calls"], pairing)
                if calls:
                    add(Message(role, content, calls, None, None, None, time))
                    continue
        except (KeyError, TypeError):  # no such key, or no object, or an unhashable id
            pass
        message = _message(item, index, pairing, notes, paths[index] if paths else f"{path}[{index}]")
        if message is not None:
            add(message)
    pairing.close()
    return messages


def _plain_calls(logged: Any, pairing: _Pairing) -> list[ToolCall] | None:
    """Calls with an id of their own, a name, and arguments that are the text of a JSON object; else None."""
    if type(logged) is not list:
        return None
    calls = []
    for call in logged:
        function = call.get("function") if type(call) is dict and len(call) == 3 and "type" in call else None
        if type(function) is not dict or len(function) != 2:
            return None
        call_id, name, text = call.get("id"), function.get("name"), function.get("arguments")
        if type(call_id) is not str or type(name) is not str:
            return None
        arguments, raw, code = parse_arguments(text)
        if code is not None and code not in pairing.notes.quiet:
            return None
        if not name or not call_id or call_id in pairing.taken:
            return None
        calls.append(ToolCall(call_id, name, arguments, raw))
    if len(calls) > 1 and len({call.id for call in calls}) < len(calls):
        return None
    for one in calls:
        pairing.taken.add(one.id)
        pairing.open[one.id] = one.name
    return calls


def _message(item: Any, index: int, pairing: _Pairing, notes: Notes, where: str) -> Message | None:
    """One message with all its oddities; None where it must be left out."""
    role = _role(item, notes, where)
    if role is None:
        return None
    content = item.get("content")
    extra = None if role == item["role"] and item.keys() <= _PLAIN else _extra(item, role)
    if content is not None and not isinstance(content, str):
        content, whole = _text(content, notes, f"{where}.content")
        extra = extra if whole else {"content": item["content"]} | (extra or {})
    if content is None and isinstance(item.get("refusal"), str):
        notes.add("refusal", f"{where}.refusal")
        content = item["refusal"]
    calls = _tool_calls(item, index, pairing, notes, where) if "tool_calls" in item or "function_call" in item else []
    if calls and role != "assistant":
        notes.add("tool_calls_wrong_role", where)
    reasoning = item.get("reasoning") or item.get("reasoning_content")
    reasoning = reasoning if isinstance(reasoning, str) else None
    if content is None and not calls and reasoning is None:
        notes.add("content_null", where)
    name, call_id = item.get("name"), None
    if name is not None and not isinstance(name, str):
        notes.add("name_wrong_type", where)
        name = None
    if role == "tool":
        call_id = pairing.answer(item.get("tool_call_id"), name, index, where, has_ids=item["role"] == "tool")
    time = item.get("timestamp")
    if time is not None:
        time = parse_timestamp(time, notes, f"{where}.timestamp")
    return Message(role, content, calls, call_id, name, reasoning, time, extra)


def _extra(item: dict[str, Any], role: Role) -> dict[str, Any] | None:
    """What a logged message says that `Message` has no field for, as logged."""
    kept: dict[str, Any] = {}
    if not item.keys() <= _KNOWN:
        kept = {key: value for key, value in item.items() if key not in _KNOWN and value is not None}
    for key in ("reasoning", "reasoning_content", "name"):
        if item.get(key) is not None and not isinstance(item[key], str):
            kept[key] = item[key]
    if role != "tool" and item.get("tool_call_id") is not None:
        kept["tool_call_id"] = item["tool_call_id"]
    if role != item["role"]:
        kept["role"] = item["role"]
    return kept or None


def parse_arguments(value: Any) -> tuple[dict[str, Any] | None, str | None, str | None]:
    """The arguments of a call as `(arguments, raw_arguments, code)`: see `ToolCall`; `code` is None where all is well.

    `raw_arguments` is None exactly where `dumps(arguments)` is what the agent wrote, byte for byte.
    """
    if value is None:
        return None, None, "arguments_null"
    if isinstance(value, dict):
        return value, None, "arguments_object"
    if not isinstance(value, str):
        return None, dumps(value), "arguments_not_object"
    try:
        parsed = orjson.loads(value)
        if type(parsed) is dict and orjson.dumps(parsed) == value.encode():  # compact, and nothing lost
            return parsed, None, None
    except (ValueError, TypeError):  # not JSON, or nothing that orjson reads or writes
        pass
    try:
        parsed = loads(value)
        if isinstance(parsed, dict):
            return parsed, None if dumps(parsed) == value else value, None
        if isinstance(parsed, str) and isinstance(inner := loads(parsed), dict):
            return inner, value, "arguments_double_encoded"
    except (ValueError, RecursionError):
        return None, value, "arguments_not_json"
    return None, value, "arguments_not_object"


def _role(item: Any, notes: Notes, where: str) -> Role | None:
    if not isinstance(item, dict):
        notes.add("message_not_object", where, f"Expected an object, found {type(item).__name__}; left out.")
        return None
    logged = item.get("role")
    role = _ROLES.get(logged) if isinstance(logged, str) else None
    if role is None:
        notes.add("role_unknown", f"{where}.role", f"Role {logged!r} is not one we know; the message was left out.")
    elif role != logged:
        notes.add(f"role_{logged}", f"{where}.role")
    return role


def _text(content: Any, notes: Notes, where: str) -> tuple[str | None, bool]:
    """The text of content that is neither a string nor null: parts joined, anything else as JSON.

    The second value is False where the text does not say it all.
    """
    if not isinstance(content, list):
        notes.add("content_wrong_type", where)
        return dumps(content), False
    texts, whole = [], True
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
            whole = whole and len(part) == 2
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            notes.add("refusal", f"{where}[{index}]")
            texts.append(part["refusal"])
            whole = False
        else:
            detail = f"A part of type {kind!r} is not text; kept in `Message.extra`."
            notes.add("content_part_skipped", f"{where}[{index}]", detail)
            whole = False
    notes.add("content_parts", where)
    return "".join(texts) if texts else None, whole


def _tool_calls(item: dict[str, Any], index: int, pairing: _Pairing, notes: Notes, where: str) -> list[ToolCall]:
    logged = item.get("tool_calls")
    if logged is None:
        logged = []
    elif not isinstance(logged, list):
        notes.add("tool_calls_wrong_type", f"{where}.tool_calls")
        logged = []
    calls = []
    for k, call in enumerate(logged):
        spot = f"{where}.tool_calls[{k}]"
        if not isinstance(call, dict):
            notes.add("tool_calls_wrong_type", spot)
            continue
        function = call.get("function")
        function = function if isinstance(function, dict) else call  # some loggers leave the wrapper out
        call_id = pairing.call(call.get("id"), f"call_{index}_{k}", function, f"{spot}.id")
        calls.append(_tool_call(function, call_id, notes, spot))
        if not call.keys() <= _CALL_KNOWN:
            calls[-1].extra = {key: value for key, value in call.items() if key not in _CALL_KNOWN} or None
    legacy = item.get("function_call")
    if isinstance(legacy, dict):
        spot = f"{where}.function_call"
        notes.add("function_call_legacy", spot)
        calls.append(_tool_call(legacy, pairing.call(None, f"call_{index}_{len(calls)}", legacy, None), notes, spot))
    elif legacy is not None:
        notes.add("tool_calls_wrong_type", f"{where}.function_call")
    return calls


def _tool_call(function: dict[str, Any], call_id: str, notes: Notes, spot: str) -> ToolCall:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        notes.add("tool_name_missing", spot)
        name = "" if name is None else str(name)
    arguments, raw, code = parse_arguments(function.get("arguments"))
    if code is not None:
        notes.add(code, f"{spot}.arguments")
    return ToolCall(id=call_id, name=name, arguments=arguments, raw_arguments=raw)


class _Pairing:
    """Gives every call an id of its own, and every result the id of the call it answers."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.taken: set[str] = set()
        """Every id given."""
        self.copies: dict[str, int] = {}
        """How often an id was given that was taken before."""
        self.logged: dict[str, str] = {}
        """Id given → id as logged, where they differ."""
        self.open: dict[str, Any] = {}
        """Calls not answered yet, oldest first: id given → the tool's name."""
        self.orphans: dict[str, str] = {}
        """Results without a call so far: id → where."""

    def call(self, logged: Any, made_up: str, function: dict[str, Any], where: str | None) -> str:
        """The id for a call that the log calls `logged`; `where` is None in a format whose calls have no ids."""
        known = isinstance(logged, str) and bool(logged)
        if not known and where is not None:
            self.notes.add("tool_call_id_missing", where)
        base = given = logged if known else made_up
        while given in self.taken:
            copy = self.copies[base] = self.copies.get(base, 1) + 1
            given = f"{base}#{copy}"
        if given != base:
            self.logged[given] = base
            if known:
                self.notes.add("tool_call_id_duplicate", where or "", f"{logged!r} was used before; this is {given!r}.")
        self.taken.add(given)
        self.open[given] = function.get("name")
        return given

    def answer(self, logged: Any, name: str | None, index: int, where: str, has_ids: bool) -> str:
        """The id of the call that a result answers: by the id it names, else by its tool's name, else the oldest."""
        if not isinstance(logged, str) or not logged:
            if has_ids:
                self.notes.add("tool_result_id_missing", f"{where}.tool_call_id")
            if not self.open:
                self.notes.add("tool_result_orphan", where)
                return f"result_{index}"
            oldest = next(iter(self.open))
            answered = next((given for given, tool in self.open.items() if name is not None and tool == name), oldest)
            del self.open[answered]
            return answered
        same = [given for given in self.open if self.logged.get(given, given) == logged]
        if same:
            del self.open[same[0]]
            return same[0]
        last = next((given for given, base in reversed(self.logged.items()) if base == logged), logged)
        if last in self.taken:
            self.notes.add("tool_result_repeated", where)
            return last
        self.notes.add("tool_result_orphan", where)
        self.orphans[logged] = where
        return logged

    def close(self) -> None:
        """A call that stayed open while its result came earlier: the order is wrong, not merely the beginning cut."""
        for given in self.open:
            if (logged := self.logged.get(given, given)) in self.orphans:
                self.notes.add("result_before_call", self.orphans[logged], f"The result of {given!r} stands before it.")
