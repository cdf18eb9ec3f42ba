"""Somebody else's environment as one of ours: a tool `act`, and the reward it paid as the grade.

A foreign environment keeps its state to itself. What ours keeps is the seed and the actions so far, as plain JSON; a
snapshot is restored, and a fork made, by playing them again. That is exact for environments that are deterministic
under a seed, and an `InfrastructureError` where one turns out not to be, as is whatever it raises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rlkit.envs.environment import Environment, Episode, InfrastructureError, Tool, ToolError
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.logs.trace import Message


class Step(NamedTuple):
    """What a foreign environment answers: an observation as JSON, and its reward."""

    observation: Any
    reward: float | None
    terminated: bool
    truncated: bool


class Foreign(Protocol):
    """What an adapter makes of a foreign environment."""

    def reset(self, seed: int, options: dict[str, Any]) -> Any:
        """The first observation, as JSON."""
        ...

    def act(self, action: Any) -> Step:
        """One action."""
        ...


class ForeignEnvironment(Environment):
    """One tool, `act(action)`, over a foreign environment made anew for each episode."""

    def __init__(self, name: str, make: Callable[[], Foreign], action: dict[str, Any]) -> None:
        schema = {"type": "object", "properties": {"action": action}, "required": ["action"]}
        super().__init__(name, [Tool("act", "Take one action in the environment.", schema, _act)])
        self.make = make

    def task(self, seed: int, options: dict[str, Any] | None = None, system: str = "") -> Task:
        """The task of playing under `seed`; the first observation is the user's message."""
        first = self.make().reset(seed, options or {})
        messages = [Message(role="system", content=system)] if system else []
        messages.append(Message(role="user", content=json.dumps(first, ensure_ascii=False)))
        state = {
            "seed": seed,
            "options": options or {},
            "actions": [],
            "digest": "",
            "total": 0.0,
            "masked": False,
            "over": False,
        }
        return Task(id=f"{self.name}-{seed}", messages=messages, state=state)

    def reset(self, task: Task, seed: int = 0) -> Episode:
        """An episode of a task; the luck is the task's own seed."""
        return _ForeignEpisode(self, task, seed)


class _ForeignEpisode(Episode):
    """An episode whose live environment follows `state["actions"]`, however that came to be."""

    environment: ForeignEnvironment

    def __init__(self, environment: Environment, task: Task, seed: int) -> None:
        super().__init__(environment, task, seed)
        self.live: Foreign | None = None
        self.done: list[Any] = []

    def act(self, action: Any) -> Step:
        """One action, in a live environment that is where the state says."""
        try:
            if self.live is None or self.done != self.state["actions"]:
                self._replay()
            assert self.live is not None
            step = self.live.act(action)
        except InfrastructureError:
            raise
        except Exception as error:  # somebody else's code: where it stands now, nobody knows
            self.live = None
            raise InfrastructureError(f"{self.environment.name!r}: {type(error).__name__}: {error}") from error
        self.done.append(action)
        return step

    def _replay(self) -> None:
        live, self.done, digest = self.environment.make(), [], ""
        live.reset(self.state["seed"], self.state["options"])
        for action in self.state["actions"]:
            digest = _digest(digest, live.act(action).observation)
            self.done.append(action)
        if digest != self.state["digest"]:
            raise InfrastructureError(f"{self.environment.name!r} is not deterministic under its seed")
        self.live = live


def _act(episode: Episode, action: Any) -> dict[str, Any]:
    assert isinstance(episode, _ForeignEpisode)
    state = episode.state
    if state["over"]:
        raise ToolError("the episode is over")
    step = episode.act(action)
    state["actions"].append(action)
    state["digest"] = _digest(state["digest"], step.observation)
    state["over"] = step.terminated or step.truncated
    state["masked"] = state["masked"] or (state["over"] and step.reward is None)
    state["total"] += step.reward or 0.0
    told = {"observation": step.observation, "reward": step.reward}
    return told | {"terminated": step.terminated, "truncated": step.truncated}


def _digest(before: str, observation: Any) -> str:
    """What has been seen so far, in few characters."""
    text = before + json.dumps(observation, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def reward_rubric(name: str, low: float = 0.0, high: float = 1.0) -> Rubric:
    """The rewards an episode paid, summed, as a score: `low` is 0 and `high` is 1.

    A sum outside of them, or a reward that was masked, is the grader's error and not a score. Raises `ValueError`
    unless low < high.
    """
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")

    def paid(task: Task, trace: Any, state: dict[str, Any]) -> float:
        if state["masked"]:
            raise ValueError("the environment gave no reward for this episode")
        return (state["total"] - low) / (high - low)

    return Rubric(name, [Check("reward", 1.0, paid, version=f"{low}:{high}")])
