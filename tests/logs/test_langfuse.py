"""Langfuse: every shape of its exports into sessions, and a session's rows back into the session.

All rows are made up. Fields of rows as in langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields,
of objects as in export-from-ui and the API's openapi.yml; payloads as `langfuse.openai` and `langfuse.langchain` of
langfuse 5.0 log them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, Outcome, ReadReport, ToolCall, Trace, read_traces, write_jsonl
from rlkit.logs.readers import langfuse
from rlkit.logs.writers.langfuse import session_records

USER = {"role": "user", "content": "cancel O7"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"id":"O7"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "pending"}
DONE = {"role": "assistant", "content": "Done."}
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
SAID = [
    Message("user", "cancel O7"),
    Message("assistant", None, [ToolCall("c1", "get_order", {"id": "O7"})]),
    Message("tool", "pending", [], "c1"),
    Message("assistant", "Done."),
]


def row(number, kind="GENERATION", given=None, said=None, **more):
    """A row of `observations_v2/`: payloads are JSON text unless they are text anyway."""
    text = {key: v if isinstance(v, str) else json.dumps(v) for key, v in (("input", given), ("output", said)) if v}
    start = f"2026-01-01 10:00:{number:02}.000000"
    return {
        "id": f"o{number}", "trace_id": "t1", "parent_observation_id": "", "type": kind, "name": "llm",
        "start_time": start, "level": "DEFAULT", "usage_details": {}, **text, **more,
    }  # fmt: skip


def score(kind, value, text=None, name="feedback", **more):
    return {
        "id": f"s-{name}-{value}", "timestamp": "2026-01-01 11:00:00.000000", "trace_id": "t1", "observation_id": None,
        "session_id": None, "name": name, "value": value, "data_type": kind, "string_value": text, "source": "API",
        **more,
    }  # fmt: skip


TWO = [row(1, given=[USER], said=CALL), row(2, given=[USER, CALL, RESULT], said=DONE)]


def read(tmp_path, *records, name="rows.jsonl", expect=None):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(json.dumps(item) for item in records))
    report = ReadReport()
    traces = list(read_traces(tmp_path if "/" in name else file, report=report, format="langfuse"))
    assert report.records == report.used + report.skipped
    return traces, report


def plain(messages):
    """Without the times, which stand in the spans."""
    return [Message(m.role, m.content, m.tool_calls, m.tool_call_id, m.name, m.reasoning) for m in messages]


def test_enriched_rows_are_one_session_that_grows_by_its_prefix(tmp_path):
    context = {
        "session_id": "chat-9",
        "user_id": "u1",
        "trace_name": "support",
        "tags": ["prod"],
        "environment": "live",
    }
    rows = [r | context | {"provided_model_name": "gpt-4o", "metadata": {"tier": "pro"}} for r in TWO]
    (trace,), report = read(tmp_path, *rows)
    assert trace.id == "chat-9"
    assert trace.messages == SAID
    assert trace.metadata == {
        "name": "support", "model": "gpt-4o", "environment": "live", "user_id": "u1", "tags": ["prod"], "tier": "pro",
    }  # fmt: skip
    assert trace.diagnostics == []  # times without a zone are this format's way
    assert trace.raw == rows
    assert report.skipped == 0


def test_the_format_is_recognised_without_being_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(TWO[0]))
    (trace,) = read_traces(tmp_path / "rows.jsonl")
    assert plain(trace.messages) == SAID[:2]


def test_only_the_core_columns_are_needed(tmp_path):
    rows = [{key: r[key] for key in ("id", "trace_id", "type", "start_time", "input", "output")} for r in TWO]
    (trace,), _ = read(tmp_path, *rows)
    assert (trace.id, plain(trace.messages), trace.metadata) == ("t1", SAID, {})


def test_rows_may_come_in_any_order(tmp_path):
    (trace,), _ = read(tmp_path, *reversed(TWO))
    assert plain(trace.messages) == SAID


def test_an_answer_is_stamped_with_the_end_of_its_call(tmp_path):
    (trace,), _ = read(tmp_path, TWO[0] | {"end_time": "2026-01-01 10:00:01.250000"})
    assert [message.timestamp for message in trace.messages] == [None, "2026-01-01T10:00:01.250000Z"]


def test_legacy_files_are_joined_on_the_trace(tmp_path):
    trace_row = {
        "id": "t1", "timestamp": "2026-01-01 10:00:00.000000", "name": "support", "session_id": "chat-9",
        "user_id": "u1", "public": False, "bookmarked": False, "tags": [], "metadata": {"tier": "pro"},
        "input": "hi", "output": "ho",
    }  # fmt: skip
    for folder, rows in (("observations", TWO), ("scores", [score("BOOLEAN", 1)]), ("traces", [trace_row])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = ReadReport()
    (trace,) = read_traces(tmp_path, report=report)
    assert (trace.id, plain(trace.messages)) == ("chat-9", SAID)
    assert trace.outcome == Outcome(status="success", score=1.0, source="score:feedback")
    assert trace.metadata == {"name": "support", "user_id": "u1", "tier": "pro"}
    assert (report.records, report.skipped) == (4, 0)


def camel(observation):
    names = {snake: api for snake, api in langfuse._CAMEL.items() if snake in observation}
    return {names.get(key, key): json.loads(v) if key in ("input", "output") else v for key, v in observation.items()}


@pytest.mark.parametrize("nested", [True, False])
def test_the_download_of_a_trace_is_read(tmp_path, nested):
    trace = {"id": "t1", "timestamp": "2026-01-01T10:00:00.000Z", "name": "support", "sessionId": "chat-9", "tags": []}
    lists = {
        "observations": [camel(r) | {"startTime": r["start_time"].replace(" ", "T") + "Z"} for r in TWO],
        "scores": [{"id": "s1", "traceId": "t1", "name": "feedback", "value": 0, "dataType": "BOOLEAN"}],
    }
    file = tmp_path / "trace-t1.json"
    file.write_text(json.dumps({"trace": trace} | lists if nested else trace | lists, indent=2))
    (read_back,) = read_traces(file)
    assert (read_back.id, plain(read_back.messages)) == ("chat-9", SAID)
    assert read_back.outcome == Outcome(status="failure", score=0.0, source="score:feedback")
    assert read_back.metadata["name"] == "support"


def test_a_page_of_the_api_is_read(tmp_path):
    (trace,), report = read(tmp_path, {"data": [camel(r) for r in TWO], "meta": {"page": 1}})
    assert plain(trace.messages) == SAID
    assert (report.records, report.used) == (1, 1)


@pytest.mark.parametrize(
    "given",
    [
        [USER],
        {"messages": [USER], "tools": []},
        {"messages": [USER]},
        USER,
        "cancel O7",
        [[{"type": "human", "data": {"content": "cancel O7"}}]],
        {"prompt": "cancel O7"},
        [{"role": "user", "content": [{"type": "text", "text": "cancel O7"}]}],
        ["cancel O7"],
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_an_input_of_any_shape_is_what_the_user_said(tmp_path, given, as_text):
    if as_text and isinstance(given, dict | list) and not langfuse.holds_messages(given):
        pytest.skip("as text it may be what someone wrote")
    logged = json.dumps(given) if as_text and not isinstance(given, str) else given
    (trace,), _ = read(tmp_path, row(1, said=DONE) | {"input": logged})
    assert plain(trace.messages) == [SAID[0], SAID[3]]
    assert trace.diagnostics == []


@pytest.mark.parametrize(
    "said",
    [
        DONE,
        [DONE],
        {"choices": [{"index": 0, "message": DONE, "finish_reason": "stop"}]},
        {"messages": [DONE]},
        "Done.",
        {"content": "Done.", "tool_calls": []},
        {"content": "Done."},
        {"completion": "Done."},
        [{"type": "text", "text": "Done."}],
    ],
)
def test_an_output_of_any_shape_is_what_the_agent_said(tmp_path, said):
    (trace,), _ = read(tmp_path, row(1, given=[USER]) | {"output": said})
    assert plain(trace.messages) == [SAID[0], SAID[3]]
    assert trace.diagnostics == []


@pytest.mark.parametrize(
    "text", ['{"text": "x", "content": 1}', '{"output": [1]}', "[1, 2]", '[{"type": "a"}]', "{bad"]
)
def test_an_answer_that_is_json_stays_the_text_that_the_agent_wrote(tmp_path, text):
    (trace,), _ = read(tmp_path, row(1, given=[USER], said=text))
    assert trace.final_reply == text


def test_what_the_langchain_handler_logs_is_read(tmp_path):
    call = {"name": "get_order", "args": {"id": "O7"}, "id": "c1", "type": "tool_call"}
    tool = {"type": "function", "function": {"name": "get_order", "parameters": SCHEMA}}
    prompt = [USER, {"role": "tool", "content": tool}]
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"content": "pending", "type": "tool", "name": "get_order", "tool_call_id": "c1", "status": "success"}
    wrapped = row(2, "TOOL", {"id": "O7"}, result, name="get_order")
    (trace,), _ = read(tmp_path, row(1, given=prompt, said=said), wrapped)
    assert [(m.role, m.content or None) for m in trace.messages] == [(m.role, m.content) for m in SAID[:3]]
    assert trace.messages[1].tool_calls == SAID[1].tool_calls
    assert trace.tools == [{"name": "get_order", "parameters": SCHEMA}]


@pytest.mark.parametrize(
    "more",
    [
        {"tool_definitions": {"get_order": json.dumps({"description": "", "parameters": json.dumps(SCHEMA)})}},
        {"input": json.dumps({"messages": [USER], "tools": [{"name": "get_order", "input_schema": SCHEMA}]})},
        {"input": json.dumps({"messages": [USER], "functions": [{"name": "get_order", "parameters": SCHEMA}]})},
        {"modelParameters": {"tools": json.dumps([{"type": "function", "name": "get_order", "parameters": SCHEMA}])}},
    ],
)
def test_the_tools_offered_are_found_wherever_they_stand(tmp_path, more):
    (trace,), _ = read(tmp_path, TWO[0] | more)
    assert trace.tools == [{"name": "get_order", "parameters": SCHEMA}]


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({"provided_model_name": "gpt-4o"}, SAID[:2]),  # litellm#30249
        ({"usage_details": {"input": 9}}, SAID[:2]),
        ({}, None),
        ({"provided_model_name": "gpt-4o", "input": '{"query": "SELECT 1"}'}, None),  # litellm#35193
    ],
)
def test_a_span_is_an_llm_call_where_it_names_a_model_and_was_asked_messages(tmp_path, more, messages):
    rows = [TWO[0] | {"type": "SPAN"} | more, row(5, given="x", said="y", id="other", trace_id="t2")]
    traces, _ = read(tmp_path, *rows)
    assert [plain(trace.messages) for trace in traces if trace.id == "t1"] == ([messages] if messages else [])


def test_tool_spans_without_a_generation_are_diagnosed(tmp_path):
    """langfuse#13920: the generation was dropped although the API had answered 200."""
    lost = [row(1, "AGENT"), row(2, "TOOL", {"id": "O7"}, "pending", name="get_order")]
    traces, report = read(tmp_path, *lost, row(3, given=[USER], said=DONE, trace_id="t2"))
    assert [trace.id for trace in traces] == ["t2"]
    assert report.skipped == 2
    assert "spans_without_messages" in report.diagnostics


