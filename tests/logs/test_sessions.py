"""A tree holds a session's traces once, and gives each of them back."""

from __future__ import annotations

import copy
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.examples import support
from rlkit.examples.support.branching import branching_sessions
from rlkit.logs.sessions import SessionTree, session_trees
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace


def say(*texts):
    return [Message("user" if number % 2 else "assistant", text) for number, text in enumerate(texts, 1)]


def call(id, name="look", **arguments):
    return Message("assistant", tool_calls=[ToolCall(id, name, arguments)])


def fork(id, messages, parent="s", **fields):
    return Trace(id=id, messages=messages, parent_id=parent, relation="fork", **fields)


def subagent(id, messages, parent="s", call=None):
    return Trace(id=id, messages=messages, parent_id=parent, relation="subagent", parent_call_id=call)


def tree_of(*traces):
    return SessionTree.from_traces(traces)


MAIN = Trace(id="s", messages=[*say("hi"), call("c1"), Message("tool", "r", tool_call_id="c1"), *say("a", "b")])
RETRY = fork("s#1", [*MAIN.messages[:3], Message("assistant", "other")])
EDIT = fork("s#2", [Message("user", "hello"), Message("assistant", "well")])
HELPER = subagent("s#3", [Message("system", "help"), Message("user", "q"), Message("assistant", "r")], call="c1")


def test_a_shared_beginning_stands_once_and_every_trace_comes_back():
    traces = [MAIN, RETRY, EDIT, HELPER]
    before = copy.deepcopy(traces)
    tree = tree_of(*traces)
    assert list(tree.paths()) == before == traces
    assert (tree.id, tree.main, tree.forks, tree.subagents) == ("s", MAIN, [RETRY, EDIT], [HELPER])
    assert len(tree) == 5 + 1 + 2 + 3
    assert tree.saved == pytest.approx(3 / 14)
    assert [tree.nodes[i].message.content for i in tree.roots] == ["hi", "hello", "help"]
    assert [tree.nodes[i].message.content for i in tree.leaves] == ["b", "other", "well", "r"]
    assert [tree.nodes[i].message.content for i in tree.nodes[2].children] == ["a", "other"]


def test_branches_say_where_they_left():
    tree = tree_of(MAIN, RETRY, EDIT, HELPER)
    assert [branch.origin for branch in tree.branches] == [None, 2, None, 1]
    assert tree.nodes[1].message.tool_calls[0].id == "c1"


def test_traces_may_come_in_any_order():
    traces = [MAIN, RETRY, EDIT, HELPER]
    for seed in range(8):
        random.Random(seed).shuffle(traces)
        tree = tree_of(*traces)
        assert tree.main == MAIN
        assert sorted(trace.id for trace in tree.paths()) == ["s", "s#1", "s#2", "s#3"]
        assert all(trace in traces for trace in tree.paths())
        assert len(tree) == 11


def test_a_session_has_at_least_one_trace():
    with pytest.raises(ValueError, match="at least one"):
        SessionTree.from_traces([])


def test_everything_of_a_trace_is_kept():
    trace = Trace(
        id="s", messages=say("hi"), tools=[{"name": "look"}], outcome=Outcome(status="failure", score=0.5),
        metadata={"user": "u"}, source="f:1", raw={"x": [1]},
    )  # fmt: skip
    (back,) = tree_of(trace).paths()
    assert back == trace
    assert back.raw is trace.raw
    assert back.messages[0] is trace.messages[0]


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": "2026-01-01T00:00:00Z"},
        {"reasoning": "hm"},
        {"extra": {"id": "m2"}},
        {"name": "n"},
        {"tool_calls": [ToolCall("c1", "look", {"n": 1}, extra={"index": 0})]},
    ],
)
def test_messages_that_say_the_same_are_shared_and_keep_their_own_details(change):
    def first(**change):
        return Message(**{"role": "assistant", "tool_calls": [ToolCall("c1", "look", {"n": 1})]} | change)

    one = Trace(id="s", messages=[first(), *say("a")])
    other = fork("s#1", [first(**change), *say("b")])
    tree = tree_of(one, other)
    assert len(tree) == 3
    assert list(tree.paths()) == [one, other]


