from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.training.advantages import group_advantages

REWARDS = st.lists(st.floats(0, 1) | st.none(), min_size=0, max_size=12)


def test_mean_subtracts_the_mean() -> None:
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1]), [0.5, -0.5, -0.5, 0.5])


def test_mean_std_divides_by_the_sample_deviation() -> None:
    # std with ddof 1 is sqrt(4 · 0.25 / 3) = .57735; with ddof 0 the advantages would be ±1
    np.testing.assert_allclose(
        group_advantages([1, 0, 0, 1], "mean_std"), [0.866025, -0.866025, -0.866025, 0.866025], atol=1e-6
    )
    np.testing.assert_allclose(group_advantages([1, 0, 0], "mean_std"), [1.154701, -0.577350, -0.577350], atol=1e-6)


@pytest.mark.parametrize("baseline", ["mean", "mean_std"])
@pytest.mark.parametrize("rewards", [[0.7, 0.7, 0.7], [0.1 + 0.2, 0.3, 0.3], [5.0], [], [None, 1.0], [None, None]])
def test_without_spread_all_are_exactly_zero(rewards: list[float | None], baseline: str) -> None:
    assert group_advantages(rewards, baseline).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("baseline", ["mean", "mean_std"])
def test_a_masked_rollout_is_no_part_of_its_group(baseline: str) -> None:
    with_mask = group_advantages([1.0, None, 0.0, None, 0.5], baseline)
    assert with_mask[[1, 3]].tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(with_mask[[0, 2, 4]], group_advantages([1.0, 0.0, 0.5], baseline))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_must_be_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, bad, 0.0])


@given(REWARDS, st.sampled_from(["mean", "mean_std"]))
def test_they_sum_to_zero_and_keep_the_order(rewards: list[float | None], baseline: str) -> None:
    advantages = group_advantages(rewards, baseline)
    assert abs(advantages.sum()) < 1e-9
    kept = [(r, a) for r, a in zip(rewards, advantages, strict=True) if r is not None]
    assert all(a1 <= a2 for (r1, a1) in kept for (r2, a2) in kept if r1 < r2)


@given(REWARDS, st.randoms(use_true_random=False), st.sampled_from(["mean", "mean_std"]))
def test_they_follow_a_permutation_of_the_group(rewards: list[float | None], random: object, baseline: str) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        group_advantages([rewards[i] for i in order], baseline), group_advantages(rewards, baseline)[order], atol=1e-9
    )