@pytest.mark.parametrize("column", ["input", "output"])
def test_a_payload_that_was_left_out_is_diagnosed(tmp_path, column):
    rows = [TWO[0], TWO[1] | {column: None, "end_time": "2026-01-01 10:00:09.000000"}]
    (trace, *others), report = read(tmp_path, *rows)
    assert not others
    assert report.diagnostics["span_content_missing"].count == 1
    assert plain(trace.messages) == SAID[: 2 if column == "input" else 3]


def test_a_call_that_failed_has_no_answer_to_miss(tmp_path):
    _, report = read(tmp_path, row(1, given=[USER], level="ERROR", end_time="2026-01-01 10:00:09.000000"))
    assert "span_content_missing" not in report.diagnostics


def test_a_tool_that_failed_answers_with_its_error(tmp_path):
    failed = row(2, "TOOL", {"id": "O7"}, name="get_order", level="ERROR", status_message="no such order")
    (trace,), _ = read(tmp_path, TWO[0], failed)
    assert trace.messages[2].content == "no such order"


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ([score("BOOLEAN", 1)], Outcome(status="success", score=1.0, source="score:feedback")),
        ([score("BOOLEAN", 0)], Outcome(status="failure", score=0.0, source="score:feedback")),
        ([score("NUMERIC", 0.4, name="help")], Outcome(status="unknown", score=0.4, source="score:help")),
        ([score("NUMERIC", 7, name="help")], Outcome()),
        ([score("CATEGORICAL", 2, "resolved")], Outcome(status="success", score=1.0, source="score:feedback")),
        ([score("CATEGORICAL", 1, "neutral")], Outcome()),
        ([score("TEXT", 0, "bad")], Outcome()),
        (
            [score("BOOLEAN", 0, timestamp="2026-01-01 12:00:00.000000", observation_id="o1"), score("NUMERIC", 1)],
            Outcome(status="success", score=1.0, source="score:feedback"),
        ),
        ([score("BOOLEAN", 0, observation_id="o1")], Outcome(status="failure", score=0.0, source="score:feedback")),
    ],
)
def test_scores_are_the_outcome(tmp_path, scores, outcome):
    (trace,), report = read(tmp_path, *scores, *TWO)
    assert trace.outcome == outcome
    assert report.skipped == 0


