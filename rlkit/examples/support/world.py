"""The world behind the support desk: customers, orders, and how people complain. Synthetic, seeded.

Two pools that share nothing (no user, no order id, no phrasing): what a model may learn from, and what it is
judged on.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any, Literal

from rlkit.envs.task import Task
from rlkit.examples.support.policy import decide
from rlkit.logs.trace import Message

Pool = Literal["train", "heldout"]

SYSTEM_PROMPT = """You are the support agent of a food delivery service. Look the order up first, then act once:
- late: 30 minutes or more, give a voucher; less, deny.
- cold: give a voucher.
- missing or wrong item: refund the item, unless it was refunded before: then deny.
- never arrived: if the order is lost, refund all of it; if it counts as delivered, escalate.
- charged twice: if there are two charges, refund all (the second charge); if there is one, deny.
If the gateway times out, try the same call once more; if it times out again, escalate.
Then tell the customer what you did, with the amount or the ticket number the tool returned."""

MENU = {
    "ramen": 12, "pizza": 14, "burger": 11, "sushi": 18, "salad": 9, "curry": 13, "tacos": 10, "soup": 7,
    "noodles": 11, "wrap": 8, "fries": 4, "tea": 3, "cola": 3, "juice": 5, "cake": 6, "rice": 4,
}  # fmt: skip

GREETINGS = ("", "", "", "hi, ", "hello, ", "hey, ", "hello again, ", "please help, ", "i need help, ")
ENDINGS = ("", "", "", " please help", " thanks", " what now?")

# The last two of each are held out: other words in another order, the same complaint.
PHRASES: dict[str, list[str]] = {
    "late": [
        "order {id} was late",
        "my order {id} came too late",
        "the food of order {id} came very late",
        "why was order {id} so late?",
        "i waited too long, order {id} was late",
        "late again, order {id}",
        "it is about order {id}, it was so late",
        "you brought order {id} very late",
        "order {id} came so late",
        "very late, my order {id}",
    ],
    "cold": [
        "the {item} in order {id} was cold",
        "my {item} came cold, order {id}",
        "cold {item} again, order {id}",
        "order {id}: the {item} was very cold",
        "why was my {item} so cold? order {id}",
        "i got cold {item} in order {id}",
        "you brought order {id} with cold {item}",
        "it is about order {id}, the {item} came cold",
        "order {id}, my {item} was cold",
        "the {item} came so cold, order {id}",
    ],
    "missing": [
        "the {item} is missing in order {id}",
        "order {id}: {item} missing",
        "i got order {id} but the {item} is missing",
        "my {item} was missing again, order {id}",
        "missing {item} in my order {id}",
        "why is the {item} missing? order {id}",
        "you brought order {id} with the {item} missing",
        "it is about order {id}, the {item} is missing",
        "order {id}, the {item} was missing",
        "my {item} is missing, order {id}",
    ],
    "wrong": [
        "the {item} in order {id} is wrong",
        "i got the wrong {item} in order {id}",
        "order {id}: wrong {item}",
        "wrong {item} again, order {id}",
        "my {item} was wrong, order {id}",
        "why the wrong {item}? order {id}",
        "you brought order {id} with the wrong {item}",
        "it is about order {id}, the {item} is wrong",
        "order {id}, the {item} was wrong",
        "the wrong {item} came, order {id}",
    ],
    "never_arrived": [
        "order {id} never arrived",
        "my order {id} never arrived",
        "i waited but order {id} never arrived",
        "the food of order {id} never arrived",
        "never arrived: order {id}",
        "order {id} never arrived, why?",
        "you never brought order {id}",
        "it is about order {id}, it never arrived",
        "why? my order {id} never arrived",
        "the order {id} never arrived again",
    ],
    "charged_twice": [
        "i was charged twice for order {id}",
        "order {id} was charged twice",
        "why was i charged twice? order {id}",
        "you charged me twice for order {id}",
        "charged twice: order {id}",
        "my order {id} was charged twice again",
        "it is about order {id}, i was charged twice",
        "for order {id} you charged me twice",
        "order {id}: i was charged twice",
        "you charged order {id} twice",
    ],
}
COMPLAINTS = tuple(PHRASES)
TIMEOUT_RATE = 0.36
"""Share of gateway calls (refund, voucher) that time out."""

_HELDOUT_PHRASES = 2
_HELDOUT_SHARE = 0.2  # of users and of order ids


def sample_task(rng: random.Random, pool: Pool = "train", order_id: str | None = None) -> Task:
    """One customer with one complaint. `order_id` fixes the id (it must belong to `pool`)."""
    complaint = rng.choice(COMPLAINTS)
    user, order_id = rng.choice(user_ids(pool)), order_id or rng.choice(order_ids(pool))
    order, item = _sample_order(rng, complaint, order_id)
    phrases = PHRASES[complaint]
    number = rng.randrange(len(phrases) - _HELDOUT_PHRASES)
    if pool == "heldout":
        number = len(phrases) - 1 - rng.randrange(_HELDOUT_PHRASES)
    text = rng.choice(GREETINGS) + phrases[number].format(id=order_id, item=item) + rng.choice(ENDINGS)
    return make_task(
        task_id=f"{pool}-{order_id}-{rng.getrandbits(32):08x}",
        text=text,
        order=order,
        complaint=complaint,
        item=item,
        user=user,
    )


def make_task(
    task_id: str,
    text: str,
    order: dict[str, Any],
    complaint: str,
    item: str | None,
    user: str | None,
    timeout_rate: float = TIMEOUT_RATE,
    source_trace_ids: list[str] | None = None,
) -> Task:
    """A support task: the policy's decision about `order` is its goal; user, order and phrasing are its keys."""
    decision = decide(complaint, item, order)
    keys = [f"order:{order['id']}", f"phrase:{phrase_of(text)}"] + ([f"user:{user}"] if user else [])
    return Task(
        id=task_id,
        messages=[Message(role="system", content=SYSTEM_PROMPT), Message(role="user", content=text)],
        state={"order": order, "actions": [], "timeout_rate": timeout_rate},
        goal={"action": decision.action, "item": decision.item},
        tags={"complaint": complaint, "outcome": decision.action},
        keys=keys,
        source_trace_ids=source_trace_ids or [],
    )


