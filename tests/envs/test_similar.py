"""Near-duplicates and clusters."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz

from rlkit.envs.failures import Failure, explain_failure
from rlkit.envs.mining import mine
from rlkit.envs.similar import (
    NEAR,
    cluster_failures,
    cluster_table,
    duplicate_sessions,
    near_duplicates,
    normal_prompt,
    skeleton,
)
from rlkit.examples import support
from rlkit.examples.support.production import production_sessions
from rlkit.logs.trace import Message, ToolCall, Trace


def session(prompt: str, *calls: str, id: str = "s") -> Trace:
    messages = [Message(role="system", content="policy"), Message(role="user", content=prompt)]
    for n, name in enumerate(calls):
        messages.append(Message(role="assistant", tool_calls=[ToolCall(f"c{n}", name.rstrip("!"), {})]))
        content = '{"error":"no"}' if name.endswith("!") else "{}"
        messages.append(Message(role="tool", content=content, tool_call_id=f"c{n}"))
    return Trace(id=id, messages=messages)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Order 4821 was late!", "order 17 was LATE"),
        ("mail me at ada@example.com, please", "Mail me at: b.keller@example.org please"),
        ("see https://a.example/x?y=1", "see https://b.example"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "ID 00000000-0000-0000-0000-000000000001"),
        ("  two   spaces ", "two spaces"),
    ],
)
def test_prompts_are_the_same_but_for_what_differs_between_customers(one: str, other: str) -> None:
    assert normal_prompt(session(one).messages) == normal_prompt(session(other).messages)


def test_the_skeleton_shows_tools_errors_and_repetitions() -> None:
    assert skeleton(session("x", "get", "pay!", "pay!", "pay", "pay")) == "get > pay! ×2 > pay ×2"
    assert skeleton(session("x")) == ""


def test_near_duplicates_need_the_same_tools_and_nearly_the_same_words() -> None:
    traces = [
        session("order 1 was late", "get", "pay"),
        session("Order 22 was late.", "get", "pay"),
        session("my order 3 was late", "get", "pay"),
        session("order 1 was late", "get"),
        session("the soup was cold", "get", "pay"),
    ]
    assert duplicate_sessions(traces, 0.8) == [0, 0, 0, 1, 2]
    assert duplicate_sessions(traces, 0.99) == [0, 0, 1, 2, 3]
    assert duplicate_sessions([]) == []


@given(st.lists(st.text("ab ", max_size=8), max_size=12), st.sampled_from([0.6, NEAR]))
@settings(deadline=None)
def test_groups_are_the_connected_components_of_similar_texts(texts: list[str], threshold: float) -> None:
    groups = near_duplicates(texts, threshold=threshold)
    n = len(texts)
    near = [[fuzz.ratio(a, b) >= 100 * threshold or a == b for b in texts] for a in texts]
    reach = [{j for j in range(n) if near[i][j]} for i in range(n)]
    for _ in range(n):  # closure, the slow way
        reach = [set().union(*(reach[j] for j in reach[i]), {i}) for i in range(n)]
    assert all((groups[i] == groups[j]) == (j in reach[i]) for i in range(n) for j in range(n))


def test_more_texts_than_a_block_of_the_comparison_holds() -> None:
    texts = [f"{'x' * (n % 7)} {n}" for n in range(1200)]
    assert near_duplicates([*texts, *texts], threshold=1.0) == [*range(1200), *range(1200)]


def failures(count: int = 500) -> list[tuple[Trace, Failure]]:
    mining = mine(production_sessions(count, seed=5), support.task_from_trace, support.final_state, support.rubric)
    return [
        (m.trace, explain_failure(m.trace, support.rules, support.expected(m.task), m.grade))
        for m in mining.sessions
        if m.grade.status == "failure"
    ]


def test_the_planted_flaws_of_the_production_agent_are_the_first_clusters() -> None:
    """No retry after a timeout, a second refund, denying lost orders: a label tells which is which."""
    failed = failures()
    clusters = cluster_failures(failed)
    labels = [cluster.label for cluster in clusters[:4]]
    assert any(label.startswith("gave_up: get_order > refund! > escalate") for label in labels)
    assert any(label.startswith("wrong_tool: get_order > refund") for label in labels)
    assert any(label.startswith("wrong_tool: get_order > deny") and "arrived" in label for label in labels)
    assert sorted(n for cluster in clusters for n in cluster.members) == list(range(len(failed)))
    for cluster in clusters:
        assert {(failed[n][1].fault, failed[n][1].kind) for n in cluster.members} == {(cluster.fault, cluster.kind)}
    table = cluster_table(clusters, failed)
    assert table["failures"].sum() == len(failed)
    assert table["failures"].is_monotonic_decreasing
    assert table.index.is_unique


def test_clusters_do_not_depend_on_anything_but_the_failures() -> None:
    failed = failures(200)
    shuffled = random.Random(0).sample(failed, len(failed))
    told = [(c.label, len(c)) for c in cluster_failures(failed)]
    assert (
        told
        == [(c.label, len(c)) for c in cluster_failures(failed)]
        == [(c.label, len(c)) for c in cluster_failures(shuffled)]
    )


def test_sessions_without_tools_are_clustered_by_their_words() -> None:
    prompts = [f"{word} {n}" for n in range(5) for word in ("where is my parcel", "reset my password please")]
    clusters = cluster_failures([(session(prompt), Failure("agent", "no_write", "x")) for prompt in prompts])
    assert sorted(len(cluster) for cluster in clusters) == [5, 5]
    assert {cluster.label.partition(",")[0] for cluster in clusters} == {"no_write: no call"}
    assert (
        len(cluster_failures([(session(""), Failure("agent", "loop", "x")), (session("hi"), failures(60)[0][1])])) == 2
    )


def test_one_failure_and_none() -> None:
    assert cluster_failures([]) == []
    (only,) = cluster_failures([(session("", "get"), Failure("agent", "no_write", "x"))])
    assert (only.label, only.members) == ("no_write: get", (0,))


def test_more_kinds_of_failures_than_are_clustered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlkit.envs.similar._MOST", 5)
    failed = failures(200)
    clusters = cluster_failures(failed)
    assert sorted(n for cluster in clusters for n in cluster.members) == list(range(len(failed)))
