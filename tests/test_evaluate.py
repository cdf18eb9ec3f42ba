from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlkit.aio import run_to_end
from rlkit.envs.environment import InfrastructureError
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.mining import Mining, mine
from rlkit.envs.task import Task
from rlkit.evaluate import (
    compare,
    evaluate_policy,
    evaluate_traces,
    one_each,
    pass_k,
    pilot,
    play,
    success,
    success_by,
    trainable,
)
from rlkit.examples import support
from rlkit.examples.support.agents import Agent
from rlkit.examples.support.environment import GATEWAY_TIMEOUT
from rlkit.logs.trace import Message
from rlkit.sampling.rollout import Harness, Rollout
from rlkit.sampling.sampler import Completion, SamplingParams
from rlkit.stats import Interval, clustered_mean

PARAMS = SamplingParams()
RNG = random.Random(0)
TASKS = [support.sample_task(RNG) for _ in range(40)]


class Spoken:
    """A chat format in which one token is one whole message; the agent's messages are kept by their number."""

    end_id = 0

    def __init__(self) -> None:
        self.messages: list[list[Message]] = []

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        self.messages.append(list(messages))
        return [len(self.messages)]

    extension = prompt

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        return self.messages[token_ids[0] - 1][0]


class AgentSampler:
    """A scripted agent behind the sampler's protocol."""

    version = 0

    def __init__(self, agent: Agent, chat: Spoken) -> None:
        self.agent, self.chat = agent, chat
        self.seeds: list[int] = []

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None: ...

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AgentSampler]:
        yield self

    async def sample(self, token_ids: Sequence[int], params: SamplingParams) -> Completion:
        await asyncio.sleep(0)  # others go on meanwhile
        self.seeds.append(params.seed)
        said = self.agent([m for token in token_ids for m in self.chat.messages[token - 1]])
        ids = np.array(self.chat.prompt([said]), np.int32)
        return Completion(ids, np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")


def policy(agent: Agent) -> tuple[AgentSampler, Harness]:
    chat = Spoken()
    return AgentSampler(agent, chat), Harness(support.environment, support.rubric, chat)


def gives_up(messages: list[Message]) -> Message:
    """The oracle, but one timeout is enough for it to say nothing."""
    if any(GATEWAY_TIMEOUT in (m.content or "") for m in messages):
        return Message(role="assistant", content="")
    return support.oracle(messages)


def met_a_timeout(rollout: Rollout) -> bool:
    return GATEWAY_TIMEOUT in str(rollout.trace.messages)


# --- policies -----------------------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_every_task_and_trial_in_the_order_of_rollouts() -> None:
    results, rollouts = evaluate_policy(*policy(support.oracle), TASKS, PARAMS, trials=3)
    assert list(results.columns) == ["task", "trial", "status", "success", "score", "complaint", "outcome"]
    assert results["task"].tolist() == [task.id for task in TASKS for _ in range(3)]
    assert results["trial"].tolist() == [0, 1, 2] * 40
    assert [r.task_id for r in rollouts] == results["task"].tolist()
    assert results["success"].all()
    assert set(results["status"]) == {"success"}
    assert results["complaint"].tolist() == [task.tags["complaint"] for task in TASKS for _ in range(3)]


def test_two_policies_meet_the_same_luck() -> None:
    _, oracle = evaluate_policy(*policy(support.oracle), TASKS, PARAMS, trials=2)
    results, quitter = evaluate_policy(*policy(gives_up), TASKS, PARAMS, trials=2)
    assert [r.seed for r in oracle] == [r.seed for r in quitter]
    timed_out = [met_a_timeout(r) for r in oracle]
    assert 10 < sum(timed_out) < 70
    assert results["success"].tolist() == [not late for late in timed_out]


def test_trials_and_seeds_differ_in_their_luck() -> None:
    def timeouts(**settings: Any) -> list[bool]:
        rollouts = evaluate_policy(*policy(support.oracle), TASKS, PARAMS, **settings)[1]
        return [met_a_timeout(r) for r in rollouts]

    three = timeouts(trials=3)
    assert timeouts(trials=3) == three
    assert len({tuple(three[i::3]) for i in range(3)}) == 3
    assert timeouts(seed=0) != timeouts(seed=10**6)


def test_results_come_in_the_order_of_the_plan() -> None:
    sampler, harness = policy(support.oracle)
    plan = [(task, seed) for seed, task in enumerate(reversed(TASKS))]
    rollouts = run_to_end(play(sampler, harness, plan, PARAMS))
    assert [(r.task_id, r.seed) for r in rollouts] == [(task.id, seed) for task, seed in plan]


def test_an_error_in_one_episode_ends_them_all() -> None:
    def broken(messages: list[Message]) -> Message:
        raise RuntimeError("a bug in the agent")

    with pytest.raises(RuntimeError, match="a bug in the agent"):  # itself, not a group of three
        evaluate_policy(*policy(broken), TASKS[:3], PARAMS)


def test_it_runs_where_an_event_loop_runs_already() -> None:
    """As in a notebook."""

    async def cell() -> pd.DataFrame:
        return evaluate_policy(*policy(support.oracle), TASKS[:3], PARAMS)[0]

    assert asyncio.run(cell())["success"].all()


def test_run_to_end_passes_on_what_was_raised() -> None:
    async def fails() -> None:
        raise InfrastructureError("down")

    async def cell() -> None:
        run_to_end(fails())

    with pytest.raises(InfrastructureError, match="down"):
        run_to_end(fails())
    with pytest.raises(InfrastructureError, match="down"):
        asyncio.run(cell())


# --- production ---------------------------------------------------------------------------------------------------


def test_production_is_the_same_table() -> None:
    rng = random.Random(1)
    traces = [support.play(support.production_agent(rng), task, i, f"s{i}")[0] for i, task in enumerate(TASKS)]
    mining = mine(traces, support.task_from_trace, support.final_state, support.rubric)
    results = evaluate_traces(mining)
    assert list(results.columns) == ["task", "trial", "status", "success", "score", "complaint", "outcome"]
    assert len(results) == len(mining.sessions) == len(traces) - sum(mining.dropped.values())
    assert results["success"].sum() == sum(m.grade.status == "success" for m in mining.sessions)
    assert 0.2 < success(results).mean < 0.8


def test_nothing_to_evaluate_says_nothing_and_does_not_crash() -> None:
    empty = evaluate_traces(Mining())
    interval = success(empty)
    assert (interval.low, interval.high) == (0.0, 1.0)
    assert math.isnan(interval.mean)
    assert success(evaluate_policy(*policy(support.oracle), [], PARAMS)[0]).high == 1.0


# --- what is made of the table ------------------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "task": ["a", "a", "b", "b", "c", "c", "d"],
        "trial": [0, 1, 0, 1, 0, 1, 0],
        "status": ["success", "success", "failure", "success", "truncated", "infra_error", "grader_error"],
        "success": [True, True, False, True, False, False, False],
        "score": [1.0, 1.0, 0.5, 1.0, 0.0, None, None],
        "complaint": ["late", "late", "cold", "cold", "late", "late", "cold"],
        "outcome": ["deny", "deny", "voucher", "voucher", "voucher", "voucher", "voucher"],
    }
)


