from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlkit.config import ConfigError
from rlkit.envs.grading import Check, Grade, Rubric
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.logs.trace import Message, ToolCall
from rlkit.loop import LoopConfig, Run, nothing_left, rollout_metrics, tasks_of_step, train
from rlkit.models import tiny_llama, train_tokenizer
from rlkit.sampling.chat import END, SPECIAL_TOKENS, ChatFormat, render_texts
from rlkit.sampling.rollout import Harness, RolloutGroup

STEPS = 6
SMALL = {"steps": STEPS, "prompts_per_step": 4, "rollouts_per_prompt": 4, "max_tokens": 24, "capacity": 192,
         "checkpoint_every": 2, "learning_rate": 2e-3}  # fmt: skip


class CallsFirst(ChatFormat):
    """Reads a call into the first turn, so that every episode has two."""

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        call = ToolCall(id="call_0", name="get_order", arguments={"id": "1234"})
        return dataclasses.replace(super().parse(token_ids, turn), tool_calls=[call] if turn == 0 else [])


class Setting:
    """Everything `train` takes, small: a random model that ends a turn every fifth token or so."""

    def __init__(self) -> None:
        rng = random.Random(0)
        self.tasks = [support.sample_task(rng) for _ in range(7)]
        said = [support.play(support.oracle, task, 0)[0].messages for task in self.tasks]
        self.tokenizer = train_tokenizer([t for m in said for t in render_texts(m)], SPECIAL_TOKENS, 128)
        self.model = tiny_llama(
            len(self.tokenizer), hidden_size=32, layers=1, initializer_range=0.2, tie_word_embeddings=False
        )
        end = self.tokenizer.convert_tokens_to_ids(END)
        with torch.no_grad():  # a component that all tokens share, and that the output layer reads as "end"
            self.model.model.embed_tokens.weight[:, 0] = 3
            self.model.lm_head.weight[:, 0] = 0
            self.model.lm_head.weight[end, 0] = 1.2
        self.chat = CallsFirst(self.tokenizer)
        self.rubric = Rubric("length", (Check("length", 1, lambda task, trace, state: _length(trace) % 4 / 3),))

    def train(
        self, folder: Path | None = None, rubric: Rubric | None = None, on_step: Any = None, **config: Any
    ) -> Run:
        harness = Harness(support.environment, rubric or self.rubric, self.chat)
        settings = LoopConfig(**SMALL | config)
        return train(self.model, self.tokenizer, harness, self.tasks, settings, folder, progress=False, on_step=on_step)


def _length(trace: Any) -> int:
    return len(trace.final_reply or "")


@pytest.fixture(scope="module")
def setting() -> Setting:
    torch.set_num_threads(1)  # children are forked: no thread pool may be alive
    return Setting()


@pytest.fixture(scope="module")
def whole(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path, float]:
    """The uninterrupted run, its folder, and how long it took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    started = time.perf_counter()
    return setting.train(folder), folder, time.perf_counter() - started


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of every step but for times."""
    text = (folder / "metrics.jsonl").read_text()
    return [timeless(json.loads(line)) for line in text.splitlines()]


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if not key.startswith("time/")}


def assert_same_run(run: Run, folder: Path, whole: tuple[Run, Path, float]) -> None:
    """Weights, optimizer, metrics and files are those of the uninterrupted run, bit for bit."""
    expected, expected_folder, _ = whole
    ours, theirs = run.trainer.model.state_dict(), expected.trainer.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    state, expected_state = (r.trainer.optimizer.state_dict()["state"] for r in (run, expected))
    assert all(torch.equal(state[i][key], expected_state[i][key]) for i in expected_state for key in expected_state[i])
    assert lines(folder) == lines(expected_folder)
    assert [timeless(m) for m in run.metrics] == [timeless(m) for m in expected.metrics]
    assert [p.name for p in (folder / "checkpoints").glob("step-*")] == [f"step-{STEPS:06d}"]


