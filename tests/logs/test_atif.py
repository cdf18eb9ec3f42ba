"""ATIF: what we write comes back equal and is valid; what others write is read as the format means it.

The foreign records are made by hand, with the fields of the PyPI package `atif` 1.8.0 and of the format's public
description (harbor, rfcs/0001-trajectory-format.md).
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.examples.support.branching import branching_sessions
from rlkit.logs import Diagnostic, Message, Outcome, ReadReport, ToolCall, Trace, read_traces, write_jsonl
from rlkit.logs.jsontext import dump_line, parse
from rlkit.logs.readers import READERS, atif, openai_chat, otel
from rlkit.logs.readers.source import Record
from rlkit.logs.report import CODES
from rlkit.logs.trace import ROLES, Relation, Status
from rlkit.logs.writers import to_openai, to_otlp
from rlkit.logs.writers.atif import session_records, to_atif

DATA = Path(__file__).parents[2] / "data" / "logs"
HELD = [name for name in Trace.model_fields if name not in ("source", "raw")]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(READERS, "atif", atif)


class Lines:
    """A source of records in memory, each as it would be in a file: an object, a line of bytes, or made already."""

    def __init__(self, inputs) -> None:
        self.inputs = inputs

    def records(self, report):
        for number, item in enumerate(self.inputs, 1):
            report.records += 1
            if isinstance(item, Record):
                yield item
            else:
                value, strict = parse(item if isinstance(item, bytes) else dump_line(item))
                yield Record(value, "log.jsonl", number, "", strict)


def read(*records):
    report = ReadReport()
    return list(atif.read(Lines(records), report)), report


def held(trace):
    """All of a trace but where it was read; as text, since NaN is not NaN and 1 is True."""
    return repr([getattr(trace, name) for name in HELD])


def codes(trace):
    return [item.code for item in trace.diagnostics]


# What we write


def texts(letters):
    return st.text(letters, max_size=6)


def json_values(letters, nan):
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=nan, allow_infinity=nan) | texts(letters)
    scalars |= st.sampled_from([2**64, -(10**30), 0.1, -0.0])
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(letters), inner, max_size=3),
        max_leaves=5,
    )


def any_trace(letters, nan):
    text = texts(letters)
    content = st.sampled_from([None, ""]) | text
    objects = st.dictionaries(text | st.just("rlkit"), json_values(letters, nan), max_size=2)
    extra = st.none() | st.none() | objects
    ids = st.sampled_from(["c1", "c2", ""]) | text
    call = st.builds(
        ToolCall, ids, text, st.none() | objects, st.none() | st.sampled_from(['{"a": 1}', "oops", ""]), extra
    )
    time = st.sampled_from([None, "2026-01-01T10:00:00.123456789Z", "2026-01-01T10:00Z", "soon", ""])
    message = st.builds(
        Message,
        st.sampled_from(sorted(ROLES)),
        content,
        st.lists(call, max_size=2),
        st.none() | ids,
        st.none() | text,
        content,
        time,
        extra,
    )
    found = st.builds(
        Diagnostic,
        st.sampled_from(["id_missing", "content_parts"]) | text,
        st.sampled_from(["info", "warning", "error"]),
        text,
        st.none() | st.integers(0, 9),
        text | st.just(CODES["id_missing"][1]),
    )
    score = st.none() | st.floats(allow_nan=nan, allow_infinity=nan)
    return st.builds(
        Trace,
        id=text,
        messages=st.lists(message, max_size=6),
        tools=st.lists(objects, max_size=2),
        outcome=st.builds(Outcome, status=st.sampled_from(get_args(Status)), score=score, source=text),
        parent_id=st.none() | text,
        relation=st.sampled_from([None, *get_args(Relation)]),
        parent_call_id=st.none() | text,
        metadata=objects,
        diagnostics=st.lists(found, max_size=2),
    )


VALID = st.characters(exclude_categories=["Cs"])
ANY = st.characters() | st.sampled_from(["\ud83d", "\udc00", "\x00", "\u2028"])


@settings(max_examples=100)
@given(trace=any_trace(ANY, nan=True))
def test_any_trace_comes_back_equal(trace):
    before = held(trace)
    (back,), report = read(to_atif(trace))
    assert held(back) == before == held(trace)
    assert (report.records, report.skipped) == (1, 0)
    assert back.source == "log.jsonl:1"
    assert back.raw["schema_version"] == "ATIF-v1.8"


@given(trace=any_trace(VALID, nan=True))
def test_what_is_written_is_a_valid_trajectory(trace):
    package = pytest.importorskip("atif")
    package.Trajectory.model_validate(json.loads(dump_line(to_atif(trace))))


def test_branching_sessions_come_back_equal():
    sessions = list(branching_sessions(24, seed=3))
    traces = [trace for session in sessions for trace in session]
    assert {trace.relation for trace in traces} == {None, "fork", "subagent"}
    records = [record for session in sessions for record in session_records(session)]
    back, report = read(*records)
    assert list(map(held, back)) == list(map(held, traces))
    assert report.records == len(traces)


@pytest.mark.parametrize("name", ["support-2026-06.openai.jsonl.gz", "support-2026-06.otel.jsonl.gz"])
def test_production_logs_come_back_equal_from_a_file(name, tmp_path):
    first, second = ReadReport(), ReadReport()
    traces = list(read_traces(DATA / name, report=first))
    write_jsonl(map(to_atif, traces), tmp_path / "traces.jsonl.gz")
    back = list(read_traces(tmp_path, report=second))
    assert list(map(held, back)) == list(map(held, traces))
    counts = [{code: tally.count for code, tally in report.diagnostics.items()} for report in (first, second)]
    assert counts[0] == counts[1]


def test_unset_fields_are_left_out():
    messages = [
        Message("user", "cancel O7"),
        Message("assistant", tool_calls=[ToolCall("c1", "f", {"id": "O7"})]),
        Message("tool", "done", tool_call_id="c1"),
        Message("assistant", "It is cancelled."),
    ]
    trace = Trace(id="s1", messages=messages, tools=[{"name": "f"}], outcome=Outcome(status="success", source="who"))
    call = {"tool_call_id": "c1", "function_name": "f", "arguments": {"id": "O7"}}
    assert to_atif(trace) == {
        "schema_version": "ATIF-v1.8",
        "trajectory_id": "s1",
        "agent": {
            "name": "unknown",
            "version": "unknown",
            "tool_definitions": [{"type": "function", "function": {"name": "f"}}],
        },
        "steps": [
            {"step_id": 1, "source": "user", "message": "cancel O7"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "",
                "tool_calls": [call],
                "observation": {"results": [{"source_call_id": "c1", "content": "done"}]},
            },
            {"step_id": 3, "source": "agent", "message": "It is cancelled."},
        ],
        "extra": {"rlkit": {"version": 1, "outcome": {"status": "success", "source": "who"}}},
    }


def test_a_late_result_stands_in_a_step_of_its_own():
    messages = [
        Message("assistant", tool_calls=[ToolCall("c1", "f", {}), ToolCall("c2", "f", {})]),
        Message("tool", "1", tool_call_id="c1"),
        Message("user", "hurry"),
        Message("tool", "2", tool_call_id="c2"),
        Message("tool", "1 again", tool_call_id="c1"),
    ]
    steps = to_atif(Trace(id="s", messages=messages))["steps"]
    assert [step["source"] for step in steps] == ["agent", "user", "system"]
    assert steps[2]["observation"]["results"] == [
        {"content": "2", "extra": {"rlkit": {"tool_call_id": "c2"}}},
        {"content": "1 again", "extra": {"rlkit": {"tool_call_id": "c1"}}},
    ]


def test_infinity_and_nan_survive_where_json_has_no_words_for_them():
    call = ToolCall("c", "f", {"x": float("nan"), "y": None}, extra={"z": float("-inf")})
    message = Message("assistant", None, [call], extra={"w": [float("inf")]})
    trace = Trace(id="s", messages=[message], tools=[{"name": "f", "d": float("inf")}], metadata={"m": float("nan")})
    trace.outcome.score = float("nan")
    line = dump_line(to_atif(trace))
    assert parse(line)[1]
    (back,), _ = read(line)
    assert held(back) == held(trace)


def test_what_somebody_added_to_our_record_is_kept():
    record = to_atif(Trace(id="s", messages=[Message("user", "hi"), Message("assistant", "ho", extra={"a": 1})]))
    record["final_metrics"] = {"total_steps": 2}
    record["steps"][1]["metrics"] = {"cost_usd": 0.1}
    (back,), _ = read(record)
    assert back.messages[1].extra == {"metrics": {"cost_usd": 0.1}, "a": 1}
    assert back.metadata == {"final_metrics": {"total_steps": 2}}
    assert back.diagnostics == []


@pytest.mark.parametrize("change", ["version", "damage"])
def test_our_record_of_another_version_or_damaged_is_read_like_anyones(change):
    calling = Message("assistant", None, [ToolCall("c", "f", {"x": 1})])
    messages = [Message("user", "hi"), calling, Message("tool", "r", tool_call_id="c")]
    outcome = Outcome(status="failure", score=0.0, source="who")
    fields = {"parent_id": "p", "relation": "fork", "metadata": {"m": 1}, "outcome": outcome}
    record = to_atif(Trace(id="s", messages=messages, **fields))
    if change == "version":
        record["extra"]["rlkit"]["version"] = 2
    else:
        record["steps"][0]["message"] = 5
    (back,), _ = read(record)
    assert "atif_changed" in codes(back)
    assert [message.role for message in back.messages] == ["user", "assistant", "tool"]
    assert (back.messages[1].tool_calls, back.messages[2]) == (calling.tool_calls, messages[2])
    assert (back.id, back.parent_id, back.relation, back.outcome) == ("s", "p", "fork", outcome)
    assert back.metadata["m"] == 1


def test_the_package_is_not_imported_to_read_or_write():
    code = "import sys, rlkit.logs.readers.atif, rlkit.logs.writers.atif; assert 'atif' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_trajectories_match():
    trace = Trace(id="s", messages=[Message("user", "hi"), Message("assistant", "ho")])
    assert atif.matches(to_atif(trace))
    assert not openai_chat.matches(to_atif(trace))
    assert not otel.matches(to_atif(trace))
    others = [to_openai(trace), to_otlp(trace), None, 3, [], {}, {"steps": []}, {"schema_version": "ATIF-v1.8"}]
    others += [
        {"schema_version": 1.8, "steps": []},
        {"schema_version": "1.0", "steps": []},
        {"schema_version": "ATIF-"},
    ]
    assert not any(map(atif.matches, others))


# What others write


def trajectory(*steps, **fields):
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent = {"name": "harbor-agent", "version": "1.0.0", "model_name": "m-1"}
    return {"schema_version": "ATIF-v1.7", "session_id": "run-1", "agent": agent, "steps": numbered, **fields}


def user(text, **fields):
    return {"source": "user", "message": text, **fields}


def agent(text="", *calls, results=None, **fields):
    step = {"source": "agent", "message": text, **fields}
    if calls:
        step["tool_calls"] = [{"tool_call_id": i, "function_name": n, "arguments": a} for i, n, a in calls]
    if results is not None:
        step["observation"] = {"results": results}
    return step


def test_a_foreign_trajectory_is_read_with_all_it_says():
    tools = [{"type": "function", "function": {"name": "financial_search", "parameters": {}}}]
    metrics = {"prompt_tokens": 520, "completion_token_ids": [1722, 310], "logprobs": [-0.1, -0.05]}
    record = trajectory(
        {"source": "system", "message": "Be exact."},
        user("What is GOOGL's price?", timestamp="2025-10-11T10:30:00+02:00"),
        agent(
            "I will search.",
            ("call_1", "financial_search", {"ticker": "GOOGL", "metric": "price"}),
            ("call_2", "financial_search", {"ticker": "GOOGL", "metric": "volume"}),
            results=[
                {"source_call_id": "call_2", "content": "1.5M", "extra": {"score": 0.9}},
                {"source_call_id": "call_1", "content": "$185.35"},
            ],
            timestamp="2025-10-11T10:30:02Z",
            reasoning_content="The user wants the price.",
            model_name="m-2",
            metrics=metrics,
            extra={"retries": 1},
        ),
        agent("It is $185.35.", timestamp="2025-10-11T10:30:05Z"),
        final_metrics={"total_steps": 4},
        notes="none",
        extra={"dataset": "d"},
    )
    record["agent"]["tool_definitions"] = tools
    pytest.importorskip("atif").Trajectory.model_validate(record)
    before = copy.deepcopy(record)
    (trace,), report = read(record)
    assert record == before
    assert trace.id == "run-1"
    assert [message.role for message in trace.messages] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    asked, called, volume, price = trace.messages[1:5]
    assert asked.timestamp == "2025-10-11T08:30:00Z"
    assert called.content == "I will search."
    assert called.reasoning == "The user wants the price."
    assert called.tool_calls == [
        ToolCall("call_1", "financial_search", {"ticker": "GOOGL", "metric": "price"}),
        ToolCall("call_2", "financial_search", {"ticker": "GOOGL", "metric": "volume"}),
    ]
    assert called.extra == {"model_name": "m-2", "metrics": metrics, "extra": {"retries": 1}}
    assert (volume.tool_call_id, volume.content, volume.extra) == ("call_2", "1.5M", {"extra": {"score": 0.9}})
    assert (price.tool_call_id, price.content, price.extra) == ("call_1", "$185.35", None)
    assert trace.tools == [{"name": "financial_search", "parameters": {}}]
    assert trace.outcome == Outcome()
    assert trace.metadata == {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "harbor-agent", "version": "1.0.0", "model_name": "m-1"},
        "final_metrics": {"total_steps": 4},
        "notes": "none",
        "extra": {"dataset": "d"},
    }
    assert trace.diagnostics == []
    assert (report.records, report.skipped) == (1, 0)


def test_a_foreign_trajectory_survives_the_interchange():
    copied = user("before", is_copied_context=True)
    calling = agent("", ("c", "f", {}), results=[{"source_call_id": "c", "content": "r"}])
    (trace,), _ = read(trajectory(copied, calling))
    (back,), _ = read(to_atif(trace))
    assert held(back) == held(trace)


def test_results_without_a_call_id_answer_the_open_calls_of_their_own_step():
    record = trajectory(
        user("go"),
        agent("", ("a1", "sh", {}), ("a2", "sh", {}), results=[{"content": "both at once"}]),
        agent("", ("b1", "sh", {}), ("b2", "sh", {}), results=[{"content": "2"}, {"source_call_id": "b1"}]),
    )
    (trace,), _ = read(record)
    answers = [(m.tool_call_id, m.content) for m in trace.messages if m.role == "tool"]
    assert answers == [("a1", "both at once"), ("b2", "2"), ("b1", None)]
    assert codes(trace).count("tool_result_id_missing") == 2
    assert trace.diagnostics[0].path == "steps[1].observation.results[0].source_call_id"


def test_calls_that_have_no_id_get_one():
    calls = [{"function_name": "f", "arguments": {}}, {"tool_call_id": "x", "function_name": "g", "arguments": {}}]
    step = agent("", results=[{"content": "1"}, {"source_call_id": "x", "content": "2"}], tool_calls=calls)
    (trace,), _ = read(trajectory(step))
    made, given = (call.id for call in trace.tool_calls)
    assert [(m.tool_call_id, m.content) for m in trace.messages[1:]] == [(made, "1"), (given, "2")]
    assert {"tool_call_id_missing", "tool_result_id_missing"} == set(codes(trace))


def test_an_observation_that_answers_no_call_is_what_the_environment_said():
    record = trajectory(
        agent("ls", results=[{"content": "a.txt"}]),
        {"source": "system", "message": "", "observation": {"results": [{"content": "Disk full.", "extra": {"n": 1}}]}},
    )
    pytest.importorskip("atif").Trajectory.model_validate(record)
    (trace,), _ = read(record)
    assert trace.messages == [
        Message("assistant", "ls"),
        Message("user", "a.txt", extra={"is_observation": True}),
        Message("system", ""),
        Message("system", "Disk full.", extra={"extra": {"n": 1}, "is_observation": True}),
    ]


def test_ids_used_again_in_a_later_step_are_told_apart():
    steps = [agent("", ("c", "f", {"n": n}), results=[{"source_call_id": "c", "content": str(n)}]) for n in range(3)]
    (trace,), _ = read(trajectory(*steps))
    ids = [call.id for call in trace.tool_calls]
    assert len(set(ids)) == 3
    assert [(m.tool_call_id, m.content) for m in trace.messages if m.role == "tool"] == list(
        zip(ids, "012", strict=True)
    )


def test_content_in_parts_is_joined_and_images_are_kept():
    image = {"type": "image", "source": {"media_type": "image/png", "path": "images/s1.png"}}
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    results = [{"source_call_id": "c", "content": [*parts, image]}]
    record = trajectory(user(parts), user([*parts, image]), agent("", ("c", "see", {}), results=results))
    pytest.importorskip("atif").Trajectory.model_validate(record)
    (trace,), _ = read(record)
    first, second, _, result = trace.messages
    assert (first.content, first.extra) == ("What is this?", None)
    assert (second.content, second.extra) == ("What is this?", {"content": [*parts, image]})
    assert result.extra == {"content": [*parts, image]}
    assert set(codes(trace)) == {"content_part_skipped"}


def test_a_step_without_a_number_keeps_all_it_says():
    (trace,), _ = read({"steps": [{"source": "agent", "message": "m", "reasoning_content": "r"}]})
    assert trace.messages == [Message("assistant", "m", reasoning="r")]
    assert codes(trace) == ["id_missing"]
    assert trace.id == "log.jsonl:1"


def test_copied_context_is_marked_with_its_results():
    copied = agent("", ("c", "f", {}), results=[{"source_call_id": "c", "content": "r"}], is_copied_context=True)
    (trace,), _ = read(trajectory(copied, agent("new")))
    assert [message.extra for message in trace.messages] == [{"is_copied_context": True}] * 2 + [None]


def test_subagents_are_traces_of_their_own():
    grandchild = trajectory(user("deep"), agent("down"), trajectory_id="g")
    child = trajectory(
        user("find it"),
        agent(
            "",
            ("c9", "ask", {}),
            results=[{"source_call_id": "c9", "subagent_trajectory_ref": [{"trajectory_id": "g"}]}],
        ),
        trajectory_id="child",
        subagent_trajectories=[grandchild],
    )
    del child["session_id"]
    summary = trajectory(user("sum up"), agent("well"), trajectory_id="summary")
    record = trajectory(
        user("go"),
        agent(
            "",
            ("c1", "task", {}),
            results=[
                {"source_call_id": "c1", "content": "found", "subagent_trajectory_ref": [{"trajectory_id": "child"}]}
            ],
        ),
        {
            "source": "system",
            "message": "Context summarised.",
            "observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_id": "summary"}]}]},
        },
        subagent_trajectories=[child, summary],
    )
    pytest.importorskip("atif").Trajectory.model_validate(record)
    traces, report = read(record, trajectory(user("another")))
    assert [(t.id, t.parent_id, t.relation, t.parent_call_id) for t in traces] == [
        ("run-1", None, None, None),
        ("run-1#1", "run-1", "subagent", "c1"),
        ("run-1#2", "run-1#1", "subagent", "c9"),
        ("run-1#3", "run-1", "subagent", None),
        ("run-1", None, None, None),
    ]
    assert [t.metadata.get("trajectory_id") for t in traces] == [None, "child", "g", "summary", None]
    main = traces[0]
    assert main.messages[2].extra == {"subagent_trajectory_ref": [{"trajectory_id": "child"}]}
    assert main.messages[3].extra == {"observation": record["steps"][2]["observation"]}
    assert traces[2].raw == grandchild
    assert (report.records, report.skipped) == (2, 0)
    back, _ = read(*session_records(traces))
    assert list(map(held, back)) == list(map(held, traces))


def test_where_only_the_subagents_say_something_the_record_is_used():
    record = trajectory({"source": "robot", "message": "?"}, subagent_trajectories=[trajectory(user("hi")), 7, "x"])
    (trace,), report = read(record)
    assert (trace.id, trace.parent_id) == ("run-1#1", "run-1")
    assert codes(trace) == ["role_unknown", "record_not_object", "record_not_object"]
    assert trace.diagnostics[1].path == "subagent_trajectories[1]"
    assert report.skipped == 0


def test_paths_name_the_step_or_the_result():
    sub = trajectory(user("a"), trajectory_id="t")
    sub["steps"].append(3)
    record = trajectory(user("hi"), agent("", results=[4]), subagent_trajectories=[sub])
    record["steps"].append({"step_id": 9, "source": "agent", "message": 5})
    traces, _ = read(record)
    assert [(item.code, item.path) for item in traces[0].diagnostics] == [
        ("message_not_object", "steps[1].observation.results[0]"),
        ("content_wrong_type", "steps[2].content"),
    ]
    assert traces[0].messages[-1].extra == {"content": 5, "step_id": 9}
    assert [item.path for item in traces[1].diagnostics] == ["subagent_trajectories[0].steps[1]"]


def test_what_is_odd_about_a_subagent_that_says_nothing_is_noted_with_the_first_trace():
    inner = [trajectory({"source": "robot", "message": "?"}), 7]
    (trace,), _ = read(trajectory(user("hi"), subagent_trajectories=inner))
    assert [(item.code, item.path) for item in trace.diagnostics] == [
        ("record_not_object", "subagent_trajectories[1]"),
        ("role_unknown", "subagent_trajectories[0].steps[0].role"),
    ]
    _, report = read(trajectory(subagent_trajectories=inner))
    assert report.skipped == 1
    assert report.diagnostics.keys() == {"record_not_object", "role_unknown", "no_messages"}


@pytest.mark.parametrize("record", [{"steps": []}, {}, [], 3, None, {"steps": [1]}, {"steps": {"a": 1}}])
def test_a_record_without_messages_is_skipped_and_says_why(record):
    traces, report = read(record)
    assert traces == []
    assert (report.records, report.skipped) == (1, 1)
    assert report.diagnostics.keys() & {"no_messages", "record_not_object"}


def test_a_trajectory_that_is_one_pretty_printed_file_is_recognised(tmp_path):
    (tmp_path / "trajectory.json").write_text(json.dumps(trajectory(user("hi"), agent("ho")), indent=2))
    (trace,) = read_traces(tmp_path)
    assert trace.messages == [Message("user", "hi"), Message("assistant", "ho")]


JUNK = st.sampled_from([None, True, 0, 1.5, 10**25, "", "x", "\ud83d", [], {}, [None], {"x": 1}, [[]]]).map(
    copy.deepcopy
)
FULL = trajectory(
    {"source": "system", "message": "s", "observation": {"results": [{"content": "e"}]}},
    user([{"type": "text", "text": "t"}]),
    agent(
        "a",
        ("c1", "f", {"x": 1}),
        results=[{"source_call_id": "c1", "content": "r", "subagent_trajectory_ref": [{"trajectory_id": "z"}]}],
    ),
    subagent_trajectories=[trajectory(user("hi"), trajectory_id="z")],
    extra={"k": 1},
)


def nodes(value, path=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from nodes(item, (*path, key))


@given(data=st.data())
def test_nothing_is_raised_and_every_record_is_accounted_for(data):
    record = copy.deepcopy(FULL) if data.draw(st.booleans()) else to_atif(data.draw(any_trace(ANY, nan=False)))
    record = parse(dump_line(record))[0]
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(nodes(record))
        if not paths:
            break
        *above, key = data.draw(st.sampled_from(paths))
        parent = record
        for step in above:
            parent = parent[step]
        change = data.draw(st.sampled_from(["delete", "replace", "double"]))
        if change == "delete":
            del parent[key]
        elif change == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[key] = data.draw(JUNK)
    before = repr(record)
    traces, report = read(record)
    assert repr(record) == before
    assert (report.records, report.skipped) == (1, 0 if traces else 1)
    for trace in traces:
        for message in trace.messages:
            fields = (message.content, message.tool_call_id, message.name, message.reasoning, message.timestamp)
            assert all(field is None or isinstance(field, str) for field in fields)
            assert message.extra is None or isinstance(message.extra, dict)
            assert all(isinstance(c.id, str) and isinstance(c.arguments, dict | None) for c in message.tool_calls)
        (back,), _ = read(to_atif(trace))
        assert held(back) == held(trace)


def test_what_is_nested_too_deep_is_skipped():
    deep = trajectory(user("deep"))
    for _ in range(5000):
        deep = {"schema_version": "ATIF-v1.8", "steps": [], "subagent_trajectories": [deep]}
    traces, report = read(Record(deep, "log.jsonl", 1))
    assert traces == []
    assert report.skipped == 1
    assert "json_too_deep" in report.diagnostics


def test_results_and_messages_come_in_the_order_of_the_steps():
    traces, _ = read(FULL)
    assert [message.content for message in traces[0].messages] == ["s", "e", "t", "a", "r"]
