"""The messages of GenAI spans: parts into OpenAI-style messages, and spans that repeat their prefix into trajectories."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.readers.otlp import Span
from rlkit.logs.report import Notes

_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
Plain = Any
"""An OpenAI-style message, or whatever stood in its place."""


@dataclass
class Trajectory:
    """A conversation as it grew from span to span."""

    span: Span
    """The span that began it."""
    system: list[Plain]
    """From `gen_ai.system_instructions`, of the first span that has them."""
    messages: list[Plain] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    """What makes a message the same in two spans; parallel to `messages`."""

    @property
    def all_messages(self) -> list[Plain]:
        """Instructions first, unless the messages begin with the same ones."""
        if self.keys and [_key(message) for message in self.system] == self.keys[:1]:
            return self.messages
        return self.system + self.messages


def holds_messages(span: Span) -> bool:
    """Whether the span carries any content."""
    return any(_attribute(span, key) is not None for key in (_INPUT, _OUTPUT, _SYSTEM))


def grow(spans: list[Span], notes: Notes) -> list[Trajectory]:
    """Trajectories of spans in order: each extends the longest one it repeats, or begins its own."""
    grown: list[Trajectory] = []
    seen: list[Any] = []  # the last input as logged, and what was made of it: the next mostly begins with it
    seen_plain: list[Plain] = []
    seen_keys: list[Any] = []
    for span in spans:
        logged = structured(span, _INPUT, notes)
        known = len(seen) if logged[: len(seen)] == seen else 0
        plain = seen_plain if known else []
        cut = _count(seen, notes_off=True) if False else len(plain)
        raise NotImplementedError
    return grown
