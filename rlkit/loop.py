"""The whole loop, readable in one sitting: sample groups, take one optimizer step, hand the new weights over, repeat.

This is the synchronous loop: samplers wait for the trainer, so every rollout comes from the weights it trains. What
happens at step n depends on (seed, n) alone, so a run killed at any moment goes on from its last checkpoint as if
nothing had been.
"""

from __future__ import annotations

import math
import random
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
from pydantic import Field
from tqdm.auto import tqdm

from rlkit.aio import run_to_end
from rlkit.config import ConfigError
from rlkit.envs.task import Task
from rlkit.evaluate import play
from rlkit.files import atomic_write
from rlkit.sampling.rollout import Harness, Rollout, RolloutGroup
from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler
from rlkit.training.advantages import group_advantages
from rlkit.training.trainer import GRPOConfig, GRPOTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Metrics = dict[str, float]


class LoopConfig(GRPOConfig):
    """A run: the trainer's settings and the loop's."""

    steps: int = Field(150, ge=1)
    """Optimizer steps."""
    decay_steps: int = Field(150, ge=0)
    """The learning rate falls linearly to a tenth over this many steps, then stays there; 0 keeps it constant.
    At a constant 5e-4, in an earlier version of the course's world, one of two seeds fell from .86 at step 90 to .77 at
    step 120; what the decay alone is worth was not measured."""
    prompts_per_step: int = Field(16, ge=1)
    """Tasks in one step."""
    rollouts_per_prompt: int = Field(8, ge=2)
    """Rollouts of one task, compared with each other."""
    temperature: float = Field(1.0, ge=1e-4)
    """Of the rollouts; 1 samples the policy itself."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Below 1 the sampler's q is that of the kept tokens, while the trainer's p is of the whole vocabulary: the
    importance ratio is too small by the mass that was kept. Leave it at 1 unless that is what you want to see."""
    max_tokens: int = Field(48, ge=1)
    """At most this many tokens a turn."""
    capacity: int = Field(256, ge=2)
    """At most this many tokens a conversation."""
    seed: int = 0
    """Fixes the order of tasks, every draw and the environment's luck."""
    checkpoint_every: int = Field(20, ge=1)
    """Steps between checkpoints, where the run has a folder."""

    def sampling(self, end_id: int) -> SamplingParams:
        """How rollouts are drawn."""
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens, stop_token_ids=(end_id,)
        )


@dataclass
class Run:
    """What `train` leaves behind."""

    trainer: GRPOTrainer
    metrics: list[Metrics] = field(default_factory=list)
    """One entry a step, in the namespaces `rollout/ optim/ mismatch/ time/`."""
    groups: list[RolloutGroup] = field(default_factory=list)
    """The last step's rollouts, for looking at."""
    stopped: str | None = None
    """Why the run ended before its last step, if it did."""


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    harness: Harness,
    tasks: Sequence[Task],
    config: LoopConfig,
    folder: str | Path | None = None,
    progress: bool = True,
    on_step: Callable[[Run], None] | None = None,
) -> Run:
    """Improve a copy of `model` on `tasks`. With a `folder`, metrics and checkpoints go there, and an interrupted run
    goes on where its last checkpoint stands.

    `on_step` is called after every step. Raises `ConfigError` where `folder` holds a run of another config, and
    `OSError` (a full disk) with the last checkpoint intact.
    """
    if not tasks:
        raise ConfigError("no tasks to train on")
    journal = Journal(folder, config)
    run = Run(journal.trainer() or GRPOTrainer(_copy(model), config), journal.metrics)
    slots = config.prompts_per_step * config.rollouts_per_prompt
    sampler = TorchSampler(run.trainer.model, slots=slots, capacity=config.capacity)
    sampler.update_weights(run.trainer.model.state_dict(), run.trainer.version)
    first = run.trainer.version
    run.stopped = nothing_left(run.metrics)
    with tqdm(total=config.steps, initial=first, desc="GRPO", unit="step", disable=not progress) as bar:
        for step in range(first, config.steps):
            if run.stopped:
                break
            metrics = _step(run, sampler, harness, tasks, config, step)
            journal.append(metrics)
            bar.update()
            bar.set_postfix(reward=f"{metrics['rollout/reward']:.2f}", success=f"{metrics['rollout/success']:.2f}")
            if on_step is not None:
                on_step(run)
            run.stopped = nothing_left(run.metrics)
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == config.steps or run.stopped:
                journal.checkpoint(run.trainer, tokenizer)
    if run.stopped:
        warnings.warn(run.stopped, stacklevel=2)
    return run


