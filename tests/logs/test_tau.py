"""tau-bench and tau2-bench results into traces, and any trace through each of the benchmarks' formats and back.

All records are made up, but for those in test_real_logs.py. Fields as in github.com/sierra-research/tau-bench
(tau_bench/types.py, run.py) and github.com/sierra-research/tau2-bench (src/tau2/data_model/{simulation,message}.py).
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
from rlkit.logs.readers import openhands, swe_agent, tau2, tau_bench
from rlkit.logs.writers import openhands as openhands_writer
from rlkit.logs.writers import swe_agent as swe_agent_writer
from rlkit.logs.writers import tau2 as tau2_writer
from rlkit.logs.writers import tau_bench as tau_bench_writer
from tests.logs.test_properties import JUNK, OBJECT, TEXT, nodes, traces

READERS = {"tau-bench": tau_bench, "tau2": tau2, "swe-agent": swe_agent, "openhands": openhands}
WRITERS = {
    "tau-bench": tau_bench_writer, "tau2": tau2_writer, "swe-agent": swe_agent_writer, "openhands": openhands_writer,
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, reader in READERS.items():
        monkeypatch.setitem(registry.READERS, name, reader)


def read(tmp_path, format, *records, name="log.jsonl"):
    """The traces of records, a line each, and the report; every record is accounted for."""
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps(record) for record in records))
    return look(file, format)


def look(path, format):
    report = ReadReport()
    found = list(read_traces(path, format=format, report=report))
    assert 0 <= report.skipped <= report.records
    return found, report


def codes(trace):
    return [item.code for item in trace.diagnostics]


def whole(trace):
    """All of a trace but where it stood, its raw record and what was odd."""
    return {name: getattr(trace, name) for name in Trace.model_fields if name not in ("source", "raw", "diagnostics")}


# --- tau-bench --------------------------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "get_user", "arguments": '{"id":"u1"}'}}
TRAJ = [
    {"role": "system", "content": "Follow the policy."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "get_user", "content": "{}"},
    {"role": "assistant", "content": "Done."},
]
GRADED = {"task": {"user_id": "u1"}, "source": "user", "user_cost": 0.1, "reward_info": {"reward": 1.0}}


def run(task=3, trial=0, reward=1.0, info=GRADED, traj=TRAJ):
    return {"task_id": task, "reward": reward, "info": info, "traj": traj, "trial": trial}


def test_a_run_of_tau_bench_is_a_trace(tmp_path):
    (trace,), _ = read(tmp_path, "tau-bench", run())
    assert trace.id == "3/0"
    assert trace.outcome == Outcome(status="success", score=1.0, source="tau-bench")
    assert trace.metadata == {"task_id": 3, "trial": 0, "info": GRADED}
    assert trace.messages[2:4] == [
        Message("assistant", None, [ToolCall("c1", "get_user", {"id": "u1"})]),
        Message("tool", "{}", [], "c1", "get_user"),
    ]
    assert trace.raw == run()
    assert trace.diagnostics == []


@pytest.mark.parametrize(
    ("reward", "info", "status", "score"),
    [
        (1.0, GRADED, "success", 1.0),
        (1, GRADED, "success", 1.0),
        (1 - 1e-7, GRADED, "success", 1 - 1e-7),
        (0.0, GRADED, "failure", 0.0),
        (0.5, GRADED, "failure", 0.5),
        (0.0, GRADED | {"reward_info": None}, "truncated", 0.0),
        (0.0, {"error": "RateLimitError()", "traceback": "…"}, "infra_error", None),
        (0.0, {}, "failure", 0.0),
        (0.0, None, "failure", 0.0),
        (None, GRADED, "unknown", None),
        (1.5, GRADED, "unknown", None),
        (-0.5, GRADED, "unknown", None),
        (float("nan"), GRADED, "unknown", None),
        (float("inf"), GRADED, "unknown", None),
        ([], GRADED, "unknown", None),
    ],
)
def test_the_reward_is_the_outcome_and_no_verdict_is_none(tmp_path, reward, info, status, score):
    (trace,), _ = read(tmp_path, "tau-bench", run(reward=reward, info=info))
    assert (trace.outcome.status, trace.outcome.score) == (status, score)


def test_a_run_that_crashed_before_a_word_is_counted(tmp_path):
    crashed = run(task=4, reward=0.0, info={"error": "Timeout()", "traceback": "…"}, traj=[])
    (trace,), report = read(tmp_path, "tau-bench", run(), crashed)
    assert trace.id == "3/0"
    assert (report.records, report.skipped) == (2, 1)
    assert report.diagnostics["no_messages"].count == 1


def test_runs_of_one_task_have_ids_of_their_own(tmp_path):
    found, report = read(tmp_path, "tau-bench", run(), run(trial=1), run(), run(task=None), run(trial=None))
    assert [trace.id for trace in found] == ["3/0", "3/1", "3/0~2", "log.jsonl:4", "3"]
    assert report.diagnostics["id_repeated"].count == 1


def test_an_array_of_runs_is_recognised(tmp_path):
    (tmp_path / "airline.json").write_text(json.dumps([run(), run(trial=1)]))
    found, report = look(tmp_path / "airline.json", "auto")
    assert [trace.id for trace in found] == ["3/0", "3/1"]
    assert found[1].source.endswith("airline.json[1]")
    assert report.records == 2


# --- tau2 -------------------------------------------------------------------------------------------------------------

PARAMETERS = {"type": "object", "properties": {"id": {"type": "string"}}}
SIGNATURE = {"name": "get_line", "doc": "Look a line up.", "params": PARAMETERS, "returns": {"type": "object"}}
INFO = {
    "git_commit": "a1",
    "num_trials": 1,
    "agent_info": {"implementation": "llm_agent", "llm": "some-model"},
    "environment_info": {"domain_name": "telecom", "policy": "Be kind.", "tool_defs": {"get_line": SIGNATURE}},
}
TASK = {"id": "t1", "evaluation_criteria": {"actions": [{"name": "get_line"}], "reward_basis": ["DB"]}}


def message(role, content=None, **more):
    """A message with the defaults that tau2 writes."""
    extra = {"is_audio": False, "is_final_chunk": True, "contains_speech": True, "raw_data": None, "cost": None}
    return {"role": role, "content": content, "tool_calls": None, **extra, **more}


def call(call_id, name, requestor="assistant", **arguments):
    return {"id": call_id, "name": name, "arguments": arguments, "requestor": requestor}


def result(id, content, requestor="assistant", **more):
    return {"id": id, "role": "tool", "content": content, "requestor": requestor, "error": False, **more}


SAID = [
    message("assistant", "Hi!", turn_idx=0, timestamp="2026-01-01T10:00:00.000001", cost=0.5),
    message("user", "No signal.", turn_idx=1),
    message("assistant", tool_calls=[call("a", "get_line", id="L1"), call("b", "get_line", id="L2")], turn_idx=2),
    {"role": "tool", "tool_messages": [result("a", "one", turn_idx=3), result("b", "no such line", error=True)]},
    message("user", tool_calls=[call("u", "toggle_airplane_mode", requestor="user")], turn_idx=5),
    result("u", "off", requestor="user", turn_idx=6),
    message("user", "###STOP###", turn_idx=7),
]


def simulation(messages=SAID, **more):
    return {
        "id": "s1", "task_id": "t1", "trial": 0, "seed": 7, "duration": 3.5, "termination_reason": "user_stop",
        "reward_info": {"reward": 1.0, "reward_basis": ["DB"], "db_check": {"db_match": True}}, "messages": messages,
        **more,
    }  # fmt: skip


def results(*simulations):
    return {"timestamp": "2026-01-01T10:00:00", "info": INFO, "tasks": [TASK], "simulations": list(simulations)}


def test_a_document_of_tau2_is_a_trace_a_simulation(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results(simulation(), simulation(id="s2", trial=1)), indent=2))
    found, report = look(tmp_path / "results.json", "auto")
    assert [trace.id for trace in found] == ["s1", "s2"]
    assert (report.records, report.used, report.traces) == (1, 1, 2)
    first = found[0]
    assert first.outcome == Outcome(status="success", score=1.0, source="tau2")
    assert first.tools == [{"name": "get_line", "description": "Look a line up.", "parameters": PARAMETERS}]
    assert first.metadata["policy"] == "Be kind."
    assert first.metadata["domain"] == "telecom"
    assert first.metadata["task"] == TASK
    assert first.metadata["reward_info"]["reward_basis"] == ["DB"]
    assert "environment_info" not in first.metadata["info"]
    assert found[1].metadata["trial"] == 1
    assert first.raw == simulation()


def test_tau2_messages_are_as_logged_without_its_defaults(tmp_path):
    (trace,), _ = read(tmp_path, "tau2", results(simulation()))
    assert trace.messages == [
        Message("assistant", "Hi!", timestamp="2026-01-01T10:00:00.000001Z", extra={"cost": 0.5}),
        Message("user", "No signal."),
        Message("assistant", None, [ToolCall("a", "get_line", {"id": "L1"}), ToolCall("b", "get_line", {"id": "L2"})]),
        Message("tool", "one", [], "a"),
        Message("tool", "no such line", [], "b", extra={"error": True}),
        Message("user", None, [ToolCall("u", "toggle_airplane_mode", {})]),
        Message("tool", "off", [], "u", extra={"requestor": "user"}),
        Message("user", "###STOP###"),
    ]
    assert trace.diagnostics == []


def test_calls_without_an_id_and_a_last_call_without_a_result_are_kept(tmp_path):
    """The id is empty by default; a run that hits its cap ends with a call (tau2-bench#82)."""
    said = [
        message("assistant", tool_calls=[call("", "get_line", id="L1")]),
        result("", "one"),
        message("assistant", tool_calls=[call("", "get_line", id="L2")]),
    ]
    (trace,), _ = read(tmp_path, "tau2", results(simulation(said, termination_reason="max_steps", reward_info=None)))
    first, second = trace.tool_calls
    assert trace.messages[1].tool_call_id == first.id != second.id
    assert trace.outcome == Outcome(status="truncated", source="tau2")
    assert "tool_call_id_missing" in codes(trace)


@pytest.mark.parametrize(
    ("reward", "reason", "status", "score"),
    [
        ({"reward": 1.0}, "user_stop", "success", 1.0),
        ({"reward": 0.5}, "user_stop", "failure", 0.5),
        ({"reward": 0.0}, "agent_stop", "failure", 0.0),
        ({"reward": 0.0}, "max_steps", "truncated", 0.0),
        ({"reward": 0.0}, "timeout", "truncated", 0.0),
        ({"reward": 0.0}, "infrastructure_error", "infra_error", None),
        ({"reward": 0.0}, "too_many_errors", "failure", 0.0),
        (None, "too_many_errors", "failure", None),
        (None, "user_stop", "unknown", None),
        ({"reward": 1.5}, "user_stop", "unknown", None),
        ("yes", ["user_stop"], "unknown", None),
    ],
)
def test_how_a_simulation_ended(tmp_path, reward, reason, status, score):
    (trace,), _ = read(tmp_path, "tau2", results(simulation(reward_info=reward, termination_reason=reason)))
    assert (trace.outcome.status, trace.outcome.score) == (status, score)


def test_a_reward_that_checked_nothing_keeps_what_it_is_based_on(tmp_path):
    """A reward of 1 where the expected reads were never done (tau2-bench#15, #81, #224): actions are no requirement."""
    info = {"reward": 1.0, "reward_basis": ["DB"], "action_checks": [{"action_match": False}]}
    (trace,), _ = read(tmp_path, "tau2", results(simulation(reward_info=info)))
    assert trace.outcome.status == "success"
    assert trace.metadata["reward_info"] == info


def test_simulations_in_files_of_their_own_know_the_document_above(tmp_path):
    """The folder format: results.json without simulations, which lie beside it."""
    header = {key: value for key, value in results().items() if key != "simulations"} | {"simulation_index": []}
    for number in (1, 2):
        read(tmp_path, "tau2", simulation(id=f"s{number}"), name=f"run/simulations/s{number}.json")
    (tmp_path / "run/results.json").write_text(json.dumps(header))
    found, report = look(tmp_path / "run", "tau2")
    assert [(trace.id, trace.metadata["domain"], len(trace.tools)) for trace in found] == [
        ("s1", "telecom", 1), ("s2", "telecom", 1),
    ]  # fmt: skip
    assert (report.records, report.skipped) == (3, 0)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/results.json").write_text(json.dumps(header))
    report = ReadReport()
    with pytest.raises(ValueError, match="no message"):
        list(read_traces(tmp_path / "alone", format="tau2", report=report))
    assert (report.records, report.skipped) == (1, 1)


def test_in_a_full_duplex_simulation_what_is_said_and_done_is_a_message(tmp_path):
    silent = message("user", "", contains_speech=False)
    ticks = [
        {"tick_id": 0, "timestamp": "2026-01-01T10:00:00", "agent_chunk": message("assistant", "Hel"),
         "user_chunk": silent},
        {"tick_id": 1, "timestamp": "2026-01-01T10:00:01", "agent_chunk": message("assistant", "lo"),
         "agent_tool_calls": [call("a", "get_line")], "agent_tool_results": [result("a", "one")],
         "user_chunk": message("user", "Yes?"), "user_tool_calls": []},
        "broken",
    ]  # fmt: skip
    (trace,), _ = read(tmp_path, "tau2", results(simulation(None, ticks=ticks)))
    assert [(m.role, m.content, len(m.tool_calls)) for m in trace.messages] == [
        ("assistant", "Hel", 0), ("assistant", "lo", 1), ("tool", "one", 0), ("user", "Yes?", 0),
    ]  # fmt: skip
    assert codes(trace) == ["message_not_object"]
    assert trace.diagnostics[0].path == "simulations[0].ticks[2]"


def test_one_broken_simulation_does_not_take_the_others_with_it(tmp_path):
    found, report = read(tmp_path, "tau2", results(None, simulation(), simulation([]), simulation("x")))
    assert [trace.id for trace in found] == ["s1"]
    assert (report.records, report.skipped) == (1, 0)
    assert report.diagnostics["no_messages"].count == 2
    assert report.diagnostics["record_not_object"].first.endswith("simulations[0].")


def test_a_session_of_tau2_is_one_document_whose_tools_stand_once():
    for session in branching_sessions(12, seed=5):
        (record,) = tau2_writer.session_records(session)
        assert len(record["simulations"]) == len(session)
        assert len(record["info"]["environment_info"]["tool_defs"]) == len(session[0].tools)
        forks = [trace for trace in session if trace.relation != "subagent"]
        assert ["tools" in item["rlkit"] for item in record["simulations"][: len(forks)]] == [False] * len(forks)


# --- all four: there and back, and damage -----------------------------------------------------------------------------

TRICKY = st.fixed_dictionaries(
    {},
    optional={
        "id": TEXT, "turn_idx": st.integers(0, 3), "error": st.booleans(), "requestor": st.just("assistant"),
        "agent": st.just("main"), "thought": TEXT, "message_type": TEXT, "tool_call_ids": st.just(["x"]),
        "thinking_blocks": st.just([{"type": "thinking", "thinking": "?"}]), "is_demo": st.booleans(),
        "extras": st.just({"exit_code": 0}), "success": st.booleans(), "observation": TEXT, "usage": OBJECT,
        "is_audio": st.booleans(), "image_urls": st.just(["u"]), "args": OBJECT,
    },
)  # fmt: skip


@st.composite
def rich(draw):
    """A trace whose messages have all that a message can have, by names that some format uses for something else."""
    trace = draw(traces())
    for one in trace.messages:
        one.extra = draw(TRICKY) or None
        one.reasoning = draw(st.none() | TEXT.filter(bool)) if one.role == "assistant" else None
        one.timestamp = draw(st.none() | st.just("2026-01-01T10:00:00.25Z"))
        for each in one.tool_calls:
            each.extra = draw(st.none() | st.just({"index": 0, "requestor": "robot"}))
    trace.parent_id, trace.relation = draw(st.sampled_from([(None, None), ("main", "fork"), ("main", "subagent")]))
    trace.parent_call_id = "c" if trace.relation == "subagent" else None
    return trace


@pytest.mark.parametrize("format", WRITERS)
@settings(max_examples=60)
@given(trace=rich())
def test_any_trace_comes_back_as_it_was(format, trace):
    before = trace.model_copy(deep=True)
    with TemporaryDirectory() as folder:
        write_jsonl(WRITERS[format].session_records([trace]), f"{folder}/log.jsonl")
        (back,), _ = look(f"{folder}/log.jsonl", format)
    assert whole(back) == whole(trace)
    assert trace == before


@pytest.mark.parametrize("format", WRITERS)
def test_sessions_that_branch_come_back_and_are_recognised(format, tmp_path):
    sessions = list(branching_sessions(12, seed=2))
    records = [record for session in sessions for record in WRITERS[format].session_records(session)]
    write_jsonl(records, tmp_path / "log.jsonl")
    found, report = look(tmp_path / "log.jsonl", "auto")
    assert list(map(whole, found)) == [whole(trace) for session in sessions for trace in session]
    assert report.skipped == 0
    assert not report.diagnostics
    for record in records:
        assert [name for name, reader in READERS.items() if reader.matches(record)] == [format]
        assert not registry.READERS["openai"].matches(record)
        assert not registry.READERS["otel"].matches(record)


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [{}], {"history": [None]}, {"traj": {}}, {"simulations": []}])
def test_no_reader_claims_what_is_no_log(format, value):
    assert READERS[format].matches(value) is False


