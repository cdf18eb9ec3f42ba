"""`Environment`, `Episode`, `Tool`: the world the agent acts in, with a state that is plain JSON.

An episode's whole condition is `(state, draws)` under a seed: `snapshot` is one JSON text, and `restore` and
`fork` are exact, randomness included. What the agent does wrong comes back to it as an observation; only the
environment's own failures raise.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Concatenate

from rlkit.envs.task import Task
from rlkit.logs.trace import ToolCall

State = dict[str, Any]


class ToolError(Exception):
    """A tool refuses a call (no such order, gateway timeout); the agent sees the message."""


class InfrastructureError(Exception):
    """The environment itself failed: nobody's fault among the agents; the rollout is masked, never scored 0."""


ToolFunction = Callable[Concatenate["Episode", ...], Any]
"""`run(episode, **arguments)` changes `episode.state` in place and returns what the agent sees (JSON)."""


@dataclass(frozen=True)
class Tool:
    """A function the agent may call, with the JSON schema its arguments must satisfy.

    Arguments the schema does not name are refused unless it says `additionalProperties: true`.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: ToolFunction

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as offered to the agent."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @cached_property
    def _validator(self) -> Any:
        import jsonschema

        return jsonschema.Draft202012Validator({"additionalProperties": False} | self.parameters)

    def complaint(self, arguments: dict[str, Any]) -> str | None:
        """What is wrong with `arguments` by the schema, in one sentence; None where nothing is."""
        error = next(iter(self._validator.iter_errors(arguments)), None)
        if error is None:
            return None
        where = ".".join(str(part) for part in error.absolute_path)
        return f"{where}: {error.message}" if where else str(error.message)


@dataclass(frozen=True)
class Observation:
    """What a call returned to the agent: JSON text, and whether it is an error."""

    content: str
    error: bool = False


class Episode:
    """One live run of a task. Single-use; never shared between rollouts."""

    def __init__(self, environment: Environment, task: Task, seed: int) -> None:
        self.environment = environment
        self.task = task
        self.seed = seed
        self.state: State = copy.deepcopy(task.state)
        self.draws = 0

    def step(self, call: ToolCall) -> Observation:
        """Run one tool call. A bad call is answered with `{"error": …}`; the state is then unchanged.

        The throws of `chance` stay spent even then, so that a call that timed out may be tried again.
        Raises `InfrastructureError` where the tool returns what is not JSON.
        """
        tool = self.environment.by_name.get(call.name)
        if tool is None:
            return _error(f"unknown tool {call.name!r}; tools: {', '.join(self.environment.by_name)}")
        if call.arguments is None:
            return _error("arguments are not a JSON object")
        try:
            text = _dumps(call.arguments)
            text.encode()
        except ValueError:
            return _error("arguments hold what JSON text cannot: NaN, infinity or half a surrogate pair")
        complaint = tool.complaint(call.arguments)
        if complaint is not None:
            return _error(complaint)
        before = copy.deepcopy(self.state)
        try:
            result = tool.run(self, **json.loads(text))
        except ToolError as error:
            self.state = before
            return _error(str(error))
        try:
            return Observation(_dumps(result))
        except (TypeError, ValueError) as error:
            raise InfrastructureError(f"tool {tool.name!r} returned what is not JSON: {error}") from error

    def chance(self, probability: float) -> bool:
        """A seeded coin inside the episode: the same task, seed and history give the same throws.

        The task is part of it: tasks that share a seed must not all meet a flaky tool at the same throw.
        """
        self.draws += 1
        digest = hashlib.blake2b(f"{self.task.id}:{self.seed}:{self.draws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64 < probability

    def snapshot(self) -> str:
        """The whole condition of the episode as JSON text.

        Raises `InfrastructureError` where a tool left something in the state that JSON would change (a tuple, a set).
        """
        try:
            plain = json.loads(_dumps(self.state)) == self.state
        except (TypeError, ValueError):
            plain = False
        if not plain:
            raise InfrastructureError(f"environment {self.environment.name!r}: the state is not plain JSON")
        return _dumps({"task": self.task.id, "seed": self.seed, "draws": self.draws, "state": self.state})

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot of this task. Raises `ValueError` for another task's snapshot."""
        saved = json.loads(snapshot)
        if saved["task"] != self.task.id:
            raise ValueError(f"snapshot is of task {saved['task']!r}, this episode plays {self.task.id!r}")
        self.seed, self.draws, self.state = saved["seed"], saved["draws"], saved["state"]

    def fork(self, seed: int | None = None) -> Episode:
        """An independent copy from here on; with `seed`, its future randomness differs."""
        twin = self.environment.reset(self.task, self.seed)
        twin.restore(self.snapshot())
        if seed is not None:
            twin.seed = seed
        return twin


class Environment:
    """A named set of tools; `reset` starts an episode of a task."""

    def __init__(self, name: str, tools: Sequence[Tool]) -> None:
        self.name = name
        self.tools = tuple(tools)
        self.by_name = {tool.name: tool for tool in self.tools}
        if len(self.by_name) != len(self.tools):
            raise ValueError(f"environment {name!r}: two tools share a name")

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as offered to the agent."""
        return [tool.schema for tool in self.tools]

    def reset(self, task: Task, seed: int = 0) -> Episode:
        """A fresh episode; the task's own state is copied, never touched."""
        return Episode(self, task, seed)


def _dumps(value: Any) -> str:
    """JSON as a tool returns it: keys in order, no spaces, NaN refused (plain JSON has none)."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _error(message: str) -> Observation:
    return Observation(_dumps({"error": message}), error=True)
