"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Baseline = Literal["mean", "mean_std"]


def group_advantages(
    rewards: Sequence[float | None], baseline: Baseline = "mean", tolerance: float = 1e-6
) -> np.ndarray:
    """float64 [rollouts]: how much better each rollout of one task did than its group.

    `mean` subtracts the group's mean (Dr. GRPO, arXiv 2503.20783); `mean_std` also divides by the sample standard
    deviation (GRPO). A masked rollout (reward None) gets 0 and takes no part in the mean. A group whose rewards
    differ by no more than `tolerance`, or with fewer than two rewards, gets exactly zero, whatever the float noise.
    Raises `ValueError` for a reward that is not finite.
    """
    advantages = np.zeros(len(rewards))
    kept = [i for i, reward in enumerate(rewards) if reward is not None]
    values = np.array([rewards[i] for i in kept], np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite or None, got {list(rewards)}")
    if len(kept) < 2 or np.ptp(values) <= tolerance:
        return advantages
    values = values - values.mean()
    advantages[kept] = values / values.std(ddof=1) if baseline == "mean_std" else values
    return advantages