def read_complaint(text: str) -> tuple[str | None, str | None]:
    """(complaint, item) that a person would read in `text`; None for what is not there."""
    words = re.findall(r"[a-z]+", text.lower())
    item = next((word for word in words if word in MENU), None)
    signs = {"twice": "charged_twice", "never": "never_arrived"} | {c: c for c in ("missing", "wrong", "cold", "late")}
    return next((complaint for sign, complaint in signs.items() if sign in words), None), item


def phrase_of(text: str) -> str:
    """The complaint without order number, item, greeting and thanks: two customers who say it the same way share it."""
    text = text.removeprefix(next((g for g in GREETINGS if g and text.startswith(g)), ""))
    text = text.removesuffix(next((e for e in ENDINGS if e and text.endswith(e)), ""))
    text = re.sub(rf"\b({'|'.join(MENU)})\b", "{item}", text)
    return re.sub(r"[0-9]{4}", "{id}", text)


@cache
def order_ids(pool: Pool) -> list[str]:
    """Every order id of a pool, in ascending order; which pool an id belongs to is a coin, not a pattern."""
    return [f"{number:04d}" for number in range(1000, 10000) if _in_pool(f"order:{number}", pool)]


@cache
def user_ids(pool: Pool) -> list[str]:
    """Every user of a pool."""
    return [f"u{number:04d}" for number in range(3000) if _in_pool(f"user:{number}", pool)]


def _in_pool(key: str, pool: Pool) -> bool:
    return (random.Random(key).random() < _HELDOUT_SHARE) == (pool == "heldout")


def _sample_order(rng: random.Random, complaint: str, order_id: str) -> tuple[dict[str, Any], str]:
    """An order on which either outcome of the complaint is about equally likely, and the item complained of."""
    items = rng.sample(sorted(MENU), rng.choice((2, 2, 3)))
    item = rng.choice(items)
    refunded = [item] if complaint in ("missing", "wrong") and rng.random() < 0.5 else []
    if not refunded and rng.random() < 0.06:
        refunded = [rng.choice([other for other in items if other != item])]
    lost = complaint == "never_arrived" and rng.random() < 0.5
    order = {
        "id": order_id,
        "status": "lost" if lost else "delivered",
        "minutes_late": rng.randrange(10, 60),
        "items": {name: MENU[name] for name in items},
        "charges": 2 if complaint == "charged_twice" and rng.random() < 0.5 else 1,
        "refunded": refunded,
    }
    return order, item
