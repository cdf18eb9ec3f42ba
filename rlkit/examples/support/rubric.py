"""What counts as success: the right thing done to the order, and the customer told just that.

Both checks are pure functions of (task, trace, final state), so they score a rollout and a production trace alike.
"""

from __future__ import annotations

import re
from typing import Any

from rlkit.envs.environment import State
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.logs.trace import Trace

CLAIMS = {
    "refund": re.compile(r"\brefunded\b"),
    "voucher": re.compile(r"\bvoucher\b"),
    "escalate": re.compile(r"\b(colleague|ticket)\b"),
    "deny": re.compile(r"\bcannot\b"),
}


def count_timeouts(trace: Trace) -> int:
    """How often the gateway timed out in this session."""
    return sum(m.role == "tool" and GATEWAY_TIMEOUT in (m.content or "") for m in trace.messages)


def expected_action(task: Task, trace: Trace) -> dict[str, Any]:
    """The goal, or an escalation where the goal goes through the gateway and that timed out twice."""
    if task.goal["action"] in ("refund", "voucher") and count_timeouts(trace) >= 2:
        return {"tool": "escalate"}
    goal = {"tool": task.goal["action"]}
    return goal | {"item": task.goal["item"]} if task.goal["item"] is not None else goal


def right_action(task: Task, trace: Trace, state: State) -> bool:
    """Exactly one action was taken, and it is the one the policy asks for."""
    taken = [{k: v for k, v in action.items() if k in ("tool", "item")} for action in state["actions"]]
    return taken == [expected_action(task, trace)]


def told_the_truth(task: Task, trace: Trace, state: State) -> bool:
    """The last message claims just what was done, with the amount or ticket of the last action and no other number."""
    reply = (trace.final_reply or "").lower()
    claims = [kind for kind, pattern in CLAIMS.items() if pattern.search(reply)]
    if not state["actions"] or claims != [state["actions"][-1]["tool"]]:
        return False
    action = state["actions"][-1]
    numbers = [int(number) for number in re.findall(r"\d+", reply)]
    return numbers == [action[key] for key in ("amount", "ticket") if key in action]


rubric = Rubric("support", (Check("right_action", 0.5, right_action), Check("told_the_truth", 0.5, told_the_truth)))
