"""Tasks × policy, or traces × rubric, → one table of results; success with intervals, cell by cell."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from rlkit.aio import run_to_end
from rlkit.envs.mining import Mining
from rlkit.envs.task import Task
from rlkit.sampling.rollout import Harness, Rollout, run_episode
from rlkit.sampling.sampler import Sampler, SamplingParams
from rlkit.stats import Interval, clustered_mean

if TYPE_CHECKING:
    import pandas as pd


async def play(
    sampler: Sampler, harness: Harness, plan: Sequence[tuple[Task, int]], params: SamplingParams, progress: str = ""
) -> list[Rollout]:
    """Run every (task, seed) of `plan` at once; results come in the plan's order. `progress` labels a bar."""
    bar = tqdm(total=len(plan), desc=progress, unit="episode", disable=not progress)

    async def one(task: Task, seed: int) -> Rollout:
        rollout = await run_episode(sampler, harness, task, params, seed)
        bar.update()
        return rollout

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, seed)) for task, seed in plan]
    except ExceptionGroup as group:  # what broke one episode breaks them all: say it once
        raise group.exceptions[0] from None
    finally:
        bar.close()
    return [task.result() for task in running]


def evaluate_policy(
    sampler: Sampler,
    harness: Harness,
    tasks: Sequence[Task],
    params: SamplingParams,
    trials: int = 1,
    seed: int = 0,
    progress: str = "",
) -> tuple[pd.DataFrame, list[Rollout]]:
    """Play every task `trials` times: (table with a row per task and trial, the rollouts in the same order).

    Columns: `task`, `trial`, `status`, `success`, `score`, and one for each tag. The environment's luck depends on
    `seed`, task and trial alone, so two policies meet the same timeouts.
    """
    plan = [(task, _episode_seed(seed, task.id, trial)) for task in tasks for trial in range(trials)]
    rollouts = run_to_end(play(sampler, harness, plan, params, progress))
    rows = [
        {"task": task.id, "trial": index % trials, **_row(rollout.grade.status, rollout.grade.score), **task.tags}
        for index, ((task, _), rollout) in enumerate(zip(plan, rollouts, strict=True))
    ]
    return _frame(rows), rollouts


def evaluate_traces(mining: Mining) -> pd.DataFrame:
    """The same table for production: a row for every session that could be rebuilt."""
    return _frame(
        [
            {"task": mined.task.id, "trial": 0, **_row(mined.grade.status, mined.grade.score), **mined.task.tags}
            for mined in mining.sessions
        ]
    )


def success(results: pd.DataFrame, level: float = 0.95) -> Interval:
    """Success rate with an interval clustered by task; infrastructure and grader errors are left out."""
    scored = results[results["score"].notna()]
    return clustered_mean(scored["success"].astype(float).tolist(), scored["task"].tolist(), level)


def success_by(results: pd.DataFrame, tags: Sequence[str]) -> pd.DataFrame:
    """Columns `success` and `count` for every combination of the tags."""
    scored = results[results["score"].notna()]
    groups = scored.groupby(list(tags))["success"]
    return groups.agg(["mean", "size"]).set_axis(["success", "count"], axis=1)


def _episode_seed(seed: int, task_id: str, trial: int) -> int:
    """Not the loop's seeds, and the same for a task whatever it is evaluated with."""
    return int.from_bytes(hashlib.blake2b(f"eval:{seed}:{task_id}:{trial}".encode(), digest_size=6).digest(), "big")


def _row(status: str, score: float | None) -> dict[str, object]:
    return {"status": status, "success": status == "success", "score": score}


def _frame(rows: Iterable[dict[str, object]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows) or {name: [] for name in ("task", "trial", "status", "success", "score")})
