"""Personal data out of traces before anything is written: stable pseudonyms, and a report of what was replaced.

The same value gets the same pseudonym in all traces of a session, wherever it stands (prompts, replies, arguments of
calls, results, metadata), so that what joined still joins. Pseudonyms are numbered in the order in which a session
first names a value: there is no key to lose and no hash to try phone numbers against, and nobody can be followed from
one session to the next. What is kept in memory are the values of the last `SESSIONS` sessions.

It is pseudonymity, not anonymity: what no pattern knows (a street, an illness, a name that is not on the list) stays.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.personal_data import (
    KINDS,
    STAND_IN_SECRET,
    Kind,
    find,
    kind_of_field,
    name_finder,
    phone_value,
    stand_in,
)
from rlkit.logs.trace import Message, ToolCall, Trace

SESSIONS = 4096
"""How many sessions may be open at once: a trace that comes later than that after its session is numbered anew."""

_LITERAL = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ROUNDS = 8
_CLEAN_SIZE = 8_000_000  # characters


@dataclass
class PrivacyReport:
    """What was replaced, without saying it. `print(report)` shows a table."""

    traces: int = 0
    touched: int = 0
    """Traces in which something was replaced."""
    counts: Counter[tuple[Kind, str]] = field(default_factory=Counter)
    """By kind and place."""

    def __str__(self) -> str:
        lines = [f"{self.touched} of {self.traces} traces held personal data"]
        if self.counts:
            places = list(dict.fromkeys(place for _, place in self.counts))
            kinds = [kind for kind in KINDS if any(one == kind for one, _ in self.counts)]
            widths = {place: max(len(place), 7) for place in places}
            lines += ["", f"{'replaced':<8}  {'  '.join(f'{place:>{widths[place]}}' for place in places)}"]
            for kind in kinds:
                row = "  ".join(f"{self.counts[kind, place]:>{widths[place]}}" for place in places)
                lines.append(f"{kind:<8}  {row}")
        return "\n".join(lines)


class Redactor:
    """Replaces personal data in traces; `report` counts it.

    `names` are found as whole words in any case. `kinds` are those of `personal_data.KINDS`, all of them by default.
    Raises `ValueError` for an unknown kind.
    """

    def __init__(self, names: Iterable[str] = (), kinds: Collection[Kind] = KINDS) -> None:
        if unknown := set(kinds) - set(KINDS):
            raise ValueError(f"unknown kinds {sorted(unknown)}; there are {', '.join(KINDS)}")
        self.report = PrivacyReport()
        self._kinds = frozenset(kinds)
        self._names = name_finder(names)
        self._sessions: OrderedDict[str, dict[tuple[Kind, str], int]] = OrderedDict()
        self._clean: set[str] = set()  # texts in which nothing is found
        self._clean_size = 0
        self._open: dict[tuple[Kind, str], int] = {}

    def redact(self, trace: Trace) -> Trace:
        """The trace without personal data and without `raw`; the one given is not changed.

        Traces of one session are told by their `parent_id`. Messages in which nothing was found are shared.
        """
        self._open = self._session((trace.parent_id or trace.id).split("#")[0])
        before = self.report.counts.total()
        new = trace.model_copy(update={
            "id": self._text(trace.id, "id"),
            "messages": [self._message(message) for message in trace.messages],
            "tools": self._value(trace.tools, "tools"),
            "outcome": trace.outcome.model_copy(update={"source": self._text(trace.outcome.source, "outcome")}),
            "parent_id": None if trace.parent_id is None else self._text(trace.parent_id, "id"),
            "metadata": self._value(trace.metadata, "metadata"),
            "source": self._text(trace.source, "source"),
            "raw": None,
            "diagnostics": [
                replace(item, path=self._text(item.path, "diagnostics"), detail=self._text(item.detail, "diagnostics"))
                for item in trace.diagnostics
            ],
        })  # fmt: skip
        self.report.traces += 1
        self.report.touched += self.report.counts.total() > before
        return new

    def _session(self, root: str) -> dict[tuple[Kind, str], int]:
        known = self._sessions.setdefault(root, {})
        self._sessions.move_to_end(root)
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return known

    def _message(self, message: Message) -> Message:
        content = None if message.content is None else self._text(message.content, message.role)
        reasoning = None if message.reasoning is None else self._text(message.reasoning, "reasoning")
        name = None if message.name is None else self._text(message.name, "name")
        extra = None if message.extra is None else self._value(message.extra, "extra")
        calls = [self._call(call) for call in message.tool_calls]
        same = content is message.content and reasoning is message.reasoning and name is message.name
        if same and extra is message.extra and all(a is b for a, b in zip(calls, message.tool_calls, strict=True)):
            return message
        return replace(message, content=content, tool_calls=calls, name=name, reasoning=reasoning, extra=extra)

    def _call(self, call: ToolCall) -> ToolCall:
        arguments = None if call.arguments is None else self._value(call.arguments, "arguments")
        raw = None if call.raw_arguments is None else self._text(call.raw_arguments, "arguments")
        extra = None if call.extra is None else self._value(call.extra, "extra")
        if arguments is call.arguments and raw is call.raw_arguments and extra is call.extra:
            return call
        return replace(call, arguments=arguments, raw_arguments=raw, extra=extra)

    # --- values and texts ---------------------------------------------------------------------------------------------

    def _value(self, value: Any, place: str, key: str = "") -> Any:
        """A JSON value with its texts redacted, keys too; the same object where nothing was found."""
        if isinstance(value, str):
            return self._keyed(value, place, key) or self._text(value, place)
        if isinstance(value, dict):
            return self._object(value, place)
        if isinstance(value, list):
            items = [self._value(item, place, key) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 10**6:
            text = str(value)
            new_text = self._keyed(text, place, key) or self._text(text, place)
            return int(new_text) if new_text.isdecimal() and new_text != text else value
        return value

    def _object(self, value: dict[str, Any], place: str) -> dict[str, Any]:
        new: dict[str, Any] = {}
        same = True
        for key, item in value.items():
            name, inner = self._text(key, place), self._value(item, place, key)
            same = same and name is key and inner is item
            copy = 2
            while name in new:  # two spellings of one value
                name, copy = f"{self._text(key, place)}#{copy}", copy + 1
            new[name] = inner
        return value if same else new

    def _keyed(self, text: str, place: str, key: str) -> str | None:
        """What a value is by the name of its key: a number under `phone`, whatever stands under `password`."""
        kind = kind_of_field(key)
        if kind is None or kind not in self._kinds:
            return None
        if kind == "secret":
            hidden = len(text) < 4 or text.isdecimal() or STAND_IN_SECRET.fullmatch(text)
            return None if hidden else self._pseudonym("secret", text, text, place)
        value = phone_value(text)
        return None if value is None else self._pseudonym("phone", value, text, place)

    def _text(self, text: str, place: str) -> str:
        """A text with what is found in it replaced; JSON inside it stays JSON, and the rest as it was, byte by byte."""
        if text in self._clean:
            return text
        new = self._literals(text, place) if "\\" in text and '"' in text else self._plain(text, place)
        if new is text:  # prompts, keys and small values come again and again
            self._clean_size += len(text) + 100
            if self._clean_size > _CLEAN_SIZE:
                self._clean.clear()
                self._clean_size = 0
            self._clean.add(text)
        return new

    def _literals(self, text: str, place: str) -> str:
        """A text with JSON's escapes: what stands in quotes is decoded, redacted and encoded again."""
        pieces, at = list[str](), 0
        while (quote := text.find('"', at)) >= 0 and (found := _LITERAL.match(text, quote)):
            pieces += [text[at:quote], self._literal(found[0], place)]
            at = found.end()
        return self._plain(_same("".join([*pieces, text[at:]]), text), place)

    def _literal(self, literal: str, place: str) -> str:
        if "\\" not in literal:
            return literal
        try:
            said = loads(literal)
            new = self._text(said, place)
        except (ValueError, RecursionError):
            return literal
        return literal if new is said else json.dumps(new, ensure_ascii=literal.isascii())

    def _plain(self, text: str, place: str) -> str:
        for _ in range(_ROUNDS):  # what was replaced may have stood in the way of what it touched
            hits = find(text, self._kinds, self._names)
            if not hits:
                break
            pieces, at = [], 0
            for hit in hits:
                pieces += [text[at : hit.start], self._pseudonym(hit.kind, hit.value, text[hit.start : hit.end], place)]
                at = hit.end
            text = "".join([*pieces, text[at:]])
        return text

    def _pseudonym(self, kind: Kind, value: str, original: str, place: str) -> str:
        number = self._open.setdefault((kind, value), 1 + sum(one == kind for one, _ in self._open))
        self.report.counts[kind, place] += 1
        return stand_in(kind, number, original)


def _same(new: str, old: str) -> str:
    return old if new == old else new
