"""Scripted agents: functions from the conversation so far to the agent's next message."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

from rlkit.envs.environment import Environment, Episode
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, ToolCall, Trace

Agent = Callable[[list[Message]], Message]


def play(
    environment: Environment, agent: Agent, task: Task, seed: int = 0, trace_id: str = "", max_turns: int = 8
) -> tuple[Trace, Episode]:
    """Let an agent act on a task until it calls no tool; returns what was said and the episode as it was left.

    The agent gets a copy of the conversation: what it does to it changes nothing. Raises `ValueError` where it speaks
    as anybody else than the assistant.
    """
    episode = environment.reset(task, seed)
    messages, shown = copy.deepcopy(task.messages), copy.deepcopy(task.messages)
    for _ in range(max_turns):
        message = agent(list(shown))
        if message.role != "assistant":
            raise ValueError(f"an agent's message has the role assistant, not {message.role!r}")
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            seen = episode.step(call)
            messages.append(Message(role="tool", content=seen.content, tool_call_id=call.id, name=call.name))
        shown += copy.deepcopy(messages[len(shown) :])
    return Trace(id=trace_id or task.id, messages=messages, tools=environment.schemas), episode


def recorded(trace: Trace) -> Agent:
    """An agent that says again, word for word, what the agent of a trace said; silent once that is over."""
    said = [message for message in trace.messages if message.role == "assistant"]

    def agent(messages: list[Message]) -> Message:
        turn = sum(message.role == "assistant" for message in messages)
        return said[turn] if turn < len(said) else silent(messages)

    return agent


def silent(messages: list[Message]) -> Message:
    """The null agent: calls nothing, says nothing."""
    return Message(role="assistant", content="")


def echo(messages: list[Message]) -> Message:
    """Says what the user said last."""
    text = next((m.content for m in reversed(messages) if m.role == "user" and m.content), "")
    return Message(role="assistant", content=text)


def calling(calls: Sequence[tuple[str, Mapping[str, object]]], reply: str) -> Agent:
    """An agent that makes these calls, (tool, arguments), one a turn, then says `reply`, whatever the tools said."""

    def agent(messages: list[Message]) -> Message:
        turn = sum(message.role == "assistant" for message in messages)
        if turn >= len(calls):
            return Message(role="assistant", content=reply)
        name, arguments = calls[turn]
        return Message(role="assistant", tool_calls=[ToolCall(f"call_{turn + 1}", name, dict(arguments))])

    return agent
