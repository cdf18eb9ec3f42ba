"""How two JSON values differ, field by field, and which of many differences are one and the same drift.

A field renamed after the logs were taken makes every result that holds it different. That is one finding with a
count, not hundreds of mismatches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

SYSTEMATIC = 0.8
"""The share of the results that hold a field from which its difference is a drift."""
LEAST = 3
"""Fewer results than this are no pattern."""

Change = Literal["renamed", "missing", "added", "type", "value", "length"]


_SCHEMA = ("renamed", "missing", "added", "type")


class Difference(NamedTuple):
    """One field that is not as it was recorded; list positions in `path` are `*`."""

    change: Change
    path: str
    """As recorded; for an added field as replayed; for a renamed one `recorded → replayed`, its last part only."""
    recorded: Any
    replayed: Any


@dataclass(frozen=True)
class Finding:
    """One thing that is systematically otherwise in the environment than it was in production."""

    kind: str
    """`renamed`, `missing`, `added`, `type`, `value`, `length`, `tool`, `error` or `latency`."""
    subject: str
    """The field, or the tool."""
    tools: Sequence[str]
    count: int
    """Recorded calls that show it."""
    of: int
    """Recorded calls that could have."""
    example: str

    def __str__(self) -> str:
        where = f" in {', '.join(self.tools)}" if self.kind not in ("tool", "error", "latency") else ""
        return f"{self.kind} {self.subject}{where}: {self.count} of {self.of} calls, e.g. {self.example}"


Renaming = tuple[str, str, str]
"""(where, the name that is gone, the name that came)."""


def differences(recorded: Any, replayed: Any, votes: Mapping[Renaming, int] | None = None) -> list[Difference]:
    """Every field that differs; a field that is gone and one that came with the same value beside it are a renaming.

    Where several could be, the renaming with the most `votes` is taken (see `renamings`), else the first.
    """
    found = list(_walk(recorded, replayed, ()))
    taken: set[int] = set()
    for _, gone, came in sorted((-(votes or {}).get(key, 0), i, j) for key, i, j in _candidates(found)):
        if not taken & {gone, came}:
            taken |= {gone, came}
            one, name = found[gone], _name(found[came].path)[1]
            found[gone] = Difference("renamed", f"{_name(one.path)[1]} → {name}", one.recorded, one.recorded)
            found[came] = found[came]._replace(change="value", path="")  # said already
    return [d for n, d in enumerate(found) if n not in taken or d.change == "renamed"]


def renamings(recorded: Any, replayed: Any) -> set[Renaming]:
    """Every renaming that one result admits: over many results, the right one is admitted by most."""
    return {key for key, _, _ in _candidates(list(_walk(recorded, replayed, ())))}


def _candidates(found: Sequence[Difference]) -> Iterator[tuple[Renaming, int, int]]:
    came: dict[str, list[tuple[int, Difference]]] = defaultdict(list)
    for j, one in enumerate(found):
        if one.change == "added":
            came[_name(one.path)[0]].append((j, one))
    for i, gone in enumerate(found):
        where, name = _name(gone.path)
        for j, one in came[where] if gone.change == "missing" else ():
            if _kind(gone.recorded) == _kind(one.replayed) and gone.recorded == one.replayed:
                yield (where, name, _name(one.path)[1]), i, j


def _name(path: str) -> tuple[str, str]:
    where, _, name = path.rpartition(".")
    return where, name


def _walk(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    where = ".".join(path)
    if isinstance(a, dict) and isinstance(b, dict):
        for key, value in a.items():
            if key in b:
                yield from _walk(value, b[key], (*path, key))
            else:
                yield Difference("missing", ".".join((*path, key)), value, None)
        for key, value in b.items():
            if key not in a:
                yield Difference("added", ".".join((*path, key)), None, value)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield Difference("length", where, len(a), len(b))
        for one, other in zip(a, b, strict=False):
            yield from _walk(one, other, (*path, "*"))
    elif _kind(a) != _kind(b):
        yield Difference("type", where, a, b)
    elif a != b:
        yield Difference("value", where, a, b)


def _kind(value: Any) -> str:
    """JSON's types, in which 1 and 1.0 are both numbers."""
    if isinstance(value, bool) or value is None:
        return str(type(value).__name__)
    return "number" if isinstance(value, int | float) else type(value).__name__


def field_names(value: Any) -> set[str]:
    """Every name and dotted path in a JSON value; list positions are `*`, an object's path is there with `{}` too."""
    names: set[str] = set()

    def visit(value: Any, path: tuple[str, ...]) -> None:
        names.add(".".join(path))
        if isinstance(value, dict):
            names.add(".".join(path) + "{}")
            for key, inner in value.items():
                names.add(key)
                visit(inner, (*path, key))
        elif isinstance(value, list):
            for inner in value:
                visit(inner, (*path, "*"))

    visit(value, ())
    return names


def without(value: Any, fields: Iterable[str]) -> Any:
    """`value` less the fields named, by name (`updated_at`) or by dotted path (`order.updated_at`)."""
    unwanted = frozenset(fields)

    def copy(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            kept = ((k, v, (*path, k)) for k, v in value.items() if k not in unwanted)
            return {k: copy(v, place) for k, v, place in kept if ".".join(place) not in unwanted}
        if isinstance(value, list):
            return [copy(inner, (*path, "*")) for inner in value]
        return value

    return copy(value, ())


def schema_drift(calls: Iterable[tuple[str, Any, Sequence[Difference]]]) -> list[Finding]:
    """Findings over (tool, recorded result, its differences): fields renamed, missing, added, or of another type.

    A drift shows in at least `SYSTEMATIC` of a tool's results that could show it, tools apart, and in at least `LEAST`.
    """
    shown: dict[tuple[str, str], dict[str, list[Difference]]] = defaultdict(lambda: defaultdict(list))
    had: Counter[tuple[str, str]] = Counter()
    for tool, recorded, found in calls:
        had.update((tool, name) for name in field_names(recorded))
        for key, first in {(d.change, d.path): d for d in reversed(found) if d.change in _SCHEMA}.items():
            shown[key][tool].append(first)
    findings = []
    for (change, path), by_tool in shown.items():
        where = _name(path)[0] + "{}" if change == "added" else path.partition(" → ")[0]
        tools = sorted(tool for tool, places in by_tool.items() if len(places) >= SYSTEMATIC * had[tool, where])
        count = sum(len(by_tool[tool]) for tool in tools)
        if count >= LEAST:
            first = by_tool[tools[0]][0]
            example = {"type": f"{short(first.recorded)} → {short(first.replayed)}", "added": short(first.replayed)}
            told = example.get(change, short(first.recorded))
            of = sum(had[tool, where] for tool in tools)
            findings.append(Finding(change, path or "(all)", tools, count, of, told))
    return sorted(findings, key=lambda finding: -finding.count)


def unexplained(tool: str, differences: Iterable[Difference], findings: Iterable[Finding]) -> list[Difference]:
    """The differences of a tool's result that belong to no drift found in that tool."""
    known = {(finding.kind, finding.subject) for finding in findings if tool in finding.tools}
    return [d for d in differences if (d.change, d.path or "(all)") not in known]


def short(value: Any) -> str:
    """A value as text, cut after 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
