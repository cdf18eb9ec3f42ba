"""Whether held-out tasks are really unseen: shared keys, sources and sessions, the same words or nearly the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from rlkit.envs.similar import NEAR, near_duplicates, normal_prompt
from rlkit.envs.task import Task

LeakKind = Literal["key", "source", "session", "prompt", "near_prompt", "canary"]


class Leak(NamedTuple):
    """A held-out task that a training task gives away."""

    kind: LeakKind
    train: str
    heldout: str
    evidence: str
    """What they share."""


def find_leaks(
    train: Sequence[Task], heldout: Sequence[Task], threshold: float = NEAR, canary: str | None = None
) -> list[Leak]:
    """Every way in which a held-out task is known from a training task: of each kind, the first training task that
    gives it away.

    - `key`, `source`: a shared key or id, a shared source trace. `session`: source traces of one session (`7` and its
      fork `7#1`; an id `7#1` is always read so).
    - `prompt`, `near_prompt`: what the user asked first is the same but for numbers, or at least `threshold` similar.
    - `canary`: a text that marks held-out data stands in a training task.
    """
    leaks = [
        *_shared("key", train, heldout, lambda task: [*task.keys, f"task:{task.id}"]),
        *_shared("source", train, heldout, lambda task: task.source_trace_ids),
    ]
    known = {(leak.train, leak.heldout) for leak in leaks if leak.kind == "source"}
    sessions = _shared("session", train, heldout, lambda task: [id.split("#")[0] for id in task.source_trace_ids])
    leaks += [leak for leak in sessions if (leak.train, leak.heldout) not in known]
    leaks += _prompts(train, heldout, threshold)
    if canary:
        told = json.dumps(canary, ensure_ascii=False)[1:-1]
        leaks += [Leak("canary", task.id, "", canary) for task in train if told in task.model_dump_json()]
    return leaks


def with_near_keys(tasks: Iterable[Task], threshold: float = NEAR) -> list[Task]:
    """The tasks with a key more, `near:…`, that near-duplicate prompts share, so that a split keeps them together."""
    tasks = list(tasks)
    groups = near_duplicates([normal_prompt(task.messages) for task in tasks], threshold=threshold)
    first: dict[int, str] = {}
    for task, group in zip(tasks, groups, strict=True):
        first.setdefault(group, normal_prompt(task.messages))
    return [
        task.model_copy(update={"keys": [*task.keys, f"near:{first[group]}"]})
        for task, group in zip(tasks, groups, strict=True)
    ]


def _shared(
    kind: LeakKind, train: Sequence[Task], heldout: Sequence[Task], values: Callable[[Task], Sequence[str]]
) -> list[Leak]:
    owner: dict[str, str] = {}
    for task in train:
        for value in values(task):
            owner.setdefault(value, task.id)
    found: dict[tuple[str, str], Leak] = {}
    for task in heldout:
        for value in values(task):
            if value in owner:
                found.setdefault((owner[value], task.id), Leak(kind, owner[value], task.id, value))
    return list(found.values())


def _prompts(train: Sequence[Task], heldout: Sequence[Task], threshold: float) -> list[Leak]:
    from rapidfuzz import fuzz, process

    owner: dict[str, str] = {}
    for task in train:
        owner.setdefault(normal_prompt(task.messages), task.id)
    known = list(owner)
    leaks = []
    for task in heldout:
        text = normal_prompt(task.messages)
        if not text.strip("# "):  # nothing was asked in words
            continue
        if text in owner:
            leaks.append(Leak("prompt", owner[text], task.id, text))
            continue
        best = process.extractOne(text, known, scorer=fuzz.ratio, score_cutoff=100 * threshold)
        if best is not None:
            leaks.append(Leak("near_prompt", owner[best[0]], task.id, f"{text!r} and {best[0]!r}"))
    return leaks
