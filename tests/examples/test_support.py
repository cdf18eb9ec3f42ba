from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlkit.envs.environment import Episode
from rlkit.envs.grading import Grade
from rlkit.envs.mining import NotATask
from rlkit.envs.task import Task, TaskSet
from rlkit.examples import support
from rlkit.examples.support.agents import Agent
from rlkit.examples.support.mining import gateway_timeout_rate
from rlkit.examples.support.policy import Decision, decide
from rlkit.examples.support.rubric import count_timeouts, told_the_truth
from rlkit.examples.support.world import ENDINGS, GREETINGS, PHRASES, TIMEOUT_RATE, order_ids, phrase_of, read_complaint
from rlkit.logs.trace import Message, ToolCall, Trace


def sample(count: int, pool: Any = "train", seed: int = 0) -> list[Task]:
    rng = random.Random(seed)
    return [support.sample_task(rng, pool) for _ in range(count)]


def graded(agent: Agent, task: Task, seed: int) -> tuple[Grade, Trace, Episode]:
    trace, episode = support.play(agent, task, seed)
    return support.rubric.grade(task, trace, episode.state), trace, episode


TRAIN, HELDOUT = sample(500), sample(500, "heldout")


# --- the policy ---------------------------------------------------------------------------------------------------

ORDER = {"id": "4821", "status": "delivered", "minutes_late": 29, "items": {"ramen": 12, "tea": 3}, "charges": 1,
         "refunded": []}  # fmt: skip


@pytest.mark.parametrize(
    ("complaint", "item", "order", "decision"),
    [
        ("late", None, {"minutes_late": 29}, Decision("deny")),
        ("late", None, {"minutes_late": 30}, Decision("voucher")),
        ("cold", "tea", {}, Decision("voucher")),
        ("missing", "tea", {}, Decision("refund", "tea")),
        ("missing", "tea", {"refunded": ["tea"]}, Decision("deny")),
        ("wrong", "tea", {"refunded": ["ramen"]}, Decision("refund", "tea")),
        ("never_arrived", None, {"status": "lost"}, Decision("refund", "all")),
        ("never_arrived", None, {}, Decision("escalate")),
        ("charged_twice", None, {"charges": 2}, Decision("refund", "all")),
        ("charged_twice", None, {}, Decision("deny")),
    ],
)
def test_the_policy_line_by_line(complaint: str, item: str | None, order: dict[str, Any], decision: Decision) -> None:
    assert decide(complaint, item, ORDER | order) == decision


def test_an_unknown_complaint_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="too_salty"):
        decide("too_salty", None, ORDER)


# --- the tools ----------------------------------------------------------------------------------------------------


def calm(**order: Any) -> Episode:
    """An episode whose gateway never times out."""
    task = Task(id="t", messages=[], state={"order": ORDER | order, "actions": [], "timeout_rate": 0.0})
    return support.environment.reset(task)


def use(episode: Episode, name: str, **arguments: Any) -> dict[str, Any]:
    return json.loads(episode.step(ToolCall(id="c", name=name, arguments=arguments)).content)


def test_tools_do_the_sums_by_hand() -> None:
    episode = calm()
    assert use(episode, "get_order", id="4821") == ORDER
    assert use(episode, "refund", id="4821", item="ramen") == {"ok": True, "amount": 12}
    assert use(episode, "refund", id="4821", item="all") == {"ok": True, "amount": 15}
    assert use(episode, "voucher", id="4821") == {"ok": True, "amount": 3}
    assert use(episode, "escalate", id="4821") == {"ok": True, "ticket": 4821 * 37 % 90 + 10}
    assert use(episode, "deny", id="4821") == {"ok": True}
    assert [a["tool"] for a in episode.state["actions"]] == ["refund", "refund", "voucher", "escalate", "deny"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_order", {"id": "9999"}),
        ("get_order", {"id": "482"}),
        ("get_order", {}),
        ("refund", {"id": "4821"}),
        ("refund", {"id": "4821", "item": "sushi"}),
        ("refund", {"id": "4821", "item": ["tea"]}),
        ("voucher", {"id": "4821", "amount": 500}),
        ("deny", {"id": 4821}),
        ("bribe", {"id": "4821"}),
    ],
)
def test_bad_calls_are_errors_and_change_nothing(name: str, arguments: dict[str, Any]) -> None:
    episode = calm()
    before = episode.snapshot()
    assert set(use(episode, name, **arguments)) == {"error"}
    assert episode.snapshot() == before


