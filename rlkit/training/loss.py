"""The GRPO loss: one pure function over action tokens, end to end in one flat axis.

What is left out of the paper (arXiv 2402.03300, equation 3): the KL term to a reference policy, the division by
each rollout's own length (a length bias; here every token weighs the same) and the division by the group's standard
deviation unless asked for in `advantages`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log importance ratios are clamped to ±this before exp: exp(20) is 5e8, beyond it nothing is meant."""


@dataclass(frozen=True, eq=False)
class LossInputs:
    """Action tokens of one micro-batch."""

    logprobs: Float[Tensor, " tokens"]
    """log p: the trainer's policy, with gradient."""
    behaviour_logprobs: Float[Tensor, " tokens"]
    """log q: the sampler's, as sampled from."""
    advantages: Float[Tensor, " tokens"]
    """The advantage of the rollout that each token belongs to."""


@dataclass(frozen=True, eq=False)
class LossOutputs:
    """The loss to add up over micro-batches, and sums (not means) of what is worth watching."""

    loss: Float[Tensor, ""]
    clipped: Float[Tensor, ""]
    """Number of tokens whose gradient the clip removed."""
    log_ratio: Float[Tensor, " tokens"]
    """log p − log q, detached."""


def grpo_loss(inputs: LossInputs, denominator: float, clip_low: float = 0.2, clip_high: float = 0.2) -> LossOutputs:
    """−Σ min(r·A, clip(r, 1−clip_low, 1+clip_high)·A) / denominator, r = p/q (PPO's clipped objective per token).

    `denominator` is the number of action tokens of the whole optimizer step, all micro-batches together, so that
    cutting a batch differently changes nothing. Right after a weight update r is 1 and the gradient is that of
    plain policy gradient. Raises `ValueError` for a denominator below 1.
    """
    if denominator < 1:
        raise ValueError(f"denominator must be the step's action tokens, at least 1, got {denominator}")
    log_ratio = inputs.logprobs - inputs.behaviour_logprobs
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain = ratio * inputs.advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * inputs.advantages
    return LossOutputs(
        loss=-torch.minimum(plain, clipped).sum() / denominator,
        clipped=(clipped < plain).sum().float(),
        log_ratio=log_ratio.detach(),
    )
