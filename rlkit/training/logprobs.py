"""The trainer's log-probabilities of the action tokens, in bounded memory.

Logits exist for action positions only, and for one chunk of them at a time: the backward pass computes each chunk
again, so that no batch × time × vocabulary tensor is ever alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlkit.training.batch import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def policy_logprobs(model: PreTrainedModel, sequences: Sequences, chunk: int = 2048) -> Float[Tensor, " tokens"]:
    """log p of every action token at its sampling temperature, full vocabulary, with gradient.

    Raises `NotImplementedError` for a model that changes its logits after the output embedding.
    """
    changed = [name for name in _LOGIT_TRANSFORMS if getattr(model.config, name, None) not in (None, 1.0)]
    if changed:
        raise NotImplementedError(f"{model.config.model_type}: {', '.join(changed)} is not replayed by the trainer")
    hidden = model.base_model(input_ids=sequences.token_ids, use_cache=False).last_hidden_state
    head = model.get_output_embeddings()
    return token_logprobs(
        hidden[sequences.predicts_action], head.weight, head.bias, sequences.targets, sequences.temperatures, chunk
    )


def token_logprobs(
    hidden: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocab width"],
    bias: Float[Tensor, " vocab"] | None,
    targets: Int[Tensor, " tokens"],
    temperatures: Float[Tensor, " tokens"],
    chunk: int,
) -> Float[Tensor, " tokens"]:
    """log softmax((hidden · weightᵀ + bias) / temperature)[targets], `chunk` tokens at a time, in fp32."""

    def some(rows: Tensor, ids: Tensor, temperature: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(rows, weight, bias).float() / temperature[:, None]
        return logits.gather(1, ids[:, None])[:, 0] - logits.logsumexp(1)

    parts = []
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        arguments = (hidden[part], targets[part], temperatures[part])
        parts.append(checkpoint(some, *arguments, use_reentrant=False) if torch.is_grad_enabled() else some(*arguments))
    return torch.cat(parts) if parts else hidden.sum(1)
