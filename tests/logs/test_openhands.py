"""OpenHands events into traces; all made up, and the way back is in test_tau.py.

Fields as in github.com/All-Hands-AI/OpenHands (openhands/events/serialization/event.py, openhands/events/tool.py,
openhands/events/action, openhands/events/observation, evaluation output of up to version 0.62).
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, Outcome, ToolCall
from rlkit.logs.readers import openhands
from tests.logs.test_tau import codes, damaged, look, read, registered, survives

__all__ = ["registered"]


def event(id, source, kind, *, observed=False, cause=None, called=None, content=None, extras=None, **args):
    shared = {"id": id, "timestamp": f"2026-01-01T10:00:{id % 60:02}.000001", "source": source, "message": "…"}
    shared |= {"tool_call_metadata": called} if called else {}
    if not observed:
        return shared | {"action": kind, "args": args if content is None else {"content": content} | args}
    return shared | {"cause": cause, "observation": kind, "content": content or "", "extras": extras or {}}


def answer(id, *calls, content=None, **more):
    """The metadata of each call of one answer: (call id, name, arguments)."""
    logged = [{"index": 0, "id": c, "type": "function", "function": {"name": n, "arguments": a}} for c, n, a in calls]
    message = {"role": "assistant", "content": content, "tool_calls": logged, "function_call": None, **more}
    response = {"id": id, "model": "m", "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}]}
    return [
        {"function_name": n, "tool_call_id": c, "model_response": response, "total_calls_in_response": len(calls)}
        for c, n, _ in calls
    ]


ONE, TWO = answer("r1", ("c1", "execute_bash", '{"command": "ls"}'), ("c2", "read", '{"path":"a"}'), content="Look.",
                  reasoning_content="Hm.")  # fmt: skip
(END,) = answer("r2", ("c3", "finish", '{"message":"Done."}'))
EVENTS = [
    event(
        0, "agent", "system", content="You are OpenHands.", tools=[{"type": "function", "function": {"name": "run"}}]
    ),
    event(1, "user", "message", content="Fix it."),
    event(2, "environment", "agent_state_changed", observed=True, extras={"agent_state": "running"}),
    event(3, "user", "recall", query="Fix it."),
    event(4, "agent", "run", called=ONE, command="ls", thought="Look."),
    event(5, "agent", "run", observed=True, cause=4, called=ONE, content="a", extras={"exit_code": 0}),
    event(6, "agent", "read", called=TWO, path="a"),
    event(7, "agent", "read", observed=True, cause=6, called=TWO, content="x = 1"),
    event(8, "agent", "finish", called=END, final_thought="Done."),
]


def times(messages):
    return [
        Message(m.role, m.content, m.tool_calls, m.tool_call_id, m.name, m.reasoning, None, m.extra) for m in messages
    ]


def said():
    """What the model was told and said: one message for both calls of an answer."""
    index = {"index": 0}
    calls = [
        ToolCall("c1", "execute_bash", {"command": "ls"}, '{"command": "ls"}', index),
        ToolCall("c2", "read", {"path": "a"}, None, index),
    ]
    return [
        Message("system", "You are OpenHands."),
        Message("user", "Fix it."),
        Message("assistant", "Look.", calls, reasoning="Hm.", extra={"model": "m"}),
        Message("tool", "a", [], "c1", "execute_bash", extra={"extras": {"exit_code": 0}}),
        Message("tool", "x = 1", [], "c2", "read"),
        Message("assistant", None, [ToolCall("c3", "finish", {"message": "Done."}, None, index)], extra={"model": "m"}),
    ]


def test_a_document_s_history_is_a_trace(tmp_path):
    document = {"instance_id": "repo-1", "metadata": {"llm": "m"}, "history": EVENTS, "report": {"resolved": True}}
    (trace,), report = read(tmp_path, "auto", document)
    assert times(trace.messages) == said()
    assert trace.messages[1].timestamp == "2026-01-01T10:00:01.000001Z"
    assert trace.id == "repo-1"
    assert trace.tools == [{"name": "run"}]
    assert trace.outcome == Outcome(status="success", score=1.0, source="openhands")
    assert trace.metadata == {"metadata": {"llm": "m"}, "report": {"resolved": True}}
    assert trace.raw == document
    assert codes(trace) == []
    assert report.skipped == 0


def test_events_as_lines_as_an_array_and_as_a_trajectory_are_the_same(tmp_path):
    (lines,), report = read(tmp_path, "auto", *EVENTS, name="s1.jsonl")
    assert (report.records, report.skipped, report.traces) == (9, 0, 1)
    (tmp_path / "s2.json").write_text(json.dumps(EVENTS, indent=2))
    (array,), report = look(tmp_path / "s2.json", "auto")
    assert (report.records, report.skipped, report.traces) == (9, 0, 1)
    (document,), _ = read(tmp_path, "auto", {"trajectory": EVENTS}, name="s3.json")
    assert lines.messages == array.messages == document.messages
    assert (lines.id, array.id) == ("s1", "s2")
    assert lines.raw == array.raw == EVENTS


def test_one_event_a_file_is_a_session_a_folder_in_the_order_of_their_numbers(tmp_path):
    for session in ("s1", "s2"):
        for number in range(12):
            content = f"{session} {number}"
            read(tmp_path, "openhands", event(number, "user", "message", content=content),
                 name=f"{session}/events/{number}.json")  # fmt: skip
        page = [event(0, "user", "message", content=f"{session} 0")]
        (tmp_path / session / "event_cache").mkdir()
        (tmp_path / session / "event_cache/0-25.json").write_text(json.dumps(page))
    found, report = look(tmp_path, "auto")
    assert [trace.id for trace in found] == ["s1", "s2"]
    assert [m.content for m in found[1].messages] == [f"s2 {n}" for n in range(12)]
    assert codes(found[0]) == ["line_repeated"]
    assert (report.files, report.records, report.skipped) == (26, 26, 0)


def test_old_histories_come_in_pairs_and_old_actions_without_the_model_s_words(tmp_path):
    pairs = [
        [event(1, "user", "message", content="Fix it."), event(2, "agent", "null", observed=True)],
        [event(3, "agent", "run", command="ls", thought="Look."),
         event(4, "agent", "run", observed=True, cause=3, content="a")],
    ]  # fmt: skip
    (trace,), _ = read(tmp_path, "auto", {"instance_id": 7, "history": pairs})
    assert trace.id == "7"
    assert times(trace.messages) == [
        Message("user", "Fix it."),
        Message("assistant", "Look.", [ToolCall("event_3", "run", {"command": "ls"})]),
        Message("tool", "a", [], "event_3"),
    ]


def test_ids_that_repeat_answer_the_call_before_them(tmp_path):
    """Where the model has no function calling, OpenHands numbers the calls of each answer from the start."""
    events = []
    for n in (1, 2):
        (called,) = answer(f"r{n}", ("toolu_01", "run", json.dumps({"n": n}, separators=(",", ":"))))
        events += [event(2 * n, "agent", "run", called=called),
                   event(2 * n + 1, "agent", "run", observed=True, called=called, content=str(n))]  # fmt: skip
    (trace,), _ = read(tmp_path, "openhands", {"history": events})
    assert [c.arguments for c in trace.tool_calls] == [{"n": 1}, {"n": 2}]
    assert [m.tool_call_id for m in trace.messages if m.role == "tool"] == [c.id for c in trace.tool_calls]
    assert codes(trace) == ["id_missing", "tool_call_id_duplicate"]


def test_a_response_without_its_message_is_put_together_from_its_actions(tmp_path):
    called = [one | {"model_response": {"id": "r1"}} for one in (ONE, TWO)]
    events = [event(1, "agent", "run", called=called[0], command="ls", thought="Look."),
              event(2, "agent", "read", called=called[1], path="a", thought="Look.")]  # fmt: skip
    (trace,), _ = read(tmp_path, "openhands", {"history": events})
    assert times(trace.messages) == [
        Message("assistant", "Look.", [ToolCall("c1", "execute_bash", {"command": "ls"}),
                                       ToolCall("c2", "read", {"path": "a"})]),
    ]  # fmt: skip


def test_a_delegate_is_a_subagent_of_the_call_that_started_it(tmp_path):
    (asked,) = answer("r1", ("d1", "delegate_to_browsing_agent", '{"task":"look"}'))
    (inner,) = answer("r2", ("b1", "browse", "{}"))
    events = [
        event(1, "user", "message", content="Find it."),
        event(2, "agent", "delegate", called=asked, agent="BrowsingAgent", inputs={"task": "look"}),
        event(3, "user", "message", content="TASK: look"),
        event(4, "agent", "browse", called=inner),
        event(5, "agent", "browse", observed=True, cause=4, called=inner, content="page"),
        event(6, "agent", "delegate", observed=True, cause=2, called=asked, content="found"),
        event(7, "agent", "message", content="Here it is."),
    ]
    (main, delegate), report = read(tmp_path, "openhands", *events, name="s1.jsonl")
    assert [m.content for m in main.messages] == ["Find it.", None, "found", "Here it is."]
    assert [m.content for m in delegate.messages] == ["TASK: look", None, "page"]
    assert (delegate.id, delegate.parent_id) == ("s1#1", "s1")
    assert (delegate.relation, delegate.parent_call_id) == ("subagent", "d1")
    assert delegate.raw == events[2:6]
    assert report.records == 7


def test_errors_are_told_to_the_agent_and_what_the_user_ran_is_the_user_s(tmp_path):
    events = [
        event(1, "user", "run", command="ls"),
        event(2, "user", "run", observed=True, cause=1, content="a"),
        event(3, "agent", "error", observed=True, content="No such tool."),
        event(4, "agent", "condensation", forgotten_event_ids=[1]),
        event(5, "user", "finish"),
    ]
    (trace,), _ = read(tmp_path, "openhands", *events)
    assert times(trace.messages) == [
        Message("user", None, [ToolCall("event_1", "run", {"command": "ls"})]),
        Message("tool", "a", [], "event_1"),
        Message("user", "No such tool.", extra={"observation": "error"}),
    ]
    assert codes(trace) == ["history_compacted"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"report": {"resolved": False}}, "failure"),
        ({"test_result": {"report": {"resolved": True}}}, "success"),
        ({"test_result": {"resolved": True}}, "success"),
        ({"test_result": {"git_patch": "diff"}}, "unknown"),
        ({"report": {"resolved": "yes"}}, "unknown"),
        ({"report": []}, "unknown"),
        ({"error": "RuntimeError: Agent reached maximum iteration. Current iteration: 30"}, "truncated"),
        ({"error": "AgentStuckInLoopError"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_how_an_evaluation_ended(tmp_path, more, status):
    (trace,), _ = read(tmp_path, "openhands", {"instance_id": "i", "history": EVENTS} | more)
    assert trace.outcome.status == status


def test_a_session_that_ran_out_of_iterations_was_cut(tmp_path):
    extras = {"agent_state": "error", "reason": "RuntimeError: Agent reached maximum iteration in headless mode."}
    end = event(9, "environment", "agent_state_changed", observed=True, extras=extras)
    (trace,), _ = read(tmp_path, "openhands", *EVENTS, end)
    assert trace.outcome == Outcome(status="truncated", source="openhands")


def test_lines_that_are_no_events_are_counted_and_do_not_split_the_session(tmp_path):
    (trace,), report = read(tmp_path, "openhands", *EVENTS[:5], None, {"id": 4}, "x", *EVENTS[5:])
    assert times(trace.messages) == said()
    assert (report.records, report.skipped) == (12, 3)
    assert report.diagnostics["event_unknown"].count == 3
    silent = [event(n, "environment", "agent_state_changed", observed=True) for n in range(3)]
    found, report = read(tmp_path, "openhands", {"history": EVENTS}, *silent)
    assert len(found) == 1
    assert (report.records, report.skipped) == (4, 3)


def test_a_broken_first_event_costs_one_event(tmp_path):
    (trace,), _ = read(tmp_path, "openhands", {"instance_id": "i", "history": [None, *EVENTS[1:]]})
    assert times(trace.messages) == said()[1:]
    assert codes(trace) == ["event_unknown"]
    assert trace.diagnostics[0].path == "history[0]"


@settings(max_examples=100)
@given(data=st.data())
def test_damage_is_never_an_exception(data):
    good = {"instance_id": "good", "history": EVENTS}
    survives("openhands", damaged(data.draw, [*EVENTS, {"instance_id": "i", "history": EVENTS}]), good)


def test_what_is_no_event_is_not_claimed():
    assert not openhands.matches({"action": "login", "source": "web", "user": "u1"})
    assert not openhands.matches({"action": "ls", "observation": "a", "response": "r", "source": "agent"})
    assert not openhands.matches({"history": [{"role": "user", "content": "x"}]})
    assert not openhands.matches({"trajectory": [{"action": "ls", "observation": "a"}]})
    assert openhands.matches(EVENTS[2])
