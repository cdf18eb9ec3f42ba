"""Real logs (sierra-research/tau-bench, MIT), where they are at hand: nothing lost, nothing moved."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

from rlkit.logs import ReadReport, read_traces, to_otlp, write_jsonl

SHARED = Path(os.environ.get("RLKIT_SHARED") or Path(__file__).parents[3] / "shared")
TAU = SHARED / "data" / "tau_bench_airline_gpt4o.json"

pytestmark = pytest.mark.skipif(not TAU.is_file(), reason=f"real logs are not at hand: {TAU} (set RLKIT_SHARED)")


@pytest.fixture(scope="module")
def records():
    runs = json.loads(TAU.read_bytes())
    return [{"id": f"{r['task_id']}-{r['trial']}", "messages": r["traj"], "reward": r["reward"]} for r in runs]


def plain(message):
    """A logged message as (role, content, [(name, arguments)])."""
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    return message["role"], message["content"], calls


def read_plain(message):
    """The same of a `Message`, its arguments as they were written."""
    calls = [(c.name, c.raw_arguments or json.dumps(c.arguments, separators=(",", ":"), ensure_ascii=False))
             for c in message.tool_calls]  # fmt: skip
    return message.role, message.content, calls


def test_no_message_is_lost_moved_or_changed(records, tmp_path):
    before = copy.deepcopy(records)
    write_jsonl(records, tmp_path / "tau.jsonl")
    report = ReadReport()
    traces = list(read_traces(tmp_path / "tau.jsonl", report=report))
    assert records == before
    assert [trace.id for trace in traces] == [record["id"] for record in records]
    for trace, record in zip(traces, records, strict=True):
        assert [read_plain(m) for m in trace.messages] == [plain(m) for m in record["messages"]]
        assert trace.raw == record
        assert trace.outcome.score == record["reward"]
    assert report.messages == sum(len(record["messages"]) for record in records)
    assert (report.traces, report.skipped, report.quarantined) == (len(records), 0, 0)


def test_the_same_sessions_as_spans_are_the_same_traces(records, tmp_path):
    write_jsonl(records, tmp_path / "tau.jsonl")
    traces = list(read_traces(tmp_path / "tau.jsonl"))
    write_jsonl(map(to_otlp, traces), tmp_path / "spans.jsonl")
    for one, two in zip(traces, read_traces(tmp_path / "spans.jsonl"), strict=True):
        assert (one.id, one.messages, one.outcome) == (two.id, two.messages, two.outcome)


def test_every_result_answers_the_call_before_it(records, tmp_path):
    write_jsonl(records, tmp_path / "tau.jsonl")
    for trace in read_traces(tmp_path / "tau.jsonl"):
        ids = [call.id for call in trace.tool_calls]
        assert len(ids) == len(set(ids))
        for earlier, message in zip(trace.messages, trace.messages[1:], strict=False):
            if message.role == "tool":
                assert message.tool_call_id in [call.id for call in earlier.tool_calls]
