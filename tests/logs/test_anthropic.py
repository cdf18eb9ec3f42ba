"""Anthropic Messages: every block into its place, and any trace through the format and back.

All records are made up. Fields as in platform.claude.com/docs/en/api/messages (request, response, content blocks) and
platform.claude.com/docs/en/agents-and-tools/tool-use (web search, MCP).
"""

from __future__ import annotations

import copy
import json
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlkit.logs.readers as registry
from rlkit.examples.support.branching import branching_sessions
from rlkit.logs import Message, Outcome, ReadReport, ToolCall, Trace, read_traces, write_jsonl
from rlkit.logs.jsontext import dump_line
from rlkit.logs.readers import anthropic, openai_chat
from rlkit.logs.writers.anthropic import session_records
from tests.logs.test_properties import JSON, JUNK, TEXT, nodes, traces

SESSIONS = list(branching_sessions(12, seed=1))
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_order", "input": {"id": "O7"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "pending"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.READERS, "anthropic", anthropic)


def text(words):
    return {"type": "text", "text": words}


def user(*content):
    return {"role": "user", "content": list(content)}


def reply(*content):
    return {"role": "assistant", "content": list(content)}


def read(tmp_path, *records):
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(dump_line, records)))
    report = ReadReport()
    found = list(read_traces(tmp_path / "log.jsonl", "anthropic", report))
    assert report.records == report.used + report.skipped == len(records)
    return found, report


def messages(tmp_path, *said):
    """What one record of these messages is read as."""
    (trace,), _ = read(tmp_path, {"id": "s1", "system": "You help.", "messages": list(said)})
    assert trace.messages[0] == Message("system", "You help.")
    return trace.messages[1:]


def codes(trace):
    return [item.code for item in trace.diagnostics]


def test_a_request_with_its_reply_is_one_session(tmp_path):
    record = {
        "id": "s1",
        "model": "claude-x",
        "system": "You help.",
        "messages": [user(text("cancel O7")), reply(text("One moment."), USE), user(RESULT)],
        "tools": [{"name": "get_order", "description": "Look up", "input_schema": SCHEMA}],
        "response": {
            "id": "msg_1", "type": "message", "role": "assistant", "content": [text("It is pending.")],
            "stop_reason": "end_turn", "usage": {"output_tokens": 3},
        },
        "metadata": {"user_id": "u1"},
        "feedback": "thumbs_up",
    }  # fmt: skip
    (trace,), _ = read(tmp_path, record)
    assert trace.messages == [
        Message("system", "You help."),
        Message("user", "cancel O7"),
        Message("assistant", "One moment.", [ToolCall("toolu_1", "get_order", {"id": "O7"})]),
        Message("tool", "pending", [], "toolu_1"),
        Message(
            "assistant",
            "It is pending.",
            extra={"id": "msg_1", "stop_reason": "end_turn", "usage": {"output_tokens": 3}},
        ),
    ]
    assert trace.tools == [{"name": "get_order", "description": "Look up", "parameters": SCHEMA}]
    assert (trace.id, trace.metadata) == ("s1", {"model": "claude-x", "user_id": "u1"})
    assert trace.outcome == Outcome(status="success", score=1, source="feedback")
    assert (trace.diagnostics, trace.raw) == ([], record)
    assert trace.source.endswith("log.jsonl:1")


def test_the_request_may_stand_in_an_envelope_of_its_own(tmp_path):
    request = {"model": "claude-x", "system": [text("You help.")], "messages": [{"role": "user", "content": "hi"}]}
    response = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [text("hello")],
        "model": "claude-x-1",
    }
    (trace,), _ = read(tmp_path, {"request": request, "response": response, "latency": 3})
    assert [(m.role, m.content) for m in trace.messages] == [
        ("system", "You help."),
        ("user", "hi"),
        ("assistant", "hello"),
    ]
    assert (trace.id, trace.metadata) == ("msg_1", {"model": "claude-x", "latency": 3})


def test_a_reply_may_stand_at_the_top_of_its_record(tmp_path):
    record = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [text("hello")],
        "stop_reason": "end_turn",
    }
    (trace,), _ = read(tmp_path, record | {"messages": [{"role": "user", "content": "hi"}]})
    assert [m.content for m in trace.messages] == ["hi", "hello"]
    assert trace.metadata == {"stop_reason": "end_turn"}