def _step(
    run: Run, sampler: TorchSampler, harness: Harness, tasks: Sequence[Task], config: LoopConfig, step: int
) -> Metrics:
    """Sample, train, hand over the weights; the metrics are also added to `run`."""
    started = time.perf_counter()
    run.groups = run_to_end(collect(sampler, harness, tasks, config, step))
    sampled = time.perf_counter()
    metrics = run.trainer.step(run.groups)
    trained = time.perf_counter()
    sampler.update_weights(run.trainer.model.state_dict(), run.trainer.version)
    metrics |= rollout_metrics(run.groups) | {
        "step": step,
        "time/sample_s": sampled - started,
        "time/sync_s": time.perf_counter() - trained,
        "time/step_s": time.perf_counter() - started,
    }
    run.metrics.append(metrics)
    return metrics


async def collect(
    sampler: TorchSampler, harness: Harness, tasks: Sequence[Task], config: LoopConfig, step: int
) -> list[RolloutGroup]:
    """The rollout groups of one step."""
    size = config.rollouts_per_prompt
    chosen = tasks_of_step(tasks, config.prompts_per_step, step, config.seed)
    seeds = random.Random(f"{config.seed}:{step}")
    plan = [(task, seeds.getrandbits(48)) for task in chosen for _ in range(size)]
    rollouts = await play(sampler, harness, plan, config.sampling(harness.chat.end_id))
    return [RolloutGroup(task, rollouts[i * size : (i + 1) * size]) for i, task in enumerate(chosen)]


def tasks_of_step(tasks: Sequence[Task], count: int, step: int, seed: int) -> list[Task]:
    """`count` tasks: epoch after epoch, each in an order of its own, every task once an epoch."""
    chosen = []
    orders: dict[int, list[int]] = {}
    for position in range(step * count, (step + 1) * count):
        epoch, place = divmod(position, len(tasks))
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}:epoch:{epoch}").sample(range(len(tasks)), len(tasks))
        chosen.append(tasks[orders[epoch][place]])
    return chosen


