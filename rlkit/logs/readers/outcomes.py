"""How a session ended, from the words and numbers that logs use for it."""

from __future__ import annotations

from typing import Any, cast, get_args

from rlkit.logs.report import Notes
from rlkit.logs.trace import Outcome, Status

_STATUSES = frozenset(get_args(Status))
_GOOD = {"up", "thumbs_up", "positive", "good", "pass", "passed", "correct", "resolved", "yes", "👍"}
_BAD = {"down", "thumbs_down", "negative", "bad", "fail", "failed", "incorrect", "unresolved", "no", "👎"}


def parse_outcome(value: Any, source: str, notes: Notes, path: str) -> Outcome:
    """Read an outcome: `{"status", "score", "source"}`, a word (`thumbs_up`, `failed`), a bool, or a score in [0, 1].

    A score of 1 is a success and 0 a failure; what lies between, and what is not understood, stays unknown. Under a
    label that is not understood a score may mean anything: 1 for `hallucinated` is no success.
    """
    if not isinstance(value, dict):
        return _judged(_understood(value, notes, path), source)
    if isinstance(value.get("source"), str):
        source = value["source"]
    logged = _first(value, "status", "label", "rating", "thumbs")
    label = _understood(logged, notes, path)
    score = _understood(_first(value, "score", "value"), notes, path)
    if label is None:
        judged = _judged(score, source)
        return judged if logged is None else judged.model_copy(update={"status": "unknown"})
    said = _judged(label, source)
    return Outcome(status=said.status, score=score if isinstance(score, float) else said.score, source=source)


def _first(value: dict[str, Any], *keys: str) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _understood(value: Any, notes: Notes, path: str) -> float | Status | None:
    """A score in [0, 1], a status, or None (diagnosed unless it was null)."""
    if isinstance(value, str):
        word = value.strip().lower().replace(" ", "_")
        if word in _STATUSES:
            return cast(Status, word)
        if word in _GOOD or word in _BAD:
            return 1.0 if word in _GOOD else 0.0
    elif isinstance(value, int | float) and 0 <= value <= 1:  # True and False too
        return float(value)
    if value is not None:
        notes.add("outcome_unreadable", path, f"{str(value)[:80]!r} is no outcome we understand, so it stays unknown.")
    return None


def _judged(said: float | Status | None, source: str) -> Outcome:
    if said is None:
        return Outcome()
    if isinstance(said, str):
        return Outcome(status=said, source=source)
    status: Status = "success" if said >= 1 - 1e-6 else "failure" if said == 0 else "unknown"
    return Outcome(status=status, score=said, source=source)
