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

Change = Literal["renamed", "missing", "added", "type", "value"]


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
    """`renamed`, `missing`, `added`, `type`, `value`, `tool`, `error` or `latency`."""
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


def differences(recorded: Any, replayed: Any) -> list[Difference]:
    """Every field that differs; a field that is gone and one that came with the same value beside it are a renaming."""
    found = list(_walk(recorded, replayed, ()))
    gone = [d for d in found if d.change == "missing"]
    came = [d for d in found if d.change == "added"]
    for one in gone:
        parent, _, name = one.path.rpartition(".")
        twin = next((d for d in came if d.path.rpartition(".")[0] == parent and d.replayed == one.recorded), None)
        if twin is not None:
            came.remove(twin)
            found.remove(twin)
            renamed = f"{name} → {twin.path.rpartition('.')[2]}"
            found[found.index(one)] = Difference("renamed", renamed, one.recorded, one.recorded)
    return found


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
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for one, other in zip(a, b, strict=True):
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
    """Every name and dotted path of a field in a JSON value; list positions are `*`."""
    names: set[str] = set()

    def visit(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                names.update((key, ".".join((*path, key))))
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

    A drift shows in at least `SYSTEMATIC` of the results that could show it, and in at least `LEAST`.
    """
    shown: dict[tuple[str, str], list[tuple[str, Difference]]] = defaultdict(list)
    had: Counter[str] = Counter()
    by_tool: Counter[str] = Counter()
    for tool, recorded, found in calls:
        by_tool[tool] += 1
        had.update(field_names(recorded))
        for key, first in {(d.change, d.path): d for d in reversed(found) if d.change != "value"}.items():
            shown[key].append((tool, first))
    findings = []
    for (change, path), places in shown.items():
        tools = sorted({tool for tool, _ in places})
        field = path.partition(" → ")[0]
        of = sum(by_tool[tool] for tool in tools) if change == "added" else max(had[field], len(places))
        if len(places) >= max(LEAST, SYSTEMATIC * of):
            _, first = places[0]
            example = f"{short(first.recorded)} → {short(first.replayed)}" if change == "type" else short(
                first.replayed if change == "added" else first.recorded
            )  # fmt: skip
            findings.append(Finding(change, path, tools, len(places), of, example))
    return sorted(findings, key=lambda finding: -finding.count)


def explained(differences: Iterable[Difference], findings: Mapping[tuple[str, str], Finding]) -> bool:
    """Whether every difference belongs to a drift already found, by (change, path)."""
    return all((d.change, d.path) in findings for d in differences)


def short(value: Any) -> str:
    """A value as text, cut after 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