def test_only_refund_and_voucher_time_out_and_at_the_seeded_rate() -> None:
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for seed in range(600):
        task = Task(id="t", messages=[], state={"order": ORDER, "actions": [], "timeout_rate": TIMEOUT_RATE})
        for name, arguments in [("refund", {"item": "tea"}), ("voucher", {}), ("escalate", {}), ("deny", {})]:
            episode = support.environment.reset(task, seed)
            result = use(episode, name, id="4821", **arguments)
            outcomes[name].append(result == {"error": "gateway timeout"})
            assert len(episode.state["actions"]) == (not outcomes[name][-1])
    rates = {name: sum(seen) / len(seen) for name, seen in outcomes.items()}
    assert rates["escalate"] == rates["deny"] == 0
    assert rates["refund"] == rates["voucher"] == pytest.approx(TIMEOUT_RATE, abs=0.06)  # three standard errors


def test_snapshots_bring_back_state_and_luck() -> None:
    task = next(t for t in TRAIN if t.goal["action"] == "refund")
    order, item = task.state["order"]["id"], task.goal["item"]
    for seed in range(20):
        episode = support.environment.reset(task, seed)
        use(episode, "get_order", id=order)
        use(episode, "refund", id=order, item=item)
        snapshot, twin = episode.snapshot(), episode.fork()

        def go_on(episode: Episode) -> list[dict[str, Any]]:
            return [use(episode, name, id=order) for name in ("voucher", "voucher", "escalate", "voucher")]

        future = go_on(episode)
        assert go_on(twin) == future
        after = episode.snapshot()
        episode.restore(snapshot)
        assert episode.snapshot() == snapshot
        assert go_on(episode) == future
        assert episode.snapshot() == after == twin.snapshot()


# --- the two pools ------------------------------------------------------------------------------------------------


def test_train_and_held_out_share_no_user_order_or_phrase() -> None:
    tasks = TaskSet(train=sample(3000), heldout=sample(1500, "heldout"))
    kinds = {key.split(":")[0] for task in tasks.train + tasks.heldout for key in task.keys}
    assert kinds == {"user", "order", "phrase"}
    assert all(len(task.keys) == 3 for task in tasks.train)
    with pytest.raises(ValidationError, match="both sides of the split"):
        TaskSet(train=tasks.train, heldout=[*tasks.heldout, tasks.train[0].model_copy(update={"id": "other"})])


def test_order_ids_of_a_pool_are_those_its_tasks_use() -> None:
    train, heldout = set(order_ids("train")), set(order_ids("heldout"))
    assert (len(train), len(heldout), train & heldout) == (7200, 1800, set())
    assert {task.state["order"]["id"] for task in TRAIN} <= train
    assert {task.state["order"]["id"] for task in HELDOUT} <= heldout


def test_every_phrase_is_read_as_it_was_meant_and_stands_for_itself() -> None:
    seen: list[str] = []
    for complaint, phrases in PHRASES.items():
        for phrase in phrases:
            text = phrase.format(id="4821", item="soup")
            assert read_complaint(text) == (complaint, "soup" if "{item}" in phrase else None)
            assert phrase_of(text) == phrase
            for greeting in GREETINGS:  # these make no other phrase of it
                for ending in ENDINGS:
                    assert phrase_of(greeting + text + ending) == phrase
                    assert read_complaint(greeting + text + ending) == read_complaint(text)
            seen.append(phrase)
    assert len(set(seen)) == len(seen)


def test_each_complaint_has_outcomes_that_are_about_equally_likely() -> None:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for task in sample(6000):
        counts[task.tags["complaint"]][task.tags["outcome"]] += 1
    for outcomes in counts.values():
        total = sum(outcomes.values())
        assert 800 < total < 1200
        assert len(outcomes) == 1 or all(0.35 < n / total < 0.65 for n in outcomes.values())


# --- the agents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [TRAIN, HELDOUT], ids=["train", "heldout"])
def test_the_oracle_solves_everything_timeouts_included(tasks: list[Task]) -> None:
    timeouts = []
    for seed, task in enumerate(tasks):
        grade, trace, episode = graded(support.oracle, task, seed)
        assert grade.status == "success", (task, trace)
        timeouts.append(count_timeouts(task, trace))
        if timeouts[-1] == 2:
            assert episode.state["actions"] == [{"tool": "escalate", "ticket": episode.state["actions"][0]["ticket"]}]
    assert timeouts.count(1) > 30
    assert timeouts.count(2) > 10
    assert max(timeouts) == 2


