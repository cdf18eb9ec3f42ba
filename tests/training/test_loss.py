from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlkit.training.loss import LossInputs, LossOutputs, grpo_loss


def loss_of(ratios: list[float], advantages: list[float], denominator: float, **clip: float) -> LossOutputs:
    log_p = torch.tensor(ratios).log().requires_grad_()
    return grpo_loss(LossInputs(log_p, torch.zeros(len(ratios)), torch.tensor(advantages)), denominator, **clip)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, 0),
        (1.1, 1.0, -1.1, 0),  # inside the band
        (1.5, 1.0, -1.2, 1),  # good and already more likely: no more
        (0.5, 1.0, -0.5, 0),  # good but less likely: the gradient stays
        (0.5, -1.0, 0.8, 1),  # bad and already less likely: no more
        (1.5, -1.0, 1.5, 0),  # bad but more likely: the gradient stays
    ],
)
def test_clip_on_both_sides_by_hand(ratio: float, advantage: float, loss: float, clipped: int) -> None:
    out = loss_of([ratio], [advantage], 1)
    assert out.loss.item() == pytest.approx(loss, abs=1e-6)
    assert out.clipped.item() == clipped


def test_bounds_may_differ() -> None:
    out = loss_of([1.5, 0.5], [1.0, -3.0], 2, clip_low=0.3, clip_high=0.28)
    assert out.loss.item() == pytest.approx((-1.28 + 3 * 0.7) / 2, abs=1e-6)


def test_log_ratio_is_detached_and_in_token_order() -> None:
    out = loss_of([2.0, 0.5], [1.0, 1.0], 2)
    torch.testing.assert_close(out.log_ratio, torch.tensor([math.log(2), -math.log(2)]))
    assert not out.log_ratio.requires_grad


@given(
    st.lists(
        st.tuples(st.floats(-1.5, 1.5), st.floats(-1.5, 1.5), st.floats(-2, 2)).filter(
            lambda t: min(abs(math.exp(t[0] - t[1]) - edge) for edge in (0.8, 1.2)) > 1e-3
        ),
        min_size=1,
        max_size=6,
    )
)
def test_gradient_equals_that_of_the_definition(tokens: list[tuple[float, float, float]]) -> None:
    """d/dlogp of −min(rA, clip(r)A)/N, case by case: −rA/N, or 0 where the clipped branch is the smaller."""
    log_p, log_q, advantages = (torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True))
    log_p.requires_grad_()
    grpo_loss(LossInputs(log_p, log_q, advantages), len(tokens)).loss.backward()
    expected = []
    for p, q, a in tokens:
        r = math.exp(p - q)
        off = (a > 0 and r > 1.2) or (a < 0 and r < 0.8)
        expected.append(0.0 if off else -r * a / len(tokens))
    torch.testing.assert_close(log_p.grad, torch.tensor(expected, dtype=torch.float64))


def softmax_gradients(logits: list[float], rewards: list[float]) -> tuple[Tensor, Tensor]:
    """(expected gradient of the loss over every token of a 3-token policy, true gradient of −expected reward)."""
    theta = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    q = theta.detach().log_softmax(0)
    baseline = (q.exp() * torch.tensor(rewards, dtype=torch.float64)).sum()
    total = torch.zeros(3, dtype=torch.float64)
    for token, reward in enumerate(rewards):
        inputs = LossInputs(theta.log_softmax(0)[token : token + 1], q[token : token + 1], (reward - baseline)[None])
        total += q[token].exp() * torch.autograd.grad(grpo_loss(inputs, 1).loss, theta)[0]
    truth = torch.autograd.grad(-(theta.softmax(0) * torch.tensor(rewards, dtype=torch.float64)).sum(), theta)[0]
    return total, truth


def test_on_policy_expectation_is_the_policy_gradient_of_the_expected_reward() -> None:
    total, truth = softmax_gradients([0.5, -0.2, 1.1], [1.0, 0.0, 0.3])
    torch.testing.assert_close(total, truth, rtol=0, atol=1e-6)
    assert truth.abs().max() > 0.1


def test_right_after_an_update_it_is_the_plain_policy_gradient() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    advantages = torch.tensor([1.0, -0.5, 0.25, 2.0, -1.0])
    log_p = logits.log_softmax(1)[:, 3]
    ours = torch.autograd.grad(grpo_loss(LossInputs(log_p, log_p.detach(), advantages), 5).loss, logits)[0]
    plain = torch.autograd.grad(-(advantages * logits.log_softmax(1)[:, 3]).sum() / 5, logits)[0]
    torch.testing.assert_close(ours, plain)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=9), st.data())
def test_cutting_a_batch_changes_nothing_under_the_global_denominator(
    tokens: list[tuple[float, float]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(tokens) - 1))
    log_p = torch.tensor([t[0] for t in tokens], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([t[1] for t in tokens], dtype=torch.float64)
    log_q = torch.zeros_like(advantages)

    def loss(part: slice) -> Tensor:
        return grpo_loss(LossInputs(log_p[part], log_q[part], advantages[part]), len(tokens)).loss

    whole, parts = loss(slice(None)), loss(slice(cut)) + loss(slice(cut, None))
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts, log_p)[0], torch.autograd.grad(whole, log_p)[0])


def test_extreme_log_ratios_stay_finite() -> None:
    log_p = torch.tensor([0.0, -500.0, 0.0, -90.0], requires_grad=True)
    log_q = torch.tensor([-500.0, 0.0, -math.inf, -0.01])
    out = grpo_loss(LossInputs(log_p, log_q, torch.tensor([-1.0, -1.0, -1.0, 1.0])), 4)
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert torch.isfinite(log_p.grad).all()


def test_no_action_tokens_at_all_is_no_loss() -> None:
    none = torch.zeros(0, requires_grad=True)
    out = grpo_loss(LossInputs(none, torch.zeros(0), torch.zeros(0)), 1)
    out.loss.backward()
    assert out.loss.item() == 0


@pytest.mark.parametrize("denominator", [0, 0.5, -3])
def test_the_denominator_is_a_token_count(denominator: float) -> None:
    with pytest.raises(ValueError, match="denominator"):
        loss_of([1.0], [1.0], denominator)


def test_shapes_are_checked() -> None:
    inputs = LossInputs(torch.zeros(3), torch.zeros(3), torch.zeros(3))
    assert grpo_loss(inputs, 1).loss.shape == ()
    with pytest.raises(Exception, match="advantages"):
        LossInputs(torch.zeros(3), torch.zeros(3), torch.zeros(2))
