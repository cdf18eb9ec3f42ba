"""`Check`, `Rubric`, `Grade`: one layer scores rollouts and production traces.

A rubric is a few named, weighted checks. Each is a function of (task, trace, final state), so whatever made the
trace (a rollout, a log, a person) is graded by the same call. A check that breaks is the grader's fault: it masks
the rollout, and never becomes a zero that the agent would learn from. A check that waits for something else (a
judge) is a coroutine function; `Rubric.grade_async` waits for all of a rubric's checks at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import math
import pickle
import reprlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any, Literal

from rlkit.aio import run_to_end
from rlkit.envs.environment import State
from rlkit.envs.task import Task
from rlkit.logs.trace import Status, Trace

Ending = Literal["completed", "truncated", "infra_error"]

SCORED: tuple[Status, ...] = ("success", "failure", "truncated")


class GraderDown(Exception):
    """A grader failed so often in a row that going on wastes rollouts: the one error of a check that propagates."""


@dataclass(frozen=True)
class Verdict:
    """A score made of parts, each in [0, 1]: what a judge says, criterion by criterion."""

    score: float
    parts: Mapping[str, float] = field(default_factory=dict)


Said = float | bool | Verdict


@dataclass(frozen=True)
class Check:
    """One thing to look at; `run` returns a score in [0, 1], a bool, or a `Verdict`. It may be a coroutine function."""

    name: str
    weight: float
    """Relative to the other checks of the rubric; positive."""
    run: Callable[[Task, Trace, State], Said | Awaitable[Said]]
    version: str = ""
    """What the score depends on besides the code, such as a judge's prompt and model; part of `Rubric.version`."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"check {self.name!r}: the weight must be positive and finite, got {self.weight}")


@dataclass(frozen=True)
class CheckResult:
    """What one check said: a score, or the error that kept it from saying one."""

    name: str
    score: float | None
    weight: float
    error: str | None = None
    parts: dict[str, float] = field(default_factory=dict)
    """The parts of a `Verdict`."""


@dataclass(frozen=True)
class Grade:
    """How a session ended and what it is worth."""

    status: Status
    score: float | None
    """In [0, 1]; None where nobody can say (`infra_error`, `grader_error`)."""
    checks: list[CheckResult]
    rubric: str
    """`Rubric.version` of the rubric that said so."""

    @property
    def reward(self) -> float | None:
        """What the trainer learns from; None masks the rollout, which is not the same as 0."""
        return self.score if self.status in SCORED else None


