from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlkit.models import tiny_llama
from rlkit.training.batch import Sequences, collate
from rlkit.training.logprobs import policy_logprobs, token_logprobs

T, W, V = 13, 8, 29


def problem(bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(T, W, generator=g, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, W, generator=g, dtype=torch.float64, requires_grad=True)
    b = torch.randn(V, generator=g, dtype=torch.float64, requires_grad=True) if bias else None
    targets = torch.randint(V, (T,), generator=g)
    temperatures = torch.rand(T, generator=g) * 1.5 + 0.25
    return hidden, weight, b, targets, temperatures


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 13, 100])
def test_chunked_equals_dense_in_value_and_gradient(chunk: int, bias: bool) -> None:
    hidden, weight, b, targets, temperatures = problem(bias)
    leaves = [hidden, weight] + ([b] if b is not None else [])
    upstream = torch.linspace(-1, 2, T)
    logits = torch.nn.functional.linear(hidden, weight, b) / temperatures[:, None]
    dense = logits.log_softmax(1)[torch.arange(T), targets]
    dense_grads = torch.autograd.grad((dense * upstream).sum(), leaves)
    ours = token_logprobs(hidden, weight, b, targets, temperatures, chunk)
    grads = torch.autograd.grad((ours * upstream).sum(), leaves)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, dense.float(), rtol=0, atol=2e-6)
    for got, expected in zip(grads, dense_grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(token_logprobs(hidden, weight, b, targets, temperatures, chunk), ours.detach())


def test_temperature_divides_logits_not_logprobs() -> None:
    hidden, weight = torch.tensor([[2.0, 1.0, 0.0]]), torch.eye(3)
    (logprob,) = token_logprobs(hidden, weight, None, torch.tensor([1]), torch.tensor([0.5]), 8)
    assert logprob.item() == pytest.approx(-2.1429, abs=1e-4)  # logprobs / T would be −2.8152


def test_no_tokens_give_no_logprobs() -> None:
    out = token_logprobs(torch.zeros(0, 3), torch.eye(3), None, torch.zeros(0, dtype=torch.long), torch.zeros(0), 8)
    assert out.shape == (0,)


def batch_of(vocab: int, lengths: list[int], temperatures: list[float]) -> Sequences:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, vocab, n).astype(np.int32) for n in lengths]
    masks = [np.arange(n) > 2 for n in lengths]
    return collate(ids, masks, temperatures)


def test_the_logprob_at_a_position_is_that_of_the_next_token() -> None:
    model = tiny_llama(40, hidden_size=32, layers=2, initializer_range=0.3)
    batch = batch_of(40, [9, 5, 12], [1.0, 0.6, 2.0])
    ours = policy_logprobs(model, batch).detach()
    expected = []
    for row, (length, temperature) in enumerate([(9, 1.0), (5, 0.6), (12, 2.0)]):
        ids = batch.token_ids[row : row + 1, :length]  # alone, unpadded
        logp = (model(input_ids=ids).logits[0] / temperature).log_softmax(1)
        expected += [logp[t - 1, ids[0, t]].item() for t in range(3, length)]
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=0, atol=1e-5)
    shifted = torch.cat([ours[1:], ours[:1]])  # the classic off-by-one is not within any tolerance
    assert (shifted - torch.tensor(expected)).abs().max() > 0.5


def test_what_a_model_does_to_its_logits_afterwards_is_refused() -> None:
    model = tiny_llama(40, hidden_size=32, layers=1)
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(NotImplementedError, match="final_logit_softcapping"):
        policy_logprobs(model, batch_of(40, [6], [1.0]))


class Largest(TorchDispatchMode):
    """Notes the largest floating-point tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_of_batch_by_time_by_vocabulary_is_ever_made() -> None:
    vocab, chunk = 8192, 32
    model = tiny_llama(vocab, hidden_size=32, layers=1)
    batch = batch_of(vocab, [40, 33, 40, 40], [1.0] * 4)
    weights = vocab * 32  # the output embedding's own gradient is as large as a chunk of logits here
    with Largest() as seen:
        (policy_logprobs(model, batch, chunk).sum()).backward()
    assert seen.numel == max(chunk * vocab, weights)
    assert 4 * 40 * vocab > 4 * seen.numel

    with Largest() as dense:  # the measure can see what it should not find
        model(input_ids=batch.token_ids).logits.log_softmax(-1)
    assert dense.numel == 4 * 40 * vocab


def test_nothing_of_vocabulary_size_is_kept_for_the_backward_pass() -> None:
    vocab, kept = 4096, []
    model = tiny_llama(vocab, hidden_size=32, layers=1)
    batch = batch_of(vocab, [20, 20], [1.0] * 2)
    weights = {p.data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy_logprobs(model, batch, 8)
    assert 0 < max(kept) < 8 * vocab