def test_success_leaves_masked_ones_out_and_clusters_by_task() -> None:
    interval = success(TABLE)
    assert interval.mean == pytest.approx(3 / 5)
    assert interval == clustered_mean([1.0, 1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b", "c"])
    assert 0 <= interval.low < 0.6 < interval.high <= 1
    narrow = success(TABLE, level=0.5)
    assert interval.low < narrow.low < narrow.high < interval.high


def test_repeating_a_task_does_not_narrow_the_interval() -> None:
    once = pd.DataFrame({"task": list("abcdefgh"), "success": [1, 0] * 4, "score": [1.0, 0.0] * 4})
    often = pd.concat([once] * 10)
    assert success(often).mean == success(once).mean
    assert success(often).low == pytest.approx(success(once).low, abs=1e-3)


def test_success_by_cell_by_hand() -> None:
    table = success_by(TABLE, ["complaint", "outcome"])
    assert table.loc[("late", "deny")].tolist() == [1.0, 2]
    assert table.loc[("late", "voucher")].tolist() == [0.0, 1]  # the infra error is no failure
    assert table.loc[("cold", "voucher")].tolist() == [0.5, 2]  # nor is the grader's
    assert list(table.columns) == ["success", "count"]
    assert success_by(TABLE, ["complaint"])["count"].to_dict() == {"late": 3, "cold": 2}


# --- one result each, pass@k and pass^k, A/B, the pilot ---------------------------------------------------------------


def results_of(successes: dict[str, list[bool | None]]) -> pd.DataFrame:
    rows = [
        {"task": task, "trial": trial, "status": "?", "success": bool(ok), "score": None if ok is None else float(ok)}
        for task, trials in successes.items()
        for trial, ok in enumerate(trials)
    ]
    return pd.DataFrame(rows)


def test_one_result_for_each_task_and_trial_or_an_error() -> None:
    results = results_of({"a": [True, False], "b": [True, None]})
    assert one_each(results) is results
    with pytest.raises(ValueError, match=r"1 \(task, trial\) pairs have several results, first 'a', 0"):
        one_each(pd.concat([results, results[:1]]))
    with pytest.raises(ValueError, match=r"1 \(task, trial\) pairs have no result, first 'b', 1"):
        one_each(results[:3])


def test_pass_at_k_and_pass_hat_k_are_means_over_tasks() -> None:
    table = pass_k(results_of({"a": [True] * 4, "b": [True, True, False, False], "c": [False] * 4}), ks=(1, 2, 4))
    assert [interval.mean for interval in table["pass@k"]] == pytest.approx([1 / 2, 11 / 18, 2 / 3])
    assert [interval.mean for interval in table["pass^k"]] == pytest.approx([1 / 2, 7 / 18, 1 / 3])
    assert all(interval.low <= interval.mean <= interval.high for interval in table["pass^k"])


def test_masked_trials_are_no_failures_of_pass_k() -> None:
    table = pass_k(results_of({"a": [True, None], "b": [True, True]}), ks=(1, 2))
    assert [interval.mean for interval in table["pass^k"]] == [1, 1]
    assert list(table["tasks"]) == [2, 1]
    with pytest.raises(ValueError, match="no task has 3 scored trials"):
        pass_k(results_of({"a": [True, None]}), ks=(3,))


def test_a_comparison_is_paired_and_refuses_what_is_not_the_same() -> None:
    a = results_of({str(n): [n % 2 == 0, n % 2 == 0] for n in range(40)})
    b = results_of({str(n): [True, n % 2 == 0] for n in range(40)})
    difference = compare(a, b)
    assert difference.mean == 0.25
    assert 0 < difference.low < 0.25 < difference.high < 0.5
    assert compare(a, a) == Interval(0, 0, 0)
    with pytest.raises(ValueError, match="not the same"):
        compare(a, results_of({"other": [True, True]}))
    masked = results_of({"a": [True, None]})
    assert compare(masked, results_of({"a": [False, True]})).mean == -1


def test_two_pilots_give_the_same_difficulties_and_say_what_can_be_trained_on() -> None:
    """The desk's gateway times out by the episode's seed: an agent that never tries again passes some trials only."""
    tasks = TASKS[:20]

    def run() -> list[Task]:
        sampler, harness = policy(gives_up)
        return pilot(sampler, harness, tasks, PARAMS, trials=6)

    first, second = run(), run()
    assert [task.difficulty for task in first] == [task.difficulty for task in second]
    assert [task.model_copy(update={"difficulty": None}) for task in first] == tasks
    mixed, rest = trainable(first)
    assert 0 < len(mixed) < 20
    assert all(task.difficulty is not None and 0 < task.difficulty < 1 for task in mixed)
    assert {task.difficulty for task in rest} <= {0, 1}
    assert sorted(t.id for t in mixed + rest) == sorted(t.id for t in tasks)


def test_a_task_whose_pilot_could_not_be_scored_has_no_difficulty_and_is_set_aside() -> None:
    sampler, harness = policy(support.oracle)
    broken = Harness(harness.environment, Rubric("r", [Check("odd", 1, lambda *_: math.nan)]), harness.chat)
    (task,) = pilot(sampler, broken, TASKS[:1], PARAMS, trials=2)
    assert task.difficulty is None
    assert trainable([task]) == ([], [task])
