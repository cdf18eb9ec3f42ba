"""The environment on a world of one counter: what a call does, what a bad one does not, and exact snapshots."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.envs.environment import Environment, Episode, InfrastructureError, Tool, ToolError
from rlkit.envs.task import Task
from rlkit.logs.trace import ToolCall


def add(episode: Episode, amount: float, note: str = "") -> dict[str, Any]:
    """Half of the calls time out, after the damage is done."""
    episode.state["count"] += amount
    episode.state["log"].append({"amount": amount, "note": note})
    if episode.chance(0.5):
        raise ToolError("gateway timeout")
    return {"count": episode.state["count"]}


def broken(episode: Episode, kind: str) -> Any:
    episode.state["count"] = -1
    return {"nan": math.nan, "set": {1}, "nested": [{"x": math.inf}]}[kind]


NUMBER = {"type": "object", "properties": {"amount": {"type": "number", "minimum": 0}, "note": {"type": "string"}}}
TOOLS = [
    Tool("add", "Add to the counter.", NUMBER | {"required": ["amount"]}, add),
    Tool("broken", "Returns no JSON.", {"type": "object", "properties": {"kind": {"type": "string"}}}, broken),
    Tool("any", "Takes anything.", {"additionalProperties": True}, lambda episode, **arguments: sorted(arguments)),
]
ENVIRONMENT = Environment("counter", TOOLS)
TASK = Task(id="t", messages=[], state={"count": 0, "log": []})


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


def fresh(seed: int = 0) -> Episode:
    return ENVIRONMENT.reset(TASK, seed)


def seed_where(timed_out: bool) -> int:
    return next(seed for seed in range(100) if fresh(seed).step(call("add", amount=1)).error is timed_out)


def test_a_good_call_changes_the_state_and_not_the_task() -> None:
    episode = fresh(seed_where(timed_out=False))
    observation = episode.step(call("add", amount=2))
    assert (observation.content, observation.error) == ('{"count":2}', False)
    assert episode.state == {"count": 2, "log": [{"amount": 2, "note": ""}]}
    assert TASK.state == {"count": 0, "log": []}


def test_a_tool_error_undoes_the_state_but_not_the_throw() -> None:
    episode = fresh(seed_where(timed_out=True))
    observation = episode.step(call("add", amount=2))
    assert (observation.content, observation.error) == ('{"error":"gateway timeout"}', True)
    assert episode.state == TASK.state
    assert episode.draws == 1
    assert any(not episode.step(call("add", amount=2)).error for _ in range(20)), "a retry may succeed"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (call("substract", amount=1), "unknown tool 'substract'; tools: add, broken, any"),
        (ToolCall(id="c", name="add", arguments=None, raw_arguments="{amount"), "not a JSON object"),
        (call("add"), "'amount' is a required property"),
        (call("add", amount="1"), "amount: '1' is not of type 'number'"),
        (call("add", amount=-1), "amount: -1 is less than the minimum of 0"),
        (call("add", amount=1, tip=1), "'tip' was unexpected"),
        (call("add", amount=1, episode={}), "'episode' was unexpected"),
        (call("add", amount=1, self={}), "'self' was unexpected"),
        (call("add", amount=math.nan), "NaN"),
        (call("add", amount=math.inf), "infinity"),
        (call("add", amount=1, note="\ud83d"), "surrogate"),
        (ToolCall(id="c", name="\ud83d", arguments={}), "unknown tool"),
    ],
)
def test_a_bad_call_is_answered_and_changes_nothing(bad: ToolCall, says: str) -> None:
    episode = fresh()
    before = episode.snapshot()
    observation = episode.step(bad)
    assert observation.error
    assert says in json.loads(observation.content)["error"]
    observation.content.encode()  # whatever the agent wrote, the answer is text
    assert episode.snapshot() == before


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["amount", "note", "episode", "self", "kind"]) | st.text(max_size=5)


@given(st.dictionaries(names, json_values, max_size=4) | st.none())
def test_no_call_ever_raises_and_no_refused_one_changes_the_state(arguments: dict[str, Any] | None) -> None:
    episode = fresh()
    observation = episode.step(ToolCall(id="c", name="add", arguments=arguments))
    json.loads(observation.content.encode())
    assert observation.error == (episode.state == TASK.state)


def test_a_schema_may_be_open() -> None:
    assert fresh().step(call("any", b=1, a=[2])).content == '["a","b"]'


def test_a_tool_cannot_reach_into_the_call() -> None:
    keep = Tool("keep", "", {"additionalProperties": True}, lambda episode, **kept: episode.state.update(kept))
    episode = Environment("keeper", [keep]).reset(TASK)
    asked = call("keep", items=[1])
    assert episode.step(asked).content == "null"
    episode.state["items"].append(2)
    assert asked.arguments == {"items": [1]}


@pytest.mark.parametrize("kind", ["nan", "set", "nested"])
def test_a_result_that_is_not_json_is_the_environments_failure(kind: str) -> None:
    with pytest.raises(InfrastructureError, match="tool 'broken' returned what is not JSON"):
        fresh().step(call("broken", kind=kind))


def test_a_bug_in_a_tool_propagates() -> None:
    with pytest.raises(KeyError):
        fresh().step(call("broken", kind="no such kind"))


amounts = st.lists(st.integers(0, 9), max_size=8)


def play(episode: Episode, calls: list[int]) -> list[str]:
    return [episode.step(call("add", amount=amount)).content for amount in calls]


@given(amounts, amounts, st.integers(0, 2**40))
def test_restore_and_fork_repeat_the_future_exactly(past: list[int], future: list[int], seed: int) -> None:
    episode = fresh(seed)
    play(episode, past)
    snapshot, twin = episode.snapshot(), episode.fork()
    seen, end = play(episode, future), episode.snapshot()
    assert twin.snapshot() == snapshot, "the fork does not move with its origin"
    assert (play(twin, future), twin.snapshot()) == (seen, end)
    episode.restore(snapshot)
    assert (play(episode, future), episode.snapshot()) == (seen, end)
    elsewhere = fresh(seed + 1)
    elsewhere.restore(snapshot)
    assert (play(elsewhere, future), elsewhere.snapshot()) == (seen, end)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_state_survives_a_snapshot(state: dict[str, Any]) -> None:
    try:
        task = Task(id="t", messages=[], state=state)
    except ValueError:  # NaN or infinity somewhere inside
        return
    episode = ENVIRONMENT.reset(task)
    snapshot = episode.snapshot()
    episode.restore(snapshot)
    assert episode.state == state
    assert episode.snapshot() == snapshot


def test_a_fork_with_another_seed_has_another_future() -> None:
    episode = fresh()
    play(episode, [1])
    futures = {tuple(play(episode.fork(seed), [1] * 10)) for seed in range(20)}
    assert len(futures) > 10
    assert episode.seed == 0


def test_a_snapshot_of_another_task_is_refused() -> None:
    other = ENVIRONMENT.reset(TASK.model_copy(update={"id": "other"}))
    with pytest.raises(ValueError, match="snapshot is of task 't', this episode plays 'other'"):
        other.restore(fresh().snapshot())


def test_chance_is_fair_over_throws_over_seeds_and_over_tasks_of_one_seed() -> None:
    episode = fresh()
    over_throws = [episode.chance(0.2) for _ in range(2000)]
    over_seeds = [fresh(seed).chance(0.2) for seed in range(2000)]
    tasks = [TASK.model_copy(update={"id": str(i)}) for i in range(2000)]
    over_tasks = [ENVIRONMENT.reset(task, 0).chance(0.2) for task in tasks]
    for throws in (over_throws, over_seeds, over_tasks):
        assert 340 < sum(throws) < 460  # 400, within 3.4 standard deviations of 17.9
    assert not fresh().chance(0)
    assert fresh().chance(1)


def test_environment_offers_its_tools_and_refuses_twins() -> None:
    assert ENVIRONMENT.schemas[0] == {
        "name": "add",
        "description": "Add to the counter.",
        "parameters": NUMBER | {"required": ["amount"]},
    }
    with pytest.raises(ValueError, match="two tools share a name"):
        Environment("twins", [TOOLS[0], TOOLS[0]])


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, {1, 2}, math.nan])
def test_a_state_that_json_would_change_is_no_snapshot(value: Any) -> None:
    episode = fresh()
    episode.state["odd"] = value
    with pytest.raises(InfrastructureError, match="not plain JSON"):
        episode.fork()
