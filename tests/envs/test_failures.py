"""Whose fault and what kind: one session for each rule, the order of the rules, and outcomes with their sources."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlkit.envs.failures import Expected, Failure, Rules, explain_failure, is_error, outcome
from rlkit.envs.grading import Check, Grade, Rubric
from rlkit.envs.mining import mine
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.examples.support.production import production_sessions
from rlkit.logs import read_traces
from rlkit.logs.trace import Diagnostic, Message, Outcome, ToolCall, Trace

SHARED = Path(os.environ.get("RLKIT_SHARED") or Path(__file__).parents[3] / "shared")
TAU = SHARED / "data" / "tau_bench_airline_gpt4o.json"
RULES = Rules(writes=("cancel", "refund"), gives_up=("escalate",), checks={"looked": "policy_violated"})
CANCEL = Expected([("cancel", {"id": 7})])


def session(*calls: tuple[str, Any, str], reply: str | None = "done", status: Any = "failure") -> Trace:
    """(tool, arguments, result) calls and a reply."""
    messages = [Message(role="user", content="cancel 7")]
    for n, (name, arguments, result) in enumerate(calls):
        raw = {"raw_arguments": "{bad"} if arguments is None else {}
        messages.append(Message(role="assistant", tool_calls=[ToolCall(f"c{n}", name, arguments, **raw)]))
        messages.append(Message(role="tool", content=result, tool_call_id=f"c{n}"))
    if reply is not None:
        messages.append(Message(role="assistant", content=reply))
    return Trace(id="s", messages=messages, outcome=Outcome(status=status, source="feedback"))


def kind(trace: Trace, expected: Expected | None = CANCEL, grade: Grade | None = None) -> tuple[str, str]:
    found = explain_failure(trace, RULES, expected, grade)
    assert found.evidence
    return found.fault, found.kind


def graded(*scores: tuple[str, Any], status: Any = "completed") -> Grade:
    rubric = Rubric("r", [Check(name, 1, lambda t, tr, s, score=score: score) for name, score in scores])
    return rubric.grade(Task(id="t", messages=[], state={}), Trace(id="t", messages=[]), {}, status)


LOOK, OK = ("look", {"id": 7}, '{"id":7}'), '{"ok":true}'


@pytest.mark.parametrize(
    ("trace", "expected", "fault", "kind_"),
    [
        (session(LOOK), CANCEL, "agent", "no_write"),
        (session(LOOK, ("cancel", {"id": 8}, OK)), CANCEL, "agent", "wrong_arguments"),
        (session(LOOK, ("refund", {"id": 7}, OK)), CANCEL, "agent", "wrong_tool"),
        (session(("cancel", {"id": 7}, OK), ("refund", {"id": 7}, OK)), CANCEL, "agent", "extra_write"),
        (session(("cancel", {"id": 7}, OK)), Expected(), "agent", "extra_write"),
        (session(("cancel", {"id": 7}, '{"error":"no"}')), CANCEL, "agent", "no_write"),
        (session(LOOK, ("escalate", {}, OK)), CANCEL, "agent", "gave_up"),
        (session(LOOK, ("escalate", {}, OK), reply=None), CANCEL, "agent", "gave_up"),
        (session(LOOK, LOOK, LOOK), CANCEL, "agent", "loop"),
        (session(LOOK, LOOK, ("look", {"id": 7}, "other"), LOOK), CANCEL, "agent", "no_write"),
        (session(LOOK, reply=None), CANCEL, "agent", "truncated"),
        (session(LOOK, status="truncated"), CANCEL, "agent", "truncated"),
        (session(("cancel", None, '{"error":"arguments"}')), CANCEL, "agent", "parse_error"),
        (session(("cancel", None, '{"error":"x"}'), ("cancel", {"id": 8}, OK)), CANCEL, "agent", "wrong_arguments"),
        (session(("cancel", {"id": 7}, OK)), Expected(CANCEL.writes, ["refund of 1,200"]), "agent",
         "missing_information"),
        (session(("cancel", {"id": 7}, OK), reply="A Refund of 1200."), Expected(CANCEL.writes, ["refund of 1,200"]),
         "grader", "disagreement"),
        (session(("cancel", {"id": 7.0}, OK), reply="1420"), Expected(CANCEL.writes, ["42"]), "agent",
         "missing_information"),
        (session(LOOK, reply="Which order do you mean?"), CANCEL, "user", "missing_information"),
        (session(("cancel", {"id": 7}, "Error: 503 unavailable"), ("cancel", {"id": 7}, "Error: timed out")), CANCEL,
         "environment", "infrastructure"),
        (session(LOOK, ("escalate", {}, OK)), None, "agent", "gave_up"),
        (session(LOOK), None, "unknown", "unknown"),
    ],
)  # fmt: skip
def test_one_session_for_each_rule(trace: Trace, expected: Expected | None, fault: str, kind_: str) -> None:
    assert kind(trace, expected) == (fault, kind_)


def test_the_grader_is_blamed_first() -> None:
    trace = session(LOOK)
    assert kind(trace, grade=graded(("looked", None))) == ("grader", "infrastructure")
    assert kind(trace, grade=graded(("looked", 1))) == ("grader", "disagreement")
    assert kind(session(LOOK, status="success"), grade=graded(("looked", 0))) == ("grader", "disagreement")
    assert kind(trace, grade=Grade("grader_error", None, [], "r")) == ("grader", "infrastructure")


def test_an_infrastructure_error_is_the_environments() -> None:
    trace = session(LOOK)
    trace.diagnostics = [Diagnostic(code="infra_error", severity="error", detail="tool 'look' returned a set")]
    found = explain_failure(trace, RULES, CANCEL, graded(("looked", 1), status="infra_error"))
    assert found == Failure("environment", "infrastructure", "tool 'look' returned a set")


def test_a_failed_check_gives_the_kind_where_the_calls_were_right() -> None:
    right = session(("cancel", {"id": 7}, OK))
    assert kind(right, grade=graded(("looked", 0), ("other", 1))) == ("agent", "policy_violated")
    assert kind(right, grade=graded(("other", 0))) == ("unknown", "unknown")
    assert kind(session(LOOK), grade=graded(("looked", 0))) == ("agent", "no_write")


@pytest.mark.parametrize(
    ("content", "extra", "error"),
    [
        ('{"error":"no"}', None, True), ('{"error":null}', None, False), ("Error: no", None, True),
        ("errorless run", None, False), ("Errors: none", None, False), ("error in line 1", None, True),
        ("fine", None, False), ("fine", {"is_error": True}, True),
        ("[1]", None, False), ('{"error"', None, False), (None, None, False),
    ],
)  # fmt: skip
def test_what_counts_as_an_error(content: str | None, extra: dict[str, Any] | None, error: bool) -> None:
    assert is_error(Message(role="tool", content=content, extra=extra)) is error


def test_outcomes_name_their_source_and_unknown_stays_unknown() -> None:
    unknown = session(LOOK, status="unknown")
    assert outcome(session(LOOK)).source == "feedback"
    assert outcome(unknown) == Outcome()
    said = outcome(unknown, graded(("looked", 0.5)))
    assert (said.status, said.score) == ("failure", 0.5)
    assert said.source.startswith("rubric:r@")
    for trace, status, source in (
        (session(LOOK, reply=None, status="unknown"), "truncated", "heuristic:cut_off"),
        (session(LOOK, LOOK, LOOK, status="unknown"), "failure", "heuristic:goes_in_circles"),
    ):
        found = outcome(trace)
        assert (found.status, found.score, found.source) == (status, None, source)
    unknown.messages.append(Message(role="user", content="Forget it, I want a human agent"))
    assert outcome(unknown).source == "heuristic:user_gave_up"
    assert outcome(unknown, heuristics=()) == Outcome()


def test_the_three_systematic_flaws_of_the_production_agent_are_most_of_its_failures() -> None:
    mining = mine(production_sessions(400, seed=5), support.task_from_trace, support.final_state, support.rubric)
    found = Counter(
        explain_failure(m.trace, support.rules, support.expected(m.task), m.grade).kind
        for m in mining.sessions
        if m.grade.status == "failure"
    )
    assert found["gave_up"] + found["wrong_tool"] > 0.75 * found.total()
    assert found["unknown"] == found["disagreement"] == 0


@pytest.mark.skipif(not TAU.exists(), reason="the real logs are not part of the repository")
def test_every_failure_of_tau_bench_gets_a_fault_and_a_kind() -> None:
    """Against the reference page's own rules over 200 sessions: writes wrong, missing or extra lead, then arguments,
    then no write; few are cut off. These are the first 100."""
    writes = ("book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages",
              "update_reservation_flights", "update_reservation_passengers")  # fmt: skip
    rules = Rules(writes, gives_up=("transfer_to_human_agents",))
    found: Counter[str] = Counter()
    for trace in read_traces(TAU):
        if trace.outcome.status == "success":
            continue
        task = trace.metadata["info"]["task"]
        actions = [(a["name"], a["kwargs"]) for a in task["actions"] if a["name"] in writes]
        found[explain_failure(trace, rules, Expected(actions, [str(text) for text in task["outputs"]])).kind] += 1
    assert found.total() == 69
    assert found["unknown"] == 0
    assert found["disagreement"] <= 3
    assert {"wrong_arguments", "no_write", "extra_write", "gave_up"} <= found.keys()
