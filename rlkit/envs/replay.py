"""An environment replayed from logs: recorded tool results answer the calls that production made.

No tool is written. A call that was recorded gets what it got in production; one that nearly was is answered by a rule
you declare (`Near`); anything else says that it was not recorded, and is counted as such. That is enough to grade an
agent that stays close to the recorded path, and to see how soon another one leaves it; it is not a world in which
new things can be tried.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rlkit.envs.environment import Environment, Episode, Observation, Tool
from rlkit.envs.mining import NotATask
from rlkit.envs.task import Task
from rlkit.logs.trace import ToolCall, Trace

Match = Literal["exact", "near", "again", "borrowed", "unmatched"]


@dataclass(frozen=True)
class Near:
    """When a call counts as a recorded one although its arguments differ."""

    ignore: Collection[str] = ()
    """Names of arguments that do not matter, such as `request_id`."""
    text: bool = True
    """Upper and lower case and spaces do not matter in texts, and a number may be written as one: `" 7"` is `7`."""

    def key(self, call: ToolCall) -> str:
        """Calls with the same key are near each other."""
        if call.arguments is None:
            return _exact(call)
        arguments = {name: value for name, value in call.arguments.items() if name not in self.ignore}
        return _text([call.name, _loose(arguments) if self.text else arguments])


class ReplayEnvironment(Environment):
    """Answers each task's calls from its own recording.

    The k-th identical call gets the k-th recorded answer; after the last, the last again (`again`). Of a session's
    recorded answers none is withheld because something recorded before it has not been done yet. Calls of the tools in
    `borrow`, whose answers do not depend on the session (a calculator, a catalogue), are answered from any session.
    """

    def __init__(
        self, traces: Iterable[Trace], near: Near | None = None, borrow: Collection[str] = (), name: str = "replay"
    ) -> None:
        self.traces, self.near, self.borrow = list(traces), near or Near(), frozenset(borrow)
        offered = [tool for trace in self.traces for tool in trace.tools]
        tools = {tool["name"]: tool for tool in offered if isinstance(tool.get("name"), str)}
        called = {call.name for trace in self.traces for call in trace.tool_calls}
        schemas = [tools.get(name, {"name": name}) for name in sorted({*tools, *called} - {""})]
        super().__init__(name, [_as_tool(schema) for schema in schemas])
        self._shared: dict[str, str] = {}
        for trace in self.traces:
            for call, result in trace.answered:
                if call.name in self.borrow and result is not None:
                    self._shared.setdefault(_exact(call), result.content or "")

    def task(self, trace: Trace) -> Task:
        """The task that a session was: what the agent saw before its first turn, and the recording.

        Raises `NotATask` where there is nothing before the agent's first turn.
        """
        first = next((at for at, m in enumerate(trace.messages) if m.role == "assistant"), len(trace.messages))
        if first == 0:
            raise NotATask("nothing before the agent's first turn")
        recording = [
            {"exact": _exact(call), "near": self.near.key(call), "content": result.content or ""}
            for call, result in trace.answered
            if result is not None
        ]
        return Task(
            id=f"replay-{trace.id}",
            messages=trace.messages[:first],
            state={"recording": recording, "used": {}, "matches": {}},
            source_trace_ids=[trace.id],
        )

    def reset(self, task: Task, seed: int = 0) -> Episode:
        """An episode whose state counts how calls were answered, in `state["matches"]`."""
        return _ReplayEpisode(self, task, seed)

    def shared(self, call: ToolCall) -> str | None:
        """Another session's answer to this very call, where its tool is one of `borrow`."""
        return self._shared.get(_exact(call))


class _ReplayEpisode(Episode):
    environment: ReplayEnvironment

    @cached_property
    def _places(self) -> dict[tuple[str, str], list[int]]:
        """Where in the recording, which never changes, a key stands."""
        places: dict[tuple[str, str], list[int]] = {}
        for at, entry in enumerate(self.state["recording"]):
            for kind in ("exact", "near"):
                places.setdefault((kind, entry[kind]), []).append(at)
        return places

    def step(self, call: ToolCall) -> Observation:
        """The recorded answer, word for word."""
        match, content = self._find(call)
        matches = self.state["matches"]
        matches[match] = matches.get(match, 0) + 1
        if content is None:
            told = {"error": f"not recorded: this session has no answer to {call.name} with these arguments"}
            return Observation(_text(told), error=True)
        return Observation(content)

    def _find(self, call: ToolCall) -> tuple[Match, str | None]:
        recording, used = self.state["recording"], self.state["used"]
        for key, value in (("exact", _exact(call)), ("near", self.environment.near.key(call))):
            places = self._places.get((key, value))
            if places:
                at = next((at for at in places if str(at) not in used), places[-1])
                match: Match = "again" if str(at) in used else "exact" if key == "exact" else "near"
                used[str(at)] = True
                return match, recording[at]["content"]
        shared = self.environment.shared(call)
        return ("unmatched", None) if shared is None else ("borrowed", shared)


def matches(episodes: Iterable[Episode]) -> Counter[Match]:
    """How calls were answered, over all these replayed episodes."""
    counts: Counter[Match] = Counter()
    for episode in episodes:
        counts.update(episode.state["matches"])
    return counts


def _exact(call: ToolCall) -> str:
    return _text([call.name, call.raw_arguments if call.arguments is None else call.arguments])


def _loose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _loose(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_loose(inner) for inner in value]
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if value is None or isinstance(value, bool):
        return value
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _as_tool(schema: dict[str, Any]) -> Tool:
    def never(episode: Episode, **arguments: Any) -> Any:
        raise AssertionError("a replayed episode answers from its recording")

    parameters = schema.get("parameters")
    described = schema.get("description")
    return Tool(
        schema["name"],
        described if isinstance(described, str) else "",
        parameters if isinstance(parameters, dict) else {"type": "object", "additionalProperties": True},
        never,
    )
