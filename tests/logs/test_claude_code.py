"""Claude Code transcripts: split responses, results in parallel, forks and sub-agents, and sessions back and forth.

All lines are made up; the format is not documented by its maker. Fields as in docs/formats/claude-code.md of
github.com/skillsynchq/txcript and docs/claude-code-sessions.md of github.com/elidickinson/cc-session-io; oddities as in
the issues named at each test.
"""

from __future__ import annotations

import copy
import gzip
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlkit.logs.readers as registry
from rlkit.logs import Message, Outcome, ReadReport, ToolCall, Trace, read_traces
from rlkit.logs.jsontext import dump_line
from rlkit.logs.readers import claude_code
from rlkit.logs.writers.claude_code import session_records
from tests.logs.test_anthropic import SESSIONS, account_for, by_id, changed, round_trip, several_sessions

DAY = "2026-01-01T10:00:"


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(registry.READERS, "claude-code", claude_code)


def line(uuid, parent, message, second=0, kind=None, **more):
    """A line of a session, `second` seconds after ten."""
    return {
        "parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": "/home/u/project", "sessionId": "s1",
        "version": "2.0.1", "gitBranch": "main", "type": kind or message["role"], "message": message, "uuid": uuid,
        "timestamp": f"{DAY}{second:02}.000Z", **more,
    }  # fmt: skip


def user(uuid, parent, content="hi", second=0, **more):
    return line(uuid, parent, {"role": "user", "content": content}, second, **more)


def part(uuid, parent, block, id="msg_1", second=0, **more):
    """A line of the response `id`: one block, or a text."""
    block = {"type": "text", "text": block} if isinstance(block, str) else block
    message = {"id": id, "type": "message", "role": "assistant", "model": "claude-x", "content": [block]}
    return line(uuid, parent, message, second, requestId=f"req_{id}", **more)


def use(number, name="Read", **given):
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


def result(uuid, parent, number, words="ok", second=0, **more):
    block = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": words}
    return user(uuid, parent, [block], second, **more)


def silent(uuid, parent, kind="progress", **more):
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s1", "isSidechain": False, **more}


def load(path):
    report = ReadReport()
    found = list(read_traces(path, "claude-code", report))
    assert report.records == report.used + report.skipped
    return found, report


def read(tmp_path, *lines):
    (tmp_path / "s1.jsonl").write_bytes(b"".join(map(dump_line, lines)))
    found, report = load(tmp_path / "s1.jsonl")
    assert (report.records, report.skipped) == (len(lines), 0)
    return found


def texts(trace):
    """What was said: texts, and the calls that were made or answered."""
    return [m.content if m.role != "tool" else f"{m.tool_call_id}={m.content}" for m in trace.messages]


def codes(trace):
    return [item.code for item in trace.diagnostics]


def test_a_session_is_read_as_a_conversation(tmp_path):
    thinking = {"type": "thinking", "thinking": "Look first.", "signature": "EqQB"}
    lines = [
        {"type": "file-history-snapshot", "messageId": "a", "snapshot": {}, "isSnapshotUpdate": False},
        user("a", None, "fix it"),
        part("b", "a", thinking, second=1),
        part("c", "b", "Reading.", second=2),
        part("d", "c", use(1, path="x.py"), second=3),
        result("e", "d", 1, "code", second=4, toolUseResult={"file": "x.py"}),
        part("f", "e", "Done.", id="msg_2", second=5),
        {"type": "summary", "summary": "Fixing it", "leafUuid": "f"},
        {"type": "custom-title", "customTitle": "Fix", "sessionId": "s1"},
    ]
    (trace,) = read(tmp_path, *lines)
    asked, called, answered, done = trace.messages
    assert asked == Message("user", "fix it", timestamp=f"{DAY}00.000Z")
    assert (called.role, called.content, called.reasoning) == ("assistant", "Reading.", "Look first.")
    assert called.tool_calls == [ToolCall("toolu_1", "Read", {"path": "x.py"})]
    assert called.timestamp == f"{DAY}01.000Z"
    blocks = [lines[n]["message"]["content"][0] for n in (2, 3, 4)]
    assert called.extra == {"id": "msg_1", "model": "claude-x", "content": blocks}
    assert answered == Message(
        "tool", "code", [], "toolu_1", timestamp=f"{DAY}04.000Z", extra={"toolUseResult": {"file": "x.py"}}
    )
    assert done.content == "Done."
    assert trace.metadata == {
        "cwd": "/home/u/project", "gitBranch": "main", "version": "2.0.1", "model": "claude-x",
        "summary": "Fixing it", "customTitle": "Fix",
    }  # fmt: skip
    assert (trace.id, trace.raw, trace.diagnostics) == ("s1", lines, [])
    assert (trace.outcome, trace.source) == (Outcome(), f"{tmp_path}/s1.jsonl:2")


