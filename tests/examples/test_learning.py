"""What the course promises, run whole: the warm start's score, and what GRPO makes of it over three seeds."""

from __future__ import annotations

import random

import pytest

import rlkit
from rlkit.examples import support
from rlkit.examples.support.production import warm_start
from rlkit.examples.support.rubric import count_timeouts
from rlkit.workbench import Workbench


@pytest.fixture(scope="module")
def heldout() -> list[rlkit.Task]:
    rng = random.Random(2026)
    return [support.sample_task(rng, "heldout") for _ in range(1024)]


def play(model, tokenizer, tasks, temperature):
    harness = Workbench.load().harness(tokenizer)
    params = rlkit.SamplingParams(temperature=temperature, max_tokens=48, stop_token_ids=(harness.chat.end_id,))
    results, rollouts = rlkit.evaluate_policy(rlkit.TorchSampler(model), harness, tasks, params)
    timeouts = [count_timeouts(task, rollout.trace) for task, rollout in zip(tasks, rollouts, strict=True)]
    return results.assign(timed_out=[count > 0 for count in timeouts])


def branches_of(results):
    """Success of every branch of the policy: complaint × outcome, and trying again after a timeout."""
    branches = rlkit.success_by(results, ["complaint", "outcome"])["success"].to_dict()
    return branches | {"a timeout": rlkit.success(results[results["timed_out"]]).mean}


def test_the_warm_start_leaves_something_to_learn_and_something_to_learn_from(heldout):
    model, tokenizer = rlkit.load_model(rlkit.data_path("models/support-warm-start"))
    sampled, greedy = (play(model, tokenizer, heldout, temperature) for temperature in (1.0, 0.0))
    assert rlkit.success(sampled).mean <= 0.60
    assert rlkit.success(greedy).mean <= 0.80
    assert min(branches_of(sampled).values()) > 0.05  # RL cannot lift what never succeeds


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_grpo_lifts_every_branch(heldout, seed):
    model, tokenizer = rlkit.load_model(rlkit.data_path("models/support-warm-start"))
    workbench = Workbench.load()
    mining, _ = workbench.mine(rlkit.data_path("logs/support-2026-05.openai.jsonl.gz"), progress=False)
    tasks = rlkit.TaskSet(train=mining.tasks, heldout=heldout)
    run = rlkit.train(
        model, tokenizer, workbench.harness(tokenizer), tasks.train, rlkit.LoopConfig(seed=seed), progress=False
    )
    for temperature in (1.0, 0.0):
        results = play(run.trainer.model, tokenizer, heldout, temperature)
        branches = branches_of(results)
        worst = min(branches, key=branches.get)
        print(
            f"seed {seed}, temperature {temperature:g}: {rlkit.success(results)}, worst {branches[worst]:.2f} {worst}"
        )
        assert rlkit.success(results).mean >= 0.90
        assert branches[worst] > 0.75


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_warm_start_command_reproduces_its_score(heldout):
    shipped = play(*rlkit.load_model(rlkit.data_path("models/support-warm-start")), heldout, 1.0)
    again = play(*warm_start(progress=False), heldout, 1.0)
    before, after = rlkit.success(shipped), rlkit.success(again)
    assert after.low <= before.mean <= after.high
