"""Fidelity: what drifted between the logs and the environment is named, once, with its count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.envs.drift import differences, without
from rlkit.envs.environment import Environment, Episode, InfrastructureError, Tool, ToolError
from rlkit.envs.fidelity import Fidelity, fidelity
from rlkit.envs.mining import NotATask
from rlkit.envs.replay import ReplayEnvironment
from rlkit.envs.task import Task
from rlkit.examples.support import environment as desk
from rlkit.examples.support import task_from_trace
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.examples.support.production import production_sessions
from rlkit.logs.trace import Message, ToolCall, Trace

RECORDED_S = 0.010


def production(count: int = 200) -> list[Trace]:
    """Support sessions in which every call took ten milliseconds."""
    traces = []
    for trace in production_sessions(count, seed=3):
        clock = datetime(2026, 5, 1, tzinfo=UTC)
        messages = []
        for message in trace.messages:
            clock += timedelta(seconds=RECORDED_S if message.role == "tool" else 2)
            messages.append(replace(message, timestamp=clock.isoformat()))
        traces.append(trace.model_copy(update={"messages": messages}))
    return traces


def lucky(recorded: str) -> bool:
    return GATEWAY_TIMEOUT in recorded


task = partial(task_from_trace, timeout_rate=0.0)
replay = partial(fidelity, task_from_trace=task, luck=lucky)


def with_tool(name: str, run: Callable[..., Any]) -> Environment:
    return Environment("drifted", [replace(tool, run=run) if tool.name == name else tool for tool in desk.tools])


def renamed(episode: Episode, id: str) -> Any:
    order = desk.by_name["get_order"].run(episode, id=id)
    return {"late_minutes" if key == "minutes_late" else key: value for key, value in order.items()}


def slow(episode: Episode, id: str) -> Any:
    time.sleep(5 * RECORDED_S)
    return desk.by_name["voucher"].run(episode, id=id)


def wrong(episode: Episode, id: str, item: str) -> Any:
    return desk.by_name["refund"].run(episode, id=id, item=item) | {"amount": 1}


def test_the_environment_of_the_course_answers_as_production_did() -> None:
    found = replay(desk, production())
    assert found.counts["exact"] > 300
    assert found.counts["luck"] > 10
    assert found.counts["different"] == found.counts["error"] == 0
    assert found.findings == []
    assert found.share == 1
    assert found.dropped["the order was never looked up"] > 0


def test_a_renamed_field_is_one_finding_with_its_count() -> None:
    found = replay(with_tool("get_order", renamed), production())
    looked_up = sum(call.tool == "get_order" and "id" in json.loads(call.recorded) for call in found.calls)
    (finding,) = found.findings
    assert (finding.kind, finding.subject, finding.tools) == ("renamed", "minutes_late → late_minutes", ["get_order"])
    assert (finding.count, finding.of) == (looked_up, looked_up)


def test_schema_drift_latency_drift_and_a_wrong_tool_are_all_three_named() -> None:
    drifted = desk
    for name, run in (("get_order", renamed), ("voucher", slow), ("refund", wrong)):
        drifted = Environment("d", [replace(t, run=run) if t.name == name else t for t in drifted.tools])
    found = replay(drifted, production(120))
    assert [(f.kind, f.subject) for f in found.findings] == [
        ("renamed", "minutes_late → late_minutes"),
        ("tool", "refund"),
        ("latency", "voucher"),
    ]
    assert "amount" in found.findings[1].example
    assert "10 ms recorded" in found.findings[2].example
    table = found.table()
    assert table.loc["refund", "different"] == found.findings[1].count
    assert table.loc["deny", "exact"] == table.loc["deny", "calls"]
    assert set(found.fields()["field"]) >= {"amount", "minutes_late → late_minutes"}
    assert "renamed minutes_late → late_minutes in get_order" in str(found)


def test_a_tool_that_fails_is_an_error_and_not_a_difference() -> None:
    def down(episode: Episode, id: str) -> Any:
        raise InfrastructureError("no route to host")

    def refuses(episode: Episode, id: str) -> Any:
        raise ToolError("not today")

    for run, told in ((down, "no route to host"), (refuses, "not today")):
        found = replay(with_tool("deny", run), production(60))
        (finding,) = found.findings
        assert (finding.kind, finding.subject, finding.count) == ("error", "deny", finding.of)
        assert told in finding.example
        assert found.counts["different"] == 0


def test_a_value_that_is_wrong_now_and_then_is_told_with_its_share() -> None:
    def sometimes(episode: Episode, id: str) -> Any:
        result = desk.by_name["escalate"].run(episode, id=id)
        return result | {"ticket": 0} if int(id) % 4 == 0 else result

    found = replay(with_tool("escalate", sometimes), production())
    (finding,) = found.findings
    assert (finding.kind, finding.subject, finding.tools) == ("value", "ticket", ["escalate"])
    assert 0 < finding.count < finding.of / 2


def one_tool(recorded: str, replayed: Any, equal: Any = ()) -> Fidelity:
    environment = Environment("e", [Tool("look", "Look.", {"type": "object"}, lambda episode: replayed)])
    messages = [
        Message(role="user", content="hi"),
        Message(role="assistant", tool_calls=[ToolCall("c", "look", {})]),
        Message(role="tool", content=recorded, tool_call_id="c"),
    ]
    trace = Trace(id="t", messages=messages)
    return fidelity(environment, [trace] * 4, lambda t: Task(id=t.id, messages=messages[:1], state={}), equal)


@pytest.mark.parametrize(
    ("recorded", "replayed", "equal", "result"),
    [
        ('{"a":1}', {"a": 1}, (), "exact"),
        ('{ "b":2, "a": 1.0 }', {"a": 1, "b": 2}, (), "equal"),
        ('{"a":1,"at":"noon"}', {"a": 1, "at": "one"}, ["at"], "equal"),
        ('{"o":{"at":"noon"},"at":1}', {"o": {"at": "one"}, "at": 1}, ["o.at"], "equal"),
        ('{"o":{"at":"noon"},"at":1}', {"o": {"at": "noon"}, "at": 2}, ["o.at"], "different"),
        ('[{"at":1},{"at":2}]', [{"at": 3}, {}], ["*.at"], "equal"),
        ("plain text", "plain text", (), "equal"),
        ("plain text", "other text", (), "different"),
        ("[1,2]", [2, 1], (), "different"),
        ('{"a":true}', {"a": 1}, (), "different"),
        ('{"error":"no"}', {"error": "no such"}, (), "different"),
    ],
)
def test_exact_equal_and_different(recorded: str, replayed: Any, equal: list[str], result: str) -> None:
    assert one_tool(recorded, replayed, equal).counts == {result: 4}


def test_a_change_of_type_and_fields_that_came_or_went_are_findings_too() -> None:
    found = one_tool('{"n":7,"gone":1,"same":0}', {"n": "7", "came": 2, "same": 0})
    assert {(f.kind, f.subject, f.count, f.of) for f in found.findings} == {
        ("type", "n", 4, 4),
        ("missing", "gone", 4, 4),
        ("added", "came", 4, 4),
    }
    assert "7 → 7" in next(f for f in found.findings if f.kind == "type").example


def test_what_cannot_be_replayed_is_counted() -> None:
    def no_task(trace: Trace) -> Task:
        raise NotATask("nothing shown")

    found = fidelity(desk, [Trace(id="t", messages=[])] * 2, no_task)
    assert found.dropped == {"nothing shown": 2}
    assert found.counts == {}
    assert "not replayed: 2 sessions, nothing shown" in str(found)


def test_an_environment_replayed_from_the_logs_answers_them_exactly() -> None:
    traces = production(100)
    environment = ReplayEnvironment(traces)
    found = fidelity(environment, traces, environment.task)
    assert found.counts == {"exact": sum(len(t.tool_calls) for t in traces)}


def test_tasks_are_left_as_they_were_and_sessions_do_not_mix() -> None:
    traces = production(20)
    tasks = {t.id: task(t) for t in traces if any("id" in (r.content or "") for _, r in t.answered if r)}
    before = {id: made.model_dump_json() for id, made in tasks.items()}
    fidelity(desk, [t for t in traces if t.id in tasks], lambda t: tasks[t.id], luck=lucky)
    assert {id: made.model_dump_json() for id, made in tasks.items()} == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_differences_are_empty_just_where_the_values_are_the_same_json(a: Any, b: Any) -> None:
    same = json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    assert (differences(a, b) == []) == same
    assert without(a, []) == a


def test_of_two_fields_that_might_be_the_renamed_one_the_first_is_taken_whatever_the_hash_seed() -> None:
    found = differences({"a": 1, "b": 1}, {"c": 1, "d": 1})
    assert [(d.change, d.path) for d in found] == [("renamed", "a → c"), ("renamed", "b → d")]
    found = differences({"l": [{"x": 1}, {"x": 2}]}, {"l": [{"y": 1}, {"y": 2}]})
    assert {(d.change, d.path) for d in found} == {("renamed", "x → y")}


def two_tools(results: dict[str, list[tuple[str, Any]]]) -> Fidelity:
    """Each tool's recorded texts and what is replayed, call by call."""
    answers = {name: iter([replayed for _, replayed in pairs]) for name, pairs in results.items()}
    tools = [Tool(name, name, {"type": "object"}, lambda episode, name=name: next(answers[name])) for name in results]
    messages = [Message(role="user", content="hi")]
    for name, pairs in results.items():
        for n, (recorded, _) in enumerate(pairs):
            messages.append(Message(role="assistant", tool_calls=[ToolCall(f"{name}{n}", name, {})]))
            messages.append(Message(role="tool", content=recorded, tool_call_id=f"{name}{n}"))
    trace = Trace(id="t", messages=messages)
    return fidelity(Environment("e", tools), [trace], lambda t: Task(id=t.id, messages=messages[:1], state={}))