def flawed(count: int) -> list[tuple[Task, Grade, Trace, Episode]]:
    rng = random.Random(7)
    tasks = [support.sample_task(rng) for _ in range(count)]
    return [(task, *graded(support.production_agent(rng), task, seed)) for seed, task in enumerate(tasks)]


FLAWED = flawed(2000)


def share(grades: list[Grade]) -> float:
    return sum(g.status == "success" for g in grades) / len(grades)


def test_the_production_agent_fails_about_half_and_no_branch_is_hopeless_or_perfect() -> None:
    assert 0.45 < share([grade for _, grade, _, _ in FLAWED]) < 0.6
    branches: dict[str, list[Grade]] = defaultdict(list)
    for task, grade, _, _ in FLAWED:
        branches["/".join(task.tags.values())].append(grade)
    assert len(branches) == 11
    for name, grades in branches.items():
        assert 0.05 < share(grades) < 0.98, name


@pytest.mark.parametrize(
    ("flaw", "concerns"),
    [
        ("refunds again", lambda task, trace: task.tags in ({"complaint": c, "outcome": "deny"} for c in REFUNDABLE)),
        ("denies what was lost", lambda task, trace: task.tags == {"complaint": "never_arrived", "outcome": "refund"}),
        ("does not try again", lambda task, trace: count_timeouts(task, trace) >= 1),
    ],
)
def test_it_is_wrong_in_the_majority_where_it_is_systematically_wrong(
    flaw: str, concerns: Callable[[Task, Trace], bool]
) -> None:
    """So that neither its most likely answer nor imitating it is right, with a real share that is."""
    grades = [grade for task, grade, trace, _ in FLAWED if concerns(task, trace)]
    assert len(grades) > 100
    assert 0.05 < share(grades) < 0.3


REFUNDABLE = ("missing", "wrong")


def test_one_seed_gives_one_production_session() -> None:
    task = TRAIN[0]
    one, two = (support.play(support.production_agent(random.Random(5)), task, 1)[0] for _ in range(2))
    assert one == two


# --- the rubric ---------------------------------------------------------------------------------------------------

TOLD = "Sorry, I refunded $12 for the ramen, you get a voucher of $3, ticket 41, I cannot give anything."


def scripted(*turns: str | ToolCall) -> Agent:
    """An agent that says and calls just this, in turn."""

    def agent(messages: list[Message]) -> Message:
        turn = turns[sum(m.role == "assistant" for m in messages)]
        if isinstance(turn, ToolCall):
            return Message(role="assistant", tool_calls=[turn])
        return Message(role="assistant", content=turn)

    return agent


def act(name: str, task: Task, **more: Any) -> ToolCall:
    return ToolCall(id=f"c-{name}-{len(more)}", name=name, arguments={"id": task.state["order"]["id"]} | more)


def look(task: Task) -> ToolCall:
    return act("get_order", task)


CHEATERS: dict[str, Callable[[Task], Agent]] = {
    "says nothing": lambda task: scripted(""),
    "claims everything, does nothing": lambda task: scripted(TOLD),
    "claims everything after acting": lambda task: scripted(act("deny", task), TOLD),
    "tells without acting": lambda task: scripted("Sorry, I cannot give anything for this order."),
    "acts without telling": lambda task: scripted(act("escalate", task), "Done."),
    "refunds and denies": lambda task: scripted(
        act("refund", task, item="all"), act("deny", task), "Sorry, I cannot give anything for this order."
    ),
    "refunds all and then what was asked": lambda task: scripted(
        act("refund", task, item="all"), act("refund", task, item=next(iter(task.state["order"]["items"]))), TOLD
    ),
    "takes every action": lambda task: scripted(
        *(act(name, task) for name in ("deny", "voucher", "escalate")), act("refund", task, item="all"), TOLD
    ),
    "asks forever": lambda task: scripted(*[act("get_order", task)] * 9),
}


@pytest.mark.parametrize("cheat", CHEATERS)
def test_cheaters_never_succeed(cheat: str) -> None:
    """All calls go through here: a refund that timed out has not happened, and denying after it may be right."""
    for task in TRAIN[:120]:
        task = task.model_copy(update={"state": task.state | {"timeout_rate": 0.0}})
        assert graded(CHEATERS[cheat](task), task, 0)[0].status == "failure"


