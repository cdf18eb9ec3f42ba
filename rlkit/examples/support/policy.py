"""The written policy as code: what the agent should do about an order. Used by goals, oracle and rubric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["refund", "voucher", "escalate", "deny"]
ACTIONS: tuple[Action, ...] = ("refund", "voucher", "escalate", "deny")
ALL_ITEMS = "all"
LATE_MINUTES = 30


@dataclass(frozen=True)
class Decision:
    """The one right action, and for a refund what is refunded (an item's name or `all`)."""

    action: Action
    item: str | None = None


def decide(complaint: str, item: str | None, order: dict[str, Any]) -> Decision:
    """The policy, line by line as the system prompt has it. Raises `ValueError` for an unknown complaint."""
    if complaint == "late":
        return Decision("voucher" if order["minutes_late"] >= LATE_MINUTES else "deny")
    if complaint == "cold":
        return Decision("voucher")
    if complaint in ("missing", "wrong"):
        return Decision("deny") if item in order["refunded"] else Decision("refund", item)
    if complaint == "never_arrived":
        return Decision("refund", ALL_ITEMS) if order["status"] == "lost" else Decision("escalate")
    if complaint == "charged_twice":
        return Decision("refund", ALL_ITEMS) if order["charges"] == 2 else Decision("deny")
    raise ValueError(f"unknown complaint {complaint!r}")