NATIVE = {"tau-bench": [run()], "tau2": [results(simulation(), simulation(id="s2")), simulation(id="s3")]}


def damaged(draw, records):
    """Records with up to three nodes deleted, replaced, doubled or wrapped."""
    records = copy.deepcopy(records)
    for _ in range(draw(st.integers(0, 3))):
        record = draw(st.sampled_from(records))
        paths = list(nodes(record))
        if not paths:
            break
        *above, key = draw(st.sampled_from(paths))
        parent = record
        for step in above:
            parent = parent[step]
        change = draw(st.sampled_from(["delete", "replace", "double", "wrap"]))
        if change == "delete":
            del parent[key]
        elif change == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[key] = {"x": parent[key]} if change == "wrap" else draw(JUNK)
    return records


def survives(format, records, good):
    """Nothing is raised, every record is accounted for, no record changed, and the good one is read."""
    before = copy.deepcopy(records)
    with TemporaryDirectory() as folder:
        with open(f"{folder}/log.jsonl", "wb") as file:
            file.writelines(map(dump_line, [*records, good]))
        found, report = look(f"{folder}/log.jsonl", format)
    assert records == before
    assert report.records == len(records) + 1
    assert report.skipped <= len(records)
    assert report.traces + report.quarantined >= 1
    assert str(report)
    for trace in found:
        write = WRITERS[format].session_records
        assert list(map(dump_line, write([trace])))
    return found


@pytest.mark.parametrize("format", NATIVE)
@settings(max_examples=100)
@given(data=st.data())
def test_damage_is_never_an_exception(format, data):
    survives(format, damaged(data.draw, NATIVE[format]), NATIVE[format][0])


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("key", ["outcome", "metadata", "tools", "id"])
@pytest.mark.parametrize("opening", ["[", '{"x":'])
def test_what_is_nested_deep_is_read_or_counted(format, key, opening, tmp_path):
    """As deep as JSON is parsed, which is deeper than Python prints or compares."""
    session = [Trace(id="x", messages=[Message("user", "hi"), Message("assistant", "ho")])]
    (good,) = map(json.dumps, WRITERS[format].session_records(session))
    deep = opening * 990 + "1" + {"[": "]", '{"x":': "}"}[opening] * 990
    lines = [good, good.replace('"id": "x"', f'"id": "x", "{key}": {deep}'), good.replace('"hi"', deep)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    found, report = look(tmp_path / "log.jsonl", format)
    assert report.records == 3
    assert found[0].messages == session[0].messages
    assert report.traces + report.skipped >= 3
