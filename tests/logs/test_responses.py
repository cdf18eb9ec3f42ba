"""OpenAI Responses: items into messages, chains of responses into sessions, and any trace through the format and back.

All records are made up. Fields as in platform.openai.com/docs/api-reference/responses (object, create, input items) and
platform.openai.com/docs/guides (conversation state, reasoning, local shell, MCP).
"""

from __future__ import annotations

import copy
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlkit.logs.readers as registry
from rlkit.logs import Message, Outcome, ReadReport, ToolCall, Trace, read_traces
from rlkit.logs.jsontext import dump_line
from rlkit.logs.readers import responses
from rlkit.logs.writers.responses import session_records
from tests.logs.test_anthropic import SESSIONS, account_for, by_id, changed, round_trip, several_sessions

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "cancel O7"}]}
CALL = {
    "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_order", "arguments": '{"id":"O7"}',
    "status": "completed",
}  # fmt: skip
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "pending"}
CALLED = ToolCall("call_1", "get_order", {"id": "O7"}, extra={"item_id": "fc_1"})


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.READERS, "responses", responses)


def said(words, **more):
    part = {"type": "output_text", "text": words, "annotations": []}
    return {"type": "message", "role": "assistant", "status": "completed", "content": [part], **more}


def thought(*texts, **more):
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": words} for words in texts], **more}


def response(number, previous=None, *output, **more):
    asked = {"type": "message", "role": "user", "content": f"question {number}"}
    output = output or (said(f"answer {number}"),)
    record = {"id": f"resp_{number}", "object": "response", "input": [asked], "output": list(output)}
    return record | {"previous_response_id": None if previous is None else f"resp_{previous}"} | more


def read(tmp_path, *records):
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(dump_line, records)))
    report = ReadReport()
    found = list(read_traces(tmp_path / "log.jsonl", "responses", report))
    assert report.records == report.used + report.skipped == len(records)
    return found, report


def one(tmp_path, *items):
    (trace,), _ = read(tmp_path, {"id": "resp_1", "items": list(items)})
    return trace


def messages(tmp_path, *items):
    return one(tmp_path, *items).messages


def codes(trace):
    return [item.code for item in trace.diagnostics]


def texts(trace):
    return [message.content for message in trace.messages]


def test_a_response_with_its_input_is_one_session(tmp_path):
    tool = {"type": "function", "name": "get_order", "description": "Look up", "parameters": {}, "strict": True}
    record = {
        "id": "resp_1", "object": "response", "model": "gpt-x", "status": "completed", "error": None,
        "instructions": "You help.", "input": [USER, CALL, RESULT], "output": [said("Pending.", id="msg_1")],
        "tools": [tool, {"type": "web_search"}], "metadata": {"user": "u1"}, "feedback": "thumbs_down",
    }  # fmt: skip
    (trace,), _ = read(tmp_path, record)
    assert trace.messages == [
        Message("system", "You help."),
        Message("user", "cancel O7"),
        Message("assistant", None, [CALLED]),
        Message("tool", "pending", [], "call_1"),
        Message("assistant", "Pending.", extra={"id": "msg_1"}),
    ]
    assert trace.tools == [
        {"name": "get_order", "description": "Look up", "parameters": {}, "strict": True},
        {"name": "web_search", "type": "web_search"},
    ]
    assert trace.metadata == {"model": "gpt-x", "status": "completed", "user": "u1"}
    assert trace.outcome == Outcome(status="failure", score=0, source="feedback")
    assert (trace.id, trace.diagnostics, trace.raw) == ("resp_1", [], record)


def test_the_input_may_be_a_text_and_the_request_an_envelope(tmp_path):
    answer = {"id": "resp_1", "object": "response", "output": [said("hello")], "model": "gpt-x-1"}
    record = {"request": {"model": "gpt-x", "instructions": "You help.", "input": "hi"}, "response": answer, "ms": 3}
    (trace,), _ = read(tmp_path, record)
    assert (trace.id, texts(trace)) == ("resp_1", ["You help.", "hi", "hello"])
    assert trace.metadata == {"model": "gpt-x-1", "ms": 3}