def test_parallel_calls_and_their_results_are_one_way(tmp_path):
    (trace,) = read(
        tmp_path,
        user("a", None),
        part("b", "a", use(1)),
        part("c", "b", use(2)),
        part("d", "c", use(3)),
        result("r1", "b", 1),
        result("r3", "d", 3),
        result("r2", "c", 2),
        part("e", "r1", "Done.", id="msg_2"),
    )
    assert texts(trace) == ["hi", None, "toolu_1=ok", "toolu_3=ok", "toolu_2=ok", "Done."]
    assert [call.id for call in trace.messages[1].tool_calls] == ["toolu_1", "toolu_2", "toolu_3"]
    assert trace.diagnostics == []


@pytest.mark.parametrize("parent", ["b", "r1"])
def test_a_result_may_be_written_before_the_response_ends(tmp_path, parent):
    (trace,) = read(
        tmp_path,
        user("a", None),
        part("b", "a", use(1)),
        result("r1", "b", 1),
        part("c", parent, use(2)),
        result("r2", "c", 2),
        part("d", "r2", "Done.", id="msg_2"),
    )
    assert texts(trace) == ["hi", None, "toolu_1=ok", "toolu_2=ok", "Done."]
    assert len(trace.messages[1].tool_calls) == 2


def test_lines_without_a_message_are_passed_over(tmp_path):
    (trace,) = read(
        tmp_path,
        user("a", None),
        silent("p", "a", "system", subtype="informational"),
        part("b", "p", use(1)),
        silent("q1", "b"),
        silent("q2", "q1"),
        result("r", "b", 1),
        silent("q3", "r", "attachment"),
        part("c", "q3", "Done.", id="msg_2"),
    )
    assert texts(trace) == ["hi", None, "toolu_1=ok", "Done."]
    assert len(trace.raw) == 8


def test_lines_that_branch_wrote_twice_count_once(tmp_path):
    """anthropics/claude-code#40363, #48936."""
    lines = [user("a", None), part("b", "a", "One."), user("c", "b", "more"), part("d", "c", "Two.", id="msg_2")]
    (trace,) = read(tmp_path, *lines, *[one | {"parentUuid": None} for one in lines[:3]])
    assert texts(trace) == ["hi", "One.", "more", "Two."]
    assert codes(trace) == ["line_repeated"] * 3
    (trace,) = read(tmp_path, *[one | {"parentUuid": None} for one in lines[:3]], *lines)
    assert texts(trace) == ["hi", "One.", "more", "Two."]


def test_a_parent_that_is_not_there_begins_a_conversation(tmp_path):
    """anthropics/claude-code#22526."""
    main, cut = read(
        tmp_path, user("a", None), part("b", "a", "One."), user("c", "gone", "two"), part("d", "c", "Two.", id="m2")
    )
    assert (texts(main), texts(cut)) == (["two", "Two."], ["hi", "One."])
    assert (main.id, cut.id, cut.parent_id) == ("s1", "s1#1", "s1")
    (note,) = [item for trace in (main, cut) for item in trace.diagnostics]
    assert (note.code, note.path, note.line) == ("parent_missing", "line 3: parentUuid", 3)


