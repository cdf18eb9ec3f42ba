"""Real logs (sierra-research/tau-bench and SWE-agent/SWE-agent, MIT), where they are at hand: nothing lost or moved."""

from __future__ import annotations

import copy
import json
import os
from collections import defaultdict
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest

from rlkit.logs import Outcome, ReadReport, ToolCall, read_traces, to_openai, to_otlp, write_jsonl
from rlkit.stats import pass_hat_k
from tests.logs.test_tau import WRITERS, registered

__all__ = ["registered"]

SHARED = Path(os.environ.get("RLKIT_SHARED") or Path(__file__).parents[3] / "shared")
TAU = SHARED / "data" / "tau_bench_airline_gpt4o.json"
CALLING, WHOLE = (SHARED / "data" / f"swe_agent_{name}.traj" for name in ("function_calling", "test_repo"))

pytestmark = pytest.mark.skipif(
    not all(file.is_file() for file in (TAU, CALLING, WHOLE)),
    reason=f"real logs are not at hand: {TAU.parent} (set RLKIT_SHARED)",
)


@pytest.fixture(scope="module")
def runs():
    return json.loads(TAU.read_bytes())


def read(path, format="auto"):
    report = ReadReport()
    return list(read_traces(path, format=format, report=report)), report


def plain(message):
    """A logged message as (role, content, calls, and which call it answers)."""
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return message["role"], message["content"], calls, message.get("tool_call_id"), message.get("name")


def read_plain(message):
    """The same of a `Message`, its arguments as they were written, its ids without the number of a repeated one."""
    calls = [
        (
            c.id.partition("#")[0],
            c.name,
            c.raw_arguments or json.dumps(c.arguments, separators=(",", ":"), ensure_ascii=False),
        )
        for c in message.tool_calls
    ]
    answers = message.tool_call_id and message.tool_call_id.partition("#")[0]
    return message.role, message.content, calls, answers, message.name


# --- tau-bench --------------------------------------------------------------------------------------------------------


def test_no_message_of_tau_bench_is_lost_moved_or_changed(runs):
    """The model gave an id twice in every fourth session: there the later call has one of its own."""
    traces, report = read(TAU)
    renamed = 0
    assert len(traces) == len(runs) == 100
    for trace, run in zip(traces, runs, strict=True):
        assert list(map(read_plain, trace.messages)) == list(map(plain, run["traj"]))
        logged = [call["id"] for message in run["traj"] for call in message.get("tool_calls") or []]
        twice = [id for number, id in enumerate(logged) if id in logged[:number]]
        assert [item.code for item in trace.diagnostics] == ["tool_call_id_duplicate"] * len(twice)
        renamed += bool(twice)
        assert all(message.extra is None and message.reasoning is None for message in trace.messages)
        assert trace.raw == run
        assert trace.metadata == {"task_id": run["task_id"], "trial": run["trial"], "info": run["info"]}
    assert renamed == 25
    assert report.messages == sum(len(run["traj"]) for run in runs)
    assert (report.records, report.traces, report.skipped, report.quarantined) == (100, 100, 0, 0)
    assert len({trace.id for trace in traces}) == 100
    assert sorted(trace.id for trace in traces)[:2] == ["0/0", "0/1"]


def test_the_outcomes_are_the_rewards_and_three_runs_were_cut(runs):
    """Reward 0 and no verdict: these runs reached the cap of 30 turns (62 messages), where nothing was graded."""
    traces, _ = read(TAU)
    assert [trace.outcome.score for trace in traces] == [run["reward"] for run in runs]
    cut = [trace for trace in traces if trace.outcome.status == "truncated"]
    assert [trace.metadata["info"]["reward_info"] for trace in cut] == [None] * 3
    assert [len(trace.messages) for trace in cut] == [62] * 3
    assert max(len(trace.messages) for trace in traces if trace.outcome.status != "truncated") <= 62
    counts = [sum(trace.outcome.status == status for trace in traces) for status in ("success", "failure", "unknown")]
    assert counts == [31, 66, 0]


def test_pass_hat_k_of_the_traces_is_that_of_the_rewards(runs):
    """Once from the outcomes by the formula, once from the raw rewards by trying every choice of k trials."""
    rewards, solved = defaultdict(list), defaultdict(list)
    for run in runs:
        rewards[run["task_id"]].append(run["reward"])
    for trace in read(TAU)[0]:
        solved[trace.metadata["task_id"]].append(trace.outcome.status == "success")
    assert {len(trials) for trials in rewards.values()} == {4}
    for k in (1, 2, 3, 4):
        choices = [all(r == 1.0 for r in chosen) for trials in rewards.values() for chosen in combinations(trials, k)]
        expected = Fraction(sum(choices), len(choices))
        mean = sum(pass_hat_k(sum(trials), len(trials), k) for trials in solved.values()) / len(solved)
        assert mean == pytest.approx(float(expected), abs=1e-12)