def test_a_score_of_a_session_counts_for_the_session(tmp_path):
    of_session = score("BOOLEAN", 1, session_id="chat-9", trace_id=None)
    (trace,), _ = read(tmp_path, *(r | {"session_id": "chat-9"} for r in TWO), of_session)
    assert trace.outcome.status == "success"


def test_a_score_of_nothing_we_have_is_counted(tmp_path):
    (trace,), report = read(tmp_path, *TWO, score("BOOLEAN", 1, trace_id="elsewhere"))
    assert trace.outcome == Outcome()
    assert (report.records, report.skipped) == (3, 1)


def test_a_session_joins_the_traces_of_its_turns(tmp_path):
    again = [USER, CALL, RESULT, DONE, {"role": "user", "content": "thanks"}]
    third = row(3, given=again, said={"role": "assistant", "content": "Bye."}, trace_id="t2")
    (trace,), _ = read(tmp_path, *(r | {"session_id": "chat-9"} for r in [*TWO, third]))
    assert (trace.id, len(trace.messages), trace.final_reply) == ("chat-9", 6, "Bye.")


def test_where_no_generation_has_messages_the_agent_sums_them_up(tmp_path):
    (trace,), _ = read(tmp_path, row(1, "AGENT", {"messages": [USER, CALL, RESULT]}, "Done."))
    assert plain(trace.messages) == SAID


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER]},
        {"messages": [USER], "id": "t", "timestamp": "x", "tags": [], "user_id": "u"},
        {"resourceSpans": []},
        {"id": "r", "run_type": "llm", "inputs": {}, "trace_id": "t"},
        {"type": "user", "uuid": "u", "message": USER, "sessionId": "s", "timestamp": "2026-01-01"},
        {"context": {"trace_id": "t"}, "attributes": {}, "name": "x"},
        {"type": "GENERATION"},
        {"type": ["GENERATION"], "id": "x", "trace_id": "t"},
        {"data_type": {}, "name": "x", "trace_id": "t"},
        {"data": [1], "meta": {}},
        {"trace": 3, "observations": [3]},
        [], None, 3, "x",
    ],
)  # fmt: skip
def test_other_formats_are_left_to_their_readers(record):
    assert not langfuse.matches(record)


