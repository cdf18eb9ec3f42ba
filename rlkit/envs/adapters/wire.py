"""An episode played message by message, and messages as JSON text: what every adapter is made of.

All adapters go through `Session`, so a task is worth the same in every framework.
"""

from __future__ import annotations

import copy
import importlib
import json
from dataclasses import dataclass
from typing import Any

from rlkit.envs.environment import Environment, InfrastructureError
from rlkit.envs.grading import Ending, Grade, Rubric
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, ToolCall, Trace


@dataclass(frozen=True)
class Turn:
    """What came back on one message of the agent."""

    messages: list[Message]
    """The tools' answers."""
    terminated: bool
    """The agent said its last word, or the environment failed."""
    truncated: bool
    """Its turns are over."""
    grade: Grade | None
    """At the end, else None."""

    @property
    def reward(self) -> float | None:
        """The grade's reward at the end (None where it is masked); 0 before."""
        return 0.0 if self.grade is None else self.grade.reward


class Session:
    """One episode of a task, as `run_episode` plays it, for agents that live elsewhere."""

    def __init__(self, environment: Environment, rubric: Rubric, task: Task, seed: int = 0, max_turns: int = 8) -> None:
        self.task, self.rubric, self.max_turns = task, rubric, max_turns
        self.episode = environment.reset(task, seed)
        self.messages = copy.deepcopy(task.messages)
        self.turns = 0
        self.over = False

    def step(self, message: Message) -> Turn:
        """The agent says `message`. Raises `ValueError` for another role, `RuntimeError` once the episode is over."""
        if self.over:
            raise RuntimeError("the episode is over: reset first")
        if message.role != "assistant":
            raise ValueError(f"an agent's message has the role assistant, not {message.role!r}")
        self.messages.append(message)
        self.turns += 1
        if not message.tool_calls:
            return self._end([], "completed")
        answers: list[Message] = []
        for call in message.tool_calls:
            try:
                seen = self.episode.step(call)
            except InfrastructureError:
                return self._end(answers, "infra_error")
            answers.append(Message(role="tool", content=seen.content, tool_call_id=call.id, name=call.name))
        self.messages += answers
        return self._end(answers, "truncated") if self.turns >= self.max_turns else Turn(answers, False, False, None)

    def _end(self, answers: list[Message], status: Ending) -> Turn:
        self.over = True
        trace = Trace(id=self.task.id, messages=self.messages, tools=self.episode.environment.schemas)
        grade = self.rubric.grade(self.task, trace, self.episode.state, status)
        return Turn(answers, status != "truncated", status == "truncated", grade)


def to_wire(message: Message) -> dict[str, Any]:
    """A message as plain JSON; arguments stay objects, what is absent is left out."""
    told: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": c.raw_arguments if c.arguments is None else c.arguments}
            for c in message.tool_calls
        ]
    for key in ("tool_call_id", "name"):
        if (value := getattr(message, key)) is not None:
            told[key] = value
    return told


def from_wire(said: Any, turn: int = 0) -> Message:
    """What an agent said: JSON as `to_wire` writes it, or text. Whatever is no such JSON is text, kept word for word.

    Calls without an id are numbered within the turn; arguments that are no object are kept as text.
    """
    if isinstance(said, str):
        text = said
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return Message(role="assistant", content=text)
        if not isinstance(said, dict) or not said.keys() & {"content", "tool_calls"}:
            return Message(role="assistant", content=text)
    calls = said.get("tool_calls") or []
    content = said.get("content")
    return Message(
        role="assistant",
        content=content if isinstance(content, str) else None,
        tool_calls=[_call(call, turn, n) for n, call in enumerate(calls if isinstance(calls, list) else [])],
    )


def _call(call: Any, turn: int, n: int) -> ToolCall:
    call = call if isinstance(call, dict) else {}
    arguments, id = call.get("arguments"), call.get("id")
    raw = None if isinstance(arguments, dict) else arguments if isinstance(arguments, str) else json.dumps(arguments)
    if raw is not None:
        try:
            arguments = json.loads(raw)
        except (ValueError, RecursionError):
            arguments = None
    parsed = arguments if isinstance(arguments, dict) else None
    return ToolCall(str(id or f"call_{turn}_{n}"), str(call.get("name", "")), parsed, raw if parsed is None else None)


def package(name: str, install: str) -> Any:
    """The module `name`. Raises `ImportError` saying what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this adapter needs {name!r}: pip install {install}") from error
