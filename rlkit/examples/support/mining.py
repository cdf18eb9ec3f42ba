"""Production sessions as tasks: the initial state is rebuilt from what the log's tool results show."""

from __future__ import annotations

import json
import re
from typing import Any

from rlkit.envs.environment import State
from rlkit.envs.mining import NotATask
from rlkit.envs.task import Task
from rlkit.examples.support.world import TIMEOUT_RATE, make_task, read_complaint
from rlkit.logs.trace import ToolCall, Trace

ORDER_FIELDS = {"id", "status", "minutes_late", "items", "charges", "refunded"}


def task_from_trace(trace: Trace, timeout_rate: float = TIMEOUT_RATE) -> Task:
    """The task that this session was. Raises `NotATask` where the order was never looked up, say."""
    text = next((m.content for m in trace.messages if m.role == "user" and m.content), None)
    if text is None:
        raise NotATask("no user message")
    complaint, item = read_complaint(text)
    if complaint is None:
        raise NotATask("complaint not recognised")
    order = next((result for call, result in _answered(trace) if call.name == "get_order" and "id" in result), None)
    if order is None:
        raise NotATask("the order was never looked up")
    if not order.keys() >= ORDER_FIELDS or not isinstance(order["items"], dict):
        raise NotATask("the order is incomplete")
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


def final_state(trace: Trace, task: Task) -> State:
    """The world as the session left it: the task's state and every action that the log shows as done."""
    actions: list[dict[str, Any]] = []
    for call, result in _answered(trace):
        if result.get("ok") is True and call.arguments is not None:
            told = {key: value for key, value in result.items() if key != "ok"}
            item = {"item": call.arguments["item"]} if "item" in call.arguments else {}
            actions.append({"tool": call.name} | item | told)
    return {**task.state, "actions": actions}


def gateway_timeout_rate(traces: list[Trace]) -> float:
    """The share of gateway calls (refund, voucher) that timed out in these logs."""
    results = [result for t in traces for call, result in _answered(t) if call.name in ("refund", "voucher")]
    gateway = [result for result in results if "ok" in result or result.get("error") == "gateway timeout"]
    return sum("error" in result for result in gateway) / max(1, len(gateway))


def _answered(trace: Trace) -> list[tuple[ToolCall, dict[str, Any]]]:
    """Each call whose result is a JSON object, with it."""
    results = {m.tool_call_id: m.content or "" for m in trace.messages if m.role == "tool"}
    pairs = []
    for call in trace.tool_calls:
        text = results.get(call.id, "")
        if re.match(r"\s*\{", text):
            try:
                pairs.append((call, json.loads(text)))
            except ValueError:
                continue
    return pairs