def test_input_messages_need_no_type(tmp_path):
    found = messages(tmp_path, {"role": "user", "content": "hi"}, {"type": None, "role": "developer", "content": "x"})
    assert [(message.role, message.content) for message in found] == [("user", "hi"), ("system", "x")]


def test_reasoning_text_and_parallel_calls_are_one_message(tmp_path):
    second = CALL | {"id": "fc_2", "call_id": "call_2"}
    result = RESULT | {"call_id": "call_2", "output": "sent"}
    found = messages(tmp_path, USER, thought("Both."), said("Now."), CALL, second, RESULT, result, said("Done."))
    also = ToolCall("call_2", "get_order", {"id": "O7"}, extra={"item_id": "fc_2"})
    assert found == [
        Message("user", "cancel O7"),
        Message("assistant", "Now.", [CALLED, also], reasoning="Both."),
        Message("tool", "pending", [], "call_1"),
        Message("tool", "sent", [], "call_2"),
        Message("assistant", "Done."),
    ]


def test_text_that_follows_a_call_stays_after_it(tmp_path):
    found = messages(tmp_path, CALL, said("a"), said("b"), RESULT, said("c"))
    assert [(m.role, m.content, len(m.tool_calls)) for m in found] == [
        ("assistant", None, 1), ("assistant", "a", 0), ("assistant", "b", 0), ("tool", "pending", 0),
        ("assistant", "c", 0),
    ]  # fmt: skip


def test_reasoning_goes_with_what_follows_it(tmp_path):
    found = messages(tmp_path, said("a"), thought("b"), CALL, thought("c"), CALL | {"call_id": "call_2", "id": "fc_2"})
    assert [(m.content, m.reasoning, len(m.tool_calls)) for m in found] == [
        ("a", None, 0),
        (None, "b", 1),
        (None, "c", 1),
    ]


def test_encrypted_reasoning_is_kept_with_its_message(tmp_path):
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    (message,) = messages(tmp_path, item, said("a"))
    assert message == Message("assistant", "a", extra={"reasoning_items": [item]})


def test_raw_reasoning_wins_over_its_summary(tmp_path):
    item = thought("short", content=[{"type": "reasoning_text", "text": "long"}])
    (message,) = messages(tmp_path, item, said("a"))
    assert (message.reasoning, message.extra) == ("long", {"reasoning_items": [item]})


def test_several_reasoning_items_in_a_row_are_joined(tmp_path):
    (message,) = messages(tmp_path, thought("a", "b"), thought("c"), said("d"))
    assert message.reasoning == "a\n\nb\n\nc"
    assert message.extra == {"reasoning_items": [thought("a", "b"), thought("c")]}


def test_a_call_is_paired_by_its_call_id(tmp_path):
    trace = one(tmp_path, CALL | {"id": "call_2"}, CALL | {"id": "fc_2", "call_id": "call_2"}, RESULT)
    assert [call.id for call in trace.tool_calls] == ["call_1", "call_2"]
    assert trace.messages[-1].tool_call_id == "call_1"
    assert trace.diagnostics == []


def test_what_is_odd_in_a_call_stands_at_its_item(tmp_path):
    trace = one(tmp_path, said("a"), CALL | {"arguments": '{"id":'}, {"type": "function_call", "call_id": "c2"})
    assert [(item.code, item.path) for item in trace.diagnostics] == [
        ("arguments_not_json", "items[1].arguments"),
        ("tool_name_missing", "items[2]"),
        ("arguments_null", "items[2].arguments"),
    ]
    assert trace.tool_calls[0].raw_arguments == '{"id":'