def told(found: Fidelity) -> set[tuple[str, str, int, int]]:
    return {(f.kind, f.subject, f.count, f.of) for f in found.findings}


def test_a_drift_in_one_tool_is_not_drowned_by_another_that_has_a_field_of_that_name() -> None:
    users = [(json.dumps({"id": n}), {"user_id": n}) for n in range(20)]
    orders = [(json.dumps({"id": n}), {"id": n}) for n in range(100)]
    assert told(two_tools({"get_user": users, "get_order": orders})) == {("renamed", "id → user_id", 20, 20)}


def test_a_few_odd_types_are_no_drift_of_many() -> None:
    lists = [('["a"]', [1] if n < 3 else ["a"]) for n in range(300)]
    texts = [('{"a":1}', "text" if n < 3 else {"a": 1}) for n in range(300)]
    assert told(two_tools({"tags": lists, "get": texts})) == {("type", "*", 3, 300), ("type", "(all)", 3, 300)}


def test_renamings_are_chosen_over_all_results_where_values_often_agree() -> None:
    pairs = [(n % 7 == 0, n % 3 == 0) for n in range(100)]
    calls = [(json.dumps({"paid": p, "shipped": s}), {"was_shipped": s, "is_paid": p}) for p, s in pairs]
    assert told(two_tools({"get": calls})) == {
        ("renamed", "paid → is_paid", 100, 100),
        ("renamed", "shipped → was_shipped", 100, 100),
    }
    assert [d.change for d in differences({"a": 1}, {"b": True})] == ["missing", "added"]


