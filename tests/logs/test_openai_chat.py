"""Each quirk of OpenAI-style logs, alone and tiny: what is kept, and what is said about it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from rlkit.logs import Outcome, ReadReport, ToolCall, read_traces
from rlkit.logs.readers.openai_chat import to_trace
from rlkit.logs.readers.source import Record
from rlkit.logs.report import CODES, Notes

USER = {"role": "user", "content": "cancel O7"}
DONE = {"role": "assistant", "content": "Done."}


def call(arguments='{"id":"O7"}', **changes):
    return {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": arguments}} | changes


def calling(*calls, **changes):
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | changes


def result(content="pending", **changes):
    return {"role": "tool", "tool_call_id": "c1", "content": content} | changes


def trace_of(*messages, **fields):
    return to_trace(Record({"id": "s1", "messages": list(messages)} | fields, "log.jsonl", 7), Notes(7))


def codes(trace):
    return [item.code for item in trace.diagnostics]


def test_a_clean_session_is_kept_exactly_and_says_nothing():
    trace = trace_of({"role": "system", "content": "Be kind."}, USER, calling(call()), result(), DONE)
    assert [m.role for m in trace.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [m.content for m in trace.messages] == ["Be kind.", "cancel O7", None, "pending", "Done."]
    assert trace.tool_calls == [ToolCall(id="c1", name="get_order", arguments={"id": "O7"})]
    assert trace.messages[3].tool_call_id == "c1"
    assert (trace.id, trace.source, trace.diagnostics) == ("s1", "log.jsonl:7", [])


def test_assistant_text_after_a_tool_result_stays_there_and_the_record_is_not_changed():
    record = {"id": "s1", "messages": [USER, calling(call()), result(), DONE], "tools": []}
    before = copy.deepcopy(record)
    trace = to_trace(Record(record, "x", 1), Notes())
    assert record == before
    assert trace.raw is record
    assert [m.content for m in trace.messages] == ["cancel O7", None, "pending", "Done."]


@pytest.mark.parametrize(
    ("logged", "arguments", "raw", "code"),
    [
        ('{"id":"O7"}', {"id": "O7"}, None, None),
        ('{"id": "O7"}', {"id": "O7"}, '{"id": "O7"}', None),  # the agent's own spacing is kept
        ({"id": "O7"}, {"id": "O7"}, None, "arguments_object"),
        (json.dumps('{"id":"O7"}'), {"id": "O7"}, json.dumps('{"id":"O7"}'), "arguments_double_encoded"),
        ('{"q": "x" "y"}', None, '{"q": "x" "y"}', "arguments_not_json"),
        ("", None, "", "arguments_not_json"),
        ("[1]", None, "[1]", "arguments_not_object"),
        ([1], None, "[1]", "arguments_not_object"),
        (None, None, None, "arguments_null"),
        ('{"n":123456789012345678901234567890}', {"n": 123456789012345678901234567890}, None, None),
    ],
)
def test_arguments_of_every_kind(logged, arguments, raw, code):
    trace = trace_of(USER, calling(call(logged)), result())
    assert trace.tool_calls == [ToolCall(id="c1", name="get_order", arguments=arguments, raw_arguments=raw)]
    assert codes(trace) == ([code] if code else [])
    assert all(item.path == "messages[1].tool_calls[0].arguments" and item.line == 7 for item in trace.diagnostics)


@pytest.mark.parametrize("missing", [None, "", 5])
def test_a_missing_call_id_is_made_of_its_position_and_pairs_with_the_result(missing):
    trace = trace_of(USER, calling(call(id=missing)), result(tool_call_id=missing))
    assert trace.tool_calls[0].id == trace.messages[2].tool_call_id == "call_1_0"
    assert codes(trace) == ["tool_call_id_missing", "tool_result_id_missing"]


def test_a_repeated_call_id_gets_its_own_and_each_result_finds_its_call():
    trace = trace_of(USER, calling(call()), result("one"), calling(call()), result("two"))
    assert [c.id for c in trace.tool_calls] == ["c1", "c1#2"]
    assert [(m.tool_call_id, m.content) for m in trace.messages if m.role == "tool"] == [("c1", "one"), ("c1#2", "two")]
    assert codes(trace) == ["tool_call_id_duplicate"]


def test_parallel_calls_that_share_an_id_are_answered_in_order():
    trace = trace_of(USER, calling(call(), call()), result("one"), result("two"))
    assert [m.tool_call_id for m in trace.messages[2:]] == ["c1", "c1#2"]


def test_parallel_calls_are_answered_by_id_whatever_the_order():
    trace = trace_of(USER, calling(call(), call(id="c2")), result(tool_call_id="c2"), result(tool_call_id="c1"))
    assert [m.tool_call_id for m in trace.messages[2:]] == ["c2", "c1"]
    assert codes(trace) == []


def test_results_without_a_call_and_answered_twice_are_kept():
    trace = trace_of(result(tool_call_id="lost"), calling(call()), result("one"), result("two"))
    assert [m.content for m in trace.messages] == ["pending", None, "one", "two"]
    assert codes(trace) == ["tool_result_orphan", "tool_result_repeated"]


def test_a_result_before_its_call_quarantines_the_trace(tmp_path):
    file = tmp_path / "log.jsonl"
    messages = [USER, result(), calling(call())]
    file.write_text(json.dumps({"id": "a", "messages": messages}) + "\n" + json.dumps({"id": "b", "messages": [USER]}))
    report = ReadReport()
    assert [trace.id for trace in read_traces(file, report=report)] == ["b"]
    assert (report.traces, report.quarantined, report.skipped) == (1, 1, 0)
    assert report.diagnostics["result_before_call"].first == f"{file}:1 messages[1]"


def test_legacy_function_call_and_role_function():
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "get_order", "arguments": '{"id":"O7"}'}}
    trace = trace_of(USER, legacy, {"role": "function", "name": "get_order", "content": "pending"})
    assert trace.tool_calls == [ToolCall(id="call_1_0", name="get_order", arguments={"id": "O7"})]
    assert (trace.messages[2].role, trace.messages[2].tool_call_id) == ("tool", "call_1_0")
    assert codes(trace) == ["function_call_legacy", "role_function"]


def test_role_developer_is_system():
    trace = trace_of({"role": "developer", "content": "Be kind."}, USER)
    assert trace.messages[0].role == "system"
    assert codes(trace) == ["role_developer"]
    assert trace.diagnostics[0].severity == "info"


@pytest.mark.parametrize(
    ("bad", "code", "path"),
    [
        ({"role": "narrator", "content": "x"}, "role_unknown", "messages[1].role"),
        ({"content": "x"}, "role_unknown", "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "role_unknown", "messages[1].role"),
        ("hello", "message_not_object", "messages[1]"),
        (None, "message_not_object", "messages[1]"),
    ],
)
def test_a_bad_message_is_left_out_and_named_and_the_trace_lives(bad, code, path):
    trace = trace_of(USER, bad, {"role": "assistant", "content": "ok"})
    assert [m.content for m in trace.messages] == ["cancel O7", "ok"]
    assert [(d.code, d.severity, d.path, d.line) for d in trace.diagnostics] == [(code, "error", path, 7)]


@pytest.mark.parametrize(
    ("content", "text", "expected"),
    [
        (None, None, ["content_null"]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", ["content_parts"]),
        ([{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "a"}], "a",
         ["content_part_skipped", "content_parts"]),
        ([], None, ["content_parts", "content_null"]),
        ([{"type": "refusal", "refusal": "no"}], "no", ["refusal", "content_parts"]),
        ({"a": 1}, '{"a":1}', ["content_wrong_type"]),
        (5, "5", ["content_wrong_type"]),
    ],
)  # fmt: skip
def test_content_of_every_kind(content, text, expected):
    trace = trace_of({"role": "user", "content": content})
    assert trace.messages[0].content == text
    assert codes(trace) == expected


def test_a_refusal_is_the_text():
    trace = trace_of(USER, {"role": "assistant", "content": None, "refusal": "I can't."})
    assert trace.final_reply == "I can't."
    assert codes(trace) == ["refusal"]


@pytest.mark.parametrize("calls", ["x", [3], {"id": "c1"}])
def test_tool_calls_of_the_wrong_type(calls):
    trace = trace_of(USER, {"role": "assistant", "content": "hm", "tool_calls": calls})
    assert (trace.messages[1].content, trace.tool_calls, codes(trace)) == ("hm", [], ["tool_calls_wrong_type"])


def test_a_call_without_a_name_or_wrapper_or_by_the_user_is_kept():
    flat = {"id": "c1", "name": "get_order", "arguments": "{}"}
    nameless = {"id": "c2", "function": {"arguments": "{}"}}
    trace = trace_of({"role": "user", "content": "x", "tool_calls": [flat]}, calling(nameless))
    assert [(c.id, c.name) for c in trace.tool_calls] == [("c1", "get_order"), ("c2", "")]
    assert codes(trace) == ["tool_calls_wrong_role", "tool_name_missing"]


def test_tools_wrapped_flat_legacy_and_broken():
    schema = {"name": "get_order", "description": "d", "parameters": {"type": "object"}}
    wrapped = {"type": "function", "function": schema}
    trace = trace_of(USER, tools=[wrapped, {"type": "function", **schema}, {"type": "web_search"}, 3])
    assert trace.tools == [schema, schema]
    assert [d.path for d in trace.diagnostics] == ["tools[2]", "tools[3]"]
    assert trace_of(USER, functions=[schema]).tools == [schema]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, Outcome()),
        (
            {"outcome": {"status": "truncated", "score": None, "source": "ops"}},
            Outcome(status="truncated", source="ops"),
        ),
        ({"outcome": {"status": "unknown", "score": 0.0, "source": ""}}, Outcome(score=0.0)),
        ({"feedback": "thumbs_up"}, Outcome(status="success", score=1.0, source="feedback")),
        ({"feedback": {"rating": "thumbs_down"}}, Outcome(status="failure", score=0.0, source="feedback")),
        ({"feedback": {"score": 1}}, Outcome(status="success", score=1.0, source="feedback")),
        ({"feedback": False}, Outcome(status="failure", score=0.0, source="feedback")),
        ({"reward": 0.5}, Outcome(score=0.5, source="reward")),
        ({"reward": 0.9999999}, Outcome(status="success", score=0.9999999, source="reward")),
        ({"feedback": None, "reward": 0}, Outcome(status="failure", score=0.0, source="reward")),
    ],
)
def test_outcomes(fields, outcome):
    trace = trace_of(USER, **fields)
    assert (trace.outcome, codes(trace)) == (outcome, [])


@pytest.mark.parametrize("value", ["meh", 7, -1, [], float("nan"), {"score": 3}])
def test_an_outcome_nobody_understands_stays_unknown(value):
    trace = trace_of(USER, feedback=value)
    assert trace.outcome.status == "unknown"
    assert trace.outcome.score is None
    assert "outcome_unreadable" in codes(trace)


def test_metadata_keeps_every_key_we_have_no_place_for():
    assert trace_of(USER, model="m", metadata={"user": 1}).metadata == {"model": "m", "user": 1}
    assert codes(trace_of(USER, metadata=[1])) == ["metadata_wrong_type"]


def test_ids_of_every_kind():
    assert trace_of(USER, id=12).id == "12"
    trace = trace_of(USER, id=None)
    assert (trace.id, codes(trace)) == ("log.jsonl:7", ["id_missing"])


def test_every_code_has_a_sentence():
    assert all(sentence.endswith(".") for _, sentence in CODES.values())


def test_a_score_under_a_label_nobody_understands_is_no_verdict():
    trace = trace_of(USER, outcome={"label": "hallucinated", "score": 1})
    assert (trace.outcome.status, trace.outcome.score) == ("unknown", 1.0)
    assert codes(trace) == ["outcome_unreadable"]


def test_only_one_key_is_the_outcome_and_the_others_stay_in_the_metadata(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "hi"}], "outcome": "success", "reward": 0.3, "score": 0.7}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    (trace,) = read_traces(tmp_path / "a.jsonl")
    assert trace.outcome.status == "success"
    assert trace.metadata == {"reward": 0.3, "score": 0.7}
