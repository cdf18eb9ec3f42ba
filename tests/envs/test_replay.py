"""Environments replayed from logs: recorded answers come back, near ones by rule, unknown ones say so."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlkit.envs.environment import Episode
from rlkit.envs.mining import NotATask
from rlkit.envs.replay import Near, ReplayEnvironment, matches
from rlkit.logs import read_traces
from rlkit.logs.trace import Message, ToolCall, Trace

SHARED = Path(os.environ.get("RLKIT_SHARED") or Path(__file__).parents[3] / "shared")
TAU = SHARED / "data" / "tau_bench_airline_gpt4o.json"


def trace(*calls: tuple[ToolCall, str | None], id: str = "s") -> Trace:
    messages = [Message(role="user", content="hi")]
    for call, result in calls:
        messages.append(Message(role="assistant", tool_calls=[call]))
        if result is not None:
            messages.append(Message(role="tool", content=result, tool_call_id=call.id, name=call.name))
    return Trace(id=id, messages=messages)


def call(name: str, id: str = "c", **arguments: object) -> ToolCall:
    return ToolCall(id, name, arguments)


def episode(recorded: Trace, near: Near | None = None) -> Episode:
    environment = ReplayEnvironment([recorded], near)
    return environment.reset(environment.task(recorded))


def test_a_recorded_call_gets_its_recorded_answer_word_for_word() -> None:
    played = episode(trace((call("look", b=1, a=[2]), "Error: not JSON, é\n")))
    seen = played.step(call("look", "other id", a=[2], b=1))
    assert seen.content == "Error: not JSON, é\n"
    assert played.state["matches"] == {"exact": 1}


def test_the_same_call_gets_its_answers_in_order_and_then_the_last_again() -> None:
    played = episode(trace((call("look", "c1"), "before"), (call("look", "c2"), "after")))
    assert [played.step(call("look")).content for _ in range(3)] == ["before", "after", "after"]
    assert played.state["matches"] == {"exact": 2, "again": 1}


def test_near_matches_are_answered_by_the_declared_rule_only() -> None:
    recorded = trace((call("look", who="Ada  Okafor", n=7, at="noon"), "found"))
    asked = call("look", who="ada okafor", n=7.0, at="one")
    assert episode(recorded, Near(ignore={"at"})).step(asked).content == "found"
    assert episode(recorded).step(asked).error
    assert episode(recorded, Near(ignore={"at"}, text=False)).step(asked).error
    played = episode(recorded, Near(ignore={"at"}))
    played.step(asked)
    assert played.state["matches"] == {"near": 1}


@pytest.mark.parametrize(
    ("recorded", "asked", "near"),
    [(7, 7.0, True), (1234567, "1234567", True), (12345678, 12345679, False), (1000000.01, 1000004, False),
     (0.1, "0.1", True), (10**400, 10**400 + 1, False)],
)  # fmt: skip
def test_numbers_are_near_only_what_they_are(recorded: Any, asked: Any, near: bool) -> None:
    played = episode(trace((call("look", n=recorded), "found")))
    assert (not played.step(call("look", n=asked)).error) == near


def test_tools_without_a_proper_name_are_left_out() -> None:
    odd = trace((call("look"), "x")).model_copy(update={"tools": [{"name": None}, {"name": 3}, {}]})
    assert [tool.name for tool in ReplayEnvironment([odd]).tools] == ["look"]


def test_true_is_not_near_one() -> None:
    assert episode(trace((call("look", n=True), "yes"))).step(call("look", n=1)).error


def test_an_unmatched_call_says_so_and_is_counted() -> None:
    played = episode(trace((call("look", n=1), "x"), (call("look", n=3), None)))
    for n in (2, 3):  # never made, and made without an answer
        seen = played.step(call("look", n=n))
        assert seen.error
        assert "not recorded" in json.loads(seen.content)["error"]
    assert matches([played, played]) == {"unmatched": 4}


def test_arguments_that_are_no_json_and_tools_never_offered_are_replayed_too() -> None:
    broken = ToolCall("c", "look", None, raw_arguments='{"q": "x" "y"}')
    played = episode(trace((broken, "Error: bad JSON")))
    assert played.step(broken).content == "Error: bad JSON"
    assert played.step(ToolCall("c", "look", None, raw_arguments="{")).error


def test_answers_of_borrowed_tools_come_from_any_session() -> None:
    one, other = trace((call("add", a=1), "2"), id="1"), trace((call("look"), "x"), id="2")
    environment = ReplayEnvironment([one, other], borrow={"add"})
    played = environment.reset(environment.task(other))
    assert played.step(call("add", a=1)).content == "2"
    assert played.step(call("add", a=2)).error
    assert played.state["matches"] == {"borrowed": 1, "unmatched": 1}


def test_snapshots_bring_back_where_the_replay_was() -> None:
    played = episode(trace((call("look", "c1"), "before"), (call("look", "c2"), "after")))
    saved = played.snapshot()
    played.step(call("look"))
    twin = played.fork()
    played.restore(saved)
    assert [played.step(call("look")).content, twin.step(call("look")).content] == ["before", "after"]


def test_calls_that_share_an_id_are_paired_in_order() -> None:
    recorded = trace((call("look", "c", n=1), "one"), (call("look", "c", n=2), "two"))
    played = episode(recorded)
    assert [played.step(call("look", n=n)).content for n in (2, 1)] == ["two", "one"]


def test_a_session_that_the_agent_begins_is_no_task() -> None:
    environment = ReplayEnvironment([])
    with pytest.raises(NotATask, match="first turn"):
        environment.task(Trace(id="x", messages=[Message(role="assistant", content="hello?")]))


@pytest.mark.skipif(not TAU.exists(), reason="the real logs are not part of the repository")
def test_every_recorded_call_of_tau_bench_is_answered_exactly() -> None:
    traces = list(read_traces(TAU))
    environment = ReplayEnvironment(traces)
    episodes = []
    for recorded in traces:
        episodes.append(environment.reset(environment.task(recorded)))
        for made, result in recorded.answered:
            assert result is not None
            assert episodes[-1].step(made).content == result.content
    assert matches(episodes) == {"exact": 621}
