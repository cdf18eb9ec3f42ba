"""The support desk's tools over a JSON state `{"order", "actions", "timeout_rate"}`.

The tools do what they are told: nothing stops an agent from refunding twice. That it should not is the
policy's business, and the rubric's.
"""

from __future__ import annotations

from typing import Any

from rlkit.envs.environment import Environment, Episode, Tool, ToolError
from rlkit.examples.support.policy import ALL_ITEMS

GATEWAY_TIMEOUT = "gateway timeout"


def get_order(episode: Episode, id: str) -> dict[str, Any]:
    """The order as the shop has it."""
    return dict(_order(episode, id))


def refund(episode: Episode, id: str, item: str) -> dict[str, Any]:
    """Pay back one item or `all`; the amount is worked out here, not by the agent."""
    items = _order(episode, id)["items"]
    if item != ALL_ITEMS and item not in items:
        raise ToolError(f"no {item} in order {id}")
    _gateway(episode)
    amount = sum(items.values()) if item == ALL_ITEMS else items[item]
    return _record(episode, tool="refund", item=item, amount=amount)


def voucher(episode: Episode, id: str) -> dict[str, Any]:
    """A fifth of the order's total as a voucher, in whole dollars, at least 2."""
    total = sum(_order(episode, id)["items"].values())
    _gateway(episode)
    return _record(episode, tool="voucher", amount=max(2, round(total / 5)))


def escalate(episode: Episode, id: str) -> dict[str, Any]:
    """Hand the case to a colleague; the ticket number depends on the order alone."""
    return _record(episode, tool="escalate", ticket=int(_order(episode, id)["id"]) * 37 % 90 + 10)


def deny(episode: Episode, id: str) -> dict[str, Any]:
    """Close the case with nothing given."""
    _order(episode, id)
    return _record(episode, tool="deny")


def _order(episode: Episode, id: str) -> dict[str, Any]:
    order: dict[str, Any] = episode.state["order"]
    if order["id"] != id:
        raise ToolError(f"no order {id}")
    return order


def _gateway(episode: Episode) -> None:
    if episode.chance(episode.state["timeout_rate"]):
        raise ToolError(GATEWAY_TIMEOUT)


def _record(episode: Episode, **action: Any) -> dict[str, Any]:
    episode.state["actions"].append(action)
    return {"ok": True} | {key: value for key, value in action.items() if key in ("amount", "ticket")}


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_ID = {"type": "string", "pattern": "^[0-9]{4}$", "description": "the order's number"}
_ITEM = {"type": "string", "description": "an item of the order, or 'all'"}

environment = Environment(
    "support",
    [
        Tool("get_order", "Look an order up.", _schema(id=_ID), get_order),
        Tool("refund", "Refund an item, or all of the order.", _schema(id=_ID, item=_ITEM), refund),
        Tool("voucher", "Give a voucher.", _schema(id=_ID), voucher),
        Tool("escalate", "Hand over to a colleague.", _schema(id=_ID), escalate),
        Tool("deny", "Close the case without giving anything.", _schema(id=_ID), deny),
    ],
)
