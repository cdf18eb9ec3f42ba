"""To and from Gymnasium (tested with 1.4.0): `pip install gymnasium`."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from typing import Any

from rlkit.envs.adapters.foreign import ForeignEnvironment, Step
from rlkit.envs.adapters.wire import Session, from_wire, package, to_wire
from rlkit.envs.environment import Environment
from rlkit.envs.grading import Rubric
from rlkit.envs.task import Task

Info = dict[str, Any]
LONGEST = 1 << 20  # characters of an observation or an action


def to_gymnasium(environment: Environment, rubric: Rubric, tasks: Sequence[Task], max_turns: int = 8) -> Any:
    """A `gymnasium.Env`: an action is the text of an agent's message, an observation that of the messages that are new.

    Both are JSON as `wire.to_wire` writes it; an action that is no such JSON is what the agent says. `reset(seed=,
    options={"task": id or index})` chooses the task, by the seed where no option does, and the seed is the episode's
    too. It raises `KeyError` or `IndexError` for a task that is not there, `step` a `RuntimeError` before any `reset`.
    Gymnasium has no masked reward: where the rubric gives none, the reward is 0 and `info["masked"]` is True, and such
    an episode must be left out. Raises `ValueError` for no tasks and `ImportError` without Gymnasium.
    """
    gym = package("gymnasium", "gymnasium")
    listed, by_id = list(tasks), {task.id: task for task in tasks}
    if not listed:
        raise ValueError("no tasks")

    class RlkitEnv(gym.Env):  # type: ignore[misc, name-defined]
        metadata: Info = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own form)
        observation_space = gym.spaces.Text(LONGEST, min_length=0, charset=string.printable)
        action_space = gym.spaces.Text(LONGEST, min_length=0, charset=string.printable)
        session: Session | None = None

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            super().reset(seed=seed)
            drawn = int(self.np_random.integers(1 << 31))
            chosen = (options or {}).get("task")
            if chosen is None:  # 0 is a task, not the lack of one
                chosen = drawn % len(listed)
            task = by_id[chosen] if isinstance(chosen, str) else listed[chosen]
            self.session = Session(environment, rubric, task, drawn if seed is None else seed, max_turns)
            messages = [to_wire(message) for message in self.session.messages]
            return json.dumps({"messages": messages, "tools": environment.schemas}), {"task": task.id}

        def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
            if self.session is None:
                raise RuntimeError("reset first")
            turn = self.session.step(from_wire(action, self.session.turns))
            info: Info = {"task": self.session.task.id, "masked": turn.reward is None}
            if turn.grade is not None:
                info |= {"status": turn.grade.status, "rubric": turn.grade.rubric}
            seen = json.dumps({"messages": [to_wire(message) for message in turn.messages]})
            return seen, turn.reward or 0.0, turn.terminated, turn.truncated, info

    return RlkitEnv()


class _Gym:
    """A Gymnasium environment as a `Foreign` one."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int, options: dict[str, Any]) -> Any:
        return _plain(self.env.reset(seed=seed, options=options or None)[0])

    def act(self, action: Any) -> Step:
        if isinstance(action, float):  # JSON schema calls 1.0 an integer; Gymnasium does not
            action = int(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        masked = bool(info.get("masked"))
        return Step(_plain(observation), None if masked else float(reward), bool(terminated), bool(truncated))


def from_gymnasium(make: Callable[[], Any], name: str = "gymnasium") -> ForeignEnvironment:
    """A Gymnasium environment with Discrete or Text actions as one of ours; `make` makes a new one.

    `ForeignEnvironment.task(seed)` gives its tasks, and `foreign.reward_rubric` its reward as a rubric. Observations
    must be JSON or arrays. Raises `TypeError` for another kind of action.
    """
    spaces = package("gymnasium", "gymnasium").spaces
    space = make().action_space
    if isinstance(space, spaces.Discrete):
        action = {"type": "integer", "minimum": int(space.start), "maximum": int(space.start + space.n - 1)}
    elif isinstance(space, spaces.Text):
        action = {"type": "string", "minLength": int(space.min_length), "maxLength": int(space.max_length)}
    else:
        raise TypeError(f"actions must be Discrete or Text, not {type(space).__name__}")
    return ForeignEnvironment(name, lambda: _Gym(make()), action)


def _plain(value: Any) -> Any:
    """An observation as JSON: arrays and numpy's numbers as lists and numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