@dataclass(frozen=True)
class Rubric:
    """Weighted checks and the score from which a session counts as a success.

    Raises `ValueError` for no checks, two of one name, weights that do not add up to a finite sum, or a threshold
    outside (0, 1].
    """

    name: str
    checks: Sequence[Check]
    threshold: float = 1 - 1e-6
    """All checks passed, up to rounding: the default of τ²-bench."""

    def __post_init__(self) -> None:
        names = [check.name for check in self.checks]
        if not names:
            raise ValueError(f"rubric {self.name!r}: no checks")
        if len(set(names)) < len(names):
            raise ValueError(f"rubric {self.name!r}: two checks share a name: {', '.join(names)}")
        if not sum(check.weight for check in self.checks) < math.inf:
            raise ValueError(f"rubric {self.name!r}: the weights add up to more than a float holds")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"rubric {self.name!r}: the threshold must be in (0, 1], got {self.threshold}")

    @cached_property
    def version(self) -> str:
        """`name@digest` of the checks' names, weights and versions, and the threshold, in any order of checks.

        The code of the checks is not in it: give a check whose meaning changed another name or version.
        """
        told = ((c.name, float(c.weight), c.version) if c.version else (c.name, float(c.weight)) for c in self.checks)
        parts = [sorted(told), float(self.threshold)]
        return f"{self.name}@{hashlib.blake2b(json.dumps(parts).encode(), digest_size=4).hexdigest()}"

    def grade(self, task: Task, trace: Trace, final_state: State, status: Ending = "completed") -> Grade:
        """Run every check and weigh the scores; `trace` may be a rollout's or a production log's.

        - `completed`: the weighted mean; `success` from `threshold` on, else `failure`.
        - `truncated` (a budget ran out: turns, tokens, time): score 0, since stopping in time is the agent's
          doing. The checks run, so that their scores can be looked at; a trainer may mask the status instead.
        - `infra_error`: score None, and no check runs, as there is nothing sound to look at.
        - A check that raises, or returns anything but a number in [0, 1], turns the grade into `grader_error`
          with score None, truncated or not; the other checks still run and keep their scores.

        Every check gets its own copy of all three, so that one which changes them harms nobody (pickle copies in
        a third of `deepcopy`'s time).
        """
        begun = self._begin(task, trace, final_state, status)
        waits = any(not isinstance(result, CheckResult) for result in begun)
        return self._weigh(run_to_end(_all(begun)) if waits else _done(begun), status)

    async def grade_async(self, task: Task, trace: Trace, final_state: State, status: Ending = "completed") -> Grade:
        """`grade` inside an event loop: checks that wait, wait side by side."""
        return self._weigh(await _all(self._begin(task, trace, final_state, status)), status)

    def _begin(self, task: Task, trace: Trace, final_state: State, status: Ending) -> list[Begun]:
        if status == "infra_error":
            return []
        if status not in ("completed", "truncated"):
            raise ValueError(f"status must be completed, truncated or infra_error, got {status!r}")
        given = pickle.dumps((task, trace, final_state), pickle.HIGHEST_PROTOCOL)
        return [_begin(check, *pickle.loads(given)) for check in self.checks]

    def _weigh(self, results: list[CheckResult], status: Ending) -> Grade:
        if status == "infra_error":
            return Grade("infra_error", None, [], self.version)
        scores = [result.score for result in results if result.score is not None]
        if len(scores) < len(results):
            return Grade("grader_error", None, results, self.version)
        if status == "truncated":
            return Grade("truncated", 0.0, results, self.version)
        weights = [check.weight for check in self.checks]
        score = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
        return Grade("success" if score >= self.threshold else "failure", score, results, self.version)


Begun = CheckResult | Awaitable[CheckResult]


def _begin(check: Check, task: Task, trace: Trace, state: State) -> Begun:
    """Run a check, or the part of it before it waits.

    Here and in `_wait` everything is caught: checks are user code, and their failure is a result.
    """
    try:
        said = check.run(task, trace, state)
        return _wait(check, said) if inspect.isawaitable(said) else _result(check, said)
    except GraderDown:
        raise
    except Exception as problem:
        return _broke(check, problem)


async def _wait(check: Check, said: Awaitable[Said]) -> CheckResult:
    try:
        return _result(check, await said)
    except GraderDown:
        raise
    except Exception as problem:
        return _broke(check, problem)


async def _all(begun: Iterable[Begun]) -> list[CheckResult]:
    async def one(result: Begun) -> CheckResult:
        return result if isinstance(result, CheckResult) else await result

    return list(await asyncio.gather(*map(one, begun)))


def _done(begun: Iterable[Begun]) -> list[CheckResult]:
    return [result for result in begun if isinstance(result, CheckResult)]


def _result(check: Check, said: Any) -> CheckResult:
    value, parts = (said.score, dict(said.parts)) if isinstance(said, Verdict) else (said, {})
    odd = [number for number in (value, *parts.values()) if not _is_score(number)]
    if odd:
        error = f"returned {reprlib.repr(odd[0])}, expected a number in [0, 1]"
        return CheckResult(check.name, None, check.weight, error)
    return CheckResult(check.name, float(value), check.weight, parts={k: float(v) for k, v in parts.items()})


def _is_score(value: Any) -> bool:
    number = isinstance(value, Real) or type(value).__name__ == "bool"  # numpy's bool is no Real
    try:
        return number and bool(0 <= value <= 1)  # NaN fails the comparison
    except Exception:  # a number of the user's own making
        return False


def _broke(check: Check, problem: Exception) -> CheckResult:
    return CheckResult(check.name, None, check.weight, f"{type(problem).__name__}: {problem}")