def test_errors_of_a_tool_do_not_hide_a_field_that_came() -> None:
    calls = [('{"error":"no"}', {"error": "no"}) if n % 3 == 0 else ('{"a":1}', {"a": 1, "b": 2}) for n in range(30)]
    assert told(two_tools({"get": calls})) == {("added", "b", 20, 20)}


def test_what_a_drift_explains_is_not_told_again() -> None:
    calls = [(json.dumps({"a": n, "total": 1}), {"b": n, "total": 1 + (n % 3 == 0)}) for n in range(30)]
    assert told(two_tools({"get": calls})) == {("renamed", "a → b", 30, 30), ("value", "total", 10, 30)}


def test_lists_of_another_length_are_compared_as_far_as_they_go() -> None:
    calls = [(json.dumps([{"x": n}, {"x": n + 1}]), [{"y": n}]) for n in range(10)]
    assert told(two_tools({"get": calls})) == {("renamed", "x → y", 10, 10), ("tool", "get", 10, 10)}


def test_a_tool_that_breaks_is_an_error_and_the_rest_goes_on() -> None:
    def broken(episode: Episode, id: str) -> Any:
        raise KeyError("minutes")

    found = replay(with_tool("deny", broken), production(60))
    (finding,) = found.findings
    assert (finding.kind, finding.subject) == ("error", "deny")
    assert "KeyError" in finding.example


def test_json_nested_too_deep_is_compared_as_text() -> None:
    found = one_tool("[" * 700 + "1" + "]" * 700, json.loads("[" * 700 + "2" + "]" * 700))
    assert found.counts["different"] + found.counts["error"] == 4


def test_nothing_to_replay_is_said_in_words() -> None:
    assert "nothing to replay" in str(fidelity(desk, [], task))


@given(st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(), min_size=1))
def test_a_renaming_is_found_whatever_else_is_there(fields: dict[str, int]) -> None:
    name = sorted(fields)[0]
    (found,) = differences(fields, {("new" if key == name else key): value for key, value in fields.items()})
    assert (found.change, found.path) == ("renamed", f"{name} → new")
