"""Synthetic sessions that branch are played, ordered in time, and reproducible."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest

from rlkit.examples import support
from rlkit.examples.support.branching import KINDS, branching_sessions, read_policy, specialist_desk
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.examples.support.world import COMPLAINTS, SYSTEM_PROMPT, order_ids
from rlkit.logs import read_traces, to_openai, write_jsonl
from rlkit.logs.report import Notes
from rlkit.logs.sessions import SessionTree, session_trees
from rlkit.logs.timestamps import parse_timestamp
from rlkit.logs.trace import Outcome

SESSIONS = list(branching_sessions(150))
LINES = [trace for session in SESSIONS for trace in session if trace.relation != "subagent"]


def parting(one, other):
    """The first position at which two traces differ."""
    return next(n for n, (a, b) in enumerate(zip(one.messages, other.messages, strict=False)) if a != b)


def shape(session):
    return Counter(trace.relation or "main" for trace in session)


def test_a_third_is_linear_and_the_rest_branches_in_every_way():
    shapes = [shape(session) for session in SESSIONS]
    assert 0.25 < sum(len(session) == 1 for session in SESSIONS) / len(SESSIONS) < 0.42
    assert sum(KINDS[kind] for kind in KINDS if not kind) * 3 == sum(KINDS.values())
    assert all(found["main"] == 1 for found in shapes)
    assert {found["fork"] for found in shapes} == {0, 1, 2}
    assert {found["subagent"] for found in shapes} >= {0, 1, 2}
    assert any(found["fork"] and found["subagent"] for found in shapes)


def test_links_point_to_the_session_and_to_its_calls():
    for main, *others in SESSIONS:
        assert (main.parent_id, main.relation, main.parent_call_id) == (None, None, None)
        assert [trace.id for trace in others] == [f"{main.id}#{n}" for n in range(1, len(others) + 1)]
        calls = {call.id: call for trace in [main, *others] for call in trace.tool_calls}
        for trace in others:
            assert trace.parent_id == main.id
            assert (trace.relation == "subagent") == (trace.parent_call_id is not None)
            if trace.parent_call_id:
                assert calls[trace.parent_call_id].name == "ask_specialist"


def test_call_ids_name_one_call_of_the_session_and_every_call_is_answered():
    for session in SESSIONS:
        calls = {id(call): call for trace in session for call in trace.tool_calls}  # shared messages share their calls
        assert len({call.id for call in calls.values()}) == len(calls)
        for trace in session:
            answered = [message.tool_call_id for message in trace.messages if message.role == "tool"]
            assert [call.id for call in trace.tool_calls] == answered


def test_a_fork_shares_its_beginning_and_ends_otherwise():
    for main, *others in SESSIONS:
        for fork in others:
            if fork.relation != "fork":
                continue
            shared = next(
                n for n, pair in enumerate(zip(main.messages, fork.messages, strict=False)) if pair[0] != pair[1]
            )
            assert shared >= 1
            assert all(a is b for a, b in zip(main.messages[:shared], fork.messages[:shared], strict=True))
            assert [said(m) for m in main.messages] != [said(m) for m in fork.messages]
            assert main.messages[shared].timestamp > fork.messages[-1].timestamp


def said(message):
    return message.role, message.content, [(call.name, call.arguments) for call in message.tool_calls]


def test_retries_and_edits_are_what_they_are_called():
    shared = Counter()
    for main, *others in SESSIONS:
        for fork in others:
            if fork.relation == "fork":
                at = next(
                    n for n, pair in enumerate(zip(main.messages, fork.messages, strict=False)) if pair[0] != pair[1]
                )
                assert main.messages[at].role == fork.messages[at].role == ("user" if at == 1 else "assistant")
                shared[at] += 1
    assert shared[1]  # edited complaints
    assert len(shared) > 3  # retries at several turns


def test_times_increase_along_each_path_and_survive_being_read():
    for session in SESSIONS:
        main = session[0]
        ends = {trace.id: trace.messages[-1].timestamp for trace in session}
        assert max(ends.values()) == ends[main.id]
        assert main.messages[0].timestamp >= main.metadata["started_at"][:19]
        for trace in session:
            times = [message.timestamp for message in trace.messages]
            assert times == sorted(set(times))
            for time in times:
                notes = Notes()
                assert parse_timestamp(time, notes, "") == time
                assert not notes
                assert time[-2] != "0"


def test_a_specialists_last_reply_is_the_result_of_the_call_and_stands_in_between():
    heard = 0
    for main, *others in SESSIONS:
        for trace in others:
            if trace.relation != "subagent":
                continue
            parents = [t for t in [main, *others] if any(c.id == trace.parent_call_id for c in t.tool_calls)]
            for parent in parents:
                (at,) = [n for n, m in enumerate(parent.messages) if m.tool_call_id == trace.parent_call_id]
                assert parent.messages[at].content == trace.final_reply
                assert parent.messages[at - 1].timestamp < trace.messages[0].timestamp
                assert trace.messages[-1].timestamp < parent.messages[at].timestamp
                heard += 1
            assert parents
            assert trace.messages[0].role == "system"
            assert trace.messages[0].content != SYSTEM_PROMPT
            assert [call.name for call in trace.tool_calls] == ["get_order", "read_policy"]
            assert trace.metadata["agent"] != main.metadata["agent"]
    assert heard > 20


def test_every_line_can_be_graded_and_its_results_are_the_worlds():
    grades = Counter()
    for trace in LINES:
        assert trace.final_reply is not None
        task = support.task_from_trace(trace)
        state = support.final_state(trace, task)
        grades[support.rubric.grade(task, trace, state).status] += 1
        episode = support.environment.reset(task.model_copy(update={"state": task.state | {"timeout_rate": 0.0}}))
        results = {m.tool_call_id: m.content for m in trace.messages if m.role == "tool"}
        for call in trace.tool_calls:
            result = results[call.id]
            if call.name != "ask_specialist" and GATEWAY_TIMEOUT not in result:
                assert episode.step(call).content == result
        assert episode.state["actions"] == state["actions"]
    assert set(grades) == {"success", "failure"}
    assert min(grades.values()) > len(LINES) / 5


def test_the_tools_offered_are_those_called():
    for session in SESSIONS:
        for trace in session:
            assert {call.name for call in trace.tool_calls} <= {tool["name"] for tool in trace.tools}
            assert trace.outcome == Outcome()
            assert json.loads(json.dumps(trace.metadata)) == trace.metadata


def test_the_specialist_reads_the_policys_own_line():
    for complaint in COMPLAINTS:
        assert f"- {read_policy(None, complaint)['rule']}" in SYSTEM_PROMPT.splitlines()
    assert set(specialist_desk.by_name) == {"get_order", "read_policy"}


def digest(sessions):
    return hashlib.sha256("\n".join(t.model_dump_json() for session in sessions for t in session).encode()).hexdigest()


def test_the_same_seed_gives_the_same_bytes():
    assert digest(branching_sessions(20)) == digest(SESSIONS[:20])
    assert digest(branching_sessions(20, seed=1)) != digest(SESSIONS[:20])


@pytest.mark.parametrize("pool", ["train", "heldout"])
def test_sessions_come_from_their_pool(pool):
    known = set(order_ids(pool))
    for session in branching_sessions(20, pool=pool, start="2026-08-15"):
        assert session[0].id.startswith("2026-08-")
        for trace in session:
            assert trace.messages[0].timestamp >= "2026-08-15"
            assert {call.arguments["id"] for call in trace.tool_calls if call.name == "get_order"} <= known


def test_sessions_written_and_read_again_are_the_same_trees(tmp_path):
    write_jsonl((to_openai(trace) for session in SESSIONS for trace in session), tmp_path / "log.jsonl")
    trees = list(session_trees(read_traces(tmp_path / "log.jsonl")))
    assert [[without_source(trace) for trace in tree.paths()] for tree in trees] == SESSIONS
    assert [len(tree) for tree in trees] == [len(SessionTree.from_traces(session)) for session in SESSIONS]


def without_source(trace):
    return trace.model_copy(update={"source": "", "raw": None, "diagnostics": []})


def test_trees_give_the_sessions_back():
    for session in SESSIONS:
        tree = SessionTree.from_traces(session)
        assert list(tree.paths()) == session
        assert len(tree) == len({id(message) for trace in session for message in trace.messages})
        assert all(branch.origin is not None for branch in tree.branches[1:])
