"""What tells one flaw of a judge from another: functions of verdicts, labels and lengths, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np

from rlkit.envs.judge import Better
from rlkit.stats import Interval, wilson

RESAMPLES = 4_000


def cohen_kappa(
    a: Sequence[bool],
    b: Sequence[bool],
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Agreement beyond chance, (p_o - p_e) / (1 - p_e) (Cohen 1960), with a percentile bootstrap over clusters.

    Where the two never disagree (or always do) the bootstrap shows no spread; the bounds are then those of Wilson's for
    p_o, put in the same formula. Where both say one thing only, kappa is nan in [-1, 1].
    """
    x, y = _bools(a, b)
    groups = _numbered(clusters, len(x))
    counts = np.zeros((int(groups.max(initial=-1)) + 1, 4))
    np.add.at(counts, (groups, 2 * x + y), 1)
    observed = float(_kappa(counts.sum(axis=0)))
    if math.isnan(observed):
        return Interval(-1.0, math.nan, 1.0)
    agreed = int((x == y).sum())
    if agreed in (0, len(x)):
        rate = wilson(len(counts) * (agreed > 0), len(counts), level)
        chance = float(x.mean() * y.mean() + (1 - x.mean()) * (1 - y.mean()))
        low, high = ((bound - chance) / (1 - chance) for bound in (rate.low, rate.high))
        return Interval(max(-1.0, low), observed, min(1.0, high))
    patterns, repeats = np.unique(counts, axis=0, return_counts=True)  # clusters that are alike are drawn alike
    drawn = np.random.default_rng(seed).multinomial(len(counts), repeats / len(counts), RESAMPLES) @ patterns
    low, high = np.nanquantile(_kappa(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Interval(min(observed, float(low)), observed, max(observed, float(high)))


def sensitivity(verdicts: Sequence[bool], labels: Sequence[bool], level: float = 0.95) -> Interval:
    """TPR: the share of the sessions that people call a success which the judge passes; Wilson's interval."""
    x, y = _bools(verdicts, labels)
    return wilson(int((x & y).sum()), int(y.sum()), level)


def specificity(verdicts: Sequence[bool], labels: Sequence[bool], level: float = 0.95) -> Interval:
    """TNR: the share of the sessions that people call a failure which the judge fails; Wilson's interval."""
    x, y = _bools(verdicts, labels)
    return wilson(int((~x & ~y).sum()), int((~y).sum()), level)


def leniency(verdicts: Sequence[bool], labels: Sequence[bool], level: float = 0.95) -> Interval:
    """TPR - TNR: above 0, failures are passed more often than successes are failed. Newcombe's hybrid score interval
    for a difference of independent rates (1998, method 10). Dice-throwing leaves it at 0."""
    p, q = sensitivity(verdicts, labels, level), specificity(verdicts, labels, level)
    low = math.hypot(p.mean - p.low, q.high - q.mean)
    high = math.hypot(p.high - p.mean, q.mean - q.low)
    difference = p.mean - q.mean
    if math.isnan(difference):
        return Interval(-1.0, math.nan, 1.0)
    return Interval(difference - low, difference, difference + high)


def corrected_rate(q: float, sensitivity: float, specificity: float) -> float:
    """The true rate behind a judge's pass rate q: (q + TNR - 1) / (TPR + TNR - 1), clipped to [0, 1] (Rogan & Gladen
    1978). Raises `ValueError` for TPR + TNR ≤ 1: such a judge says nothing about the rate."""
    if not all(0 <= rate <= 1 for rate in (q, sensitivity, specificity)):
        raise ValueError(f"rates must be in [0, 1], got {q}, {sensitivity}, {specificity}")
    if sensitivity + specificity <= 1:
        raise ValueError(f"sensitivity {sensitivity:.2f} + specificity {specificity:.2f} ≤ 1: no better than chance")
    return min(1.0, max(0.0, (q + specificity - 1) / (sensitivity + specificity - 1)))


def corrected_interval(
    passed: tuple[int, int],
    hits: tuple[int, int],
    rejections: tuple[int, int],
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """`corrected_rate` of three rates, each (successes, trials): verdicts passed, successes passed, failures failed.

    A parametric bootstrap draws all three anew, from Beta(k + ½, n - k + ½), which keeps its spread at 0 and at n, and
    treats them as independent: with q from the labelled sessions themselves it is somewhat too wide. Draws no better
    than chance count as knowing nothing: half of them as 0, half as 1. Raises `ValueError` as `corrected_rate` does.
    """
    rates = [k / n if n else math.nan for k, n in (passed, hits, rejections)]
    mean = corrected_rate(*rates)
    rng = np.random.default_rng(seed)
    q, tpr, tnr = (rng.beta(k + 0.5, n - k + 0.5, RESAMPLES) for k, n in (passed, hits, rejections))
    informed = tpr + tnr > 1
    draws = np.where(np.arange(RESAMPLES) % 2, 1.0, 0.0)
    draws[informed] = np.clip((q + tnr - 1)[informed] / (tpr + tnr - 1)[informed], 0, 1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(min(mean, float(low)), mean, max(mean, float(high)))


def length_bias(
    verdicts: Sequence[bool], labels: Sequence[bool], lengths: Sequence[float], level: float = 0.95
) -> Interval:
    """Rank correlation of length and verdict GIVEN the label: Somers' D in [-1, 1], above 0 where the longer passes.

    Of two sessions with one label, one passed and one failed: how much more often the longer was the one that passed
    than the one that failed. The labels' strata are weighed as van Elteren (1960) does, and the bounds use the variance
    without bias, (m + k + 1) / (3 m k) of m passed and k failed: never too narrow, wide far from 0, and nan in [-1, 1]
    where no label has both verdicts.
    """
    x, y = _bools(verdicts, labels)
    length = np.asarray(lengths, dtype=np.float64)
    total = weights = 0.0
    for label in (False, True):
        passed, failed = length[(y == label) & x], length[(y == label) & ~x]
        if len(passed) and len(failed):
            weight = 3 * len(passed) * len(failed) / (len(passed) + len(failed) + 1)
            total += weight * float(np.sign(passed[:, None] - failed[None, :]).mean())
            weights += weight
    if not weights:
        return Interval(-1.0, math.nan, 1.0)
    half = NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(weights)
    return Interval(max(-1.0, total / weights - half), total / weights, min(1.0, total / weights + half))


def rerun_noise(first: Sequence[bool], second: Sequence[bool], level: float = 0.95) -> Interval:
    """The share of sessions whose verdict changes between two runs; Wilson's interval."""
    x, y = _bools(first, second)
    return wilson(int((x != y).sum()), len(x), level)


def swap_consistency(forward: Sequence[Better], backward: Sequence[Better], level: float = 0.95) -> Interval:
    """The share of pairs where the judge names the same winner in both orders: `forward[i]` with a shown first,
    `backward[i]` with b shown first, a and b the same sessions in both. Wilson's interval."""
    same = sum(x == y for x, y in zip(forward, backward, strict=True))
    return wilson(same, len(forward), level)


def position_bias(forward: Sequence[Better], backward: Sequence[Better], level: float = 0.95) -> Interval:
    """The share of pairs that lean to what was shown first, less those that lean to the second.

    Dice make a judge inconsistent too, but lean nowhere. Agresti & Min's interval for matched pairs (2005), with half
    a pair added to each cell, keeps its width at 0.
    """
    of_first = {"a": 1, "tie": 0, "b": -1}
    leans = [of_first[x] - of_first[y] for x, y in zip(forward, backward, strict=True)]
    first, second, n = sum(x > 0 for x in leans), sum(x < 0 for x in leans), len(leans)
    centre = (first - second) / (n + 2)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(((first + second + 1) / (n + 2) - centre**2) / (n + 2))
    mean = (first - second) / n if n else math.nan
    return Interval(max(-1.0, centre - half), mean, min(1.0, centre + half))


def _kappa(counts: np.ndarray) -> np.ndarray:
    """Kappa of [..., 4] counts of (a, b) = 00, 01, 10, 11; nan where both say one thing only."""
    p = counts / counts.sum(axis=-1, keepdims=True)
    a, b, agreed = p[..., 2] + p[..., 3], p[..., 1] + p[..., 3], p[..., 0] + p[..., 3]
    chance = a * b + (1 - a) * (1 - b)
    return np.where(chance < 1, (agreed - chance) / np.where(chance < 1, 1 - chance, 1), np.nan)


def _bools(a: Sequence[bool], b: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    if len(a) != len(b) or not len(a):
        raise ValueError(f"expected as many of both and at least one, got {len(a)} and {len(b)}")
    return np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)


def _numbered(clusters: Sequence[Hashable] | None, n: int) -> np.ndarray:
    if clusters is None:
        return np.arange(n)
    if len(clusters) != n:
        raise ValueError(f"{n} values, {len(clusters)} clusters")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
