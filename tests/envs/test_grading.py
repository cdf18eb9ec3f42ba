"""Grading: the weighted mean, what masks a rollout, and that no check can harm another."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.aio import run_to_end
from rlkit.envs.environment import State
from rlkit.envs.grading import Check, Grade, GraderDown, Rubric, Verdict
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace

TASK = Task(id="t", messages=[Message(role="user", content="cold soup")], state={"refunds": []}, goal={"item": "soup"})
STATE: State = {"refunds": ["soup"]}
TRACE = Trace(
    id="log-1",
    messages=[
        *TASK.messages,
        Message(role="assistant", tool_calls=[ToolCall(id="c", name="refund", arguments={"item": "soup"})]),
        Message(role="tool", tool_call_id="c", content="{}"),
        Message(role="assistant", content="refunded"),
    ],
    outcome=Outcome(status="unknown"),
    raw={"as": "logged"},
)


def check(value: Any, weight: float = 1.0, name: str = "c") -> Check:
    return Check(name, weight, lambda task, trace, state: value)


def boom(task: Task, trace: Trace, state: State) -> float:
    raise KeyError("amount")


def grade(*checks: Check, status: Any = "completed", **rubric: Any) -> Grade:
    return Rubric("r", checks, **rubric).grade(TASK, TRACE, STATE, status)


def test_the_score_is_the_weighted_mean() -> None:
    result = grade(check(True, 1, "a"), check(0.5, 2, "b"), check(0, 1, "c"))
    assert (result.status, result.score, result.reward) == ("failure", 0.5, 0.5)
    assert [(c.name, c.score, c.weight, c.error) for c in result.checks] == [
        ("a", 1.0, 1, None),
        ("b", 0.5, 2, None),
        ("c", 0.0, 1, None),
    ]


def test_success_is_from_the_threshold_on() -> None:
    halves = check(1, 1, "a"), check(0.6, 1, "b")
    assert grade(*halves, threshold=0.8).status == "success"
    assert grade(*halves, threshold=0.81).status == "failure"
    assert grade(check(1 - 1e-7)).status == "success"
    assert grade(check(1 - 1e-5)).status == "failure"


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6))
def test_all_passed_is_exactly_one_whatever_the_weights(weights: list[float]) -> None:
    result = grade(*(check(1.0, weight, str(i)) for i, weight in enumerate(weights)))
    assert (result.score, result.status) == (1.0, "success")


def test_checks_see_the_task_the_trace_and_the_state() -> None:
    def run(task: Task, trace: Trace, state: State) -> bool:
        item = task.goal["item"]
        asked = trace.tool_calls[0].arguments == {"item": item}
        return asked and state["refunds"] == [item] and trace.final_reply == "refunded"

    assert grade(Check("all", 1, run)).status == "success"


@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, -math.inf, -0.5, 1.5, 2, "1.0", [1.0], 1j, np.nan, np.ones(2), 10**400]
)
def test_anything_but_a_number_from_0_to_1_masks_the_rollout(value: Any) -> None:
    result = grade(check(1, 1, "before"), check(value, 1, "odd"), check(0.5, 1, "after"))
    assert (result.status, result.score, result.reward) == ("grader_error", None, None)
    assert [c.score for c in result.checks] == [1.0, None, 0.5]
    assert [c.error is None for c in result.checks] == [True, False, True]
    assert "expected a number in [0, 1]" in str(result.checks[1].error)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), Fraction(1, 2), 0.5])
def test_numbers_of_other_libraries_count(value: Any) -> None:
    score = grade(check(value)).score
    assert score == 0.5
    assert type(score) is float


def test_a_check_that_raises_is_named_and_hides_no_other() -> None:
    result = grade(Check("raises", 1, boom), check(1, 1, "fine"))
    assert (result.status, result.score, result.reward) == ("grader_error", None, None)
    assert [(c.score, c.error) for c in result.checks] == [(None, "KeyError: 'amount'"), (1.0, None)]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_person_can_still_interrupt(stop: type[BaseException]) -> None:
    def run(task: Task, trace: Trace, state: State) -> float:
        raise stop

    with pytest.raises(stop):
        grade(Check("stop", 1, run))


def test_a_check_cannot_change_what_the_others_see() -> None:
    def vandal(task: Task, trace: Trace, state: State) -> float:
        task.goal["item"] = "steak"
        trace.messages[-1].content = None
        trace.messages[1].tool_calls.clear()
        trace.raw.clear()
        state["refunds"].append("steak")
        return 1.0

    def unharmed(task: Task, trace: Trace, state: State) -> bool:
        return (task, trace, state) == before and trace.raw == {"as": "logged"}

    before = TASK.model_copy(deep=True), TRACE.model_copy(deep=True), {"refunds": ["soup"]}
    assert grade(Check("vandal", 1, vandal), Check("unharmed", 1, unharmed)).status == "success"
    assert before == (TASK, TRACE, STATE)


def test_a_truncated_rollout_scores_zero_and_keeps_its_sub_scores() -> None:
    result = grade(check(1, 1, "a"), check(0.5, 1, "b"), status="truncated")
    assert (result.status, result.score, result.reward) == ("truncated", 0.0, 0.0)
    assert [c.score for c in result.checks] == [1.0, 0.5]


def test_a_grader_error_is_never_a_zero_even_when_truncated() -> None:
    result = grade(Check("raises", 1, boom), check(1, 1, "b"), status="truncated")
    assert (result.status, result.reward) == ("grader_error", None)


def test_an_infrastructure_error_runs_no_check() -> None:
    result = grade(Check("raises", 1, boom), status="infra_error")
    assert (result.status, result.score, result.reward, result.checks) == ("infra_error", None, None, [])


def test_an_unknown_ending_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'success'"):
        grade(check(1), status="success")


def test_a_production_log_is_graded_by_the_same_call() -> None:
    """A trace with raw record, odd text and no reply; nothing asks for a rollout."""
    log = Trace(id="x", messages=[Message(role="user", content="\ud83d")], raw={"n": math.nan}, metadata={"at": 1.5})
    rubric = Rubric("r", [Check("replied", 1, lambda task, trace, state: trace.final_reply is not None)])
    assert rubric.grade(TASK, log, STATE).status == "failure"
    assert rubric.grade(TASK, TRACE, STATE).status == "success"


def test_a_grade_is_json() -> None:
    grade_ = json.loads(json.dumps(dataclasses.asdict(grade(check(1), Check("raises", 2, boom)))))
    assert grade_["status"] == "grader_error"
    assert grade_["checks"][1] == {
        "name": "raises",
        "score": None,
        "weight": 2,
        "error": "KeyError: 'amount'",
        "parts": {},
    }


def test_the_version_follows_names_weights_and_threshold_only() -> None:
    a, b = check(1, 1, "a"), check(0, 2, "b")
    version = Rubric("r", [a, b]).version
    assert version == Rubric("r", (check(0.5, 2.0, "b"), check(0, 1.0, "a"))).version == grade(a, b).rubric
    assert version.startswith("r@")
    others = [
        Rubric("s", [a, b]),
        Rubric("r", [a]),
        Rubric("r", [a, b], 0.5),
        Rubric("r", [a, check(0, 3, "b")]),
        Rubric("r", [a, check(0, 2, "c")]),
    ]
    assert len({version, *(rubric.version for rubric in others)}) == 6


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan])
def test_a_weight_is_positive_and_finite(weight: float) -> None:
    with pytest.raises(ValueError, match="check 'c': the weight must be positive and finite"):
        check(1, weight)


@pytest.mark.parametrize(
    ("checks", "threshold", "message"),
    [
        ([], 1, "no checks"),
        ([check(1), check(0)], 1, "share a name: c, c"),
        ([check(1, 1e308, "a"), check(1, 1e308, "b")], 1, "more than a float"),
        ([check(1)], 0, "threshold"),
        ([check(1)], 1.01, "threshold"),
        ([check(1)], math.nan, "threshold"),
    ],
)
def test_a_rubric_that_cannot_grade_is_refused(checks: list[Check], threshold: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"rubric 'r': .*{message}"):
        Rubric("r", checks, threshold)


async def waits(task: Task, trace: Trace, state: State) -> Verdict:
    await asyncio.sleep(0.05)
    return Verdict(0.5, {"polite": True, "short": 0})


async def breaks(task: Task, trace: Trace, state: State) -> float:
    await asyncio.sleep(0)
    raise TimeoutError("no answer")


def test_checks_that_wait_are_graded_by_the_same_calls_inside_and_outside_a_loop() -> None:
    rubric = Rubric("r", [Check("judge", 1, waits), check(1, 1, "sync")])

    async def inside() -> list[Grade]:
        return [await rubric.grade_async(TASK, TRACE, STATE), rubric.grade(TASK, TRACE, STATE)]

    grades = [*run_to_end(inside()), rubric.grade(TASK, TRACE, STATE)]
    assert grades[0] == grades[1] == grades[2]
    assert grades[0].score == 0.75
    assert grades[0].checks[0].parts == {"polite": 1.0, "short": 0.0}


def test_checks_that_wait_wait_side_by_side() -> None:
    rubric = Rubric("r", [Check(f"judge{n}", 1, waits) for n in range(20)])
    begun = time.perf_counter()
    rubric.grade(TASK, TRACE, STATE)
    assert time.perf_counter() - begun < 20 * 0.05 / 2


def test_a_check_that_breaks_while_it_waits_loses_no_other_score() -> None:
    result = grade(Check("judge", 1, breaks), check(0.25, 1, "other"))
    assert (result.status, result.score, result.reward) == ("grader_error", None, None)
    assert [(c.score, c.error) for c in result.checks] == [(None, "TimeoutError: no answer"), (0.25, None)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5, -0.1, None, "1", [], Verdict(0.5, {"p": 2}),
                                   Verdict(0.5, {"p": None}), Verdict(math.nan)])  # fmt: skip
def test_what_is_no_score_is_an_error_and_never_a_zero(value: Any) -> None:
    result = grade(check(value, 1, "odd"), check(0.25, 1, "other"))
    assert (result.status, result.score, result.reward) == ("grader_error", None, None)
    assert result.checks[0].score is None
    assert result.checks[0].error is not None
    assert "expected a number in [0, 1]" in result.checks[0].error
    assert result.checks[1].score == 0.25


@pytest.mark.parametrize("parts", [None, [1], "text"])
def test_a_verdict_whose_parts_are_none_is_the_graders_error(parts: Any) -> None:
    result = grade(check(Verdict(1.0, parts)), check(0.25, 1, "other"))
    assert (result.status, result.checks[1].score) == ("grader_error", 0.25)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_grader_that_is_down_stops_everything(is_async: bool) -> None:
    def down(task: Task, trace: Trace, state: State) -> float:
        raise GraderDown("5 errors in a row")

    async def down_async(task: Task, trace: Trace, state: State) -> float:
        raise GraderDown("5 errors in a row")

    with pytest.raises(GraderDown, match="in a row"):
        grade(Check("judge", 1, down_async if is_async else down))


def test_the_version_of_a_check_is_part_of_the_rubrics() -> None:
    def version(of_check: str) -> str:
        return Rubric("r", [Check("judge", 1, waits, version=of_check)]).version

    assert version("prompt-1") == version("prompt-1")
    assert len({version("prompt-1"), version("prompt-2"), version("")}) == 3