def test_a_child_may_stand_before_its_parent(tmp_path):
    """cfal/garcon#441."""
    lines = [
        user("a", None),
        part("b", "a", use(1)),
        part("c", "b", use(2)),
        result("r1", "b", 1),
        result("r2", "c", 2),
    ]
    lines.append(part("d", "r2", "Done.", id="msg_2"))
    (trace,) = read(tmp_path, *lines[::-1])
    assert texts(trace) == ["hi", None, "toolu_2=ok", "toolu_1=ok", "Done."]
    assert [call.id for call in trace.messages[1].tool_calls] == ["toolu_1", "toolu_2"]
    assert trace.diagnostics == []


@pytest.mark.parametrize("kind", ["user", "progress"])
def test_lines_that_stand_before_themselves_are_cut(tmp_path, kind):
    middle = user("b", "a", "two") if kind == "user" else silent("b", "a")
    found = read(tmp_path, user("a", "c", "one"), middle, user("c", "b", "three"), user("d", "d", "four"))
    assert "parent_cycle" in [code for one in found for code in codes(one)]
    assert {text for one in found for text in texts(one)} >= {"one", "three", "four"}
    assert found[0].id == "s1"


@pytest.mark.parametrize("parent", ["a", "b"])
def test_twins_of_one_moment_orphan_no_one(tmp_path, parent):
    """daaain/claude-code-log#259: two empty thinking lines in one millisecond, and the second has the child."""
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    lines = [
        user("a", None),
        part("b", "a", empty),
        part("c", parent, empty),
        part("d", "c", "Done."),
        user("e", "d", "ok"),
    ]
    for order in (lines, [lines[0], lines[2], lines[1], *lines[3:]]):
        (trace,) = read(tmp_path, *order)
        assert texts(trace) == ["hi", "Done.", "ok"]
        assert trace.messages[1].reasoning is None


def test_dead_ends_are_forks_and_the_last_to_end_is_the_session(tmp_path):
    """delexw/claude-code-trace#40."""
    found = read(
        tmp_path,
        user("a", None),
        part("b", "a", "One."),
        user("c1", "b", "first try", 1),
        part("d1", "c1", "No.", id="msg_2", second=2),
        user("c3", "b", "third try", 5),
        part("d3", "c3", "Yes.", id="msg_4", second=6),
        user("c2", "b", "second try", 3),
        part("d2", "c2", "Nope.", id="msg_3", second=4),
    )
    assert [(trace.id, texts(trace)[-1], trace.relation) for trace in found] == [
        ("s1", "Yes.", None), ("s1#1", "No.", "fork"), ("s1#2", "Nope.", "fork"),
    ]  # fmt: skip
    assert {trace.parent_id for trace in found[1:]} == {"s1"}
    assert all(trace.messages[1] is found[0].messages[1] for trace in found)


def test_a_history_written_again_under_new_uuids_is_not_mixed_into_the_old(tmp_path):
    old = [user("a", None), part("b", "a", "One."), part("c", "b", use(1)), result("r", "c", 1)]
    new = [
        user("A", None),
        part("B", "A", "One."),
        part("C", "B", use(1)),
        result("R", "C", 1),
        user("D", "R", "go on", 9),
    ]
    main, copied = read(tmp_path, *old, *new)
    assert texts(main) == ["hi", "One.", "toolu_1=ok", "go on"]
    assert texts(copied) == ["hi", "One.", "toolu_1=ok"]
    assert [len(trace.tool_calls) for trace in (main, copied)] == [1, 1]


def test_a_result_that_is_given_again_is_a_fork(tmp_path):
    main, fork = read(
        tmp_path,
        user("a", None),
        part("b", "a", use(1)),
        result("r", "b", 1, "old", 1),
        part("c", "r", "Old.", id="msg_2", second=2),
        result("R", "b", 1, "new", 3),
        part("C", "R", "New.", id="msg_3", second=4),
    )
    assert texts(main) == ["hi", None, "toolu_1=new", "New."]
    assert texts(fork) == ["hi", None, "toolu_1=old", "Old."]


