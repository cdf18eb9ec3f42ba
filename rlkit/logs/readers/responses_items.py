"""The items of OpenAI's Responses as OpenAI-style chat messages.

Reasoning, a text and the calls that follow it are one message of the assistant; anything else in between begins the
next. A call that a hosted tool answers in the same item becomes a call and its result. Items that are neither message,
call nor result (a search without its results, a reference to another item) are kept in `extra["items"]` of the
message they stand at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.report import Notes

QUIET = frozenset({"content_parts", "arguments_object"})
"""Codes of what is normal in this format."""

MADE_UP = "rlkit_"
"""What the ids contain that our writer makes up."""
EXACT = "rlkit.message"
"""The key under which our writer puts a message that items can't hold; null in the other items of that message."""
NEW = "rlkit.new_message"
"""True in the first item of a reply that follows another one."""

_HOSTED = {  # by type: (keys of the arguments, key of the result)
    "mcp_call": ((), "output"),
    "code_interpreter_call": (("code", "container_id"), "outputs"),
    "file_search_call": (("queries",), "results"),
    "web_search_call": (("action",), "results"),
    "image_generation_call": (("action",), "result"),
}
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input", "apply_patch_call": "operation"}
_MESSAGE_KNOWN = frozenset({"type", "role", "content"})
_REASONING_KNOWN = frozenset({"type", NEW})
_CALL_KNOWN = frozenset({"type", "call_id", "name", "function", NEW})
_RESULT_KNOWN = frozenset({"type", "call_id", "output"})
_NOT_OBJECT = ("arguments_not_json", "arguments_not_object")
_ROLES = ("user", "assistant", "system", "developer")


def fits(item: Any) -> bool:
    """Whether only this format has such an item."""
    kind = item.get("type") if isinstance(item, dict) else None
    if kind == "message":
        return item.get("role") in _ROLES and "content" in item
    return isinstance(kind, str) and (
        (kind.endswith(("_call", "_call_output")) and ("call_id" in item or kind in _HOSTED))
        or (kind == "reasoning" and ("summary" in item or "encrypted_content" in item))
    )


