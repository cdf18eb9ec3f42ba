"""What every framework is made to play: 30 tasks and four agents; and how they are played without any."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rlkit.envs.adapters.wire import from_wire
from rlkit.envs.agents import Agent, play, silent
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.examples.support import environment, oracle, production_agent, rubric, sample_task
from rlkit.examples.support.cheats import forges_timeouts
from rlkit.logs.trace import Message

Record = Callable[[str, object], None]
RNG = random.Random(0)
TASKS = [sample_task(RNG, pool) for pool in ("train", "heldout") for _ in range(15)]
MAX_TURNS = 4  # so that some episodes are cut off
AGENTS: dict[str, Callable[[int], Agent]] = {
    "oracle": lambda n: oracle,
    "production": lambda n: production_agent(random.Random(n)),
    "silent": lambda n: silent,
    "forges timeouts": lambda n: forges_timeouts,
}
BROKEN = Rubric("broken", [*rubric.checks, Check("raises", 1, lambda task, trace, state: state["no such field"])])


def heard(message: dict[str, Any]) -> Message:
    """A message as it came over the wire."""
    said = from_wire({key: value for key, value in message.items() if key in ("content", "tool_calls")})
    return Message(message["role"], said.content, said.tool_calls, message.get("tool_call_id"), message.get("name"))


def native(agent: str, seed: int = 0, graded_by: Rubric = rubric) -> list[float | None]:
    """The reward of every task, played and graded by rlkit alone."""
    return [_reward(AGENTS[agent](n), task, seed, graded_by) for n, task in enumerate(TASKS)]


def _reward(agent: Agent, task: Task, seed: int, graded_by: Rubric) -> float | None:
    trace, episode = play(environment, agent, task, seed, max_turns=MAX_TURNS)
    status = "truncated" if trace.final_reply is None else "completed"
    return graded_by.grade(task, trace, episode.state, status).reward
