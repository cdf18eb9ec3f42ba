"""Personal data out of traces before anything is written: stable pseudonyms, and a report of what was replaced.

The same value gets the same pseudonym in all traces of a session, wherever it stands (prompts, replies, arguments of
calls, results, metadata), so that what joined still joins. Pseudonyms are numbered in the order in which a session
first names a value: there is no key to lose and no hash to try phone numbers against, and nobody can be followed from
one session to the next. What is kept in memory are the values of the last `SESSIONS` sessions.

A phone number, and a secret that looks like one, is replaced wherever it stands in a trace once anything in the session
has given it away (`"phone": …`, `password=…`); what was given out before a later trace told stays. Names of tools and
of their parameters stay, even where they hold a listed name (`bill_customer`). The id of a session that holds personal
data gets a number of its own (`person1@redacted.invalid~7`), since two people are both `person1` of their sessions.

It is pseudonymity, not anonymity: what no pattern knows (a street, an illness, a name that is not on the list) stays.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.personal_data import (
    KINDS,
    STAND_IN_SECRET,
    Hit,
    Kind,
    find,
    phone_value,
    stand_in,
)
from rlkit.logs.privacy_patterns import (
    Edit,
    apart,
    edits_in_literals,
    given_away,
    is_word,
    kind_of_field,
    looks_secret,
    name_finder,
    words_of_tools,
)
from rlkit.logs.trace import Message, ToolCall, Trace

SESSIONS = 4096
"""How many traces a session is remembered for: a trace that comes later than that is numbered anew."""

_NUMBERS = re.compile(r"(?:#\d+)+\Z")
_NUMBER = re.compile(r"#\d+\Z")
_DEEP = 100  # levels; what is below is done as text, which no depth can overflow
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


@dataclass
class Session:
    """What one session has named so far; the originals live here and nowhere else."""

    numbers: dict[tuple[Kind, str], int] = field(default_factory=dict)
    sizes: Counter[Kind] = field(default_factory=Counter)
    """The last number given, by kind."""
    phones: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    tag: int = 0
    """Tells its id from others that look the same without their personal data; 0 where there was no need."""

    def given_away(self, text: str) -> list[Hit]:
        """Where values stand that something else in the session gave away."""
        return list(given_away(text, self.phones, self.secrets))


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
        names = [name for name in names if name.strip()]
        self._names, self._named = name_finder(names), bool(names)
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # by the ids of their traces
        self._tags = 0
        self._clean: set[str] = set()  # texts in which nothing is found
        self._clean_size = 0
        self._open = Session()
        self._spared = False  # whether a name was left since it belongs to a word
        self._seen: list[str] = []  # the trace's texts, redacted
        self._fresh: list[str] = []  # what the trace gave away
        self._words: frozenset[str] = frozenset()  # the names of the trace's tools and of their parameters

    def redact(self, trace: Trace) -> Trace:
        """The trace without personal data and without `raw`; the one given is not changed.

        Traces of one session are told by their `parent_id`. Messages in which nothing was found are shared.
        """
        self._open = self._session(trace)
        self._words = words_of_tools(trace) if self._named else frozenset()
        before, new, again = self.report.counts.total(), trace, True
        while again:  # what was given away late may stand in what came before
            self._seen, self._fresh = [], []
            new = self._redacted(new)
            again = bool(self._fresh) and _any_in(self._fresh, "\n".join(self._seen))
        self._seen = []
        self.report.traces += 1
        self.report.touched += self.report.counts.total() > before
        return new

    def _redacted(self, trace: Trace) -> Trace:
        return trace.model_copy(update={
            "id": self._id(trace.id),
            "messages": [self._message(message) for message in trace.messages],
            "tools": [self._tool(tool) for tool in trace.tools],
            "outcome": trace.outcome.model_copy(update={"source": self._text(trace.outcome.source, "outcome")}),
            "parent_id": None if trace.parent_id is None else self._id(trace.parent_id),
            "metadata": self._value(trace.metadata, "metadata"),
            "source": self._text(trace.source, "source"),
            "raw": None,
            "diagnostics": [
                replace(item, path=self._text(item.path, "diagnostics"), detail=self._text(item.detail, "diagnostics"))
                for item in trace.diagnostics
            ],
        })  # fmt: skip

    def _session(self, trace: Trace) -> Session:
        """The session of the trace's parent, else of what the parent's own id came from, else a new one."""
        known, parent = self._sessions, trace.parent_id or trace.id
        root = parent
        while root not in known and trace.parent_id and _NUMBER.search(root):
            root = _NUMBER.sub("", root)
        session = known.get(root) or Session()
        for key in dict.fromkeys((trace.id, parent, root) if root in known else (trace.id, parent)):
            known[key] = session
            known.move_to_end(key)
        while len(known) > SESSIONS:
            known.popitem(last=False)
        return session

    def _id(self, text: str) -> str:
        new = self._text(text, "id")
        if new == text:
            return text
        if not self._open.tag:
            self._tags += 1
            self._open.tag = self._tags
        numbered = _NUMBERS.search(new)
        end = numbered.start() if numbered else len(new)
        return f"{new[:end]}~{self._open.tag}{new[end:]}"

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        new = self._value(tool, "tools")
        return new if new.get("name") == tool.get("name") else {**new, "name": tool["name"]}

    def _message(self, message: Message) -> Message:
        content = None if message.content is None else self._text(message.content, message.role)
        reasoning = None if message.reasoning is None else self._text(message.reasoning, "reasoning")
        tool = message.role == "tool" and message.name in self._words
        name = message.name if message.name is None or tool else self._text(message.name, "name")
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

    def _value(self, value: Any, place: str, key: str = "", depth: int = 0) -> Any:
        """A JSON value with its texts redacted, keys too; the same object where nothing was found."""
        if isinstance(value, str):
            return self._keyed(value, place, key) or self._text(value, place)
        if isinstance(value, dict | list) and depth == _DEEP:
            return self._deep(value, place)
        if isinstance(value, dict):
            return self._object(value, place, depth + 1)
        if isinstance(value, list):
            items = [self._value(item, place, key, depth + 1) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= 10**6:
            text = str(value)
            new_text = self._keyed(text, place, key) or self._text(text, place)
            return int(new_text) if new_text.isdecimal() and new_text != text else value
        return value

    def _object(self, value: dict[str, Any], place: str, depth: int) -> dict[str, Any]:
        new: dict[str, Any] = {}
        same = True
        for key, item in value.items():
            name = key if key in self._words else self._text(key, place)
            inner = self._value(item, place, key, depth)
            if place == "tools" and key == "required":
                inner = item  # names of parameters
            same = same and name is key and inner is item
            copy, spelled = 2, name
            while spelled in new:  # two spellings of one value
                spelled, copy = f"{name}#{copy}", copy + 1
            new[spelled] = inner
        return value if same else new

    def _deep(self, value: Any, place: str) -> Any:
        text = dumps(value)
        new = self._text(text, place)
        try:
            return value if new is text else loads(new)
        except (ValueError, RecursionError):
            return new

    def _keyed(self, text: str, place: str, key: str) -> str | None:
        """What a value is by the name of its key: a number under `phone`, whatever stands under `password`."""
        kind = kind_of_field(key)
        if kind is None or kind not in self._kinds:
            return None
        if kind == "secret":
            left = len(text) < 4 or STAND_IN_SECRET.fullmatch(text)
            return None if left else self._pseudonym("secret", text, text, place)
        value = phone_value(text)
        return None if value is None else self._pseudonym("phone", value, text, place)

    def _text(self, text: str, place: str) -> str:
        """A text with what is found in it replaced; JSON inside it stays JSON, and the rest as it was, byte by byte."""
        known = self._open
        if text in self._clean and not ((known.phones or known.secrets) and known.given_away(text)):
            self._seen.append(text)
            return text
        new, self._spared = text, False
        for _ in range(_ROUNDS):  # what was replaced may have stood in the way of what it touched
            edits = self._edits(new, place)
            if not edits:
                break
            pieces, at = [], 0
            for edit in edits:
                pieces += [new[at : edit.start], edit.new]
                at = edit.end
            new = "".join([*pieces, new[at:]])
        else:
            return new
        self._seen.append(new)
        if not self._spared:  # prompts, keys and small values come again and again
            self._clean_size += len(new) + 100
            if self._clean_size > _CLEAN_SIZE:
                self._clean.clear()
                self._clean_size = len(new) + 100
            self._clean.add(new)
        return new

    def _edits(self, text: str, place: str) -> list[Edit]:
        """What to replace in a text, in order."""
        edits: list[Edit] = []
        if "\\" in text and '"' in text:
            edits = list(edits_in_literals(text, lambda said: self._edits(said, place)))
        hits = find(text, self._kinds, self._names)
        if self._words and hits:
            kept = [hit for hit in hits if hit.kind != "name" or not is_word(text, hit, self._words)]
            self._spared = self._spared or len(kept) < len(hits)
            hits = kept
        if (self._open.phones or self._open.secrets) and (more := self._open.given_away(text)):
            hits += apart(hits, more)
        edits += [
            Edit(hit.start, hit.end, self._pseudonym(hit.kind, hit.value, text[hit.start : hit.end], place))
            for hit in (apart(edits, hits) if edits else sorted(hits))
        ]
        return sorted(edits)

    def _pseudonym(self, kind: Kind, value: str, original: str, place: str) -> str:
        session = self._open
        number = session.numbers.get((kind, value))
        if number is None:
            session.sizes[kind] += 1
            number = session.numbers[kind, value] = session.sizes[kind]
            if kind == "phone" or (kind == "secret" and looks_secret(value)):
                (session.phones if kind == "phone" else session.secrets).add(value)
                self._fresh.append(value)
        self.report.counts[kind, place] += 1
        return stand_in(kind, number, original)


def _any_in(values: Iterable[str], text: str) -> bool:
    return any(value in text for value in values)