@pytest.mark.parametrize(
    "other",
    [
        ToolCall("c2", "look", {"n": 1}),
        ToolCall("c1", "see", {"n": 1}),
        ToolCall("c1", "look", {"n": 2}),
        ToolCall("c1", "look", {"n": True}),
        ToolCall("c1", "look", {"n": 1.0}),
        ToolCall("c1", "look", None, "{'n': 1}"),
        ToolCall("c1", "look", {"n": 1}, '{"n":  1}'),
    ],
)
def test_another_call_is_another_message(other):
    one = Trace(id="s", messages=[Message("assistant", tool_calls=[ToolCall("c1", "look", {"n": 1})])])
    two = fork("s#1", [Message("assistant", tool_calls=[other])])
    tree = tree_of(one, two)
    assert len(tree) == 2
    assert repr(list(tree.paths())) == repr([one, two])


def test_arguments_too_deep_to_compare_are_not_shared():
    deep = {}
    for _ in range(5000):
        deep = {"x": deep}
    shallow_copy = {"x": deep["x"]}
    one, two = (Trace(id="s", messages=[call("c1", v=value), *say("a")]) for value in (deep, shallow_copy))
    tree = tree_of(one, two)
    assert [trace.messages[0] for trace in tree.paths()][1] is two.messages[0]
    assert str(tree)


def test_a_subagent_shares_only_with_forks_of_its_own():
    same = MAIN.messages
    helper = subagent("s#1", same, call="c1")
    again = fork("s#2", [*same[:2], *say("x")], parent="s#1")
    tree = tree_of(MAIN, again, helper)
    assert len(tree) == 5 + 3 + 3
    assert [tree.branches[i].relation for i in range(3)] == [None, "fork", "subagent"]


def test_a_subagent_hangs_on_the_call_of_its_own_parent():
    main = Trace(id="s", messages=[*say("hi"), call("c1"), *say("a")])
    retry = fork("s#1", [*main.messages[:1], call("c1", n=2), *say("b")])
    only_there = fork("s#2", [*main.messages[:1], call("c9")])
    helpers = [subagent("x", say("q"), "s", "c1"), subagent("y", say("q"), "s#1", "c1"), subagent("z", [], "s", "c9")]
    tree = tree_of(main, retry, only_there, *helpers)
    origins = [tree.nodes[branch.origin].message for branch in tree.branches[3:]]
    assert origins == [main.messages[1], retry.messages[1], only_there.messages[1]]


@pytest.mark.parametrize("missing", [{"call": None}, {"call": "no such"}, {"call": "c1", "parent": "no such"}])
def test_a_subagent_whose_call_was_not_seen_is_kept_apart(missing):
    tree = tree_of(MAIN, subagent("s#1", say("q"), **missing))
    assert tree.branches[1].origin is None
    assert "sub-agent s#1 (no call seen that started it)" in str(tree)


def test_agents_that_started_each_other_are_drawn_all_the_same():
    one, two = subagent("x", [call("c1")], "y", "c2"), subagent("y", [call("c2")], "x", "c1")
    itself = subagent("z", [call("c3")], "z", "c3")
    tree = tree_of(MAIN, one, two, itself)
    assert list(tree.paths()) == [MAIN, one, two, itself]
    assert all(f"sub-agent {id}" in str(tree) for id in "xyz")
    assert len(str(tree).splitlines()) == 1 + 6 + 3 * 3


def test_a_session_without_its_main_trace_starts_with_what_there_is():
    tree = tree_of(RETRY, EDIT)
    assert (tree.main, tree.forks) == (RETRY, [EDIT])
    assert tree.branches[0].head.parent_id == "s"


def test_a_fork_of_a_trace_that_is_not_there_shares_with_the_main_one():
    assert len(tree_of(MAIN, fork("s#2", [*MAIN.messages[:2], *say("x")], parent="s#1"))) == 6


