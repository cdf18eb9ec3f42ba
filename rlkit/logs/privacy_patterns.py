"""What `privacy` looks at besides the patterns of `personal_data`: names, fields, escapes, what was given away."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from rlkit.logs.personal_data import PHONE_WORDS, SECRET_WORDS, Hit, Kind, phone_value
from rlkit.logs.trace import Trace

_LITERAL = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ESCAPE = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.", re.DOTALL)  # of a pair one character
_IS_KEY = re.compile(r'\\*"\s*:')
_BARE_PHONE = re.compile(r"(?<![\w.+\-])\+?\d{7,15}(?![\w\-]|\.\d)", re.ASCII)

_FEW_PHONES = 16


class Edit(NamedTuple):
    """A piece of a text and what stands there instead."""

    start: int
    end: int
    new: str


def apart(taken: Sequence[Hit | Edit], others: Iterable[Hit]) -> list[Hit]:
    """Those of `others`, in order, that overlap neither what is taken (in order too) nor one another."""
    ends = [piece.end for piece in taken]
    kept: list[Hit] = []
    for hit in sorted(others):
        after = bisect_right(ends, hit.start)
        free = after == len(taken) or taken[after].start >= hit.end
        if free and (not kept or kept[-1].end <= hit.start):
            kept.append(hit)
    return kept


def edits_in_literals(text: str, edits_of: Callable[[str], list[Edit]]) -> Iterator[Edit]:
    """What stands in quotes and has JSON's escapes: decoded, searched, and the edits where they are in the text."""
    at = 0
    while (quote := text.find('"', at)) >= 0 and (found := _LITERAL.match(text, quote)):
        literal, at = found[0], found.end()
        if "\\" not in literal:
            continue
        try:
            edits = edits_of(json.loads(literal, strict=False))
        except (ValueError, RecursionError):
            continue
        if not edits:
            continue
        escapes = list(_ESCAPE.finditer(literal))
        longer = [0, *accumulate(escape.end() - escape.start() - 1 for escape in escapes)]
        decoded = [escape.start() - 1 - extra for escape, extra in zip(escapes, longer, strict=False)]
        for edit in edits:
            start, end = (quote + 1 + place + longer[bisect_left(decoded, place)] for place in edit[:2])
            yield Edit(start, end, json.dumps(edit.new, ensure_ascii=literal.isascii())[1:-1])


def words_of_tools(trace: Trace) -> frozenset[str]:
    """The names of the trace's tools and of their parameters."""
    words = {call.name for call in trace.tool_calls}
    words.update(name for tool in trace.tools if isinstance(name := tool.get("name"), str))
    waiting: list[Any] = list(trace.tools)
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if isinstance(properties := item.get("properties"), dict):
                words.update(properties)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return frozenset(words)


def is_word(text: str, hit: Hit, words: Collection[str]) -> bool:
    """Whether a name is a part of one of these words, or all of it where it is a key of JSON."""
    start, end = hit.start, hit.end
    while start and _in_word(text[start - 1]):
        start -= 1
    while end < len(text) and _in_word(text[end]):
        end += 1
    whole = (start, end) == (hit.start, hit.end)
    return text[start:end] in words and (not whole or _IS_KEY.match(text, end) is not None)


def _in_word(char: str) -> bool:
    return char.isalnum() or char in "_-"


def looks_secret(text: str) -> bool:
    """Whether it can be looked for where nothing says that it is one: no word of the language, no mere number."""
    return len(text) >= 6 and any(map(str.isdigit, text)) and not re.fullmatch(r"[\d\W_]+", text)


def given_away(text: str, phones: Collection[str], secrets: Iterable[str]) -> Iterator[Hit]:
    """Where values stand, whole, that something elsewhere gave away."""
    if len(phones) > _FEW_PHONES or any(phone in text for phone in phones):  # a few are quicker looked for
        for found in _BARE_PHONE.finditer(text):
            value = phone_value(found[0])
            if value is not None and value in phones:
                yield Hit(found.start(), found.end(), "phone", value)
    for secret in secrets:
        at = text.find(secret)
        while at >= 0:
            end = at + len(secret)
            if not (text[max(0, at - 1) : at].isalnum() or text[end : end + 1].isalnum()):
                yield Hit(at, end, "secret", secret)
            at = text.find(secret, end)


# --- names and fields -------------------------------------------------------------------------------------------------


_FEW_WORDS = 24  # first words that are quicker looked for one by one
_NAME_WORDS = re.compile(r"[^\W_]+")


def name_finder(names: Iterable[str]) -> Callable[[str], Iterator[Hit]]:
    """Finds whole names in any case, the longest first; words may be joined by spaces, dots, hyphens or underscores."""
    known: dict[str, list[str]] = {}
    for name in sorted({" ".join(name.lower().split()) for name in names} - {""}, key=len, reverse=True):
        if first := _NAME_WORDS.search(name):
            known.setdefault(first[0], []).append(name)
    firsts = frozenset(known)
    patterns: dict[tuple[str, ...], re.Pattern[str]] = {}

    def find(text: str) -> Iterator[Hit]:
        lower = text.lower()
        if len(firsts) <= _FEW_WORDS:
            present = tuple(first for first in firsts if first in lower)
        else:
            present = tuple(firsts.intersection(_NAME_WORDS.findall(lower)))
        if not present:
            return
        if present not in patterns:
            spelled = sorted((name for first in present for name in known[first]), key=len, reverse=True)
            joined = "|".join(r"[\s_.\-]{1,3}".join(map(re.escape, name.split(" "))) for name in spelled)
            patterns[present] = re.compile(rf"(?<![^\W_])(?:{joined})(?![^\W_])", re.IGNORECASE)
        for found in patterns[present].finditer(text):
            yield Hit(found.start(), found.end(), "name", re.sub(r"[\s_.\-]+", " ", found[0].lower()))

    return find


_PHONE_FIELD = re.compile(
    rf"(?:.*[^a-z])?(?:[a-z]*phone|{PHONE_WORDS})s?(?:[ _-]?(?:numbers?|no|nr|home|work|private|raw|e164|\d+))*"
)
_ABOUT_SECRETS = re.compile(r".*(?:policy|required|reset|length|strength|hint|enabled|count|expir\w*|[ _-]at)")


@lru_cache(4096)
def kind_of_field(key: str) -> Kind | None:
    """What the name of a field promises: a phone number (not `hotel_id`), a secret, or nothing."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    if re.search(SECRET_WORDS, words) and not _ABOUT_SECRETS.fullmatch(words):
        return "secret"
    return "phone" if _PHONE_FIELD.fullmatch(words) else None
