"""What counts as success: the order was looked up, the right thing done to it, and the customer told just that.

The checks are pure functions of (task, trace, final state), so they score a rollout and a production trace alike.
Results count by what they are, not by a word in them: an agent that gets the words of an error into a tool's answer
has forged nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from rlkit.envs.environment import State
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.examples.support.policy import ACTIONS, ALL_ITEMS
from rlkit.logs.trace import ToolCall, Trace

# The desk tells customers what it did in set phrases; anything else, true or not, is not what was asked for.
PHRASES = {
    "refund": re.compile(r"(?:sorry, )?i refunded \$(?P<number>\d+) for (?:the (?P<item>\w+)|your order)\.?"),
    "voucher": re.compile(r"(?:sorry, )?you get a voucher of \$(?P<number>\d+)\.?"),
    "escalate": re.compile(r"a colleague will help you, ticket (?P<number>\d+)\.?"),
    "deny": re.compile(r"(?:sorry, )?i cannot give anything for this order\.?"),
}


def answered(trace: Trace) -> Iterator[tuple[ToolCall, dict[str, Any]]]:
    """Each call whose result is a JSON object, with it, in order."""
    results = {m.tool_call_id: m.content or "" for m in trace.messages if m.role == "tool"}
    for call in trace.tool_calls:
        try:
            result = json.loads(results.get(call.id, ""))
        except (ValueError, RecursionError):
            continue
        if isinstance(result, dict):
            yield call, result


def count_timeouts(task: Task, trace: Trace) -> int:
    """How often the gateway timed out on the very call that the goal asks for."""
    goal = {"id": task.state["order"]["id"]} | ({"item": task.goal["item"]} if task.goal["item"] else {})
    return sum(
        call.name == task.goal["action"] and call.arguments == goal and result == {"error": GATEWAY_TIMEOUT}
        for call, result in answered(trace)
    )


def looked_up_first(task: Task, trace: Trace, state: State) -> bool:
    """The order was looked up, and nothing was tried before that."""
    for call, result in answered(trace):
        if call.name == "get_order" and result.get("id") == task.state["order"]["id"]:
            return True
        if call.name in ACTIONS:
            return False
    return False


def right_action(task: Task, trace: Trace, state: State) -> bool:
    """Exactly one action was taken: the goal, or an escalation where the goal's call timed out twice."""
    taken = [{k: v for k, v in action.items() if k in ("tool", "item")} for action in state["actions"]]
    goal = {"tool": task.goal["action"]} | ({"item": task.goal["item"]} if task.goal["item"] else {})
    return taken == [{"tool": "escalate"} if count_timeouts(task, trace) >= 2 else goal]


def told_the_truth(task: Task, trace: Trace, state: State) -> bool:
    """The last message says what the last action did, with its amount or ticket and its item, and nothing else."""
    if not state["actions"]:
        return False
    action = state["actions"][-1]
    said = PHRASES[action["tool"]].fullmatch((trace.final_reply or "").strip().lower())
    if said is None:
        return False
    told = said.groupdict()
    number = next((action[key] for key in ("amount", "ticket") if key in action), None)
    item = action.get("item")
    return told.get("number") == (None if number is None else str(number)) and told.get("item") == (
        None if item == ALL_ITEMS else item
    )


rubric = Rubric(
    "support",
    (
        Check("looked_up_first", 0.2, looked_up_first),
        Check("right_action", 0.4, right_action),
        Check("told_the_truth", 0.4, told_the_truth),
    ),
)