def rollout_metrics(groups: Sequence[RolloutGroup]) -> Metrics:
    """What a step's rollouts look like; means leave masked rollouts out, shares are of all rollouts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = np.array([rollout.reward for rollout in rollouts if rollout.reward is not None] or [np.nan])
    by_cell: dict[str, list[bool]] = {}
    for group in groups:
        cell = by_cell.setdefault("/".join(group.task.tags.values()), [])
        cell += [r.grade.status == "success" for r in group.rollouts if r.reward is not None]
    flat = [not group_advantages([r.reward for r in group.rollouts]).any() for group in groups]
    actions = sum(rollout.action_tokens for rollout in rollouts)
    metrics = {
        "rollout/reward": float(rewards.mean()),
        "rollout/reward_std": float(rewards.std()),
        "rollout/zero_variance_groups": float(np.mean(flat)),
        "rollout/entropy": -sum(float(rollout.logprobs.sum()) for rollout in rollouts) / max(1, actions),
        "rollout/action_tokens": actions / len(rollouts),
        "rollout/tokens": float(np.mean([len(rollout.token_ids) for rollout in rollouts])),
        "rollout/turns": float(np.mean([_turns(rollout) for rollout in rollouts])),
    }
    for status in ("success", "truncated", "infra_error", "grader_error"):
        metrics[f"rollout/{status}"] = float(np.mean([rollout.grade.status == status for rollout in rollouts]))
    return metrics | {f"rollout/success/{cell}": float(np.mean(won)) for cell, won in sorted(by_cell.items()) if won}


def nothing_left(metrics: Sequence[Metrics], steps: int = 5, entropy: float = 0.02) -> str | None:
    """A sentence where `steps` steps in a row had no group with any spread and no entropy: nothing can change now."""
    last = metrics[-steps:]
    if len(last) < steps or any(m["rollout/zero_variance_groups"] < 1 or m["rollout/entropy"] > entropy for m in last):
        return None
    reward = float(np.mean([m["rollout/reward"] for m in last]))
    if reward > 0.99:
        return f"solved: every rollout of the last {steps} steps succeeded, there is nothing left to learn"
    return (
        f"the policy is dead: no spread within any group and no entropy for {steps} steps at reward {reward:.2f}; "
        "it will not recover, restart from an earlier checkpoint with a lower learning rate"
    )


class Journal:
    """A run's folder: `config.json`, `metrics.jsonl`, `checkpoints/step-…`. Without a folder, nothing is written."""

    def __init__(self, folder: str | Path | None, config: LoopConfig) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.metrics: list[Metrics] = []
        self._config = config
        if self.folder is None:
            return
        mine = config.model_dump(exclude={"steps", "checkpoint_every", "output"})  # how long and where is not what
        path = self.folder / "config.json"
        if path.exists():
            try:
                theirs = orjson.loads(path.read_bytes())
            except orjson.JSONDecodeError as error:
                raise ConfigError(f"{path}: not the config of a run: {error}") from None
            changed = [name for name in mine if mine[name] != theirs.get(name)]
            if changed:
                raise ConfigError(f"{self.folder}: holds a run with other settings ({', '.join(changed)})")
        else:
            atomic_write(path, orjson.dumps(mine, option=orjson.OPT_INDENT_2))

    def trainer(self) -> GRPOTrainer | None:
        """The trainer of the last checkpoint, if there is one; metrics of later steps are dropped, they come again."""
        if self.folder is None:
            return None
        checkpoints = self._checkpoints()
        trainer = GRPOTrainer.resume(checkpoints[-1], self._config) if checkpoints else None
        done = trainer.version if trainer else 0
        path = self.folder / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)[:done] if path.exists() else []
        try:
            for line in lines:  # NaN (the reward of a step with every rollout masked) is null in JSON
                self.metrics.append({key: math.nan if v is None else v for key, v in orjson.loads(line).items()})
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{path}:{len(self.metrics) + 1}: not a step's metrics: {error}") from None
        if len(lines) < done:
            warnings.warn(f"{path} holds {len(lines)} of {done} steps; the run goes on all the same", stacklevel=3)
        atomic_write(path, b"".join(lines))
        return trainer

    def append(self, metrics: Metrics) -> None:
        """Add a step's line to `metrics.jsonl`."""
        if self.folder is not None:
            path = self.folder / "metrics.jsonl"
            try:
                with open(path, "ab") as file:
                    file.write(orjson.dumps(metrics) + b"\n")
            except OSError as error:  # the error of a full disk does not say whose write it was
                raise OSError(error.errno, error.strerror, str(path)) from error

    def checkpoint(self, trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerFast) -> None:
        """Write this step's checkpoint, then remove those before it."""
        if self.folder is None:
            return
        older = self._checkpoints()
        trainer.save(self.folder / "checkpoints" / f"step-{trainer.version:06d}", tokenizer)
        for folder in older:
            shutil.rmtree(folder)

    def _checkpoints(self) -> list[Path]:
        assert self.folder is not None
        return sorted((self.folder / "checkpoints").glob("step-*"))


def _copy(model: PreTrainedModel) -> PreTrainedModel:
    import copy

    return copy.deepcopy(model)


def _turns(rollout: Rollout) -> int:
    return sum(message.role == "assistant" for message in rollout.trace.messages)
