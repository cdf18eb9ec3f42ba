from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.sampling.draw import draw, truncate, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])


def call(logits, u, temperature=1.0, top_k=0, top_p=1.0):
    """`draw` with the same settings for every row; u is a number or a list."""
    u = np.atleast_1d(np.asarray(u, np.float64))
    n = len(u)
    logits = logits.expand(n, -1)
    full = np.full
    return draw(logits, full(n, temperature, np.float32), full(n, top_k), full(n, top_p, np.float64), u)


def kept(temperature, top_k, top_p):
    weights = torch.softmax(LOGITS / temperature, -1)[None]
    return set(truncate(weights, torch.tensor([top_k]), torch.tensor([top_p]))[0].nonzero()[:, 0].tolist())


def test_uniform_is_splitmix64():
    # the stream from the mixed seed, written with Python's unbounded integers
    def mix(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    # the first output of splitmix64 from seed 0, as published with the reference code
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    for seed in (0, 1, 2**64 - 1):
        for position in (0, 7):
            gamma = 0x9E3779B97F4A7C15
            word = mix((mix((seed + gamma) % 2**64) + (position + 1) * gamma) % 2**64)
            expected = (word >> 11) / 2**53
            assert uniform(np.array([seed], np.uint64), np.array([position], np.uint64))[0] == expected


def test_uniform_is_uniform_over_seeds_and_over_positions():
    for seeds, positions in ((np.arange(20_000), np.zeros(20_000)), (np.zeros(20_000), np.arange(20_000))):
        u = uniform(seeds.astype(np.uint64), positions.astype(np.uint64))
        assert 0 <= u.min()
        assert u.max() < 1
        counts = np.histogram(u, 100, (0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 149.4  # chi-square, 99 degrees of freedom, p = .999 (149.4)
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03


def test_top_p_sets_by_hand():
    # softmax([2, 1, 0, -1, -2] / .7) = .7622 .1827 .0438 .0105 .0025: mass before a token .7622 .9449 .9887
    assert kept(0.7, 0, 0.7) == {0}
    assert kept(0.7, 0, 0.9) == {0, 1}
    assert kept(0.7, 0, 0.95) == {0, 1, 2}
    assert kept(0.7, 0, 1.0) == {0, 1, 2, 3, 4}
    _, logprobs = call(LOGITS, 0.85, temperature=0.7, top_p=0.95)
    assert float(logprobs[0]) == pytest.approx(-1.688690, abs=1e-6)
    _, logprobs = call(LOGITS, 0.85, temperature=0.7)
    assert float(logprobs[0]) == pytest.approx(-1.701758, abs=1e-6)


def test_temperature_divides_logits_not_logprobs():
    _, logprobs = call(torch.tensor([2.0, 1.0, 0.0]), 0.9, temperature=0.5)
    assert float(logprobs[0]) == pytest.approx(-2.1429, abs=5e-5)


def test_top_k_comes_before_top_p():
    # of the two that top-k keeps the first has .8066 of the mass, so top-p .8 keeps one; of all five it keeps two
    assert kept(0.7, 2, 0.8) == {0}
    assert kept(0.7, 0, 0.8) == {0, 1}


def test_top_k_keeps_exactly_k_of_equal_weights():
    kept = truncate(torch.ones(1, 6), torch.tensor([4]), torch.tensor([1.0]))
    assert kept[0].tolist() == [True] * 4 + [False] * 2


def test_greedy_is_argmax_with_logprob_zero():
    ids, logprobs = call(LOGITS.flip(0), [0.0, 0.99], temperature=0.0)
    assert ids.tolist() == [4, 4]
    assert logprobs.tolist() == [0.0, 0.0]


def test_a_token_of_zero_probability_is_never_drawn():
    largest = 1 - 2.0**-53
    ids, _ = call(torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf, -200.0]), [0.0, 0.5, largest])
    assert ids.tolist() == [1, 3, 3]
    ids, _ = call(LOGITS, [0.0, largest], top_k=2)
    assert ids.tolist() == [0, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.05, 5),
    st.integers(0, 50),
    st.floats(0.01, 1),
)
def test_what_is_drawn_was_kept_and_carries_its_renormalised_logprob(logits, u, temperature, top_k, top_p):
    logits = torch.tensor(logits)
    ids, logprobs = call(logits, u, temperature, top_k, top_p)
    log_weights = (logits.double() / np.float32(temperature)).log_softmax(-1)
    order = log_weights.argsort(descending=True, stable=True)[: top_k or None]
    mass = log_weights[order].softmax(-1).cumsum(-1)
    # a token whose mass before is p up to float32's rounding may fall on either side
    sure = 1 + int((mass[:-1] < top_p - 1e-5).sum())
    maybe = 1 + int((mass[:-1] < top_p + 1e-5).sum()) if top_p < 1 else len(order)
    assert int(ids[0]) in order[:maybe].tolist()
    tokens = [order[:n] for n in range(sure, maybe + 1) if int(ids[0]) in order[:n].tolist()]
    expected = [float(log_weights[ids[0]] - log_weights[kept].logsumexp(-1)) for kept in tokens]
    assert min(abs(float(logprobs[0]) - value) for value in expected) < 1e-3


def test_draws_follow_the_distribution():
    n = 20_000
    u = uniform(np.full(n, 3, np.uint64), np.arange(n, dtype=np.uint64))
    for top_k, top_p, support in ((0, 1.0, 5), (3, 1.0, 3), (0, 0.95, 4)):
        ids, logprobs = call(LOGITS, u, temperature=1.5, top_k=top_k, top_p=top_p)
        q = torch.zeros(5).index_copy(0, ids, logprobs.exp()).double()
        assert (q > 0).sum() == support
        assert float(q.sum()) == pytest.approx(1, abs=1e-6)
        counts = torch.bincount(ids, minlength=5)
        chi_square = float(((counts - n * q) ** 2)[q > 0].div(n * q[q > 0]).sum())
        assert chi_square < 18.5  # 4 degrees of freedom, p = .999


def test_rows_do_not_influence_each_other():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator) * 3
    temperature = np.array([0, 1, 0.5, 1, 2, 1], np.float32)
    top_k, top_p = np.array([0, 0, 5, 0, 3, 0]), np.array([1, 1, 1, 0.8, 0.9, 1])
    u = np.linspace(0.05, 0.95, 6)
    ids, logprobs = draw(logits, temperature, top_k, top_p, u)
    for row in range(6):
        pick = slice(row, row + 1)
        alone = draw(logits[pick], temperature[pick], top_k[pick], top_p[pick], u[pick])
        assert (alone[0][0], alone[1][0]) == (ids[row], logprobs[row])


@pytest.mark.parametrize("bad", [[0.0, torch.nan], [0.0, torch.inf], [-torch.inf, -torch.inf]])
@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.9)])
def test_logits_that_are_no_distribution_are_an_error(bad, temperature, top_p):
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        call(torch.tensor(bad), 0.5, temperature, top_p=top_p)
