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
from rlkit.stats import Interval, clustered_mean, paired_bootstrap, pass_at_k, pass_hat_k

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


def pilot(
    sampler: Sampler,
    harness: Harness,
    tasks: Sequence[Task],
    params: SamplingParams,
    trials: int = 8,
    seed: int = 0,
    progress: str = "",
) -> list[Task]:
    """The tasks with their difficulty: the share of `trials` rollouts that failed; None where none could be scored.

    The same sampler weights, tasks and seed give the same difficulties.
    """
    results, _ = evaluate_policy(sampler, harness, tasks, params, trials, seed, progress)
    scored = results[results["score"].notna()]
    failed = 1 - scored.groupby("task")["success"].mean()
    return [
        task.model_copy(update={"difficulty": float(failed[task.id]) if task.id in failed.index else None})
        for task in tasks
    ]


def trainable(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """(tasks the pilot sometimes passed and sometimes failed, the rest): a group of rollouts that are all right or all
    wrong has no advantage to learn from. The rest is kept for evaluation, and may become trainable later."""
    mixed = [task.difficulty is not None and 0 < task.difficulty < 1 for task in tasks]
    return [t for t, m in zip(tasks, mixed, strict=True) if m], [t for t, m in zip(tasks, mixed, strict=True) if not m]


def one_each(results: pd.DataFrame) -> pd.DataFrame:
    """`results`, where every task has exactly one row for each trial, scored or not.

    Raises `ValueError` naming a (task, trial) that is there twice, or missing.
    """
    import pandas as pd

    counts = results.groupby(["task", "trial"]).size()
    if (counts > 1).any():
        task, trial = counts[counts > 1].index[0]
        raise ValueError(f"{int((counts > 1).sum())} (task, trial) pairs have several results, first {task!r}, {trial}")
    wanted = pd.MultiIndex.from_product([results["task"].unique(), sorted(results["trial"].unique())])
    missing = [pair for pair in wanted if pair not in counts.index]
    if len(missing):
        task, trial = missing[0]
        raise ValueError(f"{len(missing)} (task, trial) pairs have no result, first {task!r}, {trial}")
    return results


def pass_k(results: pd.DataFrame, ks: Sequence[int] = (1, 2, 4), level: float = 0.95) -> pd.DataFrame:
    """pass@k (one of k trials succeeds) and pass^k (all do), with intervals over tasks: a row a k.

    Columns `pass@k`, `pass^k` (`Interval`) and `tasks`, those with at least k scored trials. Raises `ValueError` as
    `one_each` does, and for a k that no task has the trials for.
    """
    import pandas as pd

    scored = one_each(results)
    by_task = scored[scored["score"].notna()].groupby("task")["success"].agg(["sum", "size"])
    rows = []
    for k in ks:
        enough = by_task[by_task["size"] >= k]
        if enough.empty:
            raise ValueError(f"no task has {k} scored trials")
        counts = [(int(c), int(n)) for c, n in enough.itertuples(index=False)]
        row = {
            name: clustered_mean([of(c, n, k) for c, n in counts], list(enough.index), level)
            for name, of in (("pass@k", pass_at_k), ("pass^k", pass_hat_k))
        }
        rows.append({**row, "tasks": len(enough)})
    return pd.DataFrame(rows, pd.Index(ks, name="k"))


def compare(a: pd.DataFrame, b: pd.DataFrame, seed: int = 0, level: float = 0.95) -> Interval:
    """Success of b less that of a on the same (task, trial) pairs, by a bootstrap over tasks.

    Pairs of which one is masked (infrastructure, grader) are left out. Raises `ValueError` as `one_each` does, and
    where the two do not hold the same pairs.
    """
    both = one_each(a).merge(one_each(b), on=["task", "trial"], suffixes=("_a", "_b"))
    if not len(a) == len(b) == len(both):
        raise ValueError(f"not the same (task, trial) pairs: {len(a)} and {len(b)}, {len(both)} in both")
    both = both[both["score_a"].notna() & both["score_b"].notna()]
    first, second = (both[name].astype(float).tolist() for name in ("success_a", "success_b"))
    return paired_bootstrap(first, second, both["task"].tolist(), seed, level)


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
