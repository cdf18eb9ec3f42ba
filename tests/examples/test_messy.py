"""Logs as they are found in the wild: every damage is told, none costs what it did not touch."""

from __future__ import annotations

import gzip
import random
from copy import deepcopy
from pathlib import Path

import pytest

from rlkit.examples.support.branching import branching_sessions
from rlkit.examples.support.messy import DAMAGES, NAMES, messy_lines
from rlkit.files import write_lines
from rlkit.logs import ReadReport, read_traces, to_openai
from rlkit.logs.jsontext import dump_line

SESSIONS = list(branching_sessions(30, seed=3))
SAID_OF = {
    "arguments_encoded_twice": {"arguments_double_encoded"},
    "arguments_cut": {"arguments_not_json"},
    "ids_missing": {"tool_call_id_missing", "tool_result_id_missing"},
    "ids_repeated": {"tool_call_id_duplicate"},
    "legacy_functions": {"function_call_legacy", "role_function"},
    "developer_role": {"role_developer"},
    "content_in_parts": {"content_parts", "content_part_skipped"},
    "half_an_emoji": {"json_not_strict"},
    "naive_times": {"timestamp_naive"},
    "metadata_as_text": {"metadata_wrong_type"},
    "stray_messages": {"role_unknown", "message_not_object"},
    "result_first": {"result_before_call", "tool_result_orphan"},
    "cut_short": set(),  # a log that ends early is nothing odd
    "refused": {"refusal"},
    "no_messages": {"no_messages"},
}


def test_the_same_seed_gives_the_same_bytes_and_the_sessions_stay_as_they_were() -> None:
    before = deepcopy(SESSIONS)
    one, two = (b"".join(messy_lines(SESSIONS, seed=5)) for _ in range(2))
    assert one == two != b"".join(messy_lines(SESSIONS, seed=6))
    assert before == SESSIONS


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_each_damage_is_told_by_its_codes_and_by_no_other(damage, tmp_path: Path) -> None:
    records = [to_openai(trace) for session in SESSIONS for trace in session]
    for record in records:
        damage(record, random.Random(0))
    write_lines(tmp_path / "log.jsonl", map(dump_line, [*records, to_openai(SESSIONS[0][0])]))
    report = ReadReport()
    traces = list(read_traces(tmp_path / "log.jsonl", report=report))
    assert report.diagnostics.keys() == SAID_OF[damage.__name__]
    assert report.records == len(records) + 1 == len(traces) + report.quarantined + report.skipped
    assert report.skipped == (len(records) if damage.__name__ == "no_messages" else 0)


def test_the_course_s_messy_log_is_what_the_script_writes() -> None:
    import rlkit

    written = gzip.decompress(rlkit.data_path("logs/support-2026-07.messy.jsonl.gz").read_bytes())
    assert written == b"".join(messy_lines(branching_sessions(150)))
    assert all(name.encode() in written for name in NAMES)
