"""Gymnasium: the same tasks and agents earn the same rewards, there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlkit.envs.adapters.foreign import reward_rubric
from rlkit.envs.adapters.gymnasium import from_gymnasium, to_gymnasium
from rlkit.envs.adapters.wire import to_wire
from rlkit.envs.agents import Agent
from rlkit.envs.task import Task
from rlkit.examples.support import environment, rubric
from rlkit.logs.trace import ToolCall, Trace
from tests.adapters.agents import AGENTS, BROKEN, MAX_TURNS, TASKS, Record, heard, native

gym = pytest.importorskip("gymnasium", reason="gymnasium is not installed; tests/adapters/matrix.py does that")


def episode(env: Any, agent: Agent, task: Task, seed: int = 0) -> tuple[float, dict[str, Any]]:
    seen, info = env.reset(seed=seed, options={"task": task.id})
    messages = [heard(message) for message in json.loads(seen)["messages"]]
    while True:
        said = agent(messages)
        seen, reward, terminated, truncated, info = env.step(json.dumps(to_wire(said)))
        messages += [said, *(heard(message) for message in json.loads(seen)["messages"])]
        if terminated or truncated:
            return reward, info | {"truncated": truncated}
        assert reward == 0


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal(agent: str, record_property: Record) -> None:
    env = to_gymnasium(environment, rubric, TASKS, MAX_TURNS)
    rewards = [episode(env, AGENTS[agent](n), task)[0] for n, task in enumerate(TASKS)]
    assert rewards == native(agent)
    record_property("compared", len(rewards))
    assert len(set(rewards)) > 1 or agent == "silent"


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal_there_and_back(agent: str, record_property: Record) -> None:
    ours = from_gymnasium(lambda: to_gymnasium(environment, rubric, TASKS, MAX_TURNS))
    graded_by = reward_rubric("paid")
    rewards = []
    for n, inner in enumerate(TASKS):
        task = ours.task(0, {"task": inner.id})
        first = json.loads(json.loads(task.messages[-1].content or ""))
        messages = [heard(message) for message in first["messages"]]
        live = ours.reset(task)
        play = AGENTS[agent](n)
        while not live.state["over"]:
            said = play(messages)
            live.restore(live.snapshot())
            seen = json.loads(live.step(ToolCall("c", "act", {"action": json.dumps(to_wire(said))})).content)
            messages += [said, *(heard(message) for message in json.loads(seen["observation"])["messages"])]
        assert live.fork().state == live.state
        rewards.append(graded_by.grade(task, Trace(id="t", messages=task.messages), live.state).reward)
    assert rewards == native(agent)
    record_property("compared", len(rewards))


def test_gymnasium_s_own_checker_finds_nothing() -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(to_gymnasium(environment, rubric, TASKS, MAX_TURNS), skip_render_check=True)


def test_a_masked_reward_is_marked_and_truncation_is_kept_apart() -> None:
    env = to_gymnasium(environment, BROKEN, TASKS, MAX_TURNS)
    assert native("oracle", graded_by=BROKEN) == [None] * len(TASKS)
    reward, info = episode(env, AGENTS["oracle"](0), TASKS[0])
    assert (reward, info["masked"], info["status"]) == (0, True, "grader_error")
    env = to_gymnasium(environment, rubric, TASKS, max_turns=1)
    reward, info = episode(env, AGENTS["oracle"](0), TASKS[0])
    assert (reward, info["truncated"], info["masked"], info["status"]) == (0, True, False, "truncated")


def test_two_environments_share_nothing() -> None:
    one, other = (to_gymnasium(environment, rubric, TASKS, MAX_TURNS) for _ in range(2))
    seen, _ = one.reset(seed=0, options={"task": TASKS[0].id})
    alone = episode(other, AGENTS["oracle"](0), TASKS[1])
    messages = [heard(message) for message in json.loads(seen)["messages"]]
    over, reward = False, 0.0
    while not over:
        said = AGENTS["oracle"](0)(messages)
        seen, reward, terminated, truncated, _ = one.step(json.dumps(to_wire(said)))
        assert episode(other, AGENTS["oracle"](0), TASKS[1]) == alone
        messages += [said, *(heard(message) for message in json.loads(seen)["messages"])]
        over = terminated or truncated
    assert reward == native("oracle")[0]


def test_a_game_of_gymnasium_s_own_is_played_saved_and_restored() -> None:
    lake = from_gymnasium(lambda: gym.make("FrozenLake-v1", is_slippery=True), "lake")
    task = lake.task(seed=7)
    live = lake.reset(task)
    act = [ToolCall("c", "act", {"action": n % 4}) for n in range(30)]
    first = [live.step(call).content for call in act[:5]]
    saved = live.snapshot()
    rest = [live.step(call).content for call in act[5:]]
    live.restore(saved)
    assert [live.step(call).content for call in act[5:]] == rest
    again = lake.reset(task)
    assert [again.step(call).content for call in act[:5]] == first
    assert live.step(ToolCall("c", "act", {"action": 4})).error
    assert "over" in live.step(act[0]).content


def test_other_actions_are_refused() -> None:
    with pytest.raises(TypeError, match="Discrete or Text"):
        from_gymnasium(lambda: gym.make("Pendulum-v1"))