def test_a_compaction_ends_one_history_and_begins_the_next(tmp_path):
    info = {"trigger": "auto", "preTokens": 150000}
    main, before = read(
        tmp_path,
        user("a", None),
        part("b", "a", "One.", second=1),
        silent("x", None, "system", subtype="compact_boundary", logicalParentUuid="b", compactMetadata=info),
        user("c", "x", "This session continues …", 2, isCompactSummary=True),
        part("d", "c", "Two.", id="msg_2", second=3),
    )
    assert (texts(main), texts(before)) == (["This session continues …", "Two."], ["hi", "One."])
    assert main.messages[0].extra == {"isCompactSummary": True}
    assert (main.metadata["compactions"], codes(main)) == ([info], ["history_compacted"])
    assert (before.id, before.parent_id, before.diagnostics) == ("s1#1", "s1", [])


def test_meta_lines_are_kept_and_say_so(tmp_path):
    (trace,) = read(tmp_path, user("a", None, "Caveat: …", isMeta=True), user("b", "a", "hi"))
    assert texts(trace) == ["Caveat: …", "hi"]
    assert trace.messages[0].extra == {"isMeta": True}


def test_titles_of_other_sessions_are_not_taken(tmp_path):
    """Older versions wrote the summaries of other sessions into a new one's file."""
    other = {"type": "summary", "summary": "Another session", "leafUuid": "elsewhere"}
    (trace,) = read(tmp_path, other, user("a", None))
    assert "summary" not in trace.metadata
    assert trace.raw[0] == other


def test_a_session_that_was_forked_off_another_names_it(tmp_path):
    origin = {"sessionId": "s0", "messageUuid": "z"}
    (trace,) = read(tmp_path, user("a", None, forkedFrom=origin), part("b", "a", "One.", forkedFrom=origin))
    assert (trace.id, trace.parent_id, trace.relation) == ("s1", "s0", "fork")


# --- sub-agents -------------------------------------------------------------------------------------------------------

TASK = use(1, "Task", prompt="look around", subagent_type="explore")


def agent(**more):
    """The two lines of a sub-agent's conversation."""
    side = {"isSidechain": True} | more
    return [user("x", None, "look around", 2, **side), part("y", "x", "Nothing here.", "msg_9", 3, **side)]


def main_lines(**more):
    return [user("a", None), part("b", "a", TASK), result("r", "b", 1, "Nothing here.", 4, **more),
            part("c", "r", "Done.", "msg_2", 5)]  # fmt: skip


def check(found, call="toolu_1", id="s1#1"):
    main, sub = found
    assert (main.id, texts(main)) == ("s1", ["hi", None, "toolu_1=Nothing here.", "Done."])
    assert (sub.id, texts(sub)) == (id, ["look around", "Nothing here."])
    assert (sub.relation, sub.parent_id, sub.parent_call_id) == ("subagent", "s1", call)


def test_a_sub_agent_is_tied_to_the_call_by_its_result(tmp_path):
    lines = main_lines(toolUseResult={"agentId": "ab12", "content": []})
    lines[1] = part("b", "a", use(1, "Task", prompt="another prompt"))
    found = read(tmp_path, *lines[:2], *agent(agentId="ab12"), *lines[2:])
    check(found)
    assert found[1].metadata["agent_id"] == "ab12"


def test_a_sub_agent_without_an_id_is_tied_by_its_prompt(tmp_path):
    lines = main_lines()
    check(read(tmp_path, *lines[:2], *agent(), *lines[2:]))


def test_a_sub_agent_that_hangs_on_the_call_is_tied_to_it(tmp_path):
    lines = main_lines()
    side = [
        user("x", "b", "another prompt", 2, isSidechain=True),
        part("y", "x", "Nothing here.", "m9", 3, isSidechain=True),
    ]
    main, sub = read(tmp_path, *lines[:2], *side, *lines[2:])
    assert texts(main)[-1] == "Done."
    assert (sub.relation, sub.parent_call_id, texts(sub)) == (
        "subagent",
        "toolu_1",
        ["another prompt", "Nothing here."],
    )