def in_a_child(body: Callable[[], Any], kill_after: float | None = None) -> int:
    """Run `body` in a forked process, killed after so many seconds; the signal that ended it, 0 where none did."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- a killed run -------------------------------------------------------------------------------------------------


def test_a_run_writes_one_line_a_step(whole: tuple[Run, Path, float]) -> None:
    run, folder, _ = whole
    assert [line["step"] for line in lines(folder)] == list(range(STEPS))
    assert run.trainer.version == STEPS
    assert {p.name for p in folder.iterdir()} == {"config.json", "metrics.jsonl", "checkpoints"}
    assert len({line["rollout/reward"] for line in lines(folder)}) > 1
    assert all(line["optim/grad_norm"] > 0 for line in lines(folder))


def test_the_same_seed_gives_the_same_run_with_or_without_a_folder(
    setting: Setting, whole: tuple[Run, Path, float]
) -> None:
    run = setting.train()
    assert [timeless(m) for m in run.metrics] == [timeless(m) for m in whole[0].metrics]
    assert timeless(setting.train(seed=1, steps=1).metrics[0]) != timeless(run.metrics[0])


def test_killed_at_random_moments_it_goes_on_as_if_nothing_had_been(
    setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path
) -> None:
    """Killed again and again in one folder, then left to end."""
    moments = random.Random(3)
    killed = [in_a_child(lambda: setting.train(tmp_path), whole[2] * moments.uniform(0.1, 0.7)) for _ in range(5)]
    assert killed.count(signal.SIGKILL) >= 1
    assert_same_run(setting.train(tmp_path), tmp_path, whole)


def kill_at_step(step: int) -> Callable[[Setting, Path], None]:
    """After the step's line is written, before its checkpoint."""

    def body(setting: Setting, folder: Path) -> None:
        setting.train(folder, on_step=lambda run: die() if len(run.metrics) == step else None)

    return body


def kill_around(owner: Any, name: str, before: bool) -> Callable[[Setting, Path], None]:
    """At the second call of `owner.name`, before it or after."""

    def body(setting: Setting, folder: Path) -> None:
        original, calls = getattr(owner, name), []

        def patched(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if before and len(calls) == 2:
                die()
            result = original(*args, **kwargs)
            if len(calls) == 2:
                die()
            return result

        setattr(owner, name, patched)  # in the child only
        setting.train(folder)

    return body


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(kill_at_step(1), id="before any checkpoint"),
        pytest.param(kill_at_step(4), id="with the step's line written, its checkpoint not"),
        pytest.param(kill_around(pathlib.Path, "rename", before=True), id="with the checkpoint written, not named"),
        pytest.param(kill_around(pathlib.Path, "rename", before=False), id="with two checkpoints in the folder"),
        pytest.param(kill_around(shutil, "rmtree", before=False), id="after a removal"),
    ],
)
def test_killed_at_a_checkpoint_boundary(
    setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path, killed: Callable[[Setting, Path], None]
) -> None:
    assert in_a_child(lambda: killed(setting, tmp_path)) == signal.SIGKILL
    assert_same_run(setting.train(tmp_path), tmp_path, whole)


def test_a_torn_line_is_written_again(setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path) -> None:
    setting.train(tmp_path, steps=3)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 3, "rollout/rew')
    assert_same_run(setting.train(tmp_path), tmp_path, whole)


def test_more_steps_continue_a_finished_run(setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path) -> None:
    setting.train(tmp_path, steps=5)
    assert_same_run(setting.train(tmp_path), tmp_path, whole)
    again = setting.train(tmp_path)  # nothing is left to do
    assert again.groups == []
    assert_same_run(again, tmp_path, whole)


def test_without_its_metrics_a_run_still_goes_on_from_its_checkpoint(
    setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path
) -> None:
    setting.train(tmp_path, steps=4)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.warns(UserWarning, match="holds 0 of 4 steps"):
        run = setting.train(tmp_path)
    assert [m["step"] for m in run.metrics] == [4, 5]
    expected = whole[0].trainer.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in run.trainer.model.state_dict().items())