class Items:
    """What the items say, as OpenAI-style chat messages, and where each stands."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.root = ""
        self.messages: list[Any] = []
        self.paths: list[str] = []
        self.turn: dict[str, Any] | None = None
        """The assistant's message that may go on."""
        self.where = ""
        self.thought = False
        """Whether the open message holds reasoning alone."""
        self.aside: list[Any] = []
        """Items that wait for a message to stand at."""
        self.calls: dict[str, tuple[str, bool]] = {}
        """By where a call stands in its message: where its item stands, and whether its arguments are free text."""
        self.call_ids: dict[str, Any] = {}
        """By the id of an item: the id of its call, for results that name the item."""

    def add(self, logged: Any, key: str) -> None:
        """All items under a key of the record."""
        if isinstance(logged, str):
            self._append({"role": "user", "content": logged}, f"{self.root}{key}")
        elif isinstance(logged, list):
            for index, item in enumerate(logged):
                self._add(item, f"{self.root}{key}[{index}]")
        elif logged is not None:
            self._append(logged, f"{self.root}{key}")

    def instruct(self, told: Any, key: str) -> None:
        """The instructions: a text, or items."""
        if isinstance(told, list):
            self.add(told, key)
        else:
            self._append({"role": "system", "content": told}, f"{self.root}{key}")

    def flush(self) -> None:
        """The assistant's message ends here."""
        if self.turn is not None:
            self.messages.append(self.turn)
            self.paths.append(self.where)
            self.turn, self.thought = None, False

    def settle(self, notes: Notes) -> None:
        """What is odd in a call stands at its item; free text is no broken JSON."""
        settled = []
        for note in notes:
            inside = note.path.removeprefix(notes.root)
            spot, dot, rest = inside.rpartition(".") if inside not in self.calls else (inside, "", "")
            place, free = self.calls.get(spot, ("", False))
            if not (free and note.code in _NOT_OBJECT):
                settled.append(replace(note, path=f"{notes.root}{place}{dot}{rest}") if place else note)
        notes[:] = settled

    def _add(self, item: Any, where: str) -> None:
        kind = item.get("type") if type(item) is dict else None
        if kind is None:
            kind = "message"
        if type(item) is dict and EXACT in item:
            if item[EXACT] is not None:
                self._append(item[EXACT], where)
        elif kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            self._call(item, kind, where)
        elif kind == "function_call_output":
            self._result(item, kind, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif type(kind) is not str:
            self._aside(item, kind, where)
        elif kind in _HOSTED and "call_id" not in item:
            self._hosted(item, kind, where)
        elif kind.endswith("_call") and "call_id" in item:
            self._call(item, kind, where)
        elif kind.endswith("_call_output"):
            self._result(item, kind, where)
        else:
            self._aside(item, kind, where)

    def _message(self, item: Any, where: str) -> None:
        if type(item) is not dict:
            self._append(item, where)
            return
        content = _simple(item.get("content"))
        message = {"role": item.get("role"), "content": content} | _besides(item, _MESSAGE_KNOWN)
        if item.get("role") != "assistant":
            self._append(message, where)
        elif self.turn is not None and self.thought and NEW not in item:
            self.turn |= message
            self.thought = False
        else:
            message.pop(NEW, None)
            self._open(message, where)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        turn = self.turn
        if turn is None or not self.thought or item.get(NEW) is True:
            turn = self._open({"role": "assistant", "content": None}, where)
            self.thought = True
        texts = [text for key in ("content", "summary") if (text := _texts(item.get(key)))][:1]
        before = turn.get("reasoning_content")
        if texts:
            turn["reasoning_content"] = texts[0] if before is None else f"{before}\n\n{texts[0]}"
        more = _besides(item, _REASONING_KNOWN)
        parts = item.get("content") or item.get("summary")
        if (
            sum(value not in (None, []) for value in more.values()) > 1
            or before is not None
            or not texts
            or type(parts) is not list
            or len(parts) > 1
        ):
            turn.setdefault("reasoning_items", []).append(item)

    def _call(self, item: dict[str, Any], kind: str, where: str) -> None:
        turn = self.turn
        if turn is None or item.get(NEW) is True:
            turn = self._open({"role": "assistant", "content": None}, where)
        self.thought = False
        key = _ARGUMENTS.get(kind, "action")
        name = item.get("name")
        if name is None and kind != "function_call":
            name = kind.removesuffix("_call")
        call: dict[str, Any] = {
            "id": item.get("call_id"), "type": "function",
            "function": {"name": name, "arguments": item.get(key)},
        }  # fmt: skip
        if kind != "function_call":
            call["item_type"] = kind
        if rest := _besides(item, _CALL_KNOWN):
            rest.pop(key, None)
            if "id" in rest:
                call["item_id"] = rest.pop("id")
            call |= rest
        calls = turn.setdefault("tool_calls", [])
        self.calls[f"{self.where}.tool_calls[{len(calls)}]"] = where, kind == "custom_tool_call"
        if kind == "local_shell_call" and type(item.get("id")) is str:
            self.call_ids[item["id"]] = item.get("call_id")
        calls.append(call)

    def _result(self, item: dict[str, Any], kind: str, where: str) -> None:
        output = item.get("output")
        rest = _besides(item, _RESULT_KNOWN)
        if kind not in ("function_call_output", "custom_tool_call_output"):
            rest["item_type"] = kind
        if type(output) is dict:  # a screenshot
            output = [output]
        call_id = item.get("call_id")
        if call_id is None and type(own := item.get("id")) is str:  # a local shell's results have one id only
            call_id = self.call_ids.get(own, own)
        self._append({"role": "tool", "tool_call_id": call_id, "content": _simple(output), **rest}, where)

    def _hosted(self, item: dict[str, Any], kind: str, where: str) -> None:
        """A call that OpenAI made, with its result where the log has it."""
        keys, key = _HOSTED[kind]
        result = item.get(key) if item.get(key) is not None else item.get("error")
        if result is None:
            self._aside(item, kind, where)
            return
        call = {"type": kind, "call_id": item.get("id"), "name": item.get("name", kind.removesuffix("_call"))}
        given = {name: item[name] for name in keys if item.get(name) is not None}
        call["action"] = item.get("arguments") if kind == "mcp_call" else given
        taken = _CALL_KNOWN | {"id", key, "error", "arguments", *keys}
        call |= {other: value for other, value in item.items() if other not in taken}
        self._call(call, kind, where)
        answer = {"role": "tool", "tool_call_id": item.get("id"), "item_type": kind, "error": item.get("error")}
        self._append(answer | {"content": result if type(result) is str else dumps(result)}, where)

    def _aside(self, item: Any, kind: Any, where: str) -> None:
        detail = f"An item of type {kind!r} is no message, call or result; kept in `Message.extra`."
        self.notes.add("item_kept_aside", where, detail)
        if self.turn is not None:
            self.turn["items"] = [*self.turn.get("items", ()), item]
        elif self.messages and type(last := self.messages[-1]) is dict:
            before = last.get("items")
            self.messages[-1] = last | {"items": [*(before if type(before) is list else ()), item]}
        else:
            self.aside.append(item)

    def _open(self, message: dict[str, Any], where: str) -> dict[str, Any]:
        """A message of the assistant that may go on."""
        self.flush()
        if self.aside:
            message, self.aside = message | {"items": self.aside}, []
        self.turn, self.where = message, where
        return message

    def _append(self, message: Any, where: str) -> None:
        self.flush()
        if self.aside and type(message) is dict:
            message, self.aside = message | {"items": self.aside}, []
        self.messages.append(message)
        self.paths.append(where)


def _simple(content: Any) -> Any:
    """The text of one part that is nothing but text; else the content as it is."""
    if type(content) is list and len(content) == 1 and type(part := content[0]) is dict:
        text = part.get("text") if part.get("type") in ("input_text", "output_text") else None
        if type(text) is str and all(key in ("type", "text") or value == [] for key, value in part.items()):
            return text
    return content


def _texts(parts: Any) -> str:
    """The texts of a reasoning item's parts."""
    if type(parts) is not list:
        return ""
    texts = [part["text"] for part in parts if type(part) is dict and type(part.get("text")) is str]
    return "\n\n".join(texts)


def _besides(item: dict[str, Any], taken: frozenset[str]) -> dict[str, Any]:
    """What an item says beside the keys `taken`, but not that it is complete, nor an id that our writer made up."""
    rest = {key: value for key, value in item.items() if key not in taken}
    if rest.get("status") == "completed":
        del rest["status"]
    if type(own := rest.get("id")) is str and MADE_UP in own:
        del rest["id"]
    return rest