def test_progress_lines_tell_the_call_too(tmp_path):
    lines = main_lines()
    lines[1] = part("b", "a", use(1, "Agent", prompt="another prompt"))
    told = silent("p", "b", data={"type": "agent_progress", "agentId": "ab12"}, parentToolUseID="toolu_1")
    check(read(tmp_path, *lines[:2], told, *agent(agentId="ab12"), *lines[2:]))


def test_a_sub_agent_whose_start_is_unknown_says_so(tmp_path):
    main, sub = read(tmp_path, user("a", None), part("b", "a", "One.", second=9), *agent(agentId="ab12"))
    assert texts(main) == ["hi", "One."]
    assert (sub.relation, sub.parent_id, sub.parent_call_id) == ("subagent", "s1", None)


def test_sub_agents_lie_in_files_of_their_own(tmp_path):
    (tmp_path / "s1" / "subagents").mkdir(parents=True)
    lines = main_lines()
    lines[1] = part("b", "a", use(1, "Task", prompt="another prompt"))
    (tmp_path / "s1.jsonl").write_bytes(b"".join(map(dump_line, lines)))
    folder = tmp_path / "s1" / "subagents"
    (folder / "agent-ab12.jsonl").write_bytes(b"".join(map(dump_line, agent(agentId="ab12"))))
    (folder / "agent-ab12.meta.json").write_text('{"agentType": "explore", "toolUseId": "toolu_1"}')
    found, report = load(tmp_path)
    check(found)
    assert (report.files, report.skipped, len(found[0].raw)) == (3, 0, 7)


def test_a_fork_of_a_sub_agent_belongs_to_it(tmp_path):
    again = part("z", "x", "Once more.", "msg_8", 9, isSidechain=True, agentId="ab12")
    lines = main_lines(toolUseResult={"agentId": "ab12"})
    main, sub, fork = read(tmp_path, *lines, *agent(agentId="ab12"), again)
    assert (main.id, sub.id, fork.id) == ("s1", "s1#1", "s1#2")
    assert (texts(sub)[-1], sub.relation, sub.parent_call_id) == ("Once more.", "subagent", "toolu_1")
    assert (texts(fork)[-1], fork.relation, fork.parent_id) == ("Nothing here.", "fork", "s1#1")


# --- files ------------------------------------------------------------------------------------------------------------


def session(name, count=2):
    return [
        user(f"{name}{n}", f"{name}{n - 1}" if n else None, f"{name} {n}") | {"sessionId": name} for n in range(count)
    ]


def test_sessions_may_be_mixed_and_go_on_in_rotated_files(tmp_path):
    one, two = session("p", 4), session("q", 4)
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(b"".join(map(dump_line, [one[0], two[0], one[1]]))))
    (tmp_path / "2.jsonl").write_bytes(
        b"".join(map(dump_line, [two[1], one[2], {"type": "summary", "summary": "x"}, two[2]]))
    )
    (tmp_path / "3.json").write_text(json.dumps([one[3], two[3]]))
    found, report = load(tmp_path)
    assert {trace.id: len(trace.messages) for trace in found} == {"p": 4, "q": 4}
    assert (report.records, report.skipped) == (9, 0)


def test_a_session_is_given_as_soon_as_its_last_line_was_read(tmp_path):
    lines = [*session("p"), *session("q", 3), *session("o", 100)]
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(dump_line, lines)))
    report = ReadReport()
    seen = [(trace.id, report.records) for trace in read_traces(tmp_path / "log.jsonl", "claude-code", report)]
    assert seen == [("p", 2), ("q", 5), ("o", 105)]


@pytest.mark.parametrize("name", ["caf\u00e9", "tab\t", 'quo"te', "back\\slash", "\x7f", "\ud83d"])
def test_any_name_of_a_session_is_one(tmp_path, name):
    lines = session(name, 4)
    data = [json.dumps(one).encode() if n % 2 else dump_line(one) for n, one in enumerate(lines)]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join([*data, *map(dump_line, session("p"))]))
    found, _ = load(tmp_path / "log.jsonl")
    assert {trace.id: len(trace.messages) for trace in found} == {name: 4, "p": 2}


