"""Traces as tau-bench results: `{"task_id", "reward", "info", "traj", "trial"}`, one trace a record.

Branches are records of their own. What the format has no place for, and all that its reader would have to guess, is
under `info.rlkit`. `reward` is null where nobody scored the session. Times and reasoning are extra keys of a message.

Source: github.com/sierra-research/tau-bench (`EnvRunResult` in tau_bench/types.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlkit.logs.trace import Trace
from rlkit.logs.writers.openai import to_openai
from rlkit.logs.writers.steps import hashed


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """A record a trace; what came from a session names it in `info.rlkit.parent_id`."""
    for trace in traces:
        kept = to_openai(trace)
        messages = kept.pop("messages")
        known = trace.metadata
        info = known["info"] if isinstance(known.get("info"), dict) else {}
        yield {
            "task_id": known.get("task_id", int(hashed("task", traces[0].id, 4), 16)),
            "reward": trace.outcome.score,
            "info": info | {"rlkit": kept},
            "traj": messages,
            "trial": known.get("trial", 0),
        }
