"""A static KV cache of slots, in the shape that Hugging Face models expect of a cache, and attention over it.

A forward runs a flat batch, `input_ids` [1, tokens]: the new tokens of many conversations one after another, without
padding, each with its own position. Only attention has to know which token belongs to whom: a `Segment` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ATTENTION = "rlkit_slots"
"""The name under which `attention` is registered with transformers."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive tokens of the flat batch that attend together, as queries [rows, time]; see `segment`."""

    rows: Tensor | int
    """int64 [rows] slots, or n for the first n, whose keys are then read as a view and not copied."""
    tokens: slice
    """Which tokens of the flat batch."""
    queries: Tensor | None
    """int64 [rows · time]: the flat token of each query, padding repeats one; None where nothing is padded."""
    real: Tensor | None
    """int64 [len(tokens)]: which queries are not padding, in order; None where nothing is padded."""
    mask: Tensor
    """[rows, 1, time, 1, length], additive: -inf where the key is later than the query."""


def segment(rows: np.ndarray | int, first: int, counts: np.ndarray, starts: np.ndarray, like: Tensor) -> Segment:
    """The queries of `counts` [rows] new tokens a row (0 for an idle one) at positions `starts` [rows] and on.

    They are the flat tokens from `first` on, row by row. The mask has the dtype and the device of `like`.
    """
    device = like.device
    steps = np.arange(counts.max())
    real = steps < counts[:, None]
    offsets = first + np.cumsum(counts) - counts
    last = first + int(counts.sum())
    positions = torch.from_numpy(starts[:, None] + steps).to(device)
    length = int((starts + counts).max())
    # key 0 is always seen, so no query, padding included, has all keys masked
    mask = torch.zeros(*positions.shape, length, dtype=like.dtype, device=device)
    mask.masked_fill_(torch.arange(length, device=device) > positions[:, :, None], -torch.inf)
    padded = not real.all()
    queries = np.minimum(offsets[:, None] + steps * real, last - 1)
    return Segment(
        rows=rows if isinstance(rows, int) else torch.from_numpy(rows).to(device),
        tokens=slice(first, last),
        queries=torch.from_numpy(queries.reshape(-1)).to(device) if padded else None,
        real=torch.from_numpy(np.flatnonzero(real)).to(device) if padded else None,
        mask=mask[:, None, :, None],
    )


class SlotCache:
    """Keys and values of `slots` conversations, `[slots, kv_heads, capacity, head_dim]` a layer.

    A layer's tensors are made at its first `update`, when its number of heads and their size are known.
    """

    is_compileable = False

    def __init__(self, slots: int, capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._targets: dict[int, Tensor] = {}

    def write_to(self, slots: Tensor, columns: Tensor) -> None:
        """Where the next forward's tokens go: int64 [tokens] each."""
        self._slots, self._columns = slots, columns
        self._targets.clear()

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `key` and `value` [1, kv_heads, tokens, head_dim]; return the layer's whole cache for `attention`."""
        heads = key.shape[1]
        if layer_idx not in self._layers:
            shape = (self.slots, heads, self.capacity)
            # zeros, not empty: a masked key still takes part as 0 · value, and garbage may be NaN
            self._layers[layer_idx] = (key.new_zeros(*shape, key.shape[3]), value.new_zeros(*shape, value.shape[3]))
        if heads not in self._targets:
            lanes = self._slots[:, None] * heads + torch.arange(heads, device=key.device)
            self._targets[heads] = (lanes * self.capacity + self._columns[:, None]).view(-1)
        layer = self._layers[layer_idx]
        for held, new in zip(layer, (key, value), strict=True):
            size = new.shape[3]
            held.view(-1, size).index_copy_(0, self._targets[heads], new[0].transpose(0, 1).reshape(-1, size))
        return layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions differ from row to row and are given to the model outright."""
        return 0


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    segments: Sequence[Segment],
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Plain attention: query [1, H, tokens, D] over the caches that `SlotCache.update` returns → [1, tokens, H, D].

    Two batched matmuls and a softmax a segment; on CPU and for one query that is much cheaper than
    `scaled_dot_product_attention` with a mask. The H / H_kv queries that share a key head are stacked along time,
    so keys and values are never repeated. Raises `NotImplementedError` for attention sinks.
    """
    if s_aux is not None:
        raise NotImplementedError("attention sinks are not supported by the embedded sampler")
    size, groups = query.shape[3], key.shape[1]
    flat = query[0].transpose(0, 1) * (size**-0.5 if scaling is None else scaling)
    outputs = []
    for part in segments:
        rows, _, time, _, length = part.mask.shape
        queries = flat[part.tokens] if part.queries is None else flat.index_select(0, part.queries)
        keys, values = (_rows(held[:, :, :length], part.rows).flatten(0, 1) for held in (key, value))
        queries = queries.reshape(rows, time, groups, -1, size).transpose(1, 2).reshape(rows * groups, -1, size)
        scores = torch.bmm(queries, keys.transpose(1, 2))
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.view(rows, groups, time, -1, length).add_(part.mask)
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        output = torch.bmm(weights.view(rows * groups, -1, length), values).view(
            rows, groups, time, -1, values.shape[2]
        )
        output = output.transpose(1, 2).reshape(rows * time, -1, values.shape[2])
        outputs.append(output if part.real is None else output.index_select(0, part.real))
    return torch.cat(outputs)[None], None


def _rows(held: Tensor, rows: Tensor | int) -> Tensor:
    return held[:rows] if isinstance(rows, int) else held.index_select(0, rows)