def test_a_custom_tool_takes_free_text(tmp_path):
    call = {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "select 1", "id": "ctc_1"}
    trace = one(tmp_path, call, {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"})
    extra = {"item_type": "custom_tool_call", "item_id": "ctc_1"}
    assert trace.messages == [
        Message("assistant", None, [ToolCall("call_1", "sql", None, "select 1", extra)]),
        Message("tool", "1", [], "call_1"),
    ]
    assert trace.diagnostics == []


def test_results_may_come_in_parts(tmp_path):
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    parts = [{"type": "input_text", "text": "see"}, picture]
    (_, result) = messages(tmp_path, CALL, RESULT | {"output": parts})
    assert result == Message("tool", "see", [], "call_1", extra={"content": parts})


def test_a_refusal_is_the_message_s_text(tmp_path):
    part = {"type": "refusal", "refusal": "No."}
    trace = one(tmp_path, said("") | {"content": [part]})
    assert trace.messages == [Message("assistant", "No.", extra={"content": [part]})]
    assert codes(trace) == ["refusal"]


def test_annotations_are_kept(tmp_path):
    part = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation", "url": "https://example.com"}]}
    assert messages(tmp_path, said("") | {"content": [part]}) == [Message("assistant", "a", extra={"content": [part]})]


def test_hosted_calls_with_a_result_are_a_call_and_its_result(tmp_path):
    call = {"type": "mcp_call", "id": "mcp_1", "name": "roll", "server_label": "dice", "arguments": '{"n":2}'}
    found = messages(tmp_path, call | {"output": "7", "error": None}, call | {"id": "mcp_2", "error": "down"})
    extra = {"item_type": "mcp_call", "server_label": "dice"}
    assert found == [
        Message("assistant", None, [ToolCall("mcp_1", "roll", {"n": 2}, extra=extra)]),
        Message("tool", "7", [], "mcp_1", extra={"item_type": "mcp_call"}),
        Message("assistant", None, [ToolCall("mcp_2", "roll", {"n": 2}, extra=extra)]),
        Message("tool", "down", [], "mcp_2", extra={"item_type": "mcp_call", "error": "down"}),
    ]


def test_code_that_the_host_ran_comes_with_what_it_printed(tmp_path):
    outputs = [{"type": "logs", "logs": "2"}]
    item = {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "outputs": outputs}
    call, result = messages(tmp_path, item)
    assert call.tool_calls[0].arguments == {"code": "1+1", "container_id": "c"}
    assert (call.tool_calls[0].name, json.loads(result.content)) == ("code_interpreter", outputs)


def test_shell_and_computer_calls_are_calls(tmp_path):
    shell = {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "action": {"type": "exec", "command": ["ls"]},
    }
    by_item = {"type": "local_shell_call_output", "id": "lsh_1", "output": "README"}
    click = {"type": "computer_call", "id": "cu_1", "call_id": "call_2", "action": {"type": "click", "x": 1, "y": 2}}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGk="}
    trace = one(tmp_path, shell, by_item, click, {"type": "computer_call_output", "call_id": "call_2", "output": shot})
    found = trace.messages
    assert [call.name for message in found for call in message.tool_calls] == ["local_shell", "computer"]
    assert found[0].tool_calls[0].arguments == {"type": "exec", "command": ["ls"]}
    assert [(m.tool_call_id, m.content) for m in found if m.role == "tool"] == [("call_1", "README"), ("call_2", None)]
    assert found[3].extra == {"item_type": "computer_call_output", "content": [shot]}
    assert codes(trace) == ["content_part_skipped", "content_null"]


def test_items_without_a_result_are_kept_aside(tmp_path):
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }
    trace = one(tmp_path, search, USER, said("a"), search, {"type": "item_reference", "id": "msg_0"}, said("b"))
    assert texts(trace) == ["cancel O7", "a", "b"]
    assert trace.messages[0].extra == {"items": [search]}
    assert trace.messages[1].extra == {"items": [search, {"type": "item_reference", "id": "msg_0"}]}
    assert codes(trace) == ["item_kept_aside"] * 3


# --- chains -----------------------------------------------------------------------------------------------------------


def test_a_chain_of_responses_is_one_session(tmp_path):
    records = [response(1, None, instructions="You help."), response(9), response(2, 1, instructions="You help."),
               response(3, 2, thought("Hm"), said("answer 3"), metadata={"k": 3}, score=1)]  # fmt: skip
    found, _ = read(tmp_path, *records)
    chain = next(trace for trace in found if trace.id == "resp_1")
    assert texts(chain) == ["You help.", "question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3"]
    assert (chain.metadata, chain.outcome.status) == ({"k": 3}, "success")
    assert chain.raw == [records[0], records[2], records[3]]
    assert sorted(trace.id for trace in found) == ["resp_1", "resp_9"]
    assert not any(map(codes, found))


def test_instructions_that_change_stand_where_they_changed(tmp_path):
    (trace,), _ = read(tmp_path, response(1, instructions="a"), response(2, 1), response(3, 2, instructions="b"))
    assert [m.content for m in trace.messages if m.role == "system"] == ["a", "b"]
    assert texts(trace)[-3:] == ["b", "question 3", "answer 3"]


def test_a_chain_may_be_written_in_any_order(tmp_path):
    (trace,), _ = read(tmp_path, response(3, 2), response(1), response(2, 1))
    assert texts(trace)[1::2] == ["answer 1", "answer 2", "answer 3"]


def test_two_that_continue_one_response_are_forks(tmp_path):
    (main, fork), _ = read(tmp_path, response(1), response(2, 1), response(3, 1))
    assert (main.id, texts(main)[1::2]) == ("resp_1", ["answer 1", "answer 3"])
    assert (fork.id, texts(fork)[1::2]) == ("resp_1#1", ["answer 1", "answer 2"])
    assert (main.relation, fork.parent_id, fork.relation) == (None, "resp_1", "fork")


def test_a_chain_without_its_beginning_is_diagnosed_and_read(tmp_path):
    (trace,), report = read(tmp_path, response(2, 1), response(3, 2))
    assert (trace.id, texts(trace)[1::2]) == ("resp_2", ["answer 2", "answer 3"])
    assert (codes(trace), report.quarantined) == (["beginning_missing"], 0)


def test_results_that_answer_an_earlier_response_s_calls_are_paired(tmp_path):
    (trace,), _ = read(tmp_path, response(1, None, CALL), response(2, 1) | {"input": [RESULT]})
    assert [message.role for message in trace.messages] == ["user", "assistant", "tool", "assistant"]
    assert trace.diagnostics == []


@pytest.mark.parametrize(
    "names", [[(1, 1)], [(1, 2), (2, 1)], [(1, 2), (2, 1), (3, 1)], [(1, None), (1, None), (2, 1)]]
)
def test_circles_and_repeated_ids_end_and_lose_nothing(tmp_path, names):
    found, report = read(tmp_path, *(response(*pair) for pair in names))
    answers = {text for trace in found for text in texts(trace)}
    assert answers >= {f"answer {own}" for own, _ in names}
    assert (report.skipped, len({trace.id for trace in found})) == (0, len(found))


def test_chains_go_on_over_rotated_and_packed_files_and_arrays(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(dump_line(response(1))))
    (tmp_path / "b.json").write_text(json.dumps([response(2, 1), response(3, 2, CALL | {"arguments": "x"})]))
    (trace,) = read_traces(tmp_path, "responses")
    assert (trace.id, texts(trace)[1::2]) == ("resp_1", ["answer 1", "answer 2", None])
    assert [item.path for item in trace.diagnostics] == ["[1].output[0].arguments"]


def test_oddities_of_a_chain_in_an_array_say_where_they_stand(tmp_path):
    (tmp_path / "log.json").write_text(
        json.dumps([response(9), response(1), response(2, 1, CALL | {"arguments": "x"})])
    )
    found = list(read_traces(tmp_path / "log.json", "responses"))
    (note,) = [item for trace in found for item in trace.diagnostics]
    assert note.path == "[2].output[0].arguments"


def test_a_chain_is_given_as_soon_as_it_ends(tmp_path):
    records = [response(1), response(2, 1), *(response(n) for n in range(10, 200))]
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(dump_line, records)))
    report = ReadReport()
    first = next(iter(read_traces(tmp_path / "log.jsonl", "responses", report)))
    assert (first.id, report.records) == ("resp_1", 2)


