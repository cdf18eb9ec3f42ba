"""What the adapters share, without any of the packages."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.envs.adapters.foreign import ForeignEnvironment, Step, reward_rubric
from rlkit.envs.adapters.gymnasium import to_gymnasium
from rlkit.envs.adapters.openenv import to_openenv
from rlkit.envs.adapters.verifiers import to_verifiers
from rlkit.envs.adapters.wire import Session, from_wire, to_wire
from rlkit.envs.environment import Environment, InfrastructureError, Tool
from rlkit.envs.task import Task
from rlkit.examples.support import environment, rubric
from rlkit.logs.trace import Message, ToolCall, Trace
from tests.adapters.agents import AGENTS, MAX_TURNS, TASKS, native


def test_a_session_pays_what_playing_pays() -> None:
    for agent in AGENTS:
        rewards = []
        for n, task in enumerate(TASKS):
            session, play = Session(environment, rubric, task, 0, MAX_TURNS), AGENTS[agent](n)
            turn = session.step(play(session.messages))
            while turn.grade is None:
                turn = session.step(play(session.messages))
            rewards.append(turn.reward)
        assert rewards == native(agent)


def test_an_episode_that_is_over_or_another_s_message_is_refused() -> None:
    session = Session(environment, rubric, TASKS[0])
    with pytest.raises(ValueError, match="role assistant"):
        session.step(Message(role="user", content="hi"))
    session.step(Message(role="assistant", content="bye"))
    with pytest.raises(RuntimeError, match="over"):
        session.step(Message(role="assistant", content="bye"))


def test_an_environment_that_fails_masks_the_episode() -> None:
    broken = Environment("e", [Tool("look", "Look.", {"type": "object"}, lambda episode: {1, 2})])
    session = Session(broken, rubric, Task(id="t", messages=[], state={}))
    turn = session.step(Message(role="assistant", tool_calls=[ToolCall("c", "look", {})]))
    assert (turn.terminated, turn.truncated, turn.reward) == (True, False, None)
    assert turn.grade is not None
    assert turn.grade.status == "infra_error"


CALLS = st.builds(
    ToolCall,
    st.text(min_size=1, max_size=5),
    st.text(max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
)


@given(st.text(max_size=10), st.lists(CALLS, max_size=3))
def test_messages_come_back_from_the_wire(content: str, calls: list[ToolCall]) -> None:
    said = Message(role="assistant", content=content, tool_calls=calls)
    assert from_wire(json.dumps(to_wire(said))) == said


KEYS = st.sampled_from(["content", "tool_calls", "id", "name", "arguments"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@given(JSON)
def test_nothing_that_comes_over_the_wire_raises(value: Any) -> None:
    said = from_wire(json.dumps(value))
    assert said.role == "assistant"
    assert all(call.id for call in said.tool_calls)


@pytest.mark.parametrize(
    ("name", "make"), [("gymnasium", to_gymnasium), ("openenv", to_openenv), ("verifiers", to_verifiers)]
)
def test_a_package_that_is_missing_is_named(name: str, make: Any) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ImportError, match=f"pip install {name}"):
        make(environment, rubric, TASKS)


class Counter:
    """A foreign environment that counts, and forgets its seed where told to."""

    made = 0

    def __init__(self, forgets: bool = False) -> None:
        Counter.made += 1
        self.offset = Counter.made if forgets else 0

    def reset(self, seed: int, options: dict[str, Any]) -> Any:
        self.total = seed + self.offset
        return self.total

    def act(self, action: Any) -> Step:
        self.total += action
        return Step(self.total, 0.25, self.total >= 10, False)


def test_a_foreign_environment_is_brought_back_by_its_actions() -> None:
    counter = ForeignEnvironment("counter", Counter, {"type": "integer"})
    live = counter.reset(counter.task(3))
    add = ToolCall("c", "act", {"action": 2})
    live.step(add)
    saved = live.snapshot()
    after = [live.step(add).content for _ in range(3)]
    twin = live.fork()
    live.restore(saved)
    assert [live.step(add).content for _ in range(3)] == after
    assert twin.state == live.state
    assert live.step(add).error
    grade = reward_rubric("paid").grade(live.task, Trace(id="t", messages=[]), live.state)
    assert (grade.status, grade.reward) == ("success", 1.0)


def test_a_foreign_environment_that_forgets_its_seed_is_an_infrastructure_error() -> None:
    counter = ForeignEnvironment("counter", lambda: Counter(forgets=True), {"type": "integer"})
    live = counter.reset(counter.task(0))
    add = ToolCall("c", "act", {"action": 1})
    for _ in range(2):
        live.step(add)
    saved, twin = live.snapshot(), live.fork()
    live.step(add)
    live.restore(saved)
    for episode in (live, twin):
        with pytest.raises(InfrastructureError, match="not deterministic"):
            episode.step(add)


def test_what_a_foreign_environment_raises_is_an_infrastructure_error_and_leaves_the_state() -> None:
    class Moody(Counter):
        def act(self, action: Any) -> Step:
            step = super().act(action)
            if action == 3:
                raise KeyError("its own")
            return step

    moody = ForeignEnvironment("moody", Moody, {"type": "integer"})
    live = moody.reset(moody.task(0))
    live.step(ToolCall("c", "act", {"action": 2}))
    saved = live.snapshot()
    with pytest.raises(InfrastructureError, match="'moody': KeyError: 'its own'"):
        live.step(ToolCall("c", "act", {"action": 3}))
    live.restore(saved)
    seen = json.loads(live.step(ToolCall("c", "act", {"action": 2})).content)
    assert seen["observation"] == 4  # not 7: what it did before it raised is forgotten


@pytest.mark.parametrize(("low", "high", "total", "score"), [(0, 1, 0.5, 0.5), (-1, 1, 0, 0.5), (0, 1, 1.5, None)])
def test_rewards_outside_their_range_are_no_scores(low: float, high: float, total: float, score: float | None) -> None:
    task = Task(id="t", messages=[], state={})
    grade = reward_rubric("r", low, high).grade(task, Trace(id="t", messages=[]), {"total": total, "masked": False})
    assert grade.score == score
    assert (grade.status == "grader_error") == (score is None)
    with pytest.raises(ValueError, match="below"):
        reward_rubric("r", 1, 1)
