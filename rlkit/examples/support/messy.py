"""Logs as they are found in the wild: production sessions, damaged in the ways real exports are, with customers' data.

Synthetic like all of the course's data. Every damage is one that somebody reported of a real logger; every address,
number and key is reserved for examples, published for tests, or drawn at random.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from rlkit.logs.jsontext import dump_line
from rlkit.logs.trace import Trace
from rlkit.logs.writers import to_openai

DAMAGED = 0.4
"""The share of sessions that lose or gain something on their way to the file."""
CONTACT = 0.35
"""The share of customers who say how they can be reached, or what they paid with."""

NAMES = ("Ada Okafor", "Bruno Keller", "Chiara Lind", "Dmitri Vance", "Esme Tanaka", "Farid Moreau")
"""The customers' names, as a company would take them from its customer table."""
_CARDS = ("4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005")  # payment providers' test numbers
_IBANS = ("DE89 3704 0044 0532 0130 00", "GB82 WEST 1234 5698 7654 32")  # the standard's own examples

Record = dict[str, Any]


def messy_lines(sessions: Iterable[Sequence[Trace]], seed: int = 0) -> Iterator[bytes]:
    """Sessions as lines of OpenAI chat JSONL, some of them damaged; reproducible from `seed`."""
    rng = random.Random(f"messy:{seed}")
    for traces in sessions:
        records = [deepcopy(to_openai(trace)) for trace in traces]
        _add_contact(records, rng)
        if rng.random() >= DAMAGED:
            yield from map(dump_line, records)
            continue
        damage = rng.choice(DAMAGES)
        for record in records:
            damage(record, rng)
        lines = [dump_line(record) for record in records]
        if rng.random() < 0.1:  # the process died while it wrote
            lines[-1] = lines[-1][: rng.randrange(20, len(lines[-1]) - 2)] + b"\n"
        yield from lines


def _add_contact(records: list[Record], rng: random.Random) -> None:
    """The order's customer in every tool result, and in some sessions what the customer says of himself."""
    name, number = rng.choice(NAMES), rng.randrange(100, 200)
    email = f"{name.split()[0].lower()}{rng.randrange(10, 99)}@example.com"
    phone = f"+1 (415) 555-0{number}"
    words = [f"Mail me at {email}, please.", f"My number is {phone}.", f"I paid with {rng.choice(_CARDS)}.",
             f"Send it back to {rng.choice(_IBANS)}.", f"This is {name}, by the way."]  # fmt: skip
    said = " ".join(rng.sample(words, 2)) if rng.random() < CONTACT else ""
    key = "sk-proj-" + "".join(rng.choices("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=40))
    for record in records:
        record["metadata"] |= {"email": email} | ({"api_key": key} if said else {})
        for message in record["messages"]:
            if message["role"] == "user" and said:
                message["content"] += f" {said}"
            if message.get("name") == "get_order" and message["content"].startswith("{"):
                customer = {"name": name, "email": email.upper(), "phone": phone}
                message["content"] = json.dumps(json.loads(message["content"]) | {"customer": customer})


# --- damages ----------------------------------------------------------------------------------------------------------


def _calls(record: Record) -> Iterator[Record]:
    for message in record["messages"]:
        yield from message.get("tool_calls", [])


def arguments_encoded_twice(record: Record, rng: random.Random) -> None:
    """The gateway encoded what was JSON already."""
    for call in _calls(record):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])


def arguments_cut(record: Record, rng: random.Random) -> None:
    """The model ran out of tokens in the middle of a call."""
    for call in list(_calls(record))[-1:]:
        call["function"]["arguments"] = call["function"]["arguments"][:-1]


def ids_missing(record: Record, rng: random.Random) -> None:
    """A local server that makes no ids for calls."""
    for call in _calls(record):
        del call["id"]
    for message in record["messages"]:
        message.pop("tool_call_id", None)


def ids_repeated(record: Record, rng: random.Random) -> None:
    """A server that begins to count again at every turn."""
    for call in _calls(record):
        call["id"] = "call_0"
    for message in record["messages"]:
        if "tool_call_id" in message:
            message["tool_call_id"] = "call_0"


def legacy_functions(record: Record, rng: random.Random) -> None:
    """The API as it was before there were tools."""
    for message in record["messages"]:
        if len(message.get("tool_calls", [])) == 1:
            message["function_call"] = message.pop("tool_calls")[0]["function"]
        elif message["role"] == "tool":
            message["role"] = "function"
            del message["tool_call_id"]


def developer_role(record: Record, rng: random.Random) -> None:
    """What newer models call the system prompt."""
    record["messages"][0]["role"] = "developer"


def content_in_parts(record: Record, rng: random.Random) -> None:
    """A client that sends parts, and with them a photo of the meal."""
    for message in record["messages"]:
        if message["role"] == "user":
            photo = {"type": "image_url", "image_url": {"url": f"https://files.example/{record['id']}.jpg"}}
            message["content"] = [{"type": "text", "text": message["content"]}, photo]


def half_an_emoji(record: Record, rng: random.Random) -> None:
    """Text cut by UTF-16 length, in the middle of a character."""
    record["messages"][1]["content"] += " \ud83d"


def naive_times(record: Record, rng: random.Random) -> None:
    """A database column without a zone."""
    for message in record["messages"]:
        message["timestamp"] = message["timestamp"].rstrip("Z").replace("T", " ")


def metadata_as_text(record: Record, rng: random.Random) -> None:
    """A column that was exported as it was stored."""
    record["metadata"] = json.dumps(record["metadata"])


def stray_messages(record: Record, rng: random.Random) -> None:
    """A critic's remark and a line of the logger in between."""
    place = rng.randrange(1, len(record["messages"]))
    record["messages"][place:place] = [{"role": "critic", "content": "Too curt?"}, "-- rotated --"]


def result_first(record: Record, rng: random.Random) -> None:
    """Sorted by a clock that ran backwards: the order in which things happened is lost."""
    messages = record["messages"]
    place = next((index for index, message in enumerate(messages) if message["role"] == "tool"), None)
    if place is not None:
        messages[place - 1], messages[place] = messages[place], messages[place - 1]


def cut_short(record: Record, rng: random.Random) -> None:
    """The customer closed the window; the last call was never answered."""
    places = [index for index, message in enumerate(record["messages"]) if message.get("tool_calls")]
    del record["messages"][rng.choice(places or [1]) + 1 :]


def refused(record: Record, rng: random.Random) -> None:
    """The model's refusal stands where its text would."""
    last = record["messages"][-1]
    last["content"], last["refusal"] = None, last["content"]


def no_messages(record: Record, rng: random.Random) -> None:
    """A session that was opened and never used."""
    record["messages"] = []


DAMAGES: tuple[Callable[[Record, random.Random], None], ...] = (
    arguments_encoded_twice, arguments_cut, ids_missing, ids_repeated, legacy_functions, developer_role,
    content_in_parts, half_an_emoji, naive_times, metadata_as_text, stray_messages, result_first, cut_short, refused,
    no_messages,
)  # fmt: skip