def test_what_names_no_session_goes_with_the_one_before_it_or_its_file(tmp_path):
    bare = [{key: value for key, value in one.items() if key != "sessionId"} for one in session("p")]
    (tmp_path / "s7.jsonl").write_bytes(b"".join(map(dump_line, bare)))
    (trace,), _ = load(tmp_path / "s7.jsonl")
    assert (trace.id, len(trace.messages)) == ("s7", 2)
    null = bare[1] | {"sessionId": None}
    (tmp_path / "s8.jsonl").write_bytes(b"".join(map(dump_line, [session("p")[0], null, *session("q")])))
    found, _ = load(tmp_path / "s8.jsonl")
    assert {trace.id: len(trace.messages) for trace in found} == {"p": 2, "q": 2}


def test_a_session_without_messages_is_counted_as_skipped(tmp_path):
    empty = [
        {"type": "permission-mode", "permissionMode": "plan", "sessionId": "s2"},
        silent("a", None) | {"sessionId": "s2"},
    ]
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(dump_line, [*empty, 3, *session("p")])))
    found, report = load(tmp_path / "log.jsonl")
    assert [trace.id for trace in found] == ["p"]
    assert (report.records, report.skipped) == (5, 3)
    assert report.diagnostics["no_messages"].count == 2


@pytest.mark.parametrize(
    "record",
    [
        user("a", None),
        part("a", None, "x"),
        silent("a", None),
        {"type": "summary", "summary": "x", "leafUuid": "a"},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s1"},
        {"type": "custom-title", "customTitle": "x", "sessionId": "s1"},
        {"type": "file-history-snapshot", "snapshot": {}, "messageId": "a"},
        {"agentType": "explore", "toolUseId": "toolu_1"},
    ],
)
def test_signs_of_the_format_are_recognised(record):
    assert claude_code.matches(record)


@pytest.mark.parametrize(
    "record",
    [
        {"type": "message", "role": "user", "content": "hi"},
        {"messages": [], "sessionId": "s1", "uuid": "a", "type": "user"},
        {"id": "o1", "traceId": "t1", "sessionId": "s1", "type": "GENERATION"},
        {"type": "summary", "summary": "x"},
        {"type": ["user"], "sessionId": "s1", "uuid": "a"},
    ],
)
def test_what_others_write_is_left_to_them(record):
    assert not claude_code.matches(record)


# --- round trips ------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(sessions=several_sessions())
def test_any_sessions_come_back_as_they_were(sessions):
    before = copy.deepcopy(sessions)
    back, report = round_trip(session_records, sessions, "claude-code")
    assert by_id(back) == by_id([trace for one in sessions for trace in one])
    assert (sessions, report.skipped) == (before, 0)


def test_sessions_that_branch_come_back_as_they_were():
    back, _ = round_trip(session_records, SESSIONS, "claude-code")
    assert by_id(back) == by_id([trace for one in SESSIONS for trace in one])
    assert not [item for trace in back for item in trace.diagnostics]


def test_forks_share_their_lines_and_sub_agents_are_sidechains():
    opening = [
        Message("user", "hi"),
        Message("assistant", "Hm.", [ToolCall("a", "Task", {}), ToolCall("b", "Read", {})]),
    ]
    results = [Message("tool", "x", [], "a"), Message("tool", "y", [], "b")]
    traces = [
        Trace(id="s1", messages=[*opening, *results, Message("assistant", "Done.")]),
        Trace(id="s1#1", messages=[*opening, results[0]], parent_id="s1", relation="fork"),
        Trace(id="s1#2", messages=[Message("user", "look")], parent_id="s1", relation="subagent", parent_call_id="a"),
    ]
    lines = list(session_records(traces))
    assert [one["type"] for one in lines] == [
        "user", "assistant", "assistant", "assistant", "user", "user", "assistant", "rlkit", "rlkit", "user", "rlkit",
    ]  # fmt: skip
    assert len({one["message"]["id"] for one in lines[1:4]}) == 1
    assert [one["isSidechain"] for one in lines if "uuid" in one] == [False] * 7 + [True]
    assert lines[4]["toolUseResult"] == {"agentId": lines[9]["agentId"]}
    assert lines[8]["leafUuid"] == lines[4]["uuid"]
    assert {one["sessionId"] for one in lines} == {"s1"}
    times = [one["timestamp"] for one in lines if "uuid" in one]
    assert times == sorted(times)