def test_results_and_text_of_one_message_keep_their_order(tmp_path):
    second = {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("late"), text("r")], "is_error": True}
    calls = reply(USE, USE | {"id": "toolu_2"})
    assert messages(tmp_path, calls, user(RESULT, second, text("and hurry"), text("!")))[1:] == [
        Message("tool", "pending", [], "toolu_1"),
        Message("tool", "later", [], "toolu_2", extra={"is_error": True}),
        Message("user", "and hurry!"),
    ]
    said = messages(tmp_path, calls, user(text("first"), RESULT, text("then"), second))
    assert [(m.role, m.content) for m in said[1:]] == [
        ("user", "first"), ("tool", "pending"), ("user", "then"), ("tool", "later"),
    ]  # fmt: skip


def test_a_result_without_content_keeps_its_error(tmp_path):
    failed = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}
    _, result = messages(tmp_path, reply(USE), user(failed))
    assert result == Message("tool", None, [], "toolu_1", extra={"is_error": True})


def test_a_call_without_input_keeps_what_stands_beside_it(tmp_path):
    call = {"type": "tool_use", "id": "toolu_1", "name": "ping", "cache_control": {"type": "ephemeral"}}
    (message,) = messages(tmp_path, reply(call))
    assert message.tool_calls == [ToolCall("toolu_1", "ping", None, None, {"cache_control": {"type": "ephemeral"}})]


def test_thinking_is_reasoning_and_its_signature_is_kept(tmp_path):
    blocks = [{"type": "thinking", "thinking": "Which?", "signature": "EqQB"}, text("Done.")]
    (message,) = messages(tmp_path, reply(*blocks))
    assert message == Message("assistant", "Done.", reasoning="Which?", extra={"content": blocks})


def test_redacted_thinking_is_kept_without_a_word(tmp_path):
    blocks = [{"type": "redacted_thinking", "data": "xyz"}, text("Done."), USE]
    (trace,), _ = read(tmp_path, {"id": "s1", "messages": [reply(*blocks)]})
    (message,) = trace.messages
    assert (message.content, message.reasoning, message.extra) == ("Done.", None, {"content": blocks})
    assert (len(message.tool_calls), trace.diagnostics) == (1, [])


@pytest.mark.parametrize("blocks", [[text("a"), USE, text("b")], [USE, text("ab")]])
def test_text_after_a_call_keeps_the_blocks_in_their_order(tmp_path, blocks):
    (message,) = messages(tmp_path, reply(*blocks))
    assert (message.content, len(message.tool_calls), message.extra) == ("ab", 1, {"content": blocks})


def test_a_server_s_tool_answers_in_the_middle_of_a_reply(tmp_path):
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "refunds"}}
    found = [{"type": "web_search_result", "url": "https://example.com", "title": "Refunds"}]
    answer = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found}
    said = messages(tmp_path, reply(text("Looking."), search, answer, text("Found.")))
    call = ToolCall("srvtoolu_1", "web_search", {"query": "refunds"}, extra={"block_type": "server_tool_use"})
    assert said == [
        Message("assistant", "Looking.", [call]),
        Message("tool", json.dumps(found, separators=(",", ":")), [], "srvtoolu_1",
                extra={"block_type": "web_search_tool_result"}),
        Message("assistant", "Found."),
    ]  # fmt: skip


def test_pictures_and_documents_are_kept_beside_the_text(tmp_path):
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    (trace,), _ = read(tmp_path, {"id": "s1", "messages": [user(picture, text("What is it?"))]})
    assert trace.messages == [Message("user", "What is it?", extra={"content": [picture, text("What is it?")]})]
    assert codes(trace) == ["content_part_skipped"]
    (_, shown) = messages(tmp_path, reply(USE), user(RESULT | {"content": [picture]}))
    assert shown == Message("tool", None, [], "toolu_1", extra={"content": [picture]})


def test_a_system_prompt_of_blocks_keeps_its_cache_marks(tmp_path):
    blocks = [text("You help. "), text("Be brief.") | {"cache_control": {"type": "ephemeral"}}]
    (trace,), _ = read(tmp_path, {"id": "s1", "system": blocks, "messages": [user(text("hi"))]})
    assert trace.messages[0] == Message("system", "You help. Be brief.", extra={"content": blocks})


