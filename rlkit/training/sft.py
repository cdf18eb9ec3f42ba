"""The supervised warm start: next-token prediction of what the agent said in the logs, right and wrong alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from tqdm.auto import tqdm

from rlkit.config import Config
from rlkit.training.batch import collate
from rlkit.training.logprobs import policy_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class SFTConfig(Config):
    """The warm start's settings; the defaults suit the course's 0.17 M-parameter model."""

    steps: int = Field(1400, ge=1)
    batch_size: int = Field(32, ge=1)
    """Sessions a step."""
    learning_rate: float = Field(4e-3, gt=0)
    """Peak; linear warm-up over 50 steps, then linear decay to a tenth."""
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)
    seed: int = 0
    """Order of the sessions."""


def train_sft(
    model: PreTrainedModel, sessions: Sequence[tuple[np.ndarray, np.ndarray]], config: SFTConfig, progress: bool = True
) -> list[float]:
    """Train `model` in place on (token ids, action mask) pairs; returns the loss of every step, in nats a token.

    Raises `ValueError` where there are fewer sessions than one batch takes.
    """
    if len(sessions) < config.batch_size:
        raise ValueError(f"{len(sessions)} sessions are fewer than one batch of {config.batch_size}")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0) * (1 - 0.9 * step / config.steps)
    )
    rng = np.random.default_rng(config.seed)
    order: list[int] = []
    losses = []
    model.train()
    for _ in tqdm(range(config.steps), desc="warm start", unit="step", disable=not progress):
        if len(order) < config.batch_size:
            order = rng.permutation(len(sessions)).tolist()
        rows, order = order[: config.batch_size], order[config.batch_size :]
        batch = collate([sessions[i][0] for i in rows], [sessions[i][1] for i in rows], [1.0] * len(rows))
        loss = -policy_logprobs(model, batch).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return losses