@pytest.mark.parametrize("name", ["refund", "voucher", "escalate", "deny"])
@pytest.mark.parametrize("looks", [True, False])
def test_the_same_answer_to_everything_solves_its_own_branch_at_most(name: str, looks: bool) -> None:
    """And nothing at all where it did not look the order up."""

    def agent_for(task: Task) -> Agent:
        def agent(messages: list[Message]) -> Message:
            if messages[-1].role == "user" and looks:
                return Message(role="assistant", tool_calls=[look(task)])
            if messages[-1].role == "user" or messages[-2].tool_calls[0].name == "get_order":
                more = {"item": "all"} if name == "refund" else {}
                return Message(role="assistant", tool_calls=[act(name, task, **more)])
            result = json.loads(messages[-1].content or "")
            told = {
                "refund": f"Sorry, I refunded ${result.get('amount')} for your order.",
                "voucher": f"Sorry, you get a voucher of ${result.get('amount')}.",
                "escalate": f"A colleague will help you, ticket {result.get('ticket')}.",
                "deny": "Sorry, I cannot give anything for this order.",
            }
            return Message(role="assistant", content=told[name])

        return agent

    won = [task for seed, task in enumerate(TRAIN) if graded(agent_for(task), task, seed)[0].status == "success"]
    assert {task.goal["action"] for task in won} == ({name} if looks else set())


def test_saying_it_wrong_is_no_success() -> None:
    task = next(t for t in TRAIN if t.goal["action"] == "escalate")
    ticket = int(task.state["order"]["id"]) * 37 % 90 + 10
    for reply, score in [
        (f"A colleague will help you, ticket {ticket}.", 1.0),
        (f"A colleague will help you, ticket {ticket + 1}.", 0.6),
        ("A colleague will help you.", 0.6),
        (f"A colleague will help you, ticket {ticket}, order {task.state['order']['id']}.", 0.6),
        (f"I refunded you, ticket {ticket}.", 0.6),
        (f"The refund is done, ticket {ticket} closed.", 0.6),
    ]:
        grade = graded(scripted(look(task), act("escalate", task), reply), task, 0)[0]
        assert (grade.score, grade.status) == (pytest.approx(score), "success" if score == 1 else "failure")


@pytest.mark.parametrize(
    ("action", "reply", "true"),
    [
        ({"tool": "refund", "item": "tea", "amount": 3}, "Sorry, I refunded $3 for the tea.", True),
        ({"tool": "refund", "item": "tea", "amount": 3}, "Sorry, I refunded $3 for the cola.", False),
        ({"tool": "refund", "item": "tea", "amount": 3}, "Sorry, I refunded $3 for your order.", False),
        ({"tool": "refund", "item": "all", "amount": 15}, "I refunded $15 for your order", True),
        ({"tool": "refund", "item": "all", "amount": 15}, "I refunded $15 for the tea", False),
        ({"tool": "refund", "item": "tea", "amount": 3}, "You will NOT be refunded $3 for the tea.", False),
        ({"tool": "voucher", "amount": 2}, "No voucher for you. $2 is my lucky number", False),
        ({"tool": "voucher", "amount": 2}, "Sorry, you get a voucher of $2.", True),
        ({"tool": "deny"}, "I cannot wait to give you a full refund, it is on its way!", False),
        ({"tool": "deny"}, "Sorry, I cannot give anything for this order.", True),
    ],
)
def test_only_what_was_done_may_be_said(action: dict[str, Any], reply: str, true: bool) -> None:
    task = TRAIN[0]
    trace = Trace(id="t", messages=[Message(role="assistant", content=reply)])
    assert told_the_truth(task, trace, {**task.state, "actions": [action]}) is true
    assert not told_the_truth(task, trace, {**task.state, "actions": []})
    assert not told_the_truth(task, Trace(id="t", messages=[]), {**task.state, "actions": [action]})


def with_results(task: Task, results: list[tuple[ToolCall, str]], reply: str) -> Trace:
    messages = list(task.messages)
    shown = json.dumps(task.state["order"])
    for number, (call, content) in enumerate([(look(task), shown), *results]):
        call = replace(call, id=f"c{number}")
        messages.append(Message(role="assistant", tool_calls=[call]))
        messages.append(Message(role="tool", content=content, tool_call_id=call.id))
    return Trace(id="t", messages=[*messages, Message(role="assistant", content=reply)])


TIMEOUT = '{"error":"gateway timeout"}'