def test_what_is_no_row_is_skipped_and_counted(tmp_path):
    (trace,), report = read(tmp_path, TWO[0], {"x": 1}, [TWO[1]], None, 7)
    assert plain(trace.messages) == SAID[:2]
    assert (report.records, report.skipped) == (5, 4)


def test_rows_nested_too_deep_are_counted(tmp_path):
    deep = "[" * 900 + "]" * 900
    (trace,), report = read(tmp_path, TWO[0], row(2, trace_id="t2") | {"input": json.loads(deep)})
    assert trace.id == "t1"
    assert report.skipped == 1


TEXT = st.text(max_size=8)


@st.composite
def sessions(draw):
    """A trace of 1-6 messages and up to two branches of it, linked as a reader links them."""
    messages = [Message("user", draw(TEXT.filter(bool)))]
    for index in range(draw(st.integers(0, 3))):
        call = ToolCall(f"c{index}", draw(TEXT.filter(bool)), draw(st.dictionaries(TEXT, st.integers(), max_size=2)))
        messages.append(
            Message("assistant", draw(st.none() | TEXT.filter(bool)), [call], reasoning=draw(st.none() | TEXT))
        )
        messages.append(
            Message("tool", draw(TEXT), [], call.id, timestamp=draw(st.none() | st.just("2026-01-01T10:00:00Z")))
        )
    messages.append(
        Message("assistant", draw(TEXT.filter(bool)), timestamp=draw(st.none() | st.just("2026-01-01T10:00:01Z")))
    )
    score = draw(st.none() | st.floats(0, 1))
    outcome = Outcome(status=draw(st.sampled_from(["success", "truncated"])), score=score, source=draw(TEXT))
    tools = draw(st.lists(st.fixed_dictionaries({"name": TEXT, "parameters": st.just(SCHEMA)}), max_size=2))
    metadata = draw(st.dictionaries(TEXT, st.integers() | TEXT, max_size=2))
    return Trace(id=draw(TEXT.filter(bool)), messages=messages, tools=tools, outcome=outcome, metadata=metadata)


