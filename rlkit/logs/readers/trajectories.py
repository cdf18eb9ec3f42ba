"""LLM calls that repeat the conversation so far, put together into the conversations that they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.report import Notes

if TYPE_CHECKING:
    from rlkit.logs.readers.spans import Dialect, Span

Plain = Any
"""An OpenAI-style message, or whatever stood in its place."""
Ids = tuple[str | None, ...]


@dataclass(slots=True)
class Said:
    """Messages, and what makes each the same as another."""

    messages: list[Plain] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    """Role, text and calls without their ids: spelling differs between an answer and its repetition."""
    ids: list[Ids] = field(default_factory=list)
    """The ids of a message's calls, or of the call it answers; None where the log has none."""

    def __add__(self, more: Said) -> Said:
        return Said(self.messages + more.messages, self.keys + more.keys, self.ids + more.ids)

    def begins_with(self, other: Said) -> bool:
        """Whether `other` is the same conversation, up to its end."""
        size = len(other.keys)
        return self.keys[:size] == other.keys and _agree(self.ids[:size], other.ids)


@dataclass(eq=False)
class Trajectory:
    """A conversation as it grew from span to span."""

    span: Span
    """The one that began it."""
    owner: Span | None
    """The tool call within which it happened."""
    system: Said
    """Instructions that stood beside the messages, of the first span that has them."""
    said: Said
    spans: list[Span]
    """All that it was made of, in order."""
    growth: list[tuple[int, int]]
    """(messages, position) after each of them."""

    @property
    def end(self) -> int:
        """The position of the last span."""
        return self.growth[-1][1]

    def parted(self, other: Trajectory) -> int:
        """The position of the first span that says something which the other does not."""
        pairs = zip(self.said.keys, other.said.keys, strict=False)
        shared = next((size for size, (mine, its) in enumerate(pairs) if mine != its), len(other.said.keys))
        return next((position for size, position in self.growth if size > shared), self.end)

    @property
    def all_messages(self) -> list[Plain]:
        """Instructions first, unless the messages begin with the same ones."""
        if self.said.keys and self.system.keys == self.said.keys[:1]:
            return self.said.messages
        return self.system.messages + self.said.messages

    @property
    def instructions(self) -> list[Any]:
        """The first message, where it is the system's, wherever it stood."""
        return [key for key in (self.system.keys or self.said.keys)[:1] if key[:1] == ("system",)]

    def shares_beginning(self, other: Trajectory) -> bool:
        """Whether the first message that is no instruction is the same."""
        mine, its = (next((key for key in t.said.keys if key[:1] != ("system",)), None) for t in (self, other))
        return mine is not None and mine == its


def grow(
    spans: Sequence[Span], caller: Callable[[Span], Span | None], dialect: Dialect, notes: Notes
) -> list[Trajectory]:
    """Trajectories of LLM calls in order: each extends the longest one that it repeats, or begins its own.

    Only calls within the same tool call (`caller`) go on with each other.
    """
    grown: list[Trajectory] = []
    asked: dict[Span | None, _Asked] = {}
    for position, span in enumerate(spans):
        owner = caller(span)
        before = asked.setdefault(owner, _Asked(dialect)).read(span, notes)
        system = _said(span.system, 0, span, dialect, 2, notes)
        for answer in (span.output, *span.alternatives):
            whole = before + _said(answer, 0, span, dialect, 1, notes)
            rivals = [t for t in grown if t.owner is owner and _same_system(t.system, system)]
            if any(rival.said.begins_with(whole) for rival in rivals):
                continue  # says nothing new: a request sent again, or one whose answer was not captured
            begun = [rival for rival in rivals if whole.begins_with(rival.said)]
            if not begun:
                grown.append(Trajectory(span, owner, system, whole, [span], [(len(whole.keys), position)]))
                continue
            longest = max(begun, key=lambda rival: len(rival.said.keys))
            longest.system = longest.system if longest.system.keys else system
            size = len(longest.said.keys)
            longest.said += Said(whole.messages[size:], whole.keys[size:], whole.ids[size:])
            longest.spans.append(span)
            longest.growth.append((len(whole.keys), position))
    return grown


def _same_system(one: Said, other: Said) -> bool:
    return not one.keys or not other.keys or one.keys == other.keys


