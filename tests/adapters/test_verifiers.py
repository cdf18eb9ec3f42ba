"""verifiers: its own `Task.score` pays what our rubric does, and its rewards can grade our traces."""

from __future__ import annotations

from typing import Any

import pytest

from rlkit.aio import run_to_end
from rlkit.envs.adapters.verifiers import (
    from_verifiers,
    from_verifiers_trace,
    to_verifiers,
    to_verifiers_trace,
)
from rlkit.envs.agents import play
from rlkit.envs.task import Task
from rlkit.examples.support import environment, rubric
from rlkit.logs.trace import Trace
from tests.adapters.agents import AGENTS, BROKEN, MAX_TURNS, TASKS, Record, native

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed; tests/adapters/matrix.py does that")


def played(agent: str, n: int) -> Trace:
    return play(environment, AGENTS[agent](n), TASKS[n], max_turns=MAX_TURNS)[0]


def scored(task: Any, trace: Trace) -> float:
    theirs = to_verifiers_trace(task, trace)
    run_to_end(task.score(theirs))
    return theirs.reward


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal(agent: str, record_property: Record) -> None:
    theirs = list(to_verifiers(environment, rubric, TASKS))
    assert [task.data.id for task in theirs] == [task.id for task in TASKS]
    assert [scored(task, played(agent, n)) for n, task in enumerate(theirs)] == native(agent)
    record_property("compared", len(theirs))


@pytest.mark.parametrize("agent", AGENTS)
def test_rewards_are_equal_there_and_back(agent: str, record_property: Record) -> None:
    tasks, back = from_verifiers(to_verifiers(environment, rubric, TASKS))
    assert [task.messages for task in tasks] == [task.messages for task in TASKS]
    grades = [back.grade(task, played(agent, n), {}) for n, task in enumerate(tasks)]
    assert [grade.reward for grade in grades] == native(agent)
    record_property("compared", len(grades))


def test_traces_are_the_same_there_and_back() -> None:
    (task, *_) = to_verifiers(environment, rubric, TASKS)
    trace = played("production", 0)
    assert from_verifiers_trace(to_verifiers_trace(task, trace)).messages == trace.messages


def test_what_the_rubric_cannot_score_is_an_error_there_and_no_zero() -> None:
    (task, *_) = to_verifiers(environment, BROKEN, TASKS)
    theirs = to_verifiers_trace(task, played("oracle", 0))
    with pytest.raises(vf.TaskError, match="no such field"):
        run_to_end(task.score(theirs))
    assert theirs.rewards == {"rubric": None}
    tasks, back = from_verifiers(to_verifiers(environment, BROKEN, TASKS))
    grade = back.grade(tasks[0], played("oracle", 0), {})
    assert (grade.status, grade.reward) == ("grader_error", None)


def test_a_trace_of_another_world_is_refused() -> None:
    (task, *_) = to_verifiers(environment, rubric, TASKS)
    trace = played("oracle", 0)
    trace.messages[3].content = '{"forged":true}'
    with pytest.raises(vf.TaskError, match="answered otherwise than in the trace"):
        scored(task, trace)


def test_a_taskset_of_verifiers_own_grades_our_traces() -> None:
    class Polite(vf.Task):  # type: ignore[misc, name-defined]
        @vf.reward(weight=3.0)  # type: ignore[untyped-decorator]
        async def polite(self, trace: Any) -> float:
            return float("please" in trace.last_reply)

        @vf.reward(weight=1.0)  # type: ignore[untyped-decorator]
        async def short(self, trace: Any) -> float:
            return float(len(trace.last_reply) < 100)

    class Polites(vf.Taskset):  # type: ignore[misc, name-defined]
        def load(self) -> Any:
            yield Polite(vf.TaskData(id="p", prompt="say hi", system_prompt="be nice"))

    (task,), rubric_ = from_verifiers(Polites(vf.TasksetConfig()))
    assert [(m.role, m.content) for m in task.messages] == [("system", "be nice"), ("user", "say hi")]
    said = Trace(id="t", messages=[*task.messages, *played("silent", 0).messages[-1:]])
    assert rubric_.grade(task, said, {}).score == 0.25
    assert isinstance(task, Task)