def test_a_parent_without_a_relation_is_a_fork():
    other = Trace(id="s#1", messages=say("hi", "x"), parent_id="s")
    assert tree_of(other, MAIN).forks == [other]


def test_a_path_that_ends_on_the_way_of_another_is_kept():
    short, twin = fork("s#1", MAIN.messages[:2]), fork("s#2", MAIN.messages)
    nothing = fork("s#3", [])
    tree = tree_of(MAIN, short, twin, nothing)
    assert len(tree) == len(MAIN.messages)
    assert list(tree.paths()) == [MAIN, short, twin, nothing]
    assert "├╴fork s#1 ends here: unknown" in str(tree)


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_grouped_by_session():
    other = Trace(id="t", messages=say("x"))
    trees = list(session_trees(iter([RETRY, MAIN, HELPER, other, Trace(id="u", messages=[])])))
    assert [[trace.id for trace in tree.paths()] for tree in trees] == [["s", "s#1", "s#3"], ["t"], ["u"]]


def test_sessions_that_are_mixed_are_told_apart():
    sessions = list(branching_sessions(30, seed=3))
    for start in range(0, 30, 10):
        mixed = [trace for session in sessions[start : start + 10] for trace in session]
        random.Random(start).shuffle(mixed)
        found = {tree.id: {trace.id for trace in tree.paths()} for tree in session_trees(mixed)}
        assert found == {session[0].id: {t.id for t in session} for session in sessions[start : start + 10]}


def test_a_trace_may_link_what_came_before_it():
    below = fork("s#1#1", say("hi", "x"), parent="s#1")
    (tree,) = session_trees([below, MAIN, RETRY])
    assert tree.main == MAIN
    assert tree.forks == [below, RETRY]


def test_memory_is_bounded_by_the_window():
    def endless():
        number = 0
        while True:
            yield Trace(id=f"s{number}", messages=say("hi"))
            number += 1

    trees = session_trees(endless(), window=3)
    assert [next(trees).id for _ in range(100)] == [f"s{number}" for number in range(100)]


def test_what_comes_after_the_window_is_a_tree_of_its_own():
    apart = [MAIN, Trace(id="t", messages=[]), RETRY]
    assert [tree.id for tree in session_trees(apart, window=1)] == ["s", "t", "s#1"]
    assert [tree.id for tree in session_trees(apart, window=2)] == ["t", "s"]
    with pytest.raises(ValueError, match="window"):
        next(session_trees(apart, window=0))


def test_two_traces_of_one_id_are_one_session():
    again = Trace(id="s", messages=[*MAIN.messages[:3], Message("assistant", "once more")])
    (tree,) = session_trees([MAIN, again])
    assert list(tree.paths()) == [MAIN, again]
    assert len(tree) == 6


# --- text -----------------------------------------------------------------------------------------------------------


def test_a_drawing_shows_where_paths_part():
    assert str(tree_of(MAIN, RETRY, EDIT, HELPER)) == "\n".join([
        "session s: 11 messages in 4 paths, 21% of what they hold is shared",
        "│ user      hi",
        "│ assistant → look()",
        "├─╮ sub-agent s#3",
        "│ │ system    help",
        "│ │ user      q",
        "│ │ assistant r",
        "│ ╰ unknown",
        "│ tool      r",
        "├─╮ fork s#1",
        "│ │ assistant other",
        "│ ╰ unknown",
        "│ user      a",
        "│ assistant b",
        "╰ unknown",
        "fork s#2 (shares no message)",
        "│ user      hello",
        "│ assistant well",
        "╰ unknown",
    ])  # fmt: skip


def test_a_drawing_is_as_wide_as_asked_and_can_be_printed():
    wild = [Message("user", "\ud83d half \x1b[31m red\r\n\tand " + "long " * 100), call("c\udc80", "t\udcff", a="\x00")]
    tree = tree_of(Trace(id="s\udc80", messages=wild, outcome=Outcome(status="infra_error", score=0.25)))
    for width in (1, 20, 60):
        drawn = tree.draw(width)
        assert len(drawn.splitlines()) == 4
        assert all(len(line) <= width for line in drawn.splitlines())
        assert drawn.encode()
        assert "\x1b" not in drawn
    assert "� half �[31m red and long" in str(tree)
    assert str(tree).endswith("╰ infra error 0.25")
    assert repr(tree).encode()


