"""What the frameworks themselves make of our tasks and agents, and what a careless adapter would lose on the way."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlkit.envs.adapters.foreign import reward_rubric
from rlkit.envs.adapters.gymnasium import from_gymnasium, to_gymnasium
from rlkit.envs.adapters.openenv import from_openenv, to_openenv
from rlkit.envs.adapters.verifiers import from_verifiers, to_verifiers, to_verifiers_trace
from rlkit.envs.adapters.wire import from_wire, to_wire
from rlkit.envs.agents import play
from rlkit.examples.support import environment, rubric
from rlkit.logs.trace import Message, ToolCall, Trace
from tests.adapters.agents import AGENTS, MAX_TURNS, TASKS, Record, heard, native

WHY = "tests/adapters/matrix.py installs it"


@pytest.mark.parametrize("text", ['{"a":1}', '"café"', "1e400", "1.0 ", "[1,2]", "null", "hi", ""])
def test_text_that_happens_to_be_json_is_kept_word_for_word(text: str) -> None:
    assert from_wire(text) == Message(role="assistant", content=text)


@pytest.mark.parametrize("chosen", [0, 3, TASKS[3].id])
def test_gymnasium_plays_the_task_that_was_asked_for(chosen: int | str) -> None:
    pytest.importorskip("gymnasium", reason=WHY)
    env = to_gymnasium(environment, rubric, TASKS)
    wanted = TASKS[chosen].id if isinstance(chosen, int) else chosen
    for seed in range(5):
        assert env.reset(seed=seed, options={"task": chosen})[1] == {"task": wanted}


def test_gymnasium_refuses_what_is_not_there() -> None:
    pytest.importorskip("gymnasium", reason=WHY)
    env = to_gymnasium(environment, rubric, TASKS)
    with pytest.raises(RuntimeError, match="reset first"):
        env.step("hi")
    with pytest.raises(KeyError):
        env.reset(options={"task": "no such task"})
    with pytest.raises(IndexError):
        env.reset(options={"task": len(TASKS)})
    assert env.reset(seed=0, options={"task": None})[1] == env.reset(seed=0)[1]


def test_gymnasium_is_given_integers_where_the_agent_wrote_1_0() -> None:
    gym = pytest.importorskip("gymnasium", reason=WHY)
    cart = from_gymnasium(lambda: gym.make("CartPole-v1"), "cart")
    task = cart.task(0)
    answers = [cart.reset(task).step(ToolCall("c", "act", {"action": action})) for action in (1, 1.0)]
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, type]]:
    """The desk behind OpenEnv's `create_app`, which takes two sessions at a time; its address and its action."""
    pytest.importorskip("openenv", reason=WHY)
    import uvicorn
    from openenv.core.env_server.http_server import create_app

    parts = to_openenv(environment, rubric, TASKS, MAX_TURNS)
    app = create_app(parts.make, parts.action, parts.observation, max_concurrent_envs=2)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", parts.action
    server.should_exit = True
    thread.join(5)


@pytest.mark.parametrize("agent", AGENTS)
def test_openenv_s_client_pays_the_same_and_leaves_no_session_open(
    agent: str, served: tuple[str, type], record_property: Record
) -> None:
    from openenv.core.generic_client import GenericEnvClient

    url, action = served
    ours = from_openenv(lambda: GenericEnvClient(base_url=url).sync(), action)
    graded_by, rewards = reward_rubric("paid"), []
    for n, inner in enumerate(TASKS):
        task = ours.task(0, {"task": inner.id})
        messages = [heard(message) for message in json.loads(task.messages[-1].content or "")["messages"]]
        live, actor = ours.reset(task), AGENTS[agent](n)
        while not live.state["over"]:
            said = actor(messages)
            told = {key: value for key, value in to_wire(said).items() if key != "role"}
            answer = live.step(ToolCall("c", "act", {"action": told}))
            assert not answer.error, answer.content
            messages += [said, *(heard(m) for m in json.loads(answer.content)["observation"]["messages"])]
        rewards.append(graded_by.grade(task, Trace(id="t", messages=task.messages), live.state).reward)
    assert rewards == native(agent)
    record_property("compared", len(rewards))


@pytest.mark.parametrize("agent", AGENTS)
def test_verifiers_own_rollouts_pay_the_same(agent: str, record_property: Record) -> None:
    pytest.importorskip("verifiers.v1", reason=WHY)
    from tests.adapters.verifiers_play import Loop, rollout, scripted_model

    loop = Loop(environment, {task.id: task for task in TASKS})

    async def played(url: str) -> list[Any]:
        theirs = enumerate(to_verifiers(environment, rubric, TASKS))
        return await asyncio.gather(*(rollout(task, f"{agent}/{n}", url, loop, MAX_TURNS) for n, task in theirs))

    with scripted_model() as url:
        traces = asyncio.run(played(url))
    assert [error for trace in traces for error in trace.errors] == []
    assert [trace.rewards["rubric"].score for trace in traces] == native(agent)
    assert any(trace.is_truncated for trace in traces) or agent in ("silent", "forges timeouts")
    record_property("compared", len(traces))


def test_a_call_without_its_answer_is_a_zero_only_where_verifiers_cut_the_trace_off() -> None:
    vf = pytest.importorskip("verifiers.v1", reason=WHY)
    (task, *_) = to_verifiers(environment, rubric, TASKS)
    trace = play(environment, AGENTS["oracle"](0), TASKS[0])[0]
    trace.messages = trace.messages[: 1 + next(n for n, m in enumerate(trace.messages) if m.role == "assistant")]
    crashed = to_verifiers_trace(task, trace)
    with pytest.raises(vf.TaskError, match="otherwise than in the trace"):
        asyncio.run(task.score(crashed))
    assert crashed.rewards == {"rubric": None}
    cut_off = to_verifiers_trace(task, trace)
    cut_off.stop("max_turns")
    asyncio.run(task.score(cut_off))
    assert cut_off.rewards["rubric"].score == 0


def test_verifiers_rewards_are_the_parts_of_the_grade_and_none_may_leave_its_range() -> None:
    vf = pytest.importorskip("verifiers.v1", reason=WHY)

    class Two(vf.Task):  # type: ignore[misc, name-defined]
        @vf.reward(weight=3.0)  # type: ignore[untyped-decorator]
        async def polite(self, trace: Any) -> float:
            return float("please" in trace.last_reply)

        @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
        async def short(self, trace: Any) -> float:
            return 1.0 if len(trace.last_reply) < 100 else -1.0

    class Twos(vf.Taskset):  # type: ignore[misc, name-defined]
        def load(self) -> Any:
            yield Two(vf.TaskData(id="t", prompt="say hi"))

    (task,), graded_by = from_verifiers(Twos(vf.TasksetConfig()))
    for reply, status, parts in (("hi", "failure", {"polite": 0.0, "short": 1.0}), ("please" * 99, "grader_error", {})):
        trace = Trace(id="t", messages=[*task.messages, Message(role="assistant", content=reply)])
        grade = graded_by.grade(task, trace, {})
        assert (grade.status, grade.checks[0].parts) == (status, parts)
