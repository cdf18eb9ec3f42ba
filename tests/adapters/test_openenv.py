"""OpenEnv: the same tasks and agents earn the same rewards, in the process, over its own server, and back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlkit.envs.adapters.foreign import reward_rubric
from rlkit.envs.adapters.openenv import from_openenv, to_openenv
from rlkit.envs.adapters.wire import to_wire
from rlkit.envs.agents import Agent
from rlkit.envs.task import Task
from rlkit.examples.support import environment, rubric
from rlkit.logs.trace import Message, ToolCall, Trace
from tests.adapters.agents import AGENTS, BROKEN, MAX_TURNS, TASKS, Record, heard, native

pytest.importorskip("openenv", reason="openenv is not installed; tests/adapters/matrix.py does that")


def action(said: Message) -> dict[str, Any]:
    told = to_wire(said)
    return {"content": told["content"], "tool_calls": told.get("tool_calls", [])}


def episode(env: Any, made: Any, agent: Agent, task: Task) -> tuple[float | None, str]:
    seen = env.reset(seed=0, task=task.id)
    messages = [heard(message) for message in seen.messages]
    while not seen.done:
        said = agent(messages)
        seen = env.step(made(**action(said)))
        messages += [said, *(heard(message) for message in seen.messages)]
    return seen.reward, seen.status


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal(agent: str, record_property: Record) -> None:
    parts = to_openenv(environment, rubric, TASKS, MAX_TURNS)
    rewards = [episode(parts.make(), parts.action, AGENTS[agent](n), task)[0] for n, task in enumerate(TASKS)]
    assert rewards == native(agent)
    record_property("compared", len(rewards))


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal_there_and_back(agent: str, record_property: Record) -> None:
    parts = to_openenv(environment, rubric, TASKS, MAX_TURNS)
    ours, graded_by, rewards = from_openenv(parts.make, parts.action), reward_rubric("paid"), []
    for n, inner in enumerate(TASKS):
        task = ours.task(0, {"task": inner.id})
        messages = [heard(message) for message in json.loads(task.messages[-1].content or "")["messages"]]
        live, play = ours.reset(task), AGENTS[agent](n)
        while not live.state["over"]:
            said = play(messages)
            live.restore(live.snapshot())
            answer = live.step(ToolCall("c", "act", {"action": action(said)}))
            assert not answer.error, answer.content
            messages += [said, *(heard(m) for m in json.loads(answer.content)["observation"]["messages"])]
        rewards.append(graded_by.grade(task, Trace(id="t", messages=task.messages), live.state).reward)
    assert rewards == native(agent)
    record_property("compared", len(rewards))


def test_a_masked_reward_is_none_and_truncation_has_its_status() -> None:
    parts = to_openenv(environment, BROKEN, TASKS, MAX_TURNS)
    assert episode(parts.make(), parts.action, AGENTS["oracle"](0), TASKS[0]) == (None, "grader_error")
    parts = to_openenv(environment, rubric, TASKS, max_turns=1)
    assert episode(parts.make(), parts.action, AGENTS["oracle"](0), TASKS[0]) == (0.0, "truncated")


def test_its_tasks_can_be_listed() -> None:
    env = to_openenv(environment, rubric, TASKS).make()
    assert env.list_splits() == ["tasks"]
    assert env.num_tasks("tasks") == len(TASKS) == len(env.list_tasks("tasks"))
    assert [task["id"] for task in env.get_task_range("tasks", 3, 5)] == [TASKS[3].id, TASKS[4].id]
    env.reset(split="tasks", index=3, episode_id="mine")
    assert (env.state.episode_id, env.state.step_count, env.session.task.id) == ("mine", 0, TASKS[3].id)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """OpenEnv's own server around the desk, on the loopback."""
    import uvicorn
    from openenv.core.env_server.http_server import create_fastapi_app

    parts = to_openenv(environment, rubric, TASKS, MAX_TURNS)
    app = create_fastapi_app(parts.make, parts.action, parts.observation, max_concurrent_envs=4)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(5)


def over_the_wire(client: Any, agent: Agent, task: Task) -> float | None:
    result = client.reset(seed=0, task=task.id)
    messages = [heard(message) for message in result.observation["messages"]]
    while not result.done:
        said = agent(messages)
        result = client.step(action(said))
        messages += [said, *(heard(message) for message in result.observation["messages"])]
    return result.reward


def test_rewards_are_equal_over_its_own_server(url: str, record_property: Record) -> None:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as client:
        for agent in AGENTS:
            rewards = [over_the_wire(client, AGENTS[agent](n), task) for n, task in enumerate(TASKS)]
            assert rewards == native(agent)
    record_property("compared", len(AGENTS) * len(TASKS))


def test_two_sessions_of_one_server_do_not_mix(url: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    with GenericEnvClient(base_url=url).sync() as one, GenericEnvClient(base_url=url).sync() as other:
        seen = one.reset(seed=0, task=TASKS[0].id).observation
        wanted = native("oracle")
        assert over_the_wire(other, AGENTS["oracle"](1), TASKS[1]) == wanted[1]
        messages, done, reward = [heard(message) for message in seen["messages"]], False, None
        while not done:
            said = AGENTS["oracle"](0)(messages)
            result = one.step(action(said))
            assert over_the_wire(other, AGENTS["oracle"](1), TASKS[1]) == wanted[1]
            messages += [said, *(heard(message) for message in result.observation["messages"])]
            done, reward = result.done, result.reward
        assert reward == wanted[0]
