"""To and from OpenEnv (tested with 0.10.0): `pip install openenv`. Not beside verifiers, whose pins differ."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rlkit.envs.adapters.foreign import ForeignEnvironment, Step
from rlkit.envs.adapters.wire import Session, Turn, from_wire, package, to_wire
from rlkit.envs.environment import Environment
from rlkit.envs.grading import Rubric
from rlkit.envs.task import Task


class OpenEnvParts(NamedTuple):
    """What OpenEnv's `create_app(env=make, action_cls=action, observation_cls=observation)` takes."""

    make: Callable[[], Any]
    action: type
    observation: type


def to_openenv(environment: Environment, rubric: Rubric, tasks: Sequence[Task], max_turns: int = 8) -> OpenEnvParts:
    """An OpenEnv `Environment` factory: an action is an agent's message, an observation the messages that are new.

    `reset(seed=, task=id)` or `reset(split="tasks", index=n)` chooses the task, else the first. Sessions share nothing.
    `done` and `reward` are in the observation, the reward None where the rubric gives none; `status` tells truncated
    from terminated. Raises `ValueError` for no tasks and `ImportError` without OpenEnv.
    """
    interfaces = package("openenv.core.env_server.interfaces", "openenv")
    types = package("openenv.core.env_server.types", "openenv")
    listed, by_id = list(tasks), {task.id: task for task in tasks}
    if not listed:
        raise ValueError("no tasks")

    class MessageAction(types.Action):  # type: ignore[misc, name-defined]
        content: str | None = None
        tool_calls: list[dict[str, Any]] = []  # noqa: RUF012 (pydantic copies it)

    class MessagesObservation(types.Observation):  # type: ignore[misc, name-defined]
        messages: list[dict[str, Any]] = []  # noqa: RUF012
        tools: list[dict[str, Any]] = []  # noqa: RUF012
        status: str = ""

    class RlkitEnvironment(interfaces.Environment):  # type: ignore[misc, name-defined]
        SUPPORTS_CONCURRENT_SESSIONS = True
        session: Session | None = None
        episode_id: str | None = None

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            task: str | None = None,
            index: int = 0,
            **_: Any,
        ) -> Any:
            chosen = listed[index] if task is None else by_id[task]
            self.session = Session(environment, rubric, chosen, seed or 0, max_turns)
            self.episode_id = episode_id
            messages = [to_wire(message) for message in self.session.messages]
            return MessagesObservation(messages=messages, tools=environment.schemas)

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if self.session is None:
                raise RuntimeError("reset first")
            said = {"content": action.content, "tool_calls": action.tool_calls}
            turn = self.session.step(from_wire(said, self.session.turns))
            return MessagesObservation(
                messages=[to_wire(message) for message in turn.messages],
                done=turn.terminated or turn.truncated, reward=turn.reward, status=_status(turn),
            )  # fmt: skip

        @property
        def state(self) -> Any:
            steps = self.session.turns if self.session else 0
            return types.State(episode_id=self.episode_id, step_count=steps)

        def list_splits(self) -> list[str]:
            return ["tasks"]

        def list_tasks(self, split: str) -> list[dict[str, Any]]:
            return [self.get_task(split, index) for index in range(len(listed))]

        def num_tasks(self, split: str) -> int:
            return len(listed)

        def get_task(self, split: str, index: int) -> dict[str, Any]:
            return {"id": listed[index].id, "index": index, "tags": listed[index].tags}

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
            return self.list_tasks(split)[start:stop]

    return OpenEnvParts(RlkitEnvironment, MessageAction, MessagesObservation)


def _status(turn: Turn) -> str:
    return "" if turn.grade is None else turn.grade.status


class _Open:
    """An OpenEnv environment, or a synchronous client of one, as a `Foreign` one."""

    def __init__(self, env: Any, action: type) -> None:
        self.env, self.action = env, action
        weakref.finalize(self, env.close)  # a session left open counts against the server's few

    def reset(self, seed: int, options: dict[str, Any]) -> Any:
        return _seen(self.env.reset(seed=seed, **options))

    def act(self, action: Any) -> Step:
        result = self.env.step(self.action(**action))
        seen, done = _seen(result), bool(result.done)
        truncated = done and seen.get("status") == "truncated"
        reward = None if result.reward is None else float(result.reward)
        return Step(seen, reward, done and not truncated, truncated)


def from_openenv(make: Callable[[], Any], action: type, name: str = "openenv") -> ForeignEnvironment:
    """An OpenEnv environment as one of ours; `action` is the Action class it takes.

    `make` makes an environment in this process, or a client of a server: `GenericEnvClient(base_url=url).sync()`.
    The reward of every step counts, None at the end as masked: see `foreign.reward_rubric`. OpenEnv does not tell an
    episode that ended from one that was cut off; only an observation with `status="truncated"` counts as the latter.
    """
    schema = dict(action.model_json_schema())  # type: ignore[attr-defined]
    return ForeignEnvironment(name, lambda: _Open(make(), action), schema)


def _seen(result: Any) -> dict[str, Any]:
    """The observation as JSON; clients wrap it in a `StepResult`, and the generic one has it as a dict."""
    wrapped = isinstance(result, package("openenv.core.client_types", "openenv").StepResult)
    seen = result.observation if wrapped else result
    plain = seen if isinstance(seen, dict) else seen.model_dump(mode="json")
    return {key: value for key, value in plain.items() if key not in ("done", "reward", "metadata")}
