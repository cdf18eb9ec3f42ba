"""Draw tokens from logits, and say with which probability each was drawn. Pure functions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 (Steele, Lea & Flood 2014): a bijection on 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 [rows] in [0, 1): a hash of (seed, position), both uint64 [rows].

    Counter based: there is no state to share, so a draw depends on its own seed and position alone. It is the
    splitmix64 stream that starts at the mixed seed (mixed, so that neighbouring seeds share no stretch of it).
    """
    words = _mix(_mix(seeds + _GAMMA) + (positions + np.uint64(1)) * _GAMMA)
    return (words >> np.uint64(11)) * 2.0**-53


def truncate(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """bool [rows, vocab]: which tokens top-k and then top-p keep.

    `weights` [rows, vocab] are probabilities up to a factor per row; `top_k` [rows] int64 (0 keeps all),
    `top_p` [rows] in (0, 1]. Top-k keeps exactly k (of equal weights the lower id); top-p, on what top-k left
    and renormalised, keeps a token while the mass *before* it is below p: at least one, and the one that crosses p.
    """
    if weights.device.type == "cpu":  # numpy sorts floats with SIMD: thirty times as fast as torch does
        ranked = torch.from_numpy(np.sort(weights.numpy(), axis=-1)).flip(-1)
    else:
        ranked = weights.sort(dim=-1, descending=True).values
    rank = torch.arange(weights.shape[-1], device=weights.device)
    kept = (rank < top_k[:, None]) | (top_k[:, None] == 0)
    mass = (ranked * kept).cumsum(-1, dtype=torch.float64)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))  # mass - ranked would round
    kept &= (before < top_p[:, None] * mass[:, -1:]) | (top_p[:, None] >= 1)
    count = kept.sum(-1, keepdim=True)  # `kept` is a prefix of the ranks
    last = ranked.gather(-1, count - 1)
    above, equal = weights > last, weights == last
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def draw(
    logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, u: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Draw one token a row: int64 [rows] ids and float32 [rows] log q of each.

    `logits` float32 [rows, vocab]; the rest are [rows]. q is softmax(logits / temperature), truncated by top-k, then
    top-p, and renormalised; the id is where q's running sum, in vocabulary order, passes `u`. Temperature 0 is argmax
    with log q = 0. Raises `FloatingPointError` where a row has a NaN, a +inf or nothing but -inf.
    """
    greedy = temperature == 0
    if (temperature != 1).any():
        logits = (
            logits / torch.from_numpy(np.where(greedy, 1, temperature).astype(np.float32)).to(logits.device)[:, None]
        )
    weights = logits.softmax(-1)
    if bool(weights[:, 0].isnan().any()):  # a bad row is NaN from end to end
        raise FloatingPointError("logits are NaN or infinite")
    rows = np.flatnonzero(((top_k > 0) | (top_p < 1)) & ~greedy)
    if len(rows):
        index, k, p = (torch.from_numpy(x).to(logits.device) for x in (rows, top_k[rows], top_p[rows]))
        weights[index] *= truncate(weights[index], k, p)
    mass = weights.cumsum(-1, dtype=torch.float64)
    total = mass[:, -1:]
    # u * total may round up to total, past every token of positive weight; the first mass above a target below
    # total is where mass rises, so a token of zero weight is never drawn
    target = (torch.from_numpy(u).to(logits.device)[:, None] * total).minimum(total.nextafter(total.new_zeros(())))
    ids = torch.searchsorted(mass, target, right=True)
    logprobs = (weights.gather(-1, ids) / total).log().float()[:, 0]
    ids = ids[:, 0]
    if greedy.any():
        is_greedy = torch.from_numpy(greedy).to(logits.device)
        ids, logprobs = torch.where(is_greedy, logits.argmax(-1), ids), logprobs.masked_fill(is_greedy, 0.0)
    return ids, logprobs
