"""Two ways to do one thing, timed in alternation: the ratio pair by pair holds where the machine's speed drifts."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch


def tokens_per_second(play: Callable[[], int]) -> float:
    """`play` returns how many tokens it sampled."""
    start = time.perf_counter()
    return play() / (time.perf_counter() - start)


def summary(sampler: list[float], generate: list[float]) -> dict[str, float]:
    """Medians of both sides in tokens/s, the least and the median ratio; the first pair warmed up and is left out."""
    ours, theirs = np.array(sampler[1:]), np.array(generate[1:])
    return {
        "repeats": len(ours),
        "threads": torch.get_num_threads(),
        "sampler_tokens_per_s": round(float(np.median(ours))),
        "generate_tokens_per_s": round(float(np.median(theirs))),
        "ratio_min": round(float((ours / theirs).min()), 2),
        "ratio_median": round(float(np.median(ours / theirs)), 2),
    }
