"""Scripted agents: the oracle, and the flawed production agent whose logs the course starts from.

An agent is a function from the conversation so far to its next message.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from rlkit.envs import agents
from rlkit.envs.agents import Agent
from rlkit.envs.environment import Episode
from rlkit.envs.task import Task
from rlkit.examples.support.environment import GATEWAY_TIMEOUT, environment
from rlkit.examples.support.policy import ACTIONS, ALL_ITEMS, Decision, decide
from rlkit.examples.support.world import read_complaint
from rlkit.logs.trace import Message, ToolCall, Trace

MAX_TURNS = 8

# The production agent's flaws, each drawn once a session. The first three are systematic: wrong far more often than
# right, so that neither greedy decoding nor imitation repairs them. The others are noise.
FLAWS = {
    "no_retry": 0.82,  # after one gateway timeout it escalates at once instead of trying again
    "refunds_again": 0.82,  # it refunds what the order says was refunded before
    "denies_lost": 0.78,  # it denies an order that was lost
    "no_lookup": 0.04,
    "wrong_action": 0.06,
    "wrong_item": 0.04,
    "bad_call": 0.02,
    "wrong_number": 0.05,
    "wrong_claim": 0.05,
}


def play(agent: Agent, task: Task, seed: int, trace_id: str = "") -> tuple[Trace, Episode]:
    """Let a scripted agent act on a task of the desk to the end; see `rlkit.envs.agents.play`."""
    return agents.play(environment, agent, task, seed, trace_id, MAX_TURNS)


def oracle(messages: list[Message]) -> Message:
    """Does just what the policy says; deterministic."""
    complaint, item, order_id = _read(messages)
    results = _results(messages)
    if not results:
        return _call(messages, "get_order", id=order_id)
    decision = decide(complaint, item, json.loads(results[0]))
    return _act(messages, decision, results[1:], retries=1) or _tell(decision, results[-1], messages)


def production_agent(rng: random.Random) -> Agent:
    """One session of the flawed production agent; which flaws it has today is drawn from `rng`."""
    flaws = {name for name, probability in FLAWS.items() if rng.random() < probability}
    luck = rng.random()

    def agent(messages: list[Message]) -> Message:
        complaint, item, order_id = _read(messages)
        results = _results(messages)
        if "no_lookup" in flaws:
            decision = Decision("refund", item) if item else Decision("deny")
        elif not results:
            return _call(messages, "get_order", id=order_id)
        else:
            decision = _flawed_decision(complaint, item, json.loads(results[0]), flaws, luck)
            results = results[1:]
        if "bad_call" in flaws and not results:
            return _call(messages, decision.action, id=order_id[:3])
        acted = _act(messages, decision, results, retries=0 if "no_retry" in flaws else 1)
        return acted or _garble(_tell(decision, results[-1], messages), flaws, luck)

    return agent


def _flawed_decision(complaint: str, item: str | None, order: dict[str, Any], flaws: set[str], luck: float) -> Decision:
    right = decide(complaint, item, order)
    if complaint in ("missing", "wrong") and right.action == "deny" and "refunds_again" in flaws:
        return Decision("refund", item)
    if complaint == "never_arrived" and right.action == "refund" and "denies_lost" in flaws:
        return Decision("deny")
    if right.action == "refund" and "wrong_item" in flaws:
        return Decision("refund", _pick([name for name in [*order["items"], ALL_ITEMS] if name != right.item], luck))
    if "wrong_action" in flaws:
        action = _pick([action for action in ACTIONS if action != right.action], luck)
        return Decision(action, _pick(list(order["items"]), luck) if action == "refund" else None)
    return right


def _act(messages: list[Message], decision: Decision, results: list[str], retries: int) -> Message | None:
    """The next call of someone who has decided; None once the action went through."""
    order_id = _read(messages)[2]
    arguments = {"id": order_id} | ({"item": decision.item} if decision.item else {})
    if not results:
        return _call(messages, decision.action, **arguments)
    result = json.loads(results[-1])
    if "error" not in result:
        return None
    timeouts = sum(GATEWAY_TIMEOUT in text for text in results)
    if result["error"] != GATEWAY_TIMEOUT and timeouts == 0 and len(results) == 1:  # a bad call: once more, properly
        return _call(messages, decision.action, **arguments)
    if 0 < timeouts <= retries:
        return _call(messages, decision.action, **arguments)
    return _call(messages, "escalate", id=order_id)


def _tell(decision: Decision, result: str, messages: list[Message]) -> Message:
    """The closing message: what the last call did, in the shop's words."""
    done, last = json.loads(result), messages[-2].tool_calls[-1].name
    if last == "refund":
        what = "your order" if decision.item == ALL_ITEMS else f"the {decision.item}"
        return Message(role="assistant", content=f"Sorry, I refunded ${done['amount']} for {what}.")
    if last == "voucher":
        return Message(role="assistant", content=f"Sorry, you get a voucher of ${done['amount']}.")
    if last == "escalate":
        return Message(role="assistant", content=f"A colleague will help you, ticket {done['ticket']}.")
    return Message(role="assistant", content="Sorry, I cannot give anything for this order.")


def _garble(message: Message, flaws: set[str], luck: float) -> Message:
    """A closing message with a wrong number in it, or one that claims something else."""
    content = message.content or ""
    if "wrong_claim" in flaws:
        content = _pick(["Sorry, I cannot give anything for this order.", "Sorry, I refunded your order."], luck)
    elif "wrong_number" in flaws:
        content = re.sub(r"[0-9]+", lambda found: str(int(found[0]) + 1 + int(luck * 8)), content)
    return replace(message, content=content)


def _pick(options: list[Any], luck: float) -> Any:
    return options[int(luck * len(options))]


def _read(messages: list[Message]) -> tuple[str, str | None, str]:
    text = next(message.content or "" for message in messages if message.role == "user")
    complaint, item = read_complaint(text)
    order_id = re.search(r"[0-9]{4}", text)
    if complaint is None or order_id is None:
        raise ValueError(f"not a complaint about an order: {text!r}")
    return complaint, item, order_id[0]


def _results(messages: list[Message]) -> list[str]:
    return [message.content or "" for message in messages if message.role == "tool"]


def _call(messages: list[Message], name: str, **arguments: Any) -> Message:
    call = ToolCall(id=f"call_{sum(len(m.tool_calls) for m in messages) + 1}", name=name, arguments=arguments)
    return Message(role="assistant", tool_calls=[call])