def test_our_lines_say_what_they_say_without_our_own_keys(tmp_path):
    """As any other reader of the format sees them."""
    lines = [one for one in session_records(SESSIONS[0][:1]) if one["type"] != "rlkit"]
    (trace,) = read(tmp_path, *({key: value for key, value in one.items() if key != "rlkit"} for one in lines))
    said = [(m.role, m.content, m.tool_calls) for m in SESSIONS[0][0].messages if m.role != "system"]
    assert [(m.role, m.content, m.tool_calls) for m in trace.messages] == said


def test_blocks_that_text_and_calls_can_t_say_come_back(tmp_path):
    call = {"type": "tool_use", "name": "ping", "input": {}}
    lines = [user("a", None), part("b", "a", "b"), part("c", "b", call), part("d", "c", "c"), part("e", "d", "c")]
    found = read(tmp_path, *lines)
    assert (found[0].messages[1].content, len(found[0].messages[1].extra["content"])) == ("bcc", 4)
    back, _ = round_trip(session_records, [found], "claude-code")
    assert by_id(back) == by_id(found)


REAL = [
    {"type": "file-history-snapshot", "messageId": "a", "snapshot": {}},
    user("a", None, "fix it"),
    part("b", "a", {"type": "thinking", "thinking": "Hm", "signature": "x"}),
    part("c", "b", use(1)),
    part("d", "c", TASK | {"id": "toolu_2"}),
    user("x", "d", "look around", isSidechain=True),
    part("y", "x", "Nothing.", "msg_9", isSidechain=True),
    silent("p", "d", data={"agentId": "ab12"}, parentToolUseID="toolu_2"),
    result("r1", "c", 1),
    result("r2", "d", 2, toolUseResult={"agentId": "ab12"}),
    part("e", "r2", "Done.", "msg_2", 5),
    user("f", "a", "again", 6),
    silent("k", None, "system", subtype="compact_boundary", logicalParentUuid="e"),
    user("l", "k", "go on", 8),
    {"type": "summary", "summary": "Fixing it", "leafUuid": "e"},
]


@settings(max_examples=50)
@given(data=st.data())
def test_nothing_is_raised_and_what_was_read_can_be_written(data):
    records = changed(data.draw, {"records": REAL}).get("records")
    records = records if isinstance(records, list) else [records]
    records = data.draw(st.permutations(records)) if data.draw(st.booleans()) else records
    assert all(claude_code.matches(record) in (False, True) for record in records)
    good = user("good", None, "hi") | {"sessionId": "good", "timestamp": None}
    found = account_for([*records, good], "claude-code", [Message("user", "hi")])
    back, _ = round_trip(session_records, [[trace] for trace in found], "claude-code")
    assert [trace.messages for trace in back] == [trace.messages for trace in found]


def test_a_long_session_with_many_dead_ends_is_read_in_linear_time(tmp_path):
    lines = []
    for n in range(3000):
        lines.append(user(f"u{n}", f"s{n - 1}" if n else None))
        lines += [silent(f"p{n}", f"u{n}"), silent(f"s{n}", f"p{n}")]
    lines += [user(f"e{n}", "u3", isSidechain=n % 2 == 0) for n in range(200)]
    start = time.process_time()
    found = read(tmp_path, *lines)
    assert time.process_time() - start < 5
    assert max(len(trace.messages) for trace in found) == 3000
