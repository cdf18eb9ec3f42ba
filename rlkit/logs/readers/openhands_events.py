"""OpenHands events into conversations.

An action that the model asked for has the model's whole answer in `tool_call_metadata`: its message is taken from
there, once for all the calls of one answer. An action without (older versions) becomes a call named by the action, its
`args` the arguments, its `thought` the text. An observation is the result of the call that its metadata or its `cause`
names. Between an action `delegate` and its observation another agent speaks: a conversation of its own. Events that
are no part of a conversation (a new state, a recall, …) are in the raw record only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.readers.kept import kept_in
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.report import Notes
from rlkit.logs.trace import Message

_SILENT_ACTIONS = frozenset({
    "null", "start", "pause", "resume", "stop", "change_agent_state", "recall", "condensation_request", "summarize",
    "loop_recovery",
})  # fmt: skip
_SILENT = frozenset({
    "null", "agent_state_changed", "recall", "condense", "microagent", "workspace_context", "success", "loop_detection",
})  # fmt: skip
_SAID_TO_AGENT = frozenset({"error", "chat", "message", "user_rejected"})
"""Observations that are told to the agent as the user's words where they answer no call."""


def is_event(value: Any) -> bool:
    """Whether a value may be an event: an action or an observation, not both."""
    return isinstance(value, dict) and isinstance(value.get("action"), str) != isinstance(value.get("observation"), str)


@dataclass
class Conversation:
    """What one agent said and did; `call_id` is the call that started it."""

    call_id: str | None = None
    messages: list[Message] = field(default_factory=list)
    tools: Any = None
    events: list[Any] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    """The messages in OpenAI's words."""
    paths: list[str] = field(default_factory=list)


def conversations(events: Sequence[tuple[Any, str]], notes: Notes) -> list[Conversation]:
    """The conversations in `events`, each with its path: first the main one, then those that it delegated."""
    story = _Story(notes)
    for event, path in events:
        if is_event(event):
            story.tell(event, path)
        else:
            notes.add("event_unknown", path)
    for conversation in story.all:
        conversation.messages = parse_messages(conversation.items, notes, paths=conversation.paths)
    return story.all


class _Story:
    """The events so far: who is speaking, and which call came of which event."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.all = [Conversation()]
        self.speaking = [self.all[0]]
        """The main agent, its delegate, the delegate's delegate, …"""
        self.calls: dict[Any, str] = {}
        """The number of an event → the id of its call."""
        self.answers: dict[str, dict[str, Any]] = {}
        """The id of a model's answer → its message."""

    def tell(self, event: dict[str, Any], path: str) -> None:
        """Go on with one event."""
        self.speaking[-1].events.append(event)
        if isinstance(event.get("action"), str):
            self._action(event, path)
        else:
            self._observation(event, path)

    def _action(self, event: dict[str, Any], path: str) -> None:
        action, user = event["action"], event.get("source") == "user"
        args = event["args"] if isinstance(event.get("args"), dict) else {}
        called = event.get("tool_call_metadata")
        call_id = None
        if isinstance(called, dict):
            call_id = self._answer(event, args, called, path)
        elif action == "system":
            self.speaking[-1].tools = self.speaking[-1].tools or args.get("tools")
            self._add({"role": "system", "content": args.get("content")}, event, path)
        elif action == "message":
            said = {"role": "user" if user else "assistant", "content": args.get("content")}
            self._add(said | _some(args, "image_urls", "file_urls"), event, path)
        elif action == "condensation":
            self.notes.add("history_compacted", path)
        elif action not in _SILENT_ACTIONS and not (user and action in ("finish", "reject")):
            call_id = f"event_{event['id']}" if isinstance(event.get("id"), int) else None
            call = {"id": call_id, "name": action, "arguments": _arguments(args)}
            said = {"role": "user" if user else "assistant", "content": args.get("thought") or None}
            self._add(said | {"tool_calls": [call]}, event, path)
        if call_id is not None and isinstance(event.get("id"), int):
            self.calls[event["id"]] = call_id
        if action == "delegate":
            self.all.append(Conversation(call_id))
            self.speaking.append(self.all[-1])

    def _answer(self, event: dict[str, Any], args: dict[str, Any], called: dict[str, Any], path: str) -> str | None:
        """A call of the model's: with the first of an answer comes the whole message."""
        call_id = called.get("tool_call_id")
        call_id = call_id if isinstance(call_id, str) else None
        response = called.get("model_response")
        response = response if isinstance(response, dict) else {}
        answer_id = response.get("id")
        known = self.answers.get(answer_id) if isinstance(answer_id, str) else None
        if known is None:
            message = _first_choice(response)
            known = _said(message) if message else {"role": "assistant", "content": args.get("thought") or None}
            known |= _some(response, "model", "usage")
            if event.get("source") == "user":
                known["role"] = "user"
            if isinstance(answer_id, str):
                self.answers[answer_id] = known
            self._add(known, event, path)
        calls = known["tool_calls"] if isinstance(known.get("tool_calls"), list) else []
        if call_id is None or call_id not in [call.get("id") for call in calls if isinstance(call, dict)]:
            name = called.get("function_name")
            name = name if isinstance(name, str) else event["action"]
            known["tool_calls"] = [*calls, {"id": call_id, "name": name, "arguments": _arguments(args)}]
        return call_id

    def _observation(self, event: dict[str, Any], path: str) -> None:
        kind, called, cause = event["observation"], event.get("tool_call_metadata"), event.get("cause")
        called = called if isinstance(called, dict) else {}
        call_id = called.get("tool_call_id")
        if not isinstance(call_id, str):
            call_id = self.calls.get(cause) if isinstance(cause, int) else None
        if kind == "delegate" and len(self.speaking) > 1:
            self.speaking.pop()
            self.speaking[-1].events.append(event)
        said = {"content": event.get("content")} | _some(event, "extras", "success")
        if call_id is None and kind in _SAID_TO_AGENT:
            self._add({"role": "user", "observation": kind} | said, event, path)
        elif call_id is not None or kind not in _SILENT:
            name = called.get("function_name")
            self._add({"role": "tool", "tool_call_id": call_id, "name": name} | said, event, path)

    def _add(self, said: dict[str, Any], event: dict[str, Any], path: str) -> None:
        if event.get("timestamp") is not None:
            said["timestamp"] = event["timestamp"]
        said |= kept_in(event) or {}
        self.speaking[-1].items.append(said)
        self.speaking[-1].paths.append(path)


def _first_choice(response: dict[str, Any]) -> dict[str, Any] | None:
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    return message if isinstance(message, dict) else None


def _said(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant"} | {key: item for key, item in message.items() if item is not None}


def _some(value: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Those of the keys that say something."""
    return {key: value[key] for key in keys if value.get(key) not in (None, [], {})}


def _arguments(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an action that came without the model's own words."""
    return {key: item for key, item in args.items() if key != "thought" and item is not None}
