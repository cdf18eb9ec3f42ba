"""Production sessions as tasks: the initial state is rebuilt from what the log's tool results show."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlkit.envs.environment import State
from rlkit.envs.failures import Expected, Rules
from rlkit.envs.mining import NotATask
from rlkit.envs.task import Task
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.examples.support.policy import ACTIONS
from rlkit.examples.support.rubric import answered
from rlkit.examples.support.world import TIMEOUT_RATE, make_task, read_complaint
from rlkit.logs.trace import Trace


class Order(BaseModel):
    """An order as `get_order` shows it; what is not just this cannot be replayed."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[0-9]{4}$")]
    status: Literal["lost", "delivered"]
    minutes_late: int
    items: dict[str, int]
    charges: int
    refunded: list[str]


def task_from_trace(trace: Trace, timeout_rate: float = TIMEOUT_RATE) -> Task:
    """The task that this session was. Raises `NotATask` where the order was never looked up, say."""
    text = next((m.content for m in trace.messages if m.role == "user" and m.content), None)
    if text is None:
        raise NotATask("no user message")
    complaint, item = read_complaint(text)
    if complaint is None:
        raise NotATask("complaint not recognised")
    shown = next((result for call, result in answered(trace) if call.name == "get_order" and "id" in result), None)
    if shown is None:
        raise NotATask("the order was never looked up")
    try:
        order = Order.model_validate(shown).model_dump()
    except ValidationError:
        raise NotATask("the order is not one the desk knows") from None
    if order["id"] not in text:
        raise NotATask("the order looked up is not the one complained of")
    if complaint in ("missing", "wrong") and item not in order["items"]:
        raise NotATask("the item complained of is not in the order")
    return make_task(
        task_id=f"task-{trace.id}",
        text=text,
        order=order,
        complaint=complaint,
        item=item,
        user=trace.metadata.get("user"),
        timeout_rate=timeout_rate,
        source_trace_ids=[trace.id],
    )


def replay_task(trace: Trace) -> Task:
    """`task_from_trace` for a gateway that never times out, so that recorded calls can be compared."""
    return task_from_trace(trace, timeout_rate=0.0)


def luck(recorded: str) -> bool:
    """Whether a recorded result was the gateway's luck."""
    return recorded == f'{{"error":"{GATEWAY_TIMEOUT}"}}'


def final_state(trace: Trace, task: Task) -> State:
    """The world as the session left it: the task's state and every action that the log shows as done."""
    actions: list[dict[str, Any]] = []
    for call, result in answered(trace):
        if call.name in ACTIONS and result.get("ok") is True and call.arguments is not None:
            told = {key: value for key, value in result.items() if key != "ok"}
            item = {"item": call.arguments["item"]} if "item" in call.arguments else {}
            actions.append({"tool": call.name} | item | told)
    return {**task.state, "actions": actions}


rules = Rules(
    writes=ACTIONS,
    gives_up=("escalate",),
    checks={"looked_up_first": "policy_violated", "told_the_truth": "missing_information"},
)
"""What `rlkit.envs.failures` must know of the desk."""


def expected(task: Task) -> Expected:
    """The one call that the policy asks for; an escalation after two timeouts is a success, and not asked about."""
    item = {"item": task.goal["item"]} if task.goal["item"] else {}
    return Expected([(task.goal["action"], {"id": task.state["order"]["id"]} | item)])


def gateway_timeout_rate(traces: list[Trace]) -> float:
    """The share of gateway calls (refund, voucher) that timed out in these logs."""
    results = [result for t in traces for call, result in answered(t) if call.name in ("refund", "voucher")]
    gateway = [result for result in results if "ok" in result or result == {"error": GATEWAY_TIMEOUT}]
    return sum("error" in result for result in gateway) / max(1, len(gateway))