def test_every_result_answers_the_call_before_it():
    for trace in read(TAU)[0]:
        ids = [call.id for call in trace.tool_calls]
        assert len(ids) == len(set(ids))
        for earlier, message in zip(trace.messages, trace.messages[1:], strict=False):
            if message.role == "tool":
                assert message.tool_call_id in [call.id for call in earlier.tool_calls]


# --- SWE-agent --------------------------------------------------------------------------------------------------------


def test_a_demonstration_of_swe_agent_is_its_history():
    logged = json.loads(CALLING.read_bytes())
    before = copy.deepcopy(logged)
    (trace,), report = read(CALLING)
    history = logged["history"]
    assert trace.id == "swe_agent_function_calling"
    assert [(m.role, m.content) for m in trace.messages] == [(item["role"], item["content"]) for item in history]
    calls = [call for item in history for call in item.get("tool_calls", [])]
    assert [(call.id, call.name) for call in trace.tool_calls] == [(c["id"], c["function"]["name"]) for c in calls]
    assert trace.tool_calls[0] == ToolCall(calls[0]["id"], "find_file", {"file_name": "missing_colon.py"})
    answered = [item["tool_call_ids"] for item in history if item["role"] == "tool"]
    assert [[m.tool_call_id] for m in trace.messages if m.role == "tool"] == answered
    said = [m.extra for m in trace.messages if m.role == "assistant"]
    assert said == [{"action": item["action"]} for item in history if item["role"] == "assistant"]
    assert trace.outcome == Outcome()
    assert trace.diagnostics == []
    assert trace.raw == before
    assert (report.records, report.skipped) == (1, 0)


def test_a_whole_trajectory_of_swe_agent_has_the_last_step_that_its_history_lacks():
    logged = json.loads(WHOLE.read_bytes())
    (trace,), _ = read(WHOLE)
    history, steps = logged["history"], logged["trajectory"]
    assert trace.id == "SWE-agent__test-repo-i1"
    assert [m.content for m in trace.messages[: len(history)]] == [item["content"] for item in history]
    last = steps[-1]
    assert last["action"] == "submit"
    assert "submit" not in [item.get("action") for item in history]
    assert [(m.role, m.content) for m in trace.messages[len(history) :]] == [
        ("assistant", last["response"]), ("user", last["observation"]),
    ]  # fmt: skip
    assert [m.extra["action"] for m in trace.messages if m.role == "assistant"] == [step["action"] for step in steps]
    assert trace.metadata["info"] == logged["info"]
    assert trace.outcome == Outcome()
    assert trace.raw["trajectory"] == steps
    assert [item.code for item in trace.diagnostics] == ["history_continued"]


def test_a_trajectory_without_its_history_is_still_read(tmp_path):
    logged = json.loads(WHOLE.read_bytes())
    del logged["history"]
    (tmp_path / "x.traj").write_text(json.dumps(logged, indent=2))
    (trace,), _ = read(tmp_path / "x.traj")
    steps = logged["trajectory"]
    assert [m.content for m in trace.messages if m.role == "assistant"] == [step["response"] for step in steps]
    assert [m.extra["action"] for m in trace.messages if m.role == "assistant"] == [step["action"] for step in steps]
    assert [m.content for m in trace.messages if m.role == "user"] == [step["observation"] for step in steps]


# --- through every format ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["openai", "otel", *WRITERS])
def test_the_same_sessions_in_another_format_are_the_same_traces(format, tmp_path):
    files = (TAU,) if format == "otel" else (TAU, CALLING, WHOLE)  # spans have no place for a message's extra
    traces = [trace for file in files for trace in read(file)[0]]
    before = copy.deepcopy(traces)
    if format in WRITERS:
        records = [record for trace in traces for record in WRITERS[format].session_records([trace])]
    else:
        records = list(map(to_otlp if format == "otel" else to_openai, traces))
    write_jsonl(records, tmp_path / "log.jsonl")
    back, report = read(tmp_path / "log.jsonl", format)
    assert report.skipped == 0
    for one, two in zip(traces, back, strict=True):
        assert (one.id, one.messages, one.outcome, one.metadata) == (two.id, two.messages, two.outcome, two.metadata)
    assert traces == before