def test_tools_that_the_server_runs_keep_their_type(tmp_path):
    tools = [
        {"type": "custom", "name": "a", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"input_schema": SCHEMA},
    ]
    (trace,), _ = read(tmp_path, {"id": "s1", "messages": [user(text("hi"))], "tools": tools})
    assert trace.tools == [{"name": "a", "parameters": SCHEMA}, tools[1]]
    assert codes(trace) == ["tool_definition_unreadable"]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [reply(USE)]},
        {"messages": [user(RESULT)]},
        {"messages": [{"role": "user", "content": "hi"}], "system": "You help."},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "a", "input_schema": {}}]},
        {"request": {"messages": []}, "response": reply(text("hi"))},
        {"messages": [{"role": "user", "content": "hi", "rlkit.message": {"role": "user", "content": "hi"}}]},
    ],
)
def test_signs_of_the_format_are_recognised(record):
    assert anthropic.matches(record)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
        {"messages": [{"role": "user", "content": [text("hi")]}]},
        {"messages": [{"role": "system", "content": "You help."}, {"role": "user", "content": "hi"}], "tools": []},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c1"}], "system": "You help."},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    ],
)
def test_what_openai_writes_too_is_left_to_that_reader(record):
    assert not anthropic.matches(record)
    assert openai_chat.matches(record)


def test_bad_records_are_counted_and_the_others_read(tmp_path):
    good = {"id": "s1", "messages": [user(text("hi"))]}
    found, report = read(tmp_path, 3, {"messages": None}, {"id": "s2", "messages": [{"role": []}, 7]}, good)
    assert [trace.id for trace in found] == ["s1"]
    assert report.skipped == 3
    assert report.diagnostics["no_messages"].count == 2


# --- round trips ------------------------------------------------------------------------------------------------------


def whole(trace):
    """All of a trace but where it stood, its raw record and what was odd."""
    return {name: getattr(trace, name) for name in Trace.model_fields if name not in ("source", "raw", "diagnostics")}


def by_id(found):
    assert len({trace.id for trace in found}) == len(found)
    return {trace.id: whole(trace) for trace in found}


def round_trip(write, sessions, format):
    """The traces that come back, and the report."""
    with TemporaryDirectory() as folder:
        write_jsonl((record for session in sessions for record in write(session)), f"{folder}/log.jsonl")
        report = ReadReport()
        return list(read_traces(f"{folder}/log.jsonl", format, report)), report


KEPT = ["id", "isMeta", "is_error", "items", "block_type", "status", "output", "usage", "item_type"]
SOMETHING = JSON.filter(lambda value: value is not None)


@st.composite
def rich_traces(draw):
    """Generated traces that have times, thoughts, and what other products log beside their messages and calls."""
    trace = draw(traces())
    for message in trace.messages:
        message.timestamp = draw(st.sampled_from([None, "2026-01-01T10:00:00.5Z"]))
        if message.role == "assistant":
            message.reasoning = draw(st.none() | TEXT.filter(bool))
        if draw(st.booleans()):
            message.extra = {draw(st.sampled_from(KEPT)): draw(SOMETHING)}
        for call in message.tool_calls:
            if draw(st.booleans()):
                call.extra = {draw(st.sampled_from(["item_id", *KEPT[1:]])): draw(SOMETHING)}
    return trace


@st.composite
def rich_sessions(draw):
    """A generated trace with forks and sub-agents, whose results answer calls of their own or of no one."""
    found = [draw(rich_traces())]
    for number in range(1, draw(st.integers(1, 3))):
        parent, other = draw(st.sampled_from(found)), draw(rich_traces())
        relation = draw(st.sampled_from(["fork", "subagent"]))
        said = parent.messages[: draw(st.integers(0, len(parent.messages)))] if relation == "fork" else []
        have = {call.id for message in said for call in message.tool_calls}
        said = said + [m for m in other.messages if have.isdisjoint(call.id for call in m.tool_calls)]
        made = {call.id for message in said for call in message.tool_calls}
        messages, seen = [], set()
        for message in said:
            if message.role != "tool" or message.tool_call_id in seen or message.tool_call_id not in made:
                messages.append(message)
            seen |= {call.id for call in message.tool_calls}
        if messages:
            call = draw(st.sampled_from([None, "c", *seen])) if relation == "subagent" else None
            found.append(
                Trace(id=f"{found[0].id}#{number}", messages=messages, parent_id=parent.id, relation=relation,
                      parent_call_id=call, metadata={"number": number}, outcome=other.outcome, tools=other.tools)
            )  # fmt: skip
    return found


def several_sessions():
    """Up to two sessions, no id of which is taken for one of the other's."""
    return st.lists(rich_sessions(), min_size=1, max_size=2, unique_by=lambda session: session[0].id.partition("#")[0])


