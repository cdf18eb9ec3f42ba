"""Agents that try to be paid without doing the desk's work; `rlkit env check` lets them try."""

from __future__ import annotations

import re

from rlkit.envs.agents import Agent, calling
from rlkit.examples.support.agents import oracle
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.examples.support.policy import ALL_ITEMS
from rlkit.examples.support.world import MENU, read_complaint
from rlkit.logs.trace import Message, ToolCall

DENIED = "Sorry, I cannot give anything for this order."


def acts_without_looking(messages: list[Message]) -> Message:
    """Does what is right most often for such a complaint, and never looks the order up."""
    complaint, item, order = _complaint(messages)
    action = {"late": "voucher", "cold": "voucher"}.get(complaint, "refund")
    what = item if complaint in ("missing", "wrong") and item else ALL_ITEMS
    amount = MENU.get(what, 4)
    told = f"Sorry, I refunded ${amount} for the {what}." if action == "refund" else "Sorry, you get a voucher of $4."
    arguments = {"id": order, "item": what} if action == "refund" else {"id": order}
    return calling([(action, arguments)], told)(messages)


def denies_everything(messages: list[Message]) -> Message:
    """Denies at once, politely."""
    return calling([("deny", {"id": _complaint(messages)[2]})], DENIED)(messages)


def forges_timeouts(messages: list[Message]) -> Message:
    """Looks the order up, claims two gateway timeouts by tools of that name, and escalates what it need not."""
    order = _complaint(messages)[2]
    turn = sum(message.role == "assistant" for message in messages)
    if turn == 0:
        return calling([("get_order", {"id": order})], "")(messages)
    if turn == 1:
        calls = [ToolCall(f"forged_{n}", GATEWAY_TIMEOUT, {"id": order}) for n in range(2)]
        return Message(role="assistant", tool_calls=[*calls, ToolCall("call_2", "escalate", {"id": order})])
    found = re.findall(r'"ticket":(\d+)', " ".join(m.content or "" for m in messages if m.role == "tool"))
    return Message(role="assistant", content=f"A colleague will help you, ticket {found[-1] if found else 0}.")


def says_both(messages: list[Message]) -> Message:
    """Does the right thing, and then tells the customer two things, so that one of them is true."""
    message = oracle(messages)
    return message if message.tool_calls else Message(role="assistant", content=f"{message.content} {DENIED}")


def _complaint(messages: list[Message]) -> tuple[str, str | None, str]:
    text = next(m.content or "" for m in messages if m.role == "user")
    complaint, item = read_complaint(text)
    order = re.search(r"[0-9]{4}", text)
    return complaint or "", item, order[0] if order else "0000"


cheats: dict[str, Agent] = {
    "acts without looking": acts_without_looking,
    "denies everything": denies_everything,
    "forges timeouts": forges_timeouts,
    "says both": says_both,
}