def held(trace):
    links = trace.parent_id, trace.relation, trace.parent_call_id
    return trace.id, trace.messages, trace.tools, trace.outcome, trace.metadata, links


@given(several=st.lists(sessions(), min_size=1, max_size=3, unique_by=lambda trace: trace.id))
def test_what_is_written_is_read_back(several):
    with TemporaryDirectory() as folder:
        write_jsonl((record for trace in several for record in session_records([trace])), f"{folder}/log.jsonl")
        report = ReadReport()
        back = list(read_traces(f"{folder}/log.jsonl", report=report))
    assert list(map(held, back)) == list(map(held, several))
    assert report.skipped == 0


def branched():
    """A session with a retried answer and a sub-agent, as the reader returns them."""
    shared = {"tools": [{"name": "get_order"}], "metadata": {"tier": "pro"}}
    fork = [*SAID[:3], Message("assistant", "Sorry?")]
    helper = [Message("system", "You look up orders."), Message("user", "O7?"), Message("assistant", "It is pending.")]
    return [
        Trace(id="s1", messages=SAID, outcome=Outcome(status="success", score=1.0, source="feedback"), **shared),
        Trace(id="s1#1", messages=helper, parent_id="s1", relation="subagent", parent_call_id="c1", **shared),
        Trace(id="s1#2", messages=fork, parent_id="s1", relation="fork", **shared),
    ]


def test_a_branch_that_is_written_alone_keeps_its_parent(tmp_path):
    branch = branched()[1]
    write_jsonl(session_records([branch]), tmp_path / "log.jsonl")
    (back,) = read_traces(tmp_path / "log.jsonl")
    assert held(back) == held(branch)


def test_branches_survive(tmp_path):
    traces = branched()
    write_jsonl(session_records(traces), tmp_path / "log.jsonl")
    back = list(read_traces(tmp_path / "log.jsonl"))
    assert list(map(held, back)) == list(map(held, traces))


def test_the_same_session_gives_the_same_rows_in_the_columns_of_the_export():
    rows = list(session_records(branched()))
    assert rows == list(session_records(branched()))
    assert len({r["id"] for r in rows}) == len(rows)
    first = rows[0]
    assert (first["type"], first["parent_observation_id"], first["session_id"]) == ("AGENT", "", "s1")
    assert all(isinstance(r["input"], str) for r in rows if "type" in r)
    assert rows[-1]["string_value"] == "success"


ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    10**25,
    "",
    "x",
    "null",
    "{",
    "[]",
    "\ud83d",
    {},
    [],
    [None],
    [[]],
    [{"role": 3}],
    {"a": {}},
]


@st.composite
def damaged(draw):
    """The rows of a session, a download or a page, with up to four nodes changed or lost."""
    rows = copy.deepcopy([*TWO, score("BOOLEAN", 1), row(3, "TOOL", {"id": "O7"}, "x", name="get_order")])
    for item in rows[:2]:
        item["input"] = json.loads(item["input"])
    lists = {"trace": {"id": "t1", "sessionId": "s"}, "observations": rows[:2], "scores": rows[2:3]}
    records = draw(st.sampled_from([rows, [lists], [{"data": rows, "meta": {}}]]))
    for _ in range(draw(st.integers(1, 4))):
        parent, key = None, None
        value = records
        for _ in range(draw(st.integers(1, 7))):
            keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            if not keys:
                break
            parent, key = value, draw(st.sampled_from(list(keys)))
            value = parent[key]
        if parent is None:
            break
        if isinstance(parent, dict) and draw(st.booleans()):
            del parent[key]
        else:
            parent[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return records


@settings(max_examples=150)
@given(records=damaged())
def test_damage_is_never_an_exception_and_every_row_is_accounted_for(records):
    good = row(9, given=[USER], said=DONE, trace_id="the good one")
    with TemporaryDirectory() as folder:
        Path(f"{folder}/log.jsonl").write_text("\n".join(json.dumps(item) for item in [*records, good]))
        report = ReadReport()
        back = list(read_traces(f"{folder}/log.jsonl", format="langfuse", report=report))
    assert "the good one" in [trace.id for trace in back]
    assert report.records == len(records) + 1 == report.used + report.skipped
    assert report.used >= 1
