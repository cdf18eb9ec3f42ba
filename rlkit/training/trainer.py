"""`GRPOTrainer`: rollout groups in, one optimizer step, new weights out; checkpoints that resume bit for bit.

What is left out of GRPO as published: the KL penalty, the reference model, and several epochs over one batch. The
model stays in eval mode: dropout would make the trainer's policy another one than the sampler's.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import Field

from rlkit.config import Config
from rlkit.files import atomic_write, flush
from rlkit.models import CheckpointError, load_model, save_model
from rlkit.sampling.rollout import Rollout, RolloutGroup
from rlkit.training.advantages import Baseline, group_advantages
from rlkit.training.batch import collate, micro_batches
from rlkit.training.logprobs import policy_logprobs
from rlkit.training.loss import LOG_RATIO_LIMIT, LossInputs, LossOutputs, grpo_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class GRPOConfig(Config):
    """The trainer's settings; the defaults suit the course's 0.17 M-parameter model."""

    learning_rate: float = Field(8e-4, gt=0)
    """AdamW's, at the first step. Constant, 1e-3 is already shaky on the small model."""
    decay_steps: int = Field(0, ge=0)
    """The learning rate falls linearly to a tenth over this many steps, then stays there; 0 keeps it constant."""
    beta2: float = Field(0.99, gt=0, lt=1)
    """AdamW's second moment decay (the first is 0.9): a short memory, since gradients here change quickly."""
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    """The gradient's norm is clipped to this."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """The importance ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = Field(0.2, ge=0)
    baseline: Baseline = "mean"
    """What rewards of a group are compared with: `mean`, or `mean_std` to divide by the deviation as well."""
    truncated: Literal["zero", "mask"] = "zero"
    """A truncated rollout counts with its score of 0, or is left out of group and loss."""
    micro_batch_tokens: int = Field(8192, ge=1)
    """Padded tokens in one forward pass; changes memory and speed, not the result."""