def test_a_full_disk_leaves_the_last_checkpoint(
    setting: Setting, whole: tuple[Run, Path, float], tmp_path: Path
) -> None:
    setting.train(tmp_path, steps=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # no file may grow beyond
        with pytest.raises(OSError, match=r"."):
            setting.train(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]
    assert_same_run(setting.train(tmp_path), tmp_path, whole)


def test_a_folder_with_a_run_of_other_settings_is_refused(setting: Setting, whole: tuple[Run, Path, float]) -> None:
    before = lines(whole[1])
    with pytest.raises(ConfigError, match=r"other settings \(learning_rate, seed\)"):
        setting.train(whole[1], learning_rate=1e-3, seed=5)
    assert lines(whole[1]) == before


# --- the loop itself ----------------------------------------------------------------------------------------------


def test_no_tasks_is_a_config_error(setting: Setting) -> None:
    harness = Harness(support.environment, setting.rubric, setting.chat)
    with pytest.raises(ConfigError, match="no tasks"):
        train(setting.model, setting.tokenizer, harness, [], LoopConfig(**SMALL))


def test_the_given_model_is_not_touched(setting: Setting) -> None:
    before = {name: tensor.clone() for name, tensor in setting.model.state_dict().items()}
    run = setting.train(steps=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in setting.model.state_dict().items())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in run.trainer.model.state_dict().items())


def test_it_runs_where_an_event_loop_runs_already(setting: Setting, whole: tuple[Run, Path, float]) -> None:
    """As in a notebook."""

    async def cell() -> Run:
        return setting.train(steps=1)

    assert timeless(asyncio.run(cell()).metrics[0]) == timeless(whole[0].metrics[0])


def test_every_step_samples_from_the_weights_it_trains(whole: tuple[Run, Path, float]) -> None:
    run, folder, _ = whole
    for rollout in (r for g in run.groups for r in g.rollouts):
        assert set(rollout.versions[rollout.action_mask]) == {STEPS - 1}
    assert all(line["mismatch/max_abs_log_ratio"] < 1e-4 for line in lines(folder))
    assert all(line["optim/clipped_share"] == 0 for line in lines(folder))


def test_groups_are_rollouts_of_one_task_with_luck_of_their_own(whole: tuple[Run, Path, float]) -> None:
    groups = whole[0].groups
    assert [len(g.rollouts) for g in groups] == [4, 4, 4, 4]
    assert all(r.task_id == g.task.id for g in groups for r in g.rollouts)
    assert len({r.seed for g in groups for r in g.rollouts}) == 16


def test_metrics_stay_in_their_namespaces(whole: tuple[Run, Path, float]) -> None:
    for metrics in whole[0].metrics:
        assert {key.split("/")[0] for key in metrics} == {"rollout", "optim", "mismatch", "time", "step"}
        assert all("/" in key or key == "step" for key in metrics)
        assert all(isinstance(value, int | float) for value in metrics.values())


def test_on_step_sees_every_step(setting: Setting) -> None:
    seen: list[tuple[int, int]] = []
    setting.train(steps=3, on_step=lambda run: seen.append((len(run.metrics), run.trainer.version)))
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_it_learns_what_is_rewarded(setting: Setting) -> None:
    """The shortest reply: an empty one, at first about a fifth of all."""
    rubric = Rubric("silent", (Check("silent", 1, lambda task, trace, state: _length(trace) == 0),))
    run = setting.train(rubric=rubric, steps=15, prompts_per_step=8, rollouts_per_prompt=8, learning_rate=1e-2)
    rewards = [m["rollout/reward"] for m in run.metrics]
    assert rewards[0] < 0.5
    assert sum(rewards[-3:]) / 3 > 0.9


def test_a_policy_without_spread_or_entropy_stops_with_a_sentence(setting: Setting, tmp_path: Path) -> None:
    never = Rubric("never", (Check("never", 1, lambda task, trace, state: 0.0),))
    config = {"temperature": 1e-4, "steps": 50, "prompts_per_step": 2, "rollouts_per_prompt": 2}
    with pytest.warns(UserWarning, match="the policy is dead"):
        run = setting.train(tmp_path, rubric=never, **config)
    assert len(run.metrics) == 5
    assert run.stopped
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]
    with pytest.warns(UserWarning, match="the policy is dead"):
        assert len(setting.train(tmp_path, rubric=never, **config).metrics) == 5  # and stays stopped