def test_bad_records_are_counted_and_the_others_read(tmp_path):
    for chained in (None, 7):
        good = response(1, chained)
        found, report = read(
            tmp_path, 3, {"id": [], "output": [{"type": "message"}]}, {"previous_response_id": {}}, good
        )
        assert ([trace.id for trace in found], report.skipped) == (["resp_1"], 3)


@pytest.mark.parametrize(
    "record",
    [
        {"object": "response", "output": []},
        {"items": [CALL]},
        {"input": [USER], "output": []},
        {"response": {"output": [said("a")]}},
        {"output": [{"type": "reasoning", "summary": []}]},
    ],
)
def test_signs_of_the_format_are_recognised(record):
    assert responses.matches(record)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"input": "hi", "output": "ho"},
        {"id": "o1", "traceId": "t1", "type": "GENERATION", "input": [USER], "output": [said("a")]},
        {"items": [{"type": "book"}], "id": 3},
        {"resourceSpans": []},
    ],
)
def test_what_others_write_is_left_to_them(record):
    assert not responses.matches(record)


# --- round trips ------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(sessions=several_sessions())
def test_any_sessions_come_back_as_they_were(sessions):
    before = copy.deepcopy(sessions)
    back, report = round_trip(session_records, sessions, "responses")
    assert by_id(back) == by_id([trace for session in sessions for trace in session])
    assert (sessions, report.skipped) == (before, 0)