class GRPOTrainer:
    """Owns the fp32 master weights and the optimizer. `version` counts steps: it names the weights they led to."""

    def __init__(self, model: PreTrainedModel, config: GRPOConfig) -> None:
        self.model = model.float().eval()
        self.config = config
        self.version = 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, betas=(0.9, config.beta2), weight_decay=config.weight_decay
        )

    def step(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """One optimizer step on the rollouts of all `groups`; returns metrics under `optim/` and `mismatch/`.

        The denominator is the number of action tokens of every unmasked rollout of the step. Rollouts whose advantage
        is zero have no gradient and are not run through the model. Where nothing has an advantage the weights stay
        as they are, momentum or not. Raises `ValueError` for rollouts sampled at temperature 0, `FloatingPointError`
        where the gradient is not finite.
        """
        started = time.perf_counter()
        rollouts, advantages, denominator = self._learn_from(groups)
        self.version += 1
        metrics = {"optim/action_tokens": float(denominator), "optim/trained_rollouts": float(len(rollouts))}
        if not rollouts:
            return metrics | {"optim/loss": 0.0, "optim/grad_norm": 0.0, "time/train_s": time.perf_counter() - started}
        self.optimizer.zero_grad(set_to_none=True)
        outputs = []
        lengths = [len(rollout.token_ids) for rollout in rollouts]
        for rows in micro_batches(lengths, self.config.micro_batch_tokens):
            outputs.append(self._loss([rollouts[i] for i in rows], advantages[rows], denominator))
            outputs[-1].loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if not norm.isfinite():
            raise FloatingPointError(f"the gradient's norm is {norm.item()} at step {self.version}: the run diverged")
        self._set_learning_rate()
        self.optimizer.step()
        metrics |= {"optim/grad_norm": norm.item(), "optim/learning_rate": self.optimizer.param_groups[0]["lr"]}
        return metrics | _summary(outputs) | {"time/train_s": time.perf_counter() - started}

    def _set_learning_rate(self) -> None:
        """A function of `version` (1 at the first step) alone, so that nothing about it has to be saved."""
        done = min(1.0, (self.version - 1) / self.config.decay_steps) if self.config.decay_steps else 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * (1 - 0.9 * done)

    def _learn_from(self, groups: Sequence[RolloutGroup]) -> tuple[list[Rollout], np.ndarray, int]:
        """(rollouts with an advantage, their advantages, action tokens of all unmasked rollouts)."""
        chosen: list[Rollout] = []
        advantages: list[float] = []
        action_tokens = 0
        for group in groups:
            masked = [self.config.truncated == "mask" and r.grade.status == "truncated" for r in group.rollouts]
            rewards = [None if mask else r.reward for mask, r in zip(masked, group.rollouts, strict=True)]
            for rollout, reward, advantage in zip(
                group.rollouts, rewards, group_advantages(rewards, self.config.baseline), strict=True
            ):
                if rollout.temperature == 0:
                    raise ValueError(f"rollout of {rollout.task_id}: greedy (temperature 0) has no policy gradient")
                action_tokens += rollout.action_tokens if reward is not None else 0
                if advantage != 0:
                    chosen.append(rollout)
                    advantages.append(float(advantage))
        return chosen, np.array(advantages), action_tokens

    def _loss(self, rollouts: list[Rollout], advantages: np.ndarray, denominator: int) -> LossOutputs:
        masks = [rollout.action_mask for rollout in rollouts]
        sequences = collate([r.token_ids for r in rollouts], masks, [r.temperature for r in rollouts])
        behaviour = np.concatenate([rollout.logprobs[rollout.action_mask] for rollout in rollouts])
        per_token = np.repeat(advantages.astype(np.float32), [mask.sum() for mask in masks])
        inputs = LossInputs(
            logprobs=policy_logprobs(self.model, sequences),
            behaviour_logprobs=torch.from_numpy(behaviour),
            advantages=torch.from_numpy(per_token),
        )
        return grpo_loss(inputs, denominator, self.config.clip_low, self.config.clip_high)

    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerFast) -> Path:
        """Write everything `resume` needs as a Hugging Face folder; it appears whole or not at all.

        Raises `FileExistsError` where `folder` exists, and `OSError` (a full disk, say) with nothing left behind.
        """
        folder = Path(folder)
        if folder.exists():
            raise FileExistsError(f"{folder}: a checkpoint is never written over another")
        partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            save_model(self.model, tokenizer, partial)
            _save_optimizer(self.optimizer, partial / "optimizer.safetensors")
            state = {"version": self.version, "config": self.config.model_dump(include=set(GRPOConfig.model_fields))}
            atomic_write(partial / "trainer.json", json.dumps(state, indent=1))
            for path in partial.iterdir():
                flush(path)
            partial.rename(folder)
            flush(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return folder

    @classmethod
    def resume(cls, folder: str | Path, config: GRPOConfig | None = None) -> GRPOTrainer:
        """A trainer that goes on exactly where `save` was called. Raises `CheckpointError` for an incomplete folder."""
        folder = Path(folder)
        model, _ = load_model(folder)
        missing = [name for name in ("optimizer.safetensors", "trainer.json") if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder}: nothing to resume from, it lacks {', '.join(missing)}")
        try:
            state = json.loads((folder / "trainer.json").read_bytes())
            trainer = cls(model, config or GRPOConfig(**state["config"]))
            trainer.version = int(state["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder}: trainer.json is damaged: {' '.join(str(error).split())}") from error
        _load_optimizer(trainer.optimizer, folder / "optimizer.safetensors")
        return trainer


def _summary(outputs: Sequence[LossOutputs]) -> dict[str, float]:
    """Means over the tokens that were trained on. k3 is the estimator r − 1 − log r of KL(q‖p), never negative."""
    log_ratio = torch.cat([output.log_ratio for output in outputs])
    return {
        "optim/loss": sum(output.loss.item() for output in outputs),
        "optim/clipped_share": sum(output.clipped.item() for output in outputs) / len(log_ratio),
        "mismatch/kl": -log_ratio.mean().item(),
        "mismatch/k3": (log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() - 1 - log_ratio).mean().item(),
        "mismatch/max_abs_log_ratio": log_ratio.abs().max().item(),
    }


def _save_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    from safetensors.torch import save

    state = optimizer.state_dict()["state"]
    atomic_write(path, save({f"{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}))


def _load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Raises `CheckpointError` unless there are moments for every parameter, or for none (no step was taken yet)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    state: dict[int, dict[str, torch.Tensor]] = {}
    try:
        for name, tensor in load_file(path).items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    parameters = optimizer.param_groups[0]["params"]
    moments = {(i, name): p.shape for i, p in enumerate(parameters) for name in ("exp_avg", "exp_avg_sq")}
    found = {(i, name): tensor.shape for i, entry in state.items() for name, tensor in entry.items() if tensor.dim()}
    if state and moments != found:
        raise CheckpointError(f"{path}: does not hold the optimizer's state of this model")
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