def test_a_step_in_which_every_rollout_is_masked_is_survived(setting: Setting, tmp_path: Path) -> None:
    broken = Rubric("broken", (Check("broken", 1, lambda task, trace, state: 1 / 0),))
    run = setting.train(tmp_path, rubric=broken, steps=2)
    assert all(torch.equal(t, setting.model.state_dict()[n]) for n, t in run.trainer.model.state_dict().items())
    assert run.metrics[0]["rollout/grader_error"] == 1
    assert math.isnan(run.metrics[0]["rollout/reward"])
    again = setting.train(tmp_path, rubric=broken, steps=3)  # read back from JSON, where NaN is null
    assert [math.isnan(m["rollout/reward"]) for m in again.metrics] == [True] * 3


# --- its parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tasks", "count"), [(7, 3), (5, 5), (3, 8), (1, 4)])
def test_every_task_comes_once_an_epoch(tasks: int, count: int) -> None:
    pool = [Task(id=str(i), messages=[], state={}) for i in range(tasks)]
    order = [task.id for step in range(tasks * 2) for task in tasks_of_step(pool, count, step, seed=4)]
    epochs = [order[i : i + tasks] for i in range(0, len(order), tasks)]
    assert all(sorted(epoch) == sorted(task.id for task in pool) for epoch in epochs if len(epoch) == tasks)
    if tasks > 3:
        assert len({tuple(epoch) for epoch in epochs}) > 1
        assert order != [task.id for step in range(tasks * 2) for task in tasks_of_step(pool, count, step, seed=5)]


def entry(reward: float, flat: float = 1.0, entropy: float = 0.0) -> dict[str, float]:
    return {"rollout/reward": reward, "rollout/zero_variance_groups": flat, "rollout/entropy": entropy}


def test_nothing_left_tells_dead_from_solved_from_alive() -> None:
    assert "dead" in (nothing_left([entry(0.2)] * 5) or "")
    assert "solved" in (nothing_left([entry(1.0)] * 5) or "")
    assert nothing_left([entry(0.2)] * 4) is None
    assert nothing_left([entry(0.2)] * 4 + [entry(0.2, flat=0.9)]) is None
    assert nothing_left([entry(0.2, flat=0.9)] + [entry(0.2)] * 5) is not None
    assert nothing_left([entry(0.2, entropy=0.5)] * 5) is None
    assert nothing_left([]) is None


def test_rollout_metrics_by_hand(whole: tuple[Run, Path, float]) -> None:
    group = RolloutGroup(whole[0].groups[0].task, whole[0].groups[0].rollouts[:3])

    def graded(*grades: tuple[str, float | None]) -> RolloutGroup:
        return RolloutGroup(group.task, [
            dataclasses.replace(r, grade=Grade(status, score, [], "v"))  # type: ignore[arg-type]
            for r, (status, score) in zip(group.rollouts, grades, strict=True)
        ])  # fmt: skip

    one = graded(("success", 1.0), ("failure", 0.5), ("infra_error", None))
    two = graded(("truncated", 0.0), ("truncated", 0.0), ("grader_error", None))
    metrics = rollout_metrics([one, two])
    assert metrics["rollout/reward"] == pytest.approx(1.5 / 4)
    assert metrics["rollout/zero_variance_groups"] == 0.5
    assert metrics["rollout/success"] == pytest.approx(1 / 6)
    assert metrics["rollout/truncated"] == pytest.approx(2 / 6)
    assert metrics["rollout/infra_error"] == metrics["rollout/grader_error"] == pytest.approx(1 / 6)
    cell = "/".join(group.task.tags.values())
    assert metrics[f"rollout/success/{cell}"] == pytest.approx(1 / 4)
    spoken = [m for r in group.rollouts for m in r.trace.messages if m.role == "assistant"]
    assert metrics["rollout/turns"] == pytest.approx(len(spoken) / 3)
    tokens = sum(r.action_tokens for r in group.rollouts)
    assert metrics["rollout/action_tokens"] == pytest.approx(tokens / 3)
    assert metrics["rollout/entropy"] == pytest.approx(-sum(r.logprobs.sum() for r in group.rollouts) / tokens)
    assert Counter(key.split("/")[0] for key in metrics) == {"rollout": len(metrics)}
