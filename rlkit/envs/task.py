"""`Task`: one thing the agent should get right. `TaskSet`: tasks split so that nothing leaks."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rlkit.files import atomic_write
from rlkit.logs.trace import Message

Split = Literal["train", "heldout"]


class Task(BaseModel):
    """Prompt, initial state and goal of one episode.

    `state` and `goal` are plain JSON whose meaning belongs to the environment and its rubric.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    messages: list[Message]
    """What the agent sees before its first turn."""
    state: dict[str, Any]
    """The world at the start; the agent sees it only through tools."""
    goal: dict[str, Any] = Field(default_factory=dict)
    """What the checks compare the end with."""
    tags: dict[str, str] = Field(default_factory=dict)
    """For tables: `{"complaint": "cold", "outcome": "voucher"}`."""
    keys: list[str] = Field(default_factory=list)
    """What this task shares with others (`user:u12`, `order:4821`): two tasks that share a key, or their id,
    are never on different sides of a split."""
    difficulty: float | None = None
    """Share of pilot rollouts that failed, where a pilot was run."""
    source_trace_ids: list[str] = Field(default_factory=list)

    @field_validator("tags")
    @classmethod
    def _no_column(cls, value: dict[str, str]) -> dict[str, str]:
        taken = {"task", "trial", "status", "success", "score"} & value.keys()
        if taken:
            raise ValueError(f"a tag cannot be called {', '.join(sorted(taken))}: tables of results have that column")
        return value

    @field_validator("state", "goal")
    @classmethod
    def _plain_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except TypeError as error:
            raise ValueError(f"not plain JSON: {error}") from None
        if not same:
            raise ValueError("not plain JSON: a tuple or a key that is not text would not survive a snapshot")
        return value


class LeakError(ValueError):
    """A held-out task shares a key with a training task."""


class TaskSet(BaseModel):
    """Training and held-out tasks that share no key; the constructor proves it.

    A shared key is a `LeakError` that names it; pydantic raises it inside its `ValidationError` (a `ValueError`).
    """

    train: list[Task]
    heldout: list[Task]
    aside: list[Task] = Field(default_factory=list)
    """Tasks on neither side, since they share a key with both."""

    def model_post_init(self, _context: object) -> None:
        sides = self.train, self.heldout
        train, heldout = ({key for task in side for key in _keys(task)} for side in sides)
        shared = train & heldout
        if shared:
            some = ", ".join(sorted(shared)[:5])
            raise LeakError(f"{len(shared)} keys are on both sides of the split: {some}")

    def counts(self, tag: str) -> dict[str, Counter[str]]:
        """How many tasks of each value of `tag`, a side."""
        sides = {"train": self.train, "heldout": self.heldout}
        return {side: Counter(task.tags.get(tag, "?") for task in tasks) for side, tasks in sides.items()}


def split_tasks(tasks: Iterable[Task], heldout_share: float, seed: int = 0, by: str | None = None) -> TaskSet:
    """Split so that no key is on both sides.

    Without `by`, by connected components of shared keys: a component is held out where the hash of its smallest key
    and `seed` falls below `heldout_share`, so that adding tasks later moves only tasks of the components they join. The
    share is of components; where a few keys join most tasks, one side may stay empty, which warns.

    With `by`, the part before the colon of one kind of key (`phrase`), components are those of that kind alone, and the
    training tasks that share any other key (a user, say) with a held-out one are set aside, in `TaskSet.aside`.
    """
    if not 0 <= heldout_share <= 1:
        raise ValueError(f"heldout_share must be in [0, 1], got {heldout_share}")
    tasks = list(tasks)
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    def joining(task: Task) -> list[str]:
        return [key for key in _keys(task) if by is None or key.partition(":")[0] in (by, "task")]

    for task in tasks:
        first, *others = joining(task)
        for key in others:
            parent[max(root(key), root(first))] = min(root(key), root(first))
    sides: dict[Split, list[Task]] = {"train": [], "heldout": []}
    for task in tasks:
        key = root(joining(task)[0])
        sides["heldout" if _unit_hash(f"{seed}:{key}") < heldout_share else "train"].append(task)
    heldout = {key for task in sides["heldout"] for key in _keys(task)}
    aside = [task for task in sides["train"] if not heldout.isdisjoint(_keys(task))]
    train = [task for task in sides["train"] if heldout.isdisjoint(_keys(task))]
    if 0 < heldout_share < 1 and len(tasks) >= 10 and not (train and sides["heldout"]):
        kinds = Counter(kind for task in tasks for kind in {key.partition(":")[0] for key in task.keys})
        warnings.warn(
            f"one side of the split is empty: shared keys join the {len(tasks)} tasks; choose the kind that must be "
            f"unseen with by=, out of {', '.join(sorted(kinds)) or 'none'}",
            stacklevel=2,
        )
    return TaskSet(train=train, heldout=sides["heldout"], aside=aside)


def write_tasks(tasks: Iterable[Task], path: str | Path) -> None:
    """One task a line, as JSON; the file appears whole or not at all."""
    atomic_write(path, "".join(task.model_dump_json() + "\n" for task in tasks))


def read_tasks(path: str | Path) -> list[Task]:
    """Read what `write_tasks` wrote. Raises `ValueError` naming file and line of a bad record."""
    tasks = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                tasks.append(Task.model_validate_json(line))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ValueError(f"{path}:{number}: not a task: {where}{': ' * bool(where)}{first['msg']}") from error
    return tasks


def _keys(task: Task) -> list[str]:
    """The task's keys and, last, its id: a task listed twice is on one side too."""
    return [*task.keys, f"task:{task.id}"]


def _unit_hash(text: str) -> float:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