def test_sessions_that_branch_come_back_as_they_were():
    back, _ = round_trip(session_records, SESSIONS, "responses")
    assert by_id(back) == by_id([trace for session in SESSIONS for trace in session])
    assert not [item for trace in back for item in trace.diagnostics]


def test_what_is_written_looks_like_openai_s():
    conversation = [
        Message("system", "You help."),
        Message("user", "cancel O7"),
        Message("assistant", None, [CALLED], reasoning="Look."),
        Message("tool", "pending", [], "call_1"),
        Message("assistant", "Done."),
    ]
    (record,) = session_records([Trace(id="s1", messages=conversation, tools=[{"name": "get_order"}])])
    assert record["instructions"] == "You help."
    assert [item["type"] for item in record["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert record["input"][0] == USER
    assert record["input"][2:] == [CALL, RESULT]
    assert [{**item, "id": None} for item in record["output"]] == [said("Done.", id=None)]
    assert record["tools"] == [{"type": "function", "name": "get_order"}]
    assert "rlkit.message" not in json.dumps(record)


REAL = [
    response(1, None, thought("a", id="rs_1", encrypted_content="x"), said("b", id="msg_1"), CALL, instructions="c"),
    response(2, 1) | {"input": [RESULT, {"role": "user", "content": "and?"}]},
    response(3, 1, {"type": "custom_tool_call", "call_id": "c3", "name": "sql", "input": "select 1"},
             {"type": "mcp_call", "id": "mcp_1", "name": "roll", "arguments": "{}", "output": "7"},
             {"type": "local_shell_call", "id": "l1", "call_id": "c4", "action": {"command": ["ls"]}},
             {"type": "local_shell_call_output", "id": "l1", "output": "x"},
             {"type": "web_search_call", "id": "ws_1"}, said("d"), tools=[{"type": "function", "name": "sql"}]),
]  # fmt: skip


@settings(max_examples=100)
@given(data=st.data())
def test_nothing_is_raised_and_what_was_read_can_be_written(data):
    records = changed(data.draw, {"records": REAL}).get("records")
    records = records if isinstance(records, list) else [records]
    assert all(responses.matches(record) in (False, True) for record in records)
    good = {"id": "good", "items": [{"role": "user", "content": "hi"}]}
    found = account_for([*records, good], "responses", [Message("user", "hi")])
    back, _ = round_trip(session_records, [[trace] for trace in found], "responses")
    assert [trace.messages for trace in back] == [trace.messages for trace in found]
