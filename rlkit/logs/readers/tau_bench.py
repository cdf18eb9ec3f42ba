"""tau-bench results: one trajectory a record, `{"task_id", "reward", "info", "traj", "trial"}`, a JSON array a file.

The trace's id is `task_id/trial`, its outcome the reward: 1 is a success, all below a failure, as the benchmark counts.
Two rewards of 0 are nobody's verdict. A run that reached the cap on its steps was never graded (`info.reward_info` is
null): it is `truncated`, and keeps its 0 as the score, which pass^k counts. A run that crashed (`info.error`) is an
`infra_error` without a score. The tools offered are not in the file. Fields as in github.com/sierra-research/tau-bench
(`EnvRunResult` in tau_bench/types.py); our own writer puts what has no place there under `info.rlkit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rlkit.logs.readers.kept import Ids, kept_in, restored
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import object_of, read_each
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Outcome, Trace


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and isinstance(record.get("traj"), list) and "task_id" in record


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a record; a record without any message is counted in `report` and skipped."""
    return read_each(source, report, partial(_to_trace, Ids()))


def _to_trace(ids: Ids, record: Record, notes: Notes) -> Trace | None:
    value = object_of(record, notes)
    if value is None:
        return None
    logged = value.get("traj")
    messages = parse_messages(logged, notes, "traj") if isinstance(logged, list) else []
    if not messages:
        notes.add("no_messages", "traj")
        return None
    kept = kept_in(value.get("info"))
    if kept is not None:
        fields = restored(kept, notes)
    else:
        metadata = {key: item for key, item in value.items() if key not in ("traj", "reward")}
        fields = {"outcome": _outcome(value, notes), "metadata": metadata}
    if "id" not in fields:
        fields["id"] = ids.new(_id(record, notes), notes)
    return Trace(messages=messages, source=record.place, raw=value, diagnostics=notes, **fields)


def _id(record: Record, notes: Notes) -> str:
    """`task_id/trial`, or where the task has none `file.json[7]`."""
    task, trial = (record.value.get(key) for key in ("task_id", "trial"))
    if isinstance(task, int | str):
        return f"{task}/{trial}" if isinstance(trial, int | str) else str(task)
    notes.add("id_missing", "task_id")
    return Path(record.place).name


def _outcome(value: dict[str, Any], notes: Notes) -> Outcome:
    info = value.get("info")
    info = info if isinstance(info, dict) else {}
    if isinstance(info.get("error"), str):
        return Outcome(status="infra_error", source="tau-bench")
    outcome = parse_reward(value.get("reward"), "tau-bench", notes, "reward")
    if outcome.status == "failure" and "reward_info" in info and info["reward_info"] is None:
        outcome.status = "truncated"
    return outcome


def parse_reward(reward: Any, source: str, notes: Notes, path: str) -> Outcome:
    """A reward in [0, 1] as these benchmarks judge it: a success from 1 - 1e-6 on, else a failure."""
    outcome = parse_outcome(reward, source, notes, path)
    if outcome.status == "unknown" and outcome.score is not None:
        outcome.status = "failure"
    return outcome
