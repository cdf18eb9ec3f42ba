"""LangSmith: runs of every shape into sessions, messages of every LangChain shape, and a session's runs back.

All runs are made up. Fields of runs as in docs.langchain.com/langsmith/run-data-format; messages as `dumpd`,
`messages_to_dict` and `model_dump` of langchain-core 1.8 write them; payloads as in
docs.langchain.com/langsmith/log-llm-trace.
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
from rlkit.logs.readers import langsmith
from rlkit.logs.readers.langchain import plain_messages
from rlkit.logs.writers.langsmith import session_records
from tests.logs.test_langfuse import ODD, SAID, SCHEMA, branched, held, plain, sessions

ORDER = ToolCall("c1", "get_order", {"id": "O7"})
TOOL_CALL = {"name": "get_order", "args": {"id": "O7"}, "id": "c1", "type": "tool_call"}


def lc(name, content, /, **kwargs):
    """A message as `dumpd` writes it."""
    kind = {"HumanMessage": "human", "AIMessage": "ai", "SystemMessage": "system", "ToolMessage": "tool"}.get(
        name, name
    )
    path = ["langchain", "schema", "messages", name]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": {"content": content, "type": kind, **kwargs}}


def generations(message):
    generation = {"text": "", "generation_info": {}, "type": "ChatGeneration", "message": message}
    return {"generations": [[generation]], "llm_output": {"model_name": "m"}, "run": None, "type": "LLMResult"}


USER = lc("HumanMessage", "cancel O7")
CALL = lc("AIMessage", "", tool_calls=[TOOL_CALL], invalid_tool_calls=[])
RESULT = lc("ToolMessage", "pending", tool_call_id="c1", name="get_order")
DONE = lc("AIMessage", "Done.", tool_calls=[], invalid_tool_calls=[])


def run(number, kind="llm", given=None, said=None, parent="root", **more):
    time = f"20260101T1000{number:02}000000Z"
    order = f"20260101T100000000000Zroot.{time}r{number}" if parent else "20260101T100000000000Zroot"
    return {
        "id": f"r{number}" if parent else "root", "trace_id": "root", "parent_run_id": parent, "name": "ChatModel",
        "run_type": kind, "dotted_order": order, "start_time": f"2026-01-01T10:00:{number:02}", "end_time": None,
        "inputs": given or {}, "outputs": said, "error": None, "status": "success", "extra": {"metadata": {}},
        "session_id": "the project", "tags": [], **more,
    }  # fmt: skip


TWO = [
    run(1, given={"messages": [[USER]]}, said=generations(CALL)),
    run(3, given={"messages": [[USER, CALL, RESULT]]}, said=generations(DONE)),
]


def read(tmp_path, *records):
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(item) for item in records))
    report = ReadReport()
    traces = list(read_traces(file, report=report, format="langsmith"))
    assert report.records == report.used + report.skipped
    return traces, report


def told(messages):
    """Role, text and calls: LangChain writes an empty text where OpenAI writes null, and names the tool of a result."""
    return [(m.role, m.content or None, m.tool_calls, m.tool_call_id) for m in messages]


def test_runs_of_a_trace_are_one_session_that_grows_by_its_prefix(tmp_path):
    root = run(0, "chain", {"question": "?"}, {"answer": "!"}, parent=None, name="agent", tags=["prod"])
    (trace,), report = read(tmp_path, root, *TWO)
    assert trace.id == "root"
    assert told(trace.messages) == told(SAID)
    assert trace.metadata == {"name": "agent", "tags": ["prod"], "status": "success"}
    assert trace.diagnostics == []
    assert trace.raw == [root, *TWO]
    assert (report.records, report.skipped) == (3, 0)


@pytest.mark.parametrize("shape", ["lines", "array", "runs", "nested", "reversed"])
def test_the_format_is_recognised_in_every_envelope(tmp_path, shape):
    root = run(0, "chain", parent=None)
    file = tmp_path / "runs.json"
    whole = {
        "lines": "\n".join(map(json.dumps, [root, *TWO])),
        "array": json.dumps([root, *TWO]),
        "runs": json.dumps({"runs": [root, *TWO], "cursors": {}}, indent=1),
        "nested": json.dumps(root | {"child_runs": TWO}),
        "reversed": json.dumps([*reversed(TWO), root]),
    }
    file.write_text(whole[shape])
    (trace,) = read_traces(file)
    assert told(trace.messages) == told(SAID)


def test_runs_are_ordered_by_their_dotted_order(tmp_path):
    same = [item | {"start_time": "2026-01-01T10:00:00"} for item in TWO]
    (trace,), _ = read(tmp_path, *reversed(same))
    assert told(trace.messages) == told(SAID)


def test_a_run_needs_neither_trace_id_nor_dotted_order(tmp_path):
    few = [{key: item[key] for key in ("id", "run_type", "inputs", "outputs", "start_time")} for item in TWO]
    traces, _ = read(tmp_path, few[0], few[1] | {"dotted_order": TWO[1]["dotted_order"]})
    assert [trace.id for trace in traces] == ["r1", "root"]


@pytest.mark.parametrize("key", ["session_id", "thread_id", "conversation_id"])
def test_a_thread_joins_the_traces_of_its_turns(tmp_path, key):
    metadata = {"metadata": {key: "chat-9"}}
    second = TWO[1] | {"trace_id": "other", "dotted_order": None, "extra": metadata}
    (trace,), _ = read(tmp_path, TWO[0] | {"extra": metadata}, second)
    assert trace.id == "chat-9"
    assert told(trace.messages) == told(SAID)


def test_the_project_is_not_a_thread(tmp_path):
    traces, _ = read(tmp_path, TWO[0], TWO[0] | {"id": "x", "trace_id": "y"})
    assert {trace.id for trace in traces} == {"root", "y"}


def test_columns_of_the_bulk_export_may_be_json_text(tmp_path):
    rows = [
        item | {key: json.dumps(item[key]) for key in ("inputs", "outputs")}
        | {"extra": json.dumps({"metadata": {"thread_id": "chat-9"}})}
        for item in TWO
    ]  # fmt: skip
    (trace,), _ = read(tmp_path, *rows)
    assert (trace.id, told(trace.messages)) == ("chat-9", told(SAID))


OPENAI = {"role": "user", "content": "cancel O7"}


@pytest.mark.parametrize(
    "given",
    [
        {"messages": [[USER]]},
        {"messages": [USER]},
        {"messages": [OPENAI], "model": "m"},
        {"messages": [{"type": "human", "data": {"content": "cancel O7", "additional_kwargs": {}, "example": False}}]},
        {"messages": [{"type": "human", "content": "cancel O7", "additional_kwargs": {}, "response_metadata": {}}]},
        {"messages": [["human", "cancel O7"]]},
        {"messages": [{"role": "human", "content": "cancel O7"}]},
        {"prompts": ["cancel O7"]},
        {"input": "cancel O7"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "cancel O7"}]}]},
    ],
)
def test_inputs_of_any_shape_are_what_the_user_said(tmp_path, given):
    (trace,), _ = read(tmp_path, run(1, given=given, said=generations(DONE)))
    assert told(trace.messages) == told([SAID[0], SAID[3]])
    assert trace.diagnostics == []


@pytest.mark.parametrize(
    "said",
    [
        generations(DONE),
        {"generations": [{"message": DONE, "text": "Done."}]},
        {"generations": [[{"text": "Done.", "generation_info": None, "type": "Generation"}]]},
        {"messages": [{"role": "assistant", "content": "Done."}]},
        {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}]},
        {"output": DONE},
        {"output": "Done."},
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"message": {"role": "assistant", "content": "Done."}},
        {"content": "Done."},
    ],
)
def test_outputs_of_any_shape_are_what_the_agent_said(tmp_path, said):
    (trace,), _ = read(tmp_path, run(1, given={"messages": [[USER]]}, said=said))
    assert told(trace.messages) == told([SAID[0], SAID[3]])
    assert trace.diagnostics == []


def test_the_system_prompt_beside_the_messages_comes_first(tmp_path):
    (trace,), _ = read(tmp_path, run(1, given={"system": "Be kind.", "messages": [OPENAI]}, said=generations(DONE)))
    assert [m.role for m in trace.messages] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("name", "kwargs", "plain"),
    [
        ("SystemMessage", {"content": "a"}, {"role": "system", "content": "a"}),
        ("HumanMessage", {"content": "a", "name": "bob"}, {"role": "user", "content": "a", "name": "bob"}),
        ("AIMessageChunk", {"content": "a"}, {"role": "assistant", "content": "a"}),
        ("FunctionMessage", {"content": "a", "name": "f"}, {"role": "function", "content": "a", "name": "f"}),
        ("ChatMessage", {"content": "a", "role": "developer"}, {"role": "developer", "content": "a"}),
        (
            "ToolMessage",
            {"content": "a", "tool_call_id": "c1", "status": "error"},
            {"role": "tool", "content": "a", "tool_call_id": "c1", "status": "error"},
        ),
        (
            "AIMessage",
            {"content": "a", "id": "run-1", "usage_metadata": {"input_tokens": 1}, "response_metadata": {}},
            {"role": "assistant", "content": "a", "id": "run-1", "usage_metadata": {"input_tokens": 1}},
        ),
    ],
)
def test_a_message_says_the_same_in_all_three_serialisations(name, kwargs, plain):
    kinds = {"AIMessageChunk": "AIMessageChunk", "AIMessage": "ai", "HumanMessage": "human"}
    kind = kinds.get(name, name.removesuffix("Message").lower())
    full = {"additional_kwargs": {}, "response_metadata": {}, "type": kind} | kwargs
    flat = {key: value for key, value in full.items() if key != "role"} if name != "ChatMessage" else None
    rest = {key: value for key, value in kwargs.items() if key != "content"}
    assert plain_messages(lc(name, kwargs["content"], **rest)) == [plain]
    assert plain_messages({"type": kind, "data": full}) == [plain]
    if flat is not None:
        assert plain_messages(flat) == [plain]


WRITTEN = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"id": "O7"}'}}
BROKEN = {"name": "g", "args": "{bad", "id": "c2", "error": "no JSON", "type": "invalid_tool_call"}


@pytest.mark.parametrize(
    ("kwargs", "calls"),
    [
        ({"tool_calls": [TOOL_CALL]}, [ORDER]),
        (  # the text that the model wrote is in `additional_kwargs`
            {"tool_calls": [TOOL_CALL], "additional_kwargs": {"tool_calls": [WRITTEN]}},
            [ToolCall("c1", "get_order", {"id": "O7"}, '{"id": "O7"}')],
        ),
        (  # someone changed the calls after the model wrote them
            {"tool_calls": [TOOL_CALL | {"id": "c9"}], "additional_kwargs": {"tool_calls": [WRITTEN]}},
            [ToolCall("c9", "get_order", {"id": "O7"})],
        ),
        (
            {"tool_calls": [TOOL_CALL], "invalid_tool_calls": [BROKEN]},
            [ORDER, ToolCall("c2", "g", None, "{bad", {"error": "no JSON"})],
        ),
        ({"additional_kwargs": {"tool_calls": [WRITTEN]}}, [ToolCall("c1", "get_order", {"id": "O7"}, '{"id": "O7"}')]),
        (
            {"additional_kwargs": {"function_call": {"name": "get_order", "arguments": '{"id":"O7"}'}}},
            [ToolCall("call_1_0", "get_order", {"id": "O7"})],
        ),
    ],
)
def test_calls_are_found_wherever_langchain_keeps_them(tmp_path, kwargs, calls):
    (trace,), _ = read(tmp_path, run(1, given={"messages": [[USER]]}, said=generations(lc("AIMessage", "", **kwargs))))
    assert trace.messages[1].tool_calls == calls


def test_blocks_of_anthropic_are_text_reasoning_calls_and_results(tmp_path):
    thought = {"type": "thinking", "thinking": "Look it up.", "signature": "s"}
    use = {"type": "tool_use", "id": "c1", "name": "get_order", "input": {"id": "O7"}}
    answer = [thought, {"type": "text", "text": "One moment."}, use]
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "pending"}],
        "is_error": True,
    }
    asked = [OPENAI, {"role": "assistant", "content": answer}, {"role": "user", "content": [result]}]
    for first in (lc("AIMessage", answer, tool_calls=[TOOL_CALL]), lc("AIMessage", answer)):
        rows = [
            run(1, given={"messages": [[USER]]}, said=generations(first)),
            run(
                2, given={"messages": asked}, said={"role": "assistant", "content": [{"type": "text", "text": "Done."}]}
            ),
        ]
        (trace,), _ = read(tmp_path, *rows)
        assert [m.role for m in trace.messages] == ["user", "assistant", "tool", "assistant"]
        call, answered = trace.messages[1:3]
        assert (call.content, call.reasoning, call.tool_calls) == ("One moment.", "Look it up.", [ORDER])
        assert call.extra == {"content_blocks": [thought]}  # a signature can't be made up again
        assert (answered.content, answered.tool_call_id, answered.extra) == ("pending", "c1", {"is_error": True})


def test_a_picture_is_kept_as_logged(tmp_path):
    picture = {"type": "image_url", "image_url": {"url": "data:x"}}
    human = lc("HumanMessage", [{"type": "text", "text": "see"}, picture])
    (trace,), _ = read(tmp_path, run(1, given={"messages": [[human]]}, said=generations(DONE)))
    assert trace.messages[0].content == "see"
    assert trace.messages[0].extra == {"content": [{"type": "text", "text": "see"}, picture]}
    assert [item.code for item in trace.diagnostics] == ["content_part_skipped"]


def test_the_tools_offered_are_those_of_the_invocation(tmp_path):
    tools = {"invocation_params": {"tools": [{"name": "get_order", "description": "d", "input_schema": SCHEMA}]}}
    (trace,), _ = read(tmp_path, TWO[0] | {"extra": tools})
    assert trace.tools == [{"name": "get_order", "description": "d", "parameters": SCHEMA}]


@pytest.mark.parametrize(
    ("said", "more", "text"),
    [
        ({"output": "pending"}, {}, "pending"),
        ({"output": RESULT}, {}, "pending"),
        ({"output": {"type": "tool", "content": "pending", "tool_call_id": "c1"}}, {}, "pending"),
        ({"output": {"state": "pending"}}, {}, '{"state":"pending"}'),
        (None, {"error": "TimeoutError('too slow')", "status": "error"}, "TimeoutError('too slow')"),
    ],
)
def test_a_result_that_no_message_holds_is_taken_from_the_tool_run(tmp_path, said, more, text):
    tool = run(2, "tool", {"input": "{'id': 'O7'}"}, said, **({"name": "get_order"} | more))
    (trace,), _ = read(tmp_path, TWO[0], tool)
    assert (trace.messages[2].role, trace.messages[2].content, trace.messages[2].tool_call_id) == ("tool", text, "c1")


@pytest.mark.parametrize(
    ("stats", "outcome"),
    [
        ({"user_score": {"avg": 1.0, "n": 1}}, Outcome(status="success", score=1.0, source="feedback:user_score")),
        ({"user_score": {"avg": 0.0, "n": 2}}, Outcome(status="failure", score=0.0, source="feedback:user_score")),
        ({"user_score": {"avg": 0.5, "n": 2}}, Outcome(status="unknown", score=0.5, source="feedback:user_score")),
        ({"r": {"avg": None, "n": 1, "values": {"up": 1}}}, Outcome(status="success", score=1.0, source="feedback:r")),
        ({"rating": {"avg": None, "n": 2, "values": {"good": 1, "bad": 1}}}, Outcome()),
        ({"stars": {"avg": 4.0, "n": 1}}, Outcome()),
        ({"note": {"avg": None, "n": 0}}, Outcome()),
        (None, Outcome()),
        ("{}", Outcome()),
    ],
)  # fmt: skip
def test_feedback_is_the_outcome(tmp_path, stats, outcome):
    (trace,), _ = read(tmp_path, run(0, "chain", parent=None, feedback_stats=stats), *TWO)
    assert trace.outcome == outcome


def test_an_error_is_no_verdict(tmp_path):
    (trace,), _ = read(tmp_path, run(0, "chain", parent=None, error="boom", status="error"), *TWO)
    assert trace.outcome == Outcome()
    assert (trace.metadata["status"], trace.metadata["error"]) == ("error", "boom")


def test_without_llm_runs_the_state_of_the_graph_sums_them_up(tmp_path):
    graph = run(0, "chain", {"messages": [USER]}, {"messages": [USER, CALL, RESULT, DONE]}, parent=None)
    (trace,), _ = read(tmp_path, graph)
    assert told(trace.messages)[0] == told(SAID)[0]
    assert trace.final_reply == "Done."


def test_an_answer_is_stamped_with_the_end_of_its_run(tmp_path):
    (trace,), _ = read(tmp_path, TWO[0] | {"end_time": "2026-01-01T10:00:01.250000"})
    assert [message.timestamp for message in trace.messages] == [None, "2026-01-01T10:00:01.250000Z"]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [OPENAI]},
        {"resourceSpans": []},
        {"id": "o", "trace_id": "t", "type": "GENERATION", "input": "x"},
        {"run_type": "llm"},
        {"run_type": 3, "inputs": {}},
        {"runs": [3, None]},
        {"child_runs": [[]]},
        [], None, 3, "x",
    ],
)  # fmt: skip
def test_other_formats_are_left_to_their_readers(record):
    assert not langsmith.matches(record)


def test_what_is_no_run_is_skipped_and_counted(tmp_path):
    (trace,), report = read(tmp_path, TWO[0], {"x": 1}, [TWO[1]], None, 7)
    assert len(trace.messages) == 2
    assert (report.records, report.skipped) == (5, 4)


@given(several=st.lists(sessions(), min_size=1, max_size=3, unique_by=lambda trace: trace.id))
def test_what_is_written_is_read_back(several):
    with TemporaryDirectory() as folder:
        write_jsonl((record for trace in several for record in session_records([trace])), f"{folder}/log.jsonl")
        report = ReadReport()
        back = list(read_traces(f"{folder}/log.jsonl", report=report))
    assert list(map(held, back)) == list(map(held, several))
    assert report.skipped == 0


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


def test_the_same_session_gives_the_same_tree_of_runs():
    written = list(session_records(branched()))
    assert written == list(session_records(branched()))
    by_id = {item["id"]: item for item in written}
    assert len(by_id) == len(written)
    assert [item["id"] for item in written if item["parent_run_id"] is None] == [written[0]["id"]]
    for item in written[1:]:
        assert item["dotted_order"].startswith(by_id[item["parent_run_id"]]["dotted_order"] + ".")
    assert {item["trace_id"] for item in written} == {written[0]["id"]}


@st.composite
def damaged(draw):
    """The runs of a session, nested or not, with up to four nodes changed or lost."""
    root = run(0, "chain", parent=None, feedback_stats={"user_score": {"avg": 1.0, "n": 1}})
    tool = run(2, "tool", {"input": "x"}, {"output": RESULT}, name="get_order")
    shapes = [[root, *TWO, tool], [{"runs": [root, *TWO]}], [root | {"child_runs": [*TWO, tool]}]]
    records = copy.deepcopy(draw(st.sampled_from(shapes)))
    for _ in range(draw(st.integers(1, 4))):
        parent, key, value = None, None, records
        for _ in range(draw(st.integers(1, 9))):
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
def test_damage_is_never_an_exception_and_every_run_is_accounted_for(records):
    good = run(9, given={"messages": [[USER]]}, said=generations(DONE), trace_id="the good one")
    with TemporaryDirectory() as folder:
        Path(f"{folder}/log.jsonl").write_text("\n".join(json.dumps(item) for item in [*records, good]))
        report = ReadReport()
        back = list(read_traces(f"{folder}/log.jsonl", format="langsmith", report=report))
    assert "the good one" in [trace.id for trace in back]
    assert report.records == len(records) + 1 == report.used + report.skipped
    for trace in back:
        assert all(isinstance(message, Message) for message in trace.messages)
        json.dumps(list(session_records([trace])))


def test_a_session_of_one_trace_keeps_the_text_of_its_messages(tmp_path):
    trace = Trace(id="s", messages=SAID)
    write_jsonl(session_records([trace]), tmp_path / "log.jsonl")
    (back,) = read_traces(tmp_path / "log.jsonl")
    assert plain(back.messages) == SAID
