"""Token sequences → padded tensors for the forward pass, and flat ones for the loss.

The loss sees action tokens only, end to end in one flat axis ("tokens"): padding and masks do not exist there, so
nothing under a mask can leak into a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sequences:
    """A micro-batch. `tokens` is the number of action tokens, in row order, position by position."""

    token_ids: Int[Tensor, "batch time"]
    """Right-padded; what lies behind a row's end cannot be seen from before it (causal attention)."""
    predicts_action: Bool[Tensor, "batch time"]
    """True at position t where token t+1 is an action: the logits there are a policy's."""
    targets: Int[Tensor, " tokens"]
    temperatures: Float[Tensor, " tokens"]


def collate(
    token_ids: Sequence[np.ndarray], action_masks: Sequence[np.ndarray], temperatures: Sequence[float], pad_id: int = 0
) -> Sequences:
    """Pad to the longest row. A first token that claims to be an action has nothing before it: `ValueError`."""
    longest = max(len(ids) for ids in token_ids)
    ids = np.full((len(token_ids), longest), pad_id, np.int64)
    mask = np.zeros((len(token_ids), longest), bool)
    for row, (sequence, spoken) in enumerate(zip(token_ids, action_masks, strict=True)):
        if spoken[0]:
            raise ValueError(f"sequence {row}: the first token cannot be an action")
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence) - 1] = spoken[1:]
    repeats = mask.sum(1)
    shifted = np.concatenate([ids[:, 1:], np.full((len(ids), 1), pad_id, np.int64)], axis=1)
    return Sequences(
        token_ids=torch.from_numpy(ids),
        predicts_action=torch.from_numpy(mask),
        targets=torch.from_numpy(shifted[mask]),
        temperatures=torch.from_numpy(np.repeat(np.asarray(temperatures, np.float32), repeats)),
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices in groups of at most `max_tokens` padded tokens, longest first; a longer sequence goes alone."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
