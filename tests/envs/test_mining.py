from __future__ import annotations

from collections import Counter

import pytest

from rlkit.envs.environment import State
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.mining import NotATask, mine
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, ToolCall, Trace


def trace(id: str, *said: str, calls: bool = False) -> Trace:
    messages = [Message(role="user", content="hi")]
    messages += [Message(role="assistant", content=text) for text in said]
    if calls:
        messages.append(Message(role="assistant", tool_calls=[ToolCall(id="c", name="look", arguments={})]))
    return Trace(id=id, messages=messages)


def task_from_trace(trace: Trace) -> Task:
    if trace.id.startswith("bad"):
        raise NotATask("never looked up" if trace.id == "bad1" else "no user message")
    return Task(id=f"task-{trace.id}", messages=trace.messages[:1], state={"n": len(trace.messages)})


def final_state(trace: Trace, task: Task) -> State:
    return {**task.state, "seen": trace.id}


def says_ok(task: Task, trace: Trace, state: State) -> bool:
    assert state == {"n": len(trace.messages), "seen": trace.id}
    assert task.id == f"task-{trace.id}"
    return trace.final_reply == "ok"


RUBRIC = Rubric("r", (Check("says_ok", 1, says_ok),))


def test_sessions_become_graded_tasks_and_reasons_are_counted() -> None:
    traces = [
        trace("a", "ok"), trace("bad1"), trace("b", "no"), trace("bad2"), trace("bad1"), trace("c", "ok", calls=True),
    ]  # fmt: skip
    mining = mine(iter(traces), task_from_trace, final_state, RUBRIC)
    assert mining.dropped == Counter({"never looked up": 2, "no user message": 1})
    assert [(m.task.id, m.grade.status, m.grade.score) for m in mining.sessions] == [
        ("task-a", "success", 1.0),
        ("task-b", "failure", 0.0),
        ("task-c", "truncated", 0.0),  # ends in a call: nobody knows what came of it
    ]
    assert [m.trace.id for m in mining.sessions] == ["a", "b", "c"]
    assert [task.id for task in mining.tasks] == ["task-a", "task-b", "task-c"]
    assert [task.id for task in mining.failures] == ["task-b"]


def test_no_sessions_are_no_tasks() -> None:
    mining = mine([], task_from_trace, final_state, RUBRIC)
    assert (mining.tasks, mining.failures, mining.dropped) == ([], [], Counter())


def test_a_grader_that_breaks_is_no_failure_of_the_agent() -> None:
    rubric = Rubric("r", (Check("breaks", 1, lambda task, trace, state: 1 / 0),))
    mining = mine([trace("a", "ok")], task_from_trace, final_state, rubric)
    assert mining.sessions[0].grade.status == "grader_error"
    assert mining.failures == []


def test_bugs_of_the_environment_module_propagate() -> None:
    def broken(trace: Trace) -> Task:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        mine([trace("a", "ok")], broken, final_state, RUBRIC)