def test_forks_of_forks_stay_within_the_width():
    traces = [Trace(id="0", messages=say("m0"))]
    for number in range(1, 200):
        traces.append(fork(str(number), [*traces[-1].messages, *say(f"m{number}")], parent=str(number - 1)))
        traces.append(fork(f"x{number}", [*traces[-2].messages, *say(f"x{number}")], parent=str(number - 1)))
    tree = tree_of(*traces)
    drawn = tree.draw(40)
    assert all(len(line) <= 40 for line in drawn.splitlines())
    assert all(f" m{number}" in drawn for number in range(200))


def test_long_and_wide_sessions_take_no_time_and_no_recursion():
    began = time.perf_counter()
    chain = say(*(f"m{number}" for number in range(10_000)))
    long = tree_of(Trace(id="s", messages=chain), fork("s#1", [*chain[:5000], *say("x")]))
    assert len(long) == 10_001
    assert len(str(long).splitlines()) == 10_001 + 1 + 2 + 1
    first = fork("s#0", [*MAIN.messages[:1], *say("x0")])
    wide = tree_of(
        MAIN, first, *(fork(f"s#{n}", [*MAIN.messages[:1], *say(f"x{n}")], f"s#{n - 1}") for n in range(1, 5001))
    )
    assert len(wide.nodes[0].children) == 1 + 5001
    assert len(str(wide).splitlines()) == 1 + 6 + 5001 * 3
    assert time.perf_counter() - began < 5  # a tenth of it, unless something is quadratic


# --- with the rest --------------------------------------------------------------------------------------------------


def test_every_path_can_be_graded():
    statuses = set()
    for tree in session_trees(trace for session in branching_sessions(40) for trace in session):
        for trace in [tree.main, *tree.forks]:
            task = support.task_from_trace(trace)
            statuses.add(support.rubric.grade(task, trace, support.final_state(trace, task)).status)
    assert statuses == {"success", "failure"}


TEXTS = st.sampled_from(["a", "b", "\ud83d", None])
JSON = st.recursive(
    st.sampled_from([None, 1, 1.0, True, float("nan"), "x"]), lambda v: st.dictionaries(TEXTS.filter(bool), v)
)
CALLS = st.builds(
    ToolCall, st.sampled_from(["c1", "c2"]), st.just("f"), st.none() | st.dictionaries(st.just("k"), JSON),
    st.none() | st.just("{"),
)  # fmt: skip
MESSAGES = st.builds(
    Message, st.sampled_from(["user", "assistant", "tool"]), TEXTS, st.lists(CALLS, max_size=2), timestamp=TEXTS,
    extra=st.none() | st.dictionaries(st.just("k"), JSON),
)  # fmt: skip
IDS = st.sampled_from(["s", "s#1", "s#2", "t"])
TRACES = st.builds(
    Trace, id=IDS, messages=st.lists(MESSAGES, max_size=4), parent_id=st.none() | IDS,
    relation=st.sampled_from([None, "fork", "subagent"]), parent_call_id=st.sampled_from([None, "c1", "c2"]),
)  # fmt: skip


@given(st.lists(TRACES, min_size=1, max_size=6), st.integers(1, 3))
def test_whatever_the_links_no_trace_is_lost_or_changed(traces, window):
    trees = list(session_trees(traces, window))
    back = [trace for tree in trees for trace in tree.paths()]
    assert sorted(map(repr, back)) == sorted(map(repr, traces))
    for tree in trees:
        assert len(tree) <= sum(len(trace.messages) for trace in tree.paths())
        assert 0 <= tree.saved < 1
        drawn = str(tree)
        assert drawn.encode()
        for branch in tree.branches[1:]:
            assert branch.head.id in drawn
        shown = [line for line in drawn.splitlines() if line.lstrip("│… ").startswith(("user ", "assistant ", "tool "))]
        assert len(shown) == len(tree)
