"""A picture of a session shows every message once, in its lane, and how each path ended."""

from __future__ import annotations

import io
import warnings
from itertools import pairwise

import matplotlib.pyplot as plt
import pytest

from rlkit.examples.support.branching import branching_sessions
from rlkit.logs.sessions import SessionTree
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace
from rlkit.show.session_tree import plot_session_tree


def say(*texts):
    return [Message("user" if number % 2 else "assistant", text) for number, text in enumerate(texts, 1)]


def call(id, *names):
    return Message("assistant", tool_calls=[ToolCall(id + name, name, {}) for name in names])


MAIN = Trace(
    id="s", messages=[*say("hi"), call("c", "look"), Message("tool", "r", tool_call_id="clook"), *say("a")[:1]],
    outcome=Outcome(status="success", score=1.0),
)  # fmt: skip
FORK = Trace(
    id="s#1", messages=[*MAIN.messages[:1], Message("assistant", "x")], parent_id="s", relation="fork",
    outcome=Outcome(status="failure"),
)  # fmt: skip
LATE_FORK = Trace(id="s#2", messages=[*MAIN.messages[:3], call("d", "look", "see")], parent_id="s", relation="fork")
HELPER = Trace(id="s#3", messages=say("q", "r"), parent_id="s", relation="subagent", parent_call_id="clook")


def picture(*traces):
    return plot_session_tree(SessionTree.from_traces(traces))


def points(ax):
    """(x, y) of every marker."""
    lines = [line for line in ax.lines if line.get_linestyle() == "None"]
    return sorted((int(x), int(y)) for line in lines for x, y in line.get_xydata())


def lanes(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def drawn(ax):
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ax.figure.savefig(out, format="png")
    return out.getvalue()


def test_every_message_stands_once_in_its_paths_lane():
    ax = picture(MAIN, FORK, LATE_FORK, HELPER)
    assert lanes(ax) == ["main", "fork #2", "sub-agent #3", "fork #1"]  # the last that left is next to the main one
    assert points(ax) == sorted([(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (2, 2), (3, 2), (1, 3)])
    assert ax.get_title("left") == "Session s: 8 messages in 4 paths, 33% shared"
    assert drawn(ax)


def test_forks_and_subagents_are_tied_to_where_they_left():
    ax = picture(MAIN, FORK, LATE_FORK, HELPER)
    ties = {tuple(patch.get_path().vertices[0]): patch for patch in ax.patches}
    ends = {start: tuple(patch.get_path().vertices[-1]) for start, patch in ties.items()}
    assert ends == {(2, 0): (3, 1), (1, 0): (2, 2), (0, 0): (1, 3)}
    assert {start: patch.get_linestyle() == "solid" for start, patch in ties.items()} == {
        (2, 0): True, (1, 0): False, (0, 0): True,
    }  # fmt: skip


def test_a_fork_of_a_fork_stands_below_it():
    first = Trace(id="s#1", messages=[*MAIN.messages[:1], *say("x", "y", "z")], parent_id="s", relation="fork")
    below = Trace(id="s#2", messages=[*first.messages[:3], *say("w")], parent_id="s#1", relation="fork")
    ax = picture(MAIN, first, LATE_FORK.model_copy(update={"id": "s#9"}), below)
    assert lanes(ax) == ["main", "fork #9", "fork #1", "fork #2"]
    assert (3, 3) in points(ax)


def test_outcomes_stand_at_the_ends_and_names_at_the_calls():
    ax = picture(MAIN, FORK, LATE_FORK, HELPER)
    notes = {(text.xy[0], text.xy[1], text.get_text()) for text in ax.texts}
    assert notes == {
        (3, 0, "✓ success 1.00"), (1, 3, "✗ failure"), (3, 1, "? unknown"), (3, 2, "? unknown"),
        (1, 0, "look"), (3, 1, "look +1"),
    }  # fmt: skip
    colors = {text.get_text(): text.get_color() for text in ax.texts}
    assert len({colors["✓ success 1.00"], colors["✗ failure"], colors["? unknown"]}) == 3


def test_the_legend_names_what_is_there():
    labels = [text.get_text() for text in picture(MAIN, FORK).get_legend().get_texts()]
    assert labels == ["user", "assistant", "assistant, calls", "tool"]
    assert [t.get_text() for t in picture(Trace(id="s", messages=say("hi"))).get_legend().get_texts()] == ["user"]


@pytest.mark.parametrize("messages", [[], say("hi")])
def test_a_session_of_next_to_nothing_can_be_drawn(messages):
    twin = Trace(id="s#1", messages=messages, parent_id="s", relation="fork")
    ax = picture(Trace(id="s", messages=messages), twin)
    assert len(points(ax)) == len(messages)
    assert any("ends there: ? unknown" in text.get_text() for text in ax.texts)
    assert drawn(ax)


def test_names_from_the_log_are_text_and_no_formulas():
    wild = [call("c", "$x^$_{"), call("d", "\ud83d\x1b tool")]
    assert drawn(picture(Trace(id="$s_{", messages=wild), Trace(id="$\udc80", messages=say("q"), parent_id="$s_{")))


def test_long_sessions_stay_legible():
    chain = [m for n in range(30) for m in (*say(f"m{n}"), call(f"c{n}", "a_tool_with_a_very_long_name"))]
    forks = [
        Trace(id=f"s#{n}", messages=[*chain[: 8 * n], *say(*"abcdef")], parent_id="s", relation="fork")
        for n in range(1, 8)
    ]
    ax = picture(Trace(id="s", messages=chain), *forks)
    assert len(lanes(ax)) == 8
    width, height = ax.figure.get_size_inches()
    assert width <= 16
    assert height < 7
    assert all(len(text.get_text()) <= 22 for text in ax.texts)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts if text.xy[1] == 0 and "tool" in text.get_text()]
    assert len(boxes) == 30
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_it_draws_into_given_axes():
    figure, (left, right) = plt.subplots(1, 2)
    try:
        assert plot_session_tree(SessionTree.from_traces([MAIN, FORK]), ax=right) is right
        assert not left.lines
        assert right.get_title("left").startswith("Session s")
    finally:
        plt.close(figure)


def test_the_supports_sessions_can_be_drawn():
    for session in branching_sessions(5, seed=4):
        ax = plot_session_tree(SessionTree.from_traces(session))
        assert len(points(ax)) == len(SessionTree.from_traces(session))