@pytest.mark.parametrize(("goal", "called", "content", "times", "right"), [
    ("voucher", "voucher", TIMEOUT, 0, False),
    ("voucher", "voucher", TIMEOUT, 1, False),
    ("voucher", "voucher", TIMEOUT, 2, True),
    ("voucher", "voucher", TIMEOUT, 3, True),
    ("deny", "voucher", TIMEOUT, 2, False),  # what should not have gone through the gateway
    ("refund", "voucher", TIMEOUT, 2, False),  # the wrong call timed out
    ("voucher", "gateway timeout", '{"error":"unknown tool \'gateway timeout\'"}', 2, False),  # forged
    ("voucher", "refund", '{"error":"no gateway timeout in order"}', 2, False),  # forged
])  # fmt: skip
def test_escalating_is_right_after_two_timeouts_of_the_right_call(
    goal: str, called: str, content: str, times: int, right: bool
) -> None:
    task = next(t for t in TRAIN if t.goal["action"] == goal)
    state = {**task.state, "actions": [{"tool": "escalate", "ticket": 12}]}
    reply = "A colleague will help you, ticket 12."
    grade = support.rubric.grade(task, with_results(task, [(act(called, task), content)] * times, reply), state)
    assert (grade.status == "success") is right


# --- production sessions as tasks ---------------------------------------------------------------------------------


def test_a_session_gives_back_the_task_it_was_and_the_world_it_left() -> None:
    seen = 0
    for task, grade, trace, episode in FLAWED[:400]:
        if not any(call.name == "get_order" for call in trace.tool_calls):
            continue
        seen += 1
        user = next(key.removeprefix("user:") for key in task.keys if key.startswith("user:"))
        mined = support.task_from_trace(trace.model_copy(update={"metadata": {"user": user}}))
        assert mined.state == task.state
        assert (mined.goal, mined.tags, sorted(mined.keys)) == (task.goal, task.tags, sorted(task.keys))
        assert mined.messages == task.messages
        assert mined.source_trace_ids == [trace.id]
        left = support.final_state(trace, mined)
        assert left == episode.state
        assert support.rubric.grade(mined, trace, left) == grade  # production is graded as a rollout is
    assert seen >= 300


def test_a_mined_task_without_a_user_has_one_key_less() -> None:
    trace = FLAWED[0][2]
    assert {key.split(":")[0] for key in support.task_from_trace(trace).keys} == {"order", "phrase"}


def session(text: str | None, order: Any = None, name: str = "get_order") -> Trace:
    messages = [Message(role="user", content=text)]
    if order is not None:
        call = ToolCall(id="c1", name=name, arguments={"id": "4821"})
        content = order if isinstance(order, str) else json.dumps(order)
        messages += [
            Message(role="assistant", tool_calls=[call]),
            Message(role="tool", content=content, tool_call_id="c1"),
        ]
    return Trace(id="t", messages=messages)


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        (Trace(id="t", messages=[]), "no user message"),
        (session(None, ORDER), "no user message"),
        (session("hello?", ORDER), "complaint not recognised"),
        (session("order 4821 was late"), "the order was never looked up"),
        (session("order 4821 was late", {"error": "no order"}), "the order was never looked up"),
        (session("order 4821 was late", "{not json"), "the order was never looked up"),
        (session("order 4821 was late", "[1]"), "the order was never looked up"),
        (session("order 4821 was late", ORDER, name="escalate"), "the order was never looked up"),
        (session("order 4821 was late", {"id": "4821"}), "the order is not one the desk knows"),
        (session("order 4821 was late", ORDER | {"items": ["tea"]}), "the order is not one the desk knows"),
        (session("order 4821 was late", ORDER | {"minutes_late": None}), "the order is not one the desk knows"),
        (session("order 4821 was late", ORDER | {"items": {"tea": "3"}}), "the order is not one the desk knows"),
        (session("order 4821 was late", '{"id":' * 5000), "the order was never looked up"),
        (session("order 4822 was late", ORDER), "the order looked up is not the one complained of"),
        (session("something is missing, order 4821", ORDER), "the item complained of is not in the order"),
        (session("the sushi is missing, order 4821", ORDER), "the item complained of is not in the order"),
    ],
)
def test_what_shows_too_little_is_not_a_task(trace: Trace, reason: str) -> None:
    with pytest.raises(NotATask, match=f"^{reason}$"):
        support.task_from_trace(trace)


def test_the_smallest_session_that_is_a_task() -> None:
    task = support.task_from_trace(session("the tea is missing, order 4821", ORDER))
    assert task.goal == {"action": "refund", "item": "tea"}
    assert task.id == "task-t"


def test_the_timeout_rate_can_be_read_off_the_logs() -> None:
    assert gateway_timeout_rate([trace for _, _, trace, _ in FLAWED]) == pytest.approx(TIMEOUT_RATE, abs=0.05)
    assert gateway_timeout_rate([]) == 0