class _Asked:
    """What LLM calls were asked, one after the other: most begin with all that the one before was asked."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.logged: list[Any] | str | dict[str, Any] = []
        self.count = 0
        """Messages in `logged`, as logged."""
        self.said = Said()

    def read(self, span: Span, notes: Notes) -> Said:
        """The messages that a span was asked; only those that are new are parsed and converted."""
        new, known = self._new(span, notes)
        start = self.count if known else 0
        more = _said(new, start, span, self.dialect, 0, notes)
        self.said = self.said + more if known else more
        self.logged, self.count = span.input, start + len(new)
        return self.said

    def _new(self, span: Span, notes: Notes) -> tuple[list[Any], bool]:
        """What comes after what is known; all of it where that is not how it begins."""
        logged, before = span.input, self.logged
        if isinstance(logged, list):
            known = isinstance(before, list) and bool(before) and logged[: len(before)] == before
            return logged[len(before) :] if known else logged, known
        if isinstance(logged, dict):
            return self._unfolded(logged)
        if isinstance(before, str) and self.count and before.endswith("]") and logged.startswith(before[:-1]):
            rest = logged[len(before) - 1 :].lstrip()
            if rest == "]":
                return [], True
            with suppress(ValueError, RecursionError):
                if rest.startswith(","):
                    return loads(f"[{rest[1:]}"), True
        with suppress(ValueError, RecursionError):
            value = loads(logged)
            if isinstance(value, list | dict):
                return value if isinstance(value, list) else [value], False
        notes.add("span_attribute_unreadable", f"span {span.span_id}: {self.dialect.names[0]}", line=span.record.line)
        return [], False

    def _unfolded(self, logged: dict[str, Any]) -> tuple[list[Any], bool]:
        """As `_new`, of flat attributes."""
        before = self.logged
        if isinstance(before, dict) and self.count and before.items() <= logged.items():
            new = self.dialect.unfold({key: value for key, value in logged.items() if key not in before})
            if all(number >= self.count for number in new):
                return [new[number] for number in sorted(new)], True
        new = self.dialect.unfold(logged)
        return [new[number] for number in sorted(new)], False


def _said(logged: list[Any], start: int, span: Span, dialect: Dialect, which: int, notes: Notes) -> Said:
    """Messages as logged, the first of which is number `start`, in the list that `dialect.names[which]` names."""
    said = Said()
    for index, message in enumerate(logged, start):
        where = f"span {span.span_id}: {dialect.names[which]}[{index}]"
        for plain in dialect.plain(message, where, notes):
            said.messages.append(plain)
            said.keys.append(_key(plain))
            said.ids.append(_ids(plain))
    return said


# --- tools ------------------------------------------------------------------------------------------------------------


def fill_in_results(
    grown: list[Trajectory],
    tools: list[Span],
    answered: list[Span],
    caller: Callable[[Span], Span | None],
    notes: Notes,
) -> None:
    """Put the results that only a tool's span has (`answered`, of all `tools`) after the calls they answer."""
    called: set[str | None] = set()
    for trajectory in grown:
        left = [span for span in answered if caller(span) is trajectory.owner]
        trajectory.said.messages = _filled(trajectory.said.messages, left, called, notes)
    for span in tools:
        if span.call_id is not None and span.call_id not in called:
            notes.add("span_tool_unmatched", f"span {span.span_id}", line=span.record.line)


def _filled(messages: list[Plain], left: list[Span], called: set[str | None], notes: Notes) -> list[Plain]:
    logged = [m.get("tool_call_id") for m in messages if isinstance(m, dict) and m.get("role") == "tool"]
    answered = Counter(call_id for call_id in logged if _is_text(call_id))
    if answered.total() < len(logged):
        left = []  # some results don't say what they answer, so we can't say what is missing
    filled: list[Plain] = []
    results: list[Plain] = []
    for message in messages:
        if results and not (isinstance(message, dict) and message.get("role") == "tool"):
            filled += results  # after the results that were logged, before whatever comes next
            results = []
        filled.append(message)
        for call_id, name in _calls(message):
            called.add(call_id)
            if call_id is not None and answered[call_id] > 0:
                answered[call_id] -= 1
            elif (span := _take(left, call_id, name)) is not None:
                notes.add("span_tool_result", f"span {span.span_id}", line=span.record.line)
                results.append(result_message(call_id, span.result, name))
    return filled + results


def result_message(call_id: Any, response: Any, name: Any) -> Plain:
    """A tool's result as an OpenAI-style message."""
    content = response if response is None or isinstance(response, str) else dumps(response)
    return {"role": "tool", "tool_call_id": call_id, "content": content, "name": name}


def _take(left: list[Span], call_id: str | None, name: Any) -> Span | None:
    """The span of a call: by id, else the first of the same tool where one of the two has no id."""
    for span in left:
        same_tool = span.tool_name == name and (call_id is None or span.call_id is None)
        if (call_id is not None and span.call_id == call_id) or same_tool:
            left.remove(span)
            return span
    return None


def _calls(message: Plain) -> list[tuple[str | None, Any]]:
    """(id, name) of every call in a message; an id that is no text is None."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    found = []
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            function = call.get("function")
            name = (function if isinstance(function, dict) else call).get("name")
            found.append((call.get("id") if _is_text(call.get("id")) else None, name))
    return found


# --- what is the same -------------------------------------------------------------------------------------------------


def _key(message: Plain) -> Any:
    """Equal for the same message logged twice: as an output and, later, as part of an input."""
    if not isinstance(message, dict):
        return (dumps(message),)
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else _words(content)
    calls = message.get("tool_calls")
    return (str(message.get("role")), text, tuple(map(_call_key, calls)) if isinstance(calls, list) else ())


def _words(content: Any) -> str:
    """Content in parts as the text it would be, if it is nothing but text."""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
    return dumps(content)


def _call_key(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    function = function if isinstance(function, dict) else call
    if not isinstance(function, dict):
        return dumps(call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = loads(arguments)
    return str(function.get("name")), dumps(arguments)


def _ids(message: Plain) -> Ids:
    if not isinstance(message, dict):
        return ()
    if message.get("tool_calls"):
        return tuple(call_id for call_id, _ in _calls(message))
    answers = message.get("tool_call_id")
    return (answers,) if _is_text(answers) else ()


def _agree(some: list[Ids], others: list[Ids]) -> bool:
    """Whether no two ids differ; a missing one may be any."""
    return some == others or not any(
        a is not None and b is not None and a != b
        for mine, its in zip(some, others, strict=True)
        for a, b in zip(mine, its, strict=False)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""
