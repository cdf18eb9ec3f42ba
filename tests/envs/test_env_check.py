"""`check_environment`: each planted fault of a reward or an environment is named; the course's own has none."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlkit.envs.agents import calling, echo, play, recorded, silent
from rlkit.envs.cheats import CHEATS
from rlkit.envs.env_check import EnvironmentCheck, check_environment
from rlkit.envs.environment import Environment, Episode, Tool
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.examples.support.cheats import cheats
from rlkit.logs.trace import Message, Trace

TASKS = [support.sample_task(rng, "heldout") for rng in [random.Random(0)] for _ in range(40)]


def checked(rubric: Rubric = support.rubric, environment: Environment = support.environment) -> EnvironmentCheck:
    return check_environment(environment, rubric, TASKS, support.oracle, cheats)


def rubric_of(run: Callable[..., Any]) -> Rubric:
    return Rubric("planted", [Check("planted", 1, run)])


def test_the_support_desk_passes_null_gold_and_cheats() -> None:
    found = checked()
    assert found.problems == []
    table = found.table()
    assert set(table.index) == {"reference", "silent", "echo", *CHEATS, *cheats}
    assert table.loc["reference", "score"] == 1
    assert table.loc["silent", "score"] == table.loc["echo", "score"] == 0
    assert not table[table["kind"] == "cheat"]["passed"].any()


@pytest.mark.parametrize(
    ("reward", "caught"),
    [
        (lambda task, trace, state: True, "silent"),
        (lambda task, trace, state: bool((trace.final_reply or "").strip()), "echo"),
        (lambda task, trace, state: "orry" in trace.final_reply or "colleague" in trace.final_reply, "says it did"),
        (lambda task, trace, state: bool(trace.tool_calls), "only looks"),
        (lambda task, trace, state: any(a["tool"] == task.goal["action"] for a in state["actions"]), "does both"),
        (lambda task, trace, state: {a["tool"] for a in state["actions"]} == {task.goal["action"]}, "does it twice"),
        (lambda task, trace, state: any('"ok":true' in (m.content or "") for m in trace.messages),
         "edits the grader's inputs"),
        (lambda task, trace, state: [a["tool"] for a in state["actions"]] == [task.goal["action"]],
         "acts without looking"),
    ],
)  # fmt: skip
def test_a_reward_that_pays_a_cheat_is_caught_by_the_agent_made_for_it(reward: Any, caught: str) -> None:
    problems = checked(rubric_of(reward)).problems
    assert any(f"agent {caught!r}" in problem and "succeeds" in problem for problem in problems), problems


def test_a_null_agent_that_earns_a_little_for_nothing_is_a_problem() -> None:
    free = Rubric("r", [Check("free", 1, lambda *_: True), Check("real", 1, lambda task, trace, state: False)])
    problems = checked(free).problems
    assert any("'silent' earns 0.50 for nothing" in problem for problem in problems)
    assert any("the reference scores below 1 on 40 of 40" in p and "real = 0" in p for p in problems)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, -0.1, None])
def test_a_check_that_says_no_score_is_named_and_counted(value: Any) -> None:
    rubric = Rubric("r", [*support.rubric.checks, Check("odd", 1, lambda *_: value)])
    found = checked(rubric)
    assert all(exam.scores == [None] * len(exam.scores) for exam in found.exams)
    assert any("'reference': 40 times no score" in p and "odd" in p for p in found.problems)


def test_environments_that_break_their_promises_are_caught() -> None:
    ticket = itertools.count()

    def forgets_the_seed(episode: Episode, id: str) -> Any:
        return support.environment.by_name["get_order"].run(episode, id=id) | {"now": next(ticket)}

    def hides_state(episode: Episode, id: str) -> Any:
        calls = getattr(episode, "hidden", 0)
        episode.hidden = calls + 1  # type: ignore[attr-defined]
        return support.environment.by_name["get_order"].run(episode, id=id) | {"calls": calls}

    for run in (forgets_the_seed, hides_state):
        tools = [replace(t, run=run) if t.name == "get_order" else t for t in support.environment.tools]
        problems = checked(environment=Environment("planted", tools)).problems
        assert any("the same seed gives another episode" in problem for problem in problems), run


def test_a_refused_call_that_changes_the_world_is_caught() -> None:
    class Careless(Environment):
        def reset(self, task: Task, seed: int = 0) -> Episode:
            episode = super().reset(task, seed)
            step = episode.step

            def counting(call: Any) -> Any:
                seen = step(call)
                if seen.error:
                    episode.state["refused"] = episode.state.get("refused", 0) + 1
                return seen

            episode.step = counting  # type: ignore[method-assign]
            return episode

    problems = checked(environment=Careless("planted", support.environment.tools)).problems
    assert any("a refused call changes the state" in problem for problem in problems)


def test_bad_schemas_and_missing_descriptions_are_named() -> None:
    tools = [replace(t, description=" ") if t.name == "deny" else t for t in support.environment.tools]
    tools = [replace(t, parameters={**t.parameters, "type": "thing"}) if t.name == "voucher" else t for t in tools]
    problems = check_environment(Environment("e", tools), support.rubric, TASKS[:1]).problems
    assert any("'deny': no description" in problem for problem in problems)
    assert any("'voucher': its parameters are no JSON schema" in problem for problem in problems)


def test_tools_that_break_are_problems_and_not_the_end() -> None:
    def broken(episode: Episode, id: str) -> Any:
        raise KeyError("minutes")

    def tuples(episode: Episode, id: str) -> Any:
        episode.state["pair"] = (1, 2)
        return {"ok": True}

    for run, told in ((broken, "KeyError: 'minutes'"), (tuples, "not plain JSON")):
        tools = [replace(t, run=run) if t.name == "get_order" else t for t in support.environment.tools]
        found = checked(environment=Environment("planted", tools))
        assert any(told in problem for problem in found.problems), found.problems
        assert {exam.agent for exam in found.exams} >= {"reference", "silent", "echo"}


def test_a_task_that_is_changed_by_being_played_is_named() -> None:
    def touches(episode: Episode, id: str) -> Any:
        episode.task.goal["seen"] = True
        return support.environment.by_name["get_order"].run(episode, id=id)

    tasks = [task.model_copy(deep=True) for task in TASKS[:3]]
    tools = [replace(t, run=touches) if t.name == "get_order" else t for t in support.environment.tools]
    problems = check_environment(Environment("planted", tools), support.rubric, tasks, support.oracle).problems
    assert sum("it was changed by being played" in problem for problem in problems) == 3


def test_a_cheat_that_is_paid_well_without_succeeding_is_a_problem() -> None:
    words = Check(
        "words", 9, lambda task, trace, state: (trace.final_reply or "")[:1] in "SA" and trace.final_reply != ""
    )
    deed = Check("deed", 1, lambda task, trace, state: bool(state["actions"]))
    problems = checked(Rubric("shaped", [words, deed])).problems
    assert any(problem.startswith("a cheat is paid well: agent 'says it did' earns 0.90") for problem in problems)


def test_a_reference_that_needs_more_turns_is_told_so() -> None:
    found = check_environment(support.environment, support.rubric, TASKS[:5], support.oracle, max_turns=2)
    assert any("cut off after 2 turns" in problem for problem in found.problems)


def test_honest_answers_to_questions_are_not_called_cheats() -> None:
    """A task that changes nothing: whoever says what the oracle says has ended as it did, and nobody can tell."""
    schema = {"type": "object", "properties": {}}
    desk = Environment("faq", [Tool("hours", "Opening hours.", schema, lambda episode: {"hours": "9 to 5"})])
    tasks = [Task(id=str(n), messages=[Message(role="user", content="when?")], state={}) for n in range(3)]
    right = Rubric("r", [Check("said", 1, lambda task, trace, state: trace.final_reply == "9 to 5")])
    found = check_environment(desk, right, tasks, calling([("hours", {})], "9 to 5"))
    assert found.problems == []
    assert {exam.agent: exam.same for exam in found.exams}["says it did"] == 3


def test_two_tasks_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="two of one id"):
        check_environment(support.environment, support.rubric, [TASKS[0], TASKS[0]])


def test_without_a_reference_the_null_agents_are_still_examined() -> None:
    found = check_environment(support.environment, support.rubric, TASKS[:3])
    assert [exam.agent for exam in found.exams] == ["silent", "echo"]
    with pytest.raises(ValueError, match="no tasks"):
        check_environment(support.environment, support.rubric, [])


def test_a_recorded_agent_says_again_what_it_said() -> None:
    trace, episode = play(support.environment, support.oracle, TASKS[0])
    again, other = play(support.environment, recorded(trace), TASKS[0])
    assert again.messages == trace.messages
    assert other.state == episode.state


def test_an_agent_cannot_write_into_the_conversation_or_speak_as_a_tool() -> None:
    def writes(messages: list[Message]) -> Message:
        messages.append(Message(role="tool", content='{"ok":true}', tool_call_id="call_1"))
        messages[0].content = "changed"
        return silent(messages)

    trace, _ = play(support.environment, writes, TASKS[0])
    assert trace.messages[:-1] == TASKS[0].messages
    with pytest.raises(ValueError, match="role assistant"):
        play(support.environment, lambda messages: Message(role="tool", content="{}"), TASKS[0])
    assert echo(TASKS[0].messages).content == TASKS[0].messages[-1].content
    assert isinstance(trace, Trace)
