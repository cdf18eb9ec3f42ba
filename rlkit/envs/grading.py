"""`Check`, `Rubric`, `Grade`: one layer scores rollouts and production traces.

A rubric is a few named, weighted checks. Each is a pure function of (task, trace, final state), so whatever
made the trace (a rollout, a log, a person) is graded by the same call. A check that breaks is the grader's
fault: it masks the rollout, and never becomes a zero that the agent would learn from.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Literal

from rlkit.envs.environment import State
from rlkit.envs.task import Task
from rlkit.logs.trace import Status, Trace

Ending = Literal["completed", "truncated", "infra_error"]

SCORED: tuple[Status, ...] = ("success", "failure", "truncated")


@dataclass(frozen=True)
class Check:
    """One thing to look at; `run` returns a score in [0, 1], or a bool."""

    name: str
    weight: float
    """Relative to the other checks of the rubric; positive."""
    run: Callable[[Task, Trace, State], float | bool]

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
        """`name@digest` of check names, weights and threshold, in any order of checks.

        The code of the checks is not in it: give a check whose meaning changed another name.
        """
        parts = [sorted((check.name, float(check.weight)) for check in self.checks), float(self.threshold)]
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
        if status == "infra_error":
            return Grade("infra_error", None, [], self.version)
        if status not in ("completed", "truncated"):
            raise ValueError(f"status must be completed, truncated or infra_error, got {status!r}")
        given = pickle.dumps((task, trace, final_state), pickle.HIGHEST_PROTOCOL)
        results = [_run(check, *pickle.loads(given)) for check in self.checks]
        scores = [result.score for result in results if result.score is not None]
        if len(scores) < len(results):
            return Grade("grader_error", None, results, self.version)
        if status == "truncated":
            return Grade("truncated", 0.0, results, self.version)
        weights = [check.weight for check in self.checks]
        score = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
        return Grade("success" if score >= self.threshold else "failure", score, results, self.version)


def _run(check: Check, task: Task, trace: Trace, state: State) -> CheckResult:
    """The one place that catches everything: checks are user code, and their failure is a result."""
    try:
        value = check.run(task, trace, state)
        number = isinstance(value, Real) or type(value).__name__ == "bool"  # numpy's bool is no Real
        if number and 0 <= value <= 1:  # NaN fails the comparison
            return CheckResult(check.name, float(value), check.weight)
        error = f"returned {reprlib.repr(value)}, expected a number in [0, 1]"
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return CheckResult(check.name, None, check.weight, error)