@settings(max_examples=25)
@given(sessions=several_sessions())
def test_any_sessions_come_back_as_they_were(sessions):
    before = copy.deepcopy(sessions)
    back, report = round_trip(session_records, sessions, "anthropic")
    assert by_id(back) == by_id([trace for session in sessions for trace in session])
    assert (sessions, report.skipped) == (before, 0)


def test_sessions_that_branch_come_back_as_they_were():
    back, _ = round_trip(session_records, SESSIONS, "anthropic")
    assert by_id(back) == by_id([trace for session in SESSIONS for trace in session])
    assert not [item for trace in back for item in trace.diagnostics]


def test_blocks_that_text_and_calls_can_t_say_come_back(tmp_path):
    blocks = ["a", text("b"), {"type": "tool_use", "name": "ping", "input": {}}, text("c")]
    found, _ = read(tmp_path, {"id": "s1", "messages": [user(text("hi")), reply(*blocks)]})
    (message,) = found[0].messages[1:]
    assert (message.content, message.extra) == ("bc", {"content": blocks})
    assert message.tool_calls == [ToolCall("call_1_0", "ping", {})]
    back, _ = round_trip(session_records, [found], "anthropic")
    assert by_id(back) == by_id(found)


def test_what_is_written_looks_like_anthropic_s():
    said = [
        Message("system", "You help."),
        Message("user", "cancel both"),
        Message("assistant", "Now.", [ToolCall("a", "cancel", {"id": 1}), ToolCall("b", "cancel", {"id": 2})]),
        Message("tool", "ok", [], "a"),
        Message("tool", "ok", [], "b"),
        Message("assistant", "Done.", reasoning="Both."),
    ]
    (record,) = session_records([Trace(id="s1", messages=said, tools=[{"name": "cancel", "parameters": SCHEMA}])])
    assert record == {
        "id": "s1",
        "system": "You help.",
        "messages": [
            {"role": "user", "content": "cancel both"},
            reply(
                text("Now."),
                {"type": "tool_use", "id": "a", "name": "cancel", "input": {"id": 1}},
                {"type": "tool_use", "id": "b", "name": "cancel", "input": {"id": 2}},
            ),
            user(
                {"type": "tool_result", "tool_use_id": "a", "content": "ok"},
                {"type": "tool_result", "tool_use_id": "b", "content": "ok"},
            ),
            reply({"type": "thinking", "thinking": "Both."}, text("Done.")),
        ],
        "tools": [{"name": "cancel", "input_schema": SCHEMA}],
    }


REAL = {
    "id": "s1",
    "system": [text("You help.")],
    "messages": [
        user(text("cancel O7")),
        reply({"type": "thinking", "thinking": "Hm", "signature": "x"}, text("a"), USE, text("b")),
        user(RESULT | {"is_error": False}, text("and?")),
        reply({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
              {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}),
    ],
    "tools": [{"name": "get_order", "input_schema": SCHEMA}],
    "response": reply(text("Done.")) | {"usage": {}},
}  # fmt: skip


def changed(draw, record):
    """A copy of a record with up to three nodes deleted, replaced, doubled or wrapped."""
    record = copy.deepcopy(record)
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(list(nodes(record)) or [(None,)]))
        if key is None:
            break
        parent = record
        for step in above:
            parent = parent[step]
        how = draw(st.sampled_from(["delete", "replace", "double", "wrap"]))
        if how == "delete":
            del parent[key]
        elif how == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[key] = {"x": parent[key]} if how == "wrap" else draw(JUNK)
    return record


def account_for(records, format, good):
    """Read records among which there is a good one; return the traces."""
    lines = [dump_line(record) for record in records]
    with TemporaryDirectory() as folder:
        with open(f"{folder}/log.jsonl", "wb") as file:
            file.write(b"".join(lines))
        report = ReadReport()
        found = list(read_traces(f"{folder}/log.jsonl", format, report))
    assert report.records == report.used + report.skipped == len(lines)
    assert report.traces == len(found)
    assert good in [trace.messages for trace in found]
    return found


@settings(max_examples=100)
@given(data=st.data())
def test_nothing_is_raised_and_what_was_read_can_be_written(data):
    record = changed(data.draw, REAL)
    before = copy.deepcopy(record)
    assert anthropic.matches(record) in (False, True)
    good = {"id": "good", "messages": [user(text("hi"))]}
    found = account_for([record, good], "anthropic", [Message("user", "hi")])
    assert record == before
    back, _ = round_trip(session_records, [[trace] for trace in found], "anthropic")
    assert [trace.messages for trace in back] == [trace.messages for trace in found]
