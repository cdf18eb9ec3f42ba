"""Intervals and pass@k against numbers worked out by hand, published tables and a recorded benchmark."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.stats import (
    Interval,
    _t_quantile,
    clustered_mean,
    clustered_se,
    paired_bootstrap,
    pass_at_k,
    pass_hat_k,
    wilson,
)


def bounds(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def test_an_interval_prints_as_a_person_reads_it() -> None:
    interval = Interval(0.9149, 0.93, 0.9451)
    assert str(interval) == "0.93 [0.91, 0.95]"
    assert f"{interval}" == "0.93 [0.91, 0.95]"
    assert f"{interval:.3f}" == "0.930 [0.915, 0.945]"


def test_wilson_by_hand() -> None:
    # z = 1.95996, z² = 3.84146; centre (.8 + .192073) / 1.384146, half 1.95996 · sqrt(.016 + .00960365) / 1.384146
    assert bounds(wilson(8, 10)) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert wilson(8, 10).mean == 0.8
    # at the ends the formula gives z² / (n + z²)
    assert bounds(wilson(0, 10)) == pytest.approx((0, 3.84146 / 13.84146), abs=1e-6)
    assert bounds(wilson(10, 10)) == pytest.approx((10 / 13.84146, 1), abs=1e-6)
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1


def test_wilson_narrows_with_trials_and_widens_with_level() -> None:
    def width(interval: Interval) -> float:
        return interval.high - interval.low

    assert width(wilson(80, 100)) < width(wilson(8, 10)) < width(wilson(8, 10, 0.99))


def test_no_trials_say_nothing() -> None:
    nothing = wilson(0, 0)
    assert bounds(nothing) == (0, 1)
    assert math.isnan(nothing.mean)
    assert str(nothing) == "nan [0.00, 1.00]"


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (0, -1), (math.nan, 5)])
def test_wilson_refuses_impossible_counts(successes: float, n: float) -> None:
    with pytest.raises(ValueError, match="successes of"):
        wilson(successes, n)


@pytest.mark.parametrize("level", [0, 1, 95, math.nan])
def test_a_level_is_a_share(level: float) -> None:
    for interval in (
        lambda: wilson(1, 2, level),
        lambda: clustered_mean([0.2, 0.4], "ab", level),
        lambda: paired_bootstrap([0], [1], "a", level=level),
    ):
        with pytest.raises(ValueError, match="level"):
            interval()


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_rate(counts: tuple[int, int]) -> None:
    interval = wilson(*counts)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.low < interval.high


# tables of Student's t, p = .975 and .95
T_TABLE = {1: (12.706, 6.314), 2: (4.303, 2.920), 3: (3.182, 2.353), 5: (2.571, 2.015), 10: (2.228, 1.812)}
T_TABLE |= {30: (2.042, 1.697), 120: (1.980, 1.658), 10**9: (1.960, 1.645)}


@pytest.mark.parametrize("df", T_TABLE)
def test_t_quantile_by_table(df: int) -> None:
    assert (_t_quantile(0.975, df), _t_quantile(0.95, df)) == pytest.approx(T_TABLE[df], rel=2e-3)


def test_clustered_mean_by_hand() -> None:
    # residuals about .4 summed by cluster: a -.4, b 0, c .4; se = sqrt(3/2 · .32) / 6 = .11547, the standard error
    # of the cluster means .2 .4 .6; t with 2 degrees of freedom is 4.30265
    values, clusters = [0.1, 0.3, 0.4, 0.4, 0.5, 0.7], ["a", "a", "b", "b", "c", "c"]
    assert clustered_se(values, clusters) == pytest.approx(0.2 / math.sqrt(3))
    interval = clustered_mean(values, clusters)
    assert interval.mean == pytest.approx(0.4)
    assert bounds(interval) == pytest.approx((0.4 - 0.496828, 0.4 + 0.496828), abs=1e-5)


def test_clusters_of_unequal_size_weigh_by_their_values() -> None:
    # mean 2; residual sums: a (1 + 1 + 1 - 6) = -3, b (5 - 2) = 3; se = sqrt(2/1 · 18) / 4 = 1.5
    assert clustered_se([1, 1, 1, 5], ["a", "a", "a", "b"]) == pytest.approx(1.5)


def test_each_value_its_own_cluster_is_the_plain_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=50)
    assert clustered_se(values, range(50)) == pytest.approx(values.std(ddof=1) / math.sqrt(50))


def test_copies_of_a_value_add_nothing() -> None:
    """Eight identical rollouts of a task tell no more about other tasks than one."""
    values, clusters = [0.0, 1.0, 0.5, 0.25, 1.0], list(range(5))
    once, often = clustered_mean(values, clusters), clustered_mean(values * 8, clusters * 8)
    assert bounds(once) == pytest.approx(bounds(often))


def test_a_rate_stays_inside_0_and_1_and_all_success_is_not_certainty() -> None:
    tasks = [i // 4 for i in range(40)]
    assert clustered_mean([1] * 39 + [0], tasks).high < 1
    sure = clustered_mean([1] * 40, tasks)
    # ten tasks, t with 9 degrees of freedom 2.26216: 10 / (10 + t²)
    assert bounds(sure) == pytest.approx((10 / (10 + 2.26216**2), 1), abs=1e-4)
    never = clustered_mean([0] * 40, tasks)
    assert (never.low, never.mean, never.high) == pytest.approx((0, 0, 1 - sure.low))


def test_a_rate_of_independent_trials_is_about_wilsons() -> None:
    values = [1] * 900 + [0] * 100
    assert bounds(clustered_mean(values, range(1000))) == pytest.approx(bounds(wilson(900, 1000)), abs=2e-4)


def test_clusters_that_agree_by_chance_count_as_independent_trials() -> None:
    """Every task once right, once wrong: the sandwich is 0, and the rate is still that of 6 trials at best."""
    assert clustered_se([0, 1] * 3, "aabbcc") == 0
    interval, naive = clustered_mean([0, 1] * 3, "aabbcc"), wilson(3, 6)
    assert interval.low < naive.low < 0.5 < naive.high < interval.high


def test_less_than_two_clusters_say_nothing() -> None:
    assert bounds(clustered_mean([1, 0, 1], "aaa")) == (0, 1)
    assert bounds(clustered_mean([0.2, 0.3], "aa")) == (-math.inf, math.inf)
    assert math.isnan(clustered_mean([], []).mean)
    with pytest.raises(ValueError, match="two clusters"):
        clustered_se([1, 2], "aa")


@pytest.mark.parametrize("values", [[1, math.nan], [1, None], [1, math.inf], [1], [1, 2, 3]])
def test_bad_values_are_refused(values: list[float]) -> None:
    for function in (clustered_mean, clustered_se, lambda v, c: paired_bootstrap(v, v, c)):
        with pytest.raises(ValueError, match=r"masked rollouts|clusters"):
            function(values, "ab")


@pytest.mark.slow
def test_coverage_is_near_its_level_where_the_normal_interval_fails() -> None:
    """The simulation that the docstring quotes: 50 tasks × 4 trials, intraclass correlation 1/3, rate .97."""
    rng, hits, normal_hits, repeats = np.random.default_rng(0), 0, 0, 2000
    clusters = np.repeat(np.arange(50), 4)
    for _ in range(repeats):
        rates = rng.beta(2 * 0.97, 2 * 0.03, size=50)
        values = (rng.random(200) < rates[clusters]).astype(float)
        interval = clustered_mean(values, clusters)
        hits += interval.low <= 0.97 <= interval.high
        half = 2.0096 * clustered_se(values, clusters)
        normal_hits += abs(interval.mean - 0.97) <= half
    assert 0.90 < hits / repeats < 0.98
    assert normal_hits / repeats < 0.90


def test_paired_bootstrap_sees_a_difference_that_pairing_reveals() -> None:
    rng = np.random.default_rng(0)
    hardness = rng.normal(size=100)
    a, b = hardness + rng.normal(scale=0.1, size=100), hardness + 0.1 + rng.normal(scale=0.1, size=100)
    interval = paired_bootstrap(a, b, range(100))
    assert interval.mean == pytest.approx(float((b - a).mean()))
    half = 1.96 * (b - a).std(ddof=1) / 10  # the normal interval, which 100 pairs justify
    assert bounds(interval) == pytest.approx((interval.mean - half, interval.mean + half), abs=0.003)
    assert interval.low > 0
    unpaired = 1.96 * math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 100)
    assert interval.mean - unpaired < 0


def test_paired_bootstrap_draws_whole_clusters() -> None:
    # two clusters with differences 0 and 1: a resample is 0, .5 or 1 with chances ¼ ½ ¼, however many copies
    interval = paired_bootstrap([0] * 20, [0] * 10 + [1] * 10, ["a"] * 10 + ["b"] * 10)
    assert (interval.low, interval.mean, interval.high) == (0, 0.5, 1)


def test_paired_bootstrap_weighs_clusters_by_their_values() -> None:
    # a resample holds 9 ones and a zero, 18 ones, or 2 zeros
    interval = paired_bootstrap([0] * 10, [1] * 9 + [0], ["a"] * 9 + ["b"])
    assert (interval.low, interval.mean, interval.high) == (0, 0.9, 1)


def test_paired_bootstrap_is_seeded() -> None:
    a, b = np.zeros(30), np.random.default_rng(1).normal(size=30)
    assert paired_bootstrap(a, b, range(30), seed=3) == paired_bootstrap(a, b, range(30), seed=3)
    assert paired_bootstrap(a, b, range(30), seed=3) != paired_bootstrap(a, b, range(30), seed=4)
    with pytest.raises(ValueError, match="nothing to compare"):
        paired_bootstrap([], [], [])


def test_pass_at_k_and_pass_hat_k_by_hand() -> None:
    # 3 of 5 succeeded, two are drawn: 10 pairs, 1 all failed, 3 all succeeded
    assert pass_at_k(3, 5, 2) == pytest.approx(0.9)
    assert pass_hat_k(3, 5, 2) == pytest.approx(0.3)
    for function in (pass_at_k, pass_hat_k):
        assert function(3, 5, 1) == pytest.approx(0.6)
        assert function(0, 5, 3) == 0
        assert function(5, 5, 3) == 1
    assert pass_at_k(1, 4, 4) == 1
    assert pass_hat_k(3, 4, 4) == 0
    assert pass_at_k(500, 2000, 1000) == pytest.approx(1)


@pytest.mark.parametrize(("c", "n", "k"), [(0, 0, 1), (1, 3, 4), (4, 3, 1), (-1, 3, 1), (1, 3, 0)])
def test_pass_at_k_needs_k_trials(c: int, n: int, k: int) -> None:
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=f"got c={c}, n={n}, k={k}"):
            function(c, n, k)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_subsets(trials: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(trials)))
    subsets = list(combinations(trials, k))
    counts = sum(trials), len(trials), k
    assert pass_at_k(*counts) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(*counts) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_tau_bench_airline() -> None:
    """pass^k of the recorded GPT-4o agent, and how much wider the interval is once trials share a task."""
    shared = Path(os.environ.get("RLKIT_SHARED", Path(__file__).parents[2] / "shared"))
    path = shared / "data" / "tau_bench_airline_gpt4o.json"
    if not path.exists():
        pytest.skip(f"no recorded τ-bench runs at {path}; set RLKIT_SHARED")
    runs = [(run["task_id"], float(run["reward"])) for run in json.loads(path.read_text(encoding="utf-8"))]
    trials = defaultdict(list)
    for task, reward in runs:
        trials[task].append(reward)
    assert {len(rewards) for rewards in trials.values()} == {4}
    for k in range(1, 5):
        subsets = {task: list(combinations(rewards, k)) for task, rewards in trials.items()}
        every = np.mean([np.mean([min(subset) for subset in subsets[task]]) for task in trials])
        some = np.mean([np.mean([max(subset) for subset in subsets[task]]) for task in trials])
        counts = [(int(sum(rewards)), 4, k) for rewards in trials.values()]
        assert np.mean([pass_hat_k(*count) for count in counts]) == pytest.approx(every)
        assert np.mean([pass_at_k(*count) for count in counts]) == pytest.approx(some)

    tasks, rewards = zip(*runs, strict=True)
    task_means = [np.mean(values) for values in trials.values()]
    clustered = clustered_se(rewards, tasks)
    assert clustered == pytest.approx(np.std(task_means, ddof=1) / math.sqrt(len(trials)))
    naive = clustered_se(rewards, range(len(rewards)))
    print(f"{clustered_mean(rewards, tasks)}: se {clustered:.3f} by task, {naive:.3f} naive")
    assert clustered > 1.3 * naive
