"""The synchronous half of the embedded engine: a copy of the model, a slot of KV a conversation, one step at a time.

A step is one forward: the next token of every slot that is generating, and the new part of every context that was
just admitted. Per-slot state lives in numpy arrays; Python loops run over admitted and finished slots only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlkit.config import ConfigError
from rlkit.sampling import kv_cache
from rlkit.sampling.draw import draw, uniform
from rlkit.sampling.sampler import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class SamplerStats:
    """What an engine has done so far, in tokens and forwards."""

    prefilled_tokens: int = 0
    """Context tokens run through the model."""
    decoded_tokens: int = 0
    """Tokens drawn; the first of each completion comes from its prefill."""
    steps: int = 0
    """Forwards."""


class SlotEngine:
    """Runs a copy of `model` over `slots` conversations of up to `capacity` tokens each.

    Raises `ConfigError` for a model that it can't run faithfully: attention that bypasses transformers' attention
    interface, a window or a last position below `capacity`, or logits that differ from a dense forward.
    """

    def __init__(self, model: PreTrainedModel, slots: int, capacity: int) -> None:
        if slots < 1 or capacity < 2:
            raise ConfigError(f"slots must be at least 1 and capacity at least 2, got {slots} and {capacity}")
        _check_config(model, capacity)
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._model.zero_grad(set_to_none=True)
        self._device = self._model.device
        self._like = torch.empty(0, dtype=self._model.dtype, device=self._device)
        self.vocab = self._model.get_input_embeddings().num_embeddings
        self.slots, self.capacity = slots, capacity
        self.version = 0
        self.stats = SamplerStats()
        # tokens[s, :length[s]] are in the KV; tokens[s, start[s] :] are the completion that is being drawn
        self._tokens = np.zeros((slots, capacity), np.int64)
        self._logprobs = np.zeros((slots, capacity), np.float32)
        self._versions = np.zeros((slots, capacity), np.int32)
        self._length = np.zeros(slots, np.int64)
        self._start = np.zeros(slots, np.int64)
        self._limit = np.zeros(slots, np.int64)
        self._temperature = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._top_p = np.ones(slots, np.float64)
        self._seed = np.zeros(slots, np.uint64)
        self._stops = np.full((slots, 1), -1, np.int64)
        self.reset()
        self._check_model()

    def reset(self) -> None:
        """Stop everything and forget all KV."""
        self._length[:] = 0
        self._generating = np.zeros(self.slots, bool)
        self._admitted: list[tuple[int, np.ndarray]] = []
        self._cache = kv_cache.SlotCache(self.slots, self.capacity)

    def admit(self, slot: int, context: np.ndarray, params: SamplingParams) -> int:
        """Continue `context` int64 [tokens] in `slot` from the next step on; returns how many tokens that step feeds.

        What the slot's KV already holds of it is kept. The last token is always fed: its logits are needed.
        """
        n = len(context)
        held = min(int(self._length[slot]), n - 1)
        same = self._tokens[slot, :held] == context[:held]
        keep = held if same.all() else int(same.argmin())
        self._tokens[slot, :n] = context
        self._length[slot], self._start[slot] = keep, n
        self._limit[slot] = min(n + params.max_tokens, self.capacity)
        self._temperature[slot], self._top_k[slot], self._top_p[slot] = params.temperature, params.top_k, params.top_p
        self._seed[slot] = params.seed & 0xFFFFFFFFFFFFFFFF
        stops = params.stop_token_ids
        if len(stops) > self._stops.shape[1]:
            wider = len(stops) - self._stops.shape[1]
            self._stops = np.pad(self._stops, ((0, 0), (0, wider)), constant_values=-1)
        self._stops[slot] = -1
        self._stops[slot, : len(stops)] = stops
        self._admitted.append((slot, context[keep:]))
        return n - keep

    def stop(self, slot: int) -> None:
        """Stop generating in `slot`; the KV it holds stays valid."""
        self._generating[slot] = False

    def forget(self, slot: int) -> None:
        """Stop generating in `slot` and forget its KV."""
        self._generating[slot], self._length[slot] = False, 0

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Draw the next token of every slot at work; the slots that are finished, with what they sampled.

        Raises `FloatingPointError` where the logits are no distribution, and what the model raises; `reset` then.
        """
        decoding = np.flatnonzero(self._generating)
        admitted, self._admitted = sorted(self._admitted, key=lambda item: len(item[1])), []
        filling = np.array([slot for slot, _ in admitted], np.int64)
        self._generating[filling] = True
        slots = np.concatenate([decoding, filling])
        logits = self._forward(slots, len(decoding), [extension for _, extension in admitted])
        at = self._length[slots]
        u = uniform(self._seed[slots], (at - self._start[slots]).astype(np.uint64))
        try:
            ids, logprobs = draw(logits, self._temperature[slots], self._top_k[slots], self._top_p[slots], u)
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} under policy version {self.version}") from None
        drawn = ids.cpu().numpy()
        self._tokens[slots, at], self._logprobs[slots, at] = drawn, logprobs.cpu().numpy()
        self._versions[slots, at] = self.version
        self.stats.steps += 1
        self.stats.prefilled_tokens += sum(len(extension) for _, extension in admitted)
        self.stats.decoded_tokens += len(slots)
        stopped = (self._stops[slots] == drawn[:, None]).any(1)
        done = np.flatnonzero(stopped | (at + 1 >= self._limit[slots]))
        return [(int(slots[i]), self._finish(slots[i], "stop" if stopped[i] else "length")) for i in done]

    def _finish(self, slot: int, reason: FinishReason) -> Completion:
        self._generating[slot] = False
        span = slice(self._start[slot], self._length[slot] + 1)
        return Completion(
            token_ids=self._tokens[slot, span].astype(np.int32),
            logprobs=self._logprobs[slot, span].copy(),
            versions=self._versions[slot, span].copy(),
            finish_reason=reason,
        )

    def _forward(self, slots: np.ndarray, decoding: int, extensions: Sequence[np.ndarray]) -> Tensor:
        """Feed the first `decoding` slots their latest token and the others `extensions`, which are of rising lengths.

        Returns float32 logits [slots, vocab] after each slot's last token.
        """
        counts = np.ones(len(slots), np.int64)
        counts[decoding:] = [len(extension) for extension in extensions]
        ends, starts = np.cumsum(counts), self._length[slots]
        tokens = np.concatenate([self._tokens[slots[:decoding], starts[:decoding]], *extensions])
        positions = torch.from_numpy(np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)).to(self._device)
        segments = self._segments(slots, counts, starts, decoding)
        self._cache.write_to(torch.from_numpy(np.repeat(slots, counts)).to(self._device), positions)
        output = self._model(
            input_ids=torch.from_numpy(tokens)[None].to(self._device),
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
            segments=segments,
            logits_to_keep=torch.from_numpy(ends - 1).to(self._device),
        )
        self._length[slots] += counts
        return output.logits[0].float()

    def _segments(
        self, slots: np.ndarray, counts: np.ndarray, starts: np.ndarray, decoding: int
    ) -> list[kv_cache.Segment]:
        """Who attends together: the `decoding` first slots, then the others, alike `counts` (which rise) together."""
        segments = []
        if decoding:
            rows: np.ndarray | int = slots[:decoding]
            one, at = counts[:decoding], starts[:decoding]
            high = int(slots[decoding - 1]) + 1
            if high <= 3 * decoding:  # idle rows cost less than copies: reading a row is a third of copying it first
                one, at = np.zeros((2, high), np.int64)
                one[rows], at[rows], rows = 1, starts[:decoding], high
            segments.append(kv_cache.segment(rows, 0, one, at, self._like))
        first = decoding
        while first < len(slots):
            part = slice(first, decoding + int(np.searchsorted(counts[decoding:], 2 * counts[first] + 16)))
            before = int(counts[:first].sum())
            segments.append(kv_cache.segment(slots[part], before, counts[part], starts[part], self._like))
            first = part.stop
        return segments

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy `weights` in by name; see `TorchSampler.update_weights`."""
        own = self._model.state_dict()
        tied: dict[int, list[str]] = {}
        for name, tensor in own.items():
            tied.setdefault(tensor.data_ptr() or id(tensor), []).append(name)
        problems = [f"unexpected {name}" for name in weights if name not in own]
        for names in tied.values():
            given = [name for name in names if name in weights]
            problems += [] if given else [f"missing {names[0]}"]
            problems += [
                f"{name} has shape {tuple(weights[name].shape)}, expected {tuple(own[name].shape)}"
                for name in given
                if weights[name].shape != own[name].shape
            ]
            problems += [
                f"{name} differs from {given[0]}, to which it is tied"
                for name in given[1:]
                if weights[name].data_ptr() != weights[given[0]].data_ptr()
                and not torch.equal(weights[name], weights[given[0]])
            ]
        if problems:
            raise ValueError(f"weights of version {version} do not fit the model: " + "; ".join(problems))
        with torch.no_grad():
            for name, tensor in weights.items():
                own[name].copy_(tensor)
        self.version = version

    @torch.inference_mode()
    def _check_model(self) -> None:
        """Switch the copy to `kv_cache.attention`, and see that logits agree with a dense forward."""
        from transformers import AttentionInterface

        ids = np.arange(min(5, self.capacity)) % self.vocab
        dense = self._model(input_ids=torch.from_numpy(ids)[None].to(self._device)).logits[0, -1].float()
        AttentionInterface.register(kv_cache.ATTENTION, kv_cache.attention)
        self._model.set_attn_implementation(kv_cache.ATTENTION)
        for chunk in np.split(ids, [len(ids) // 2]):
            logits = self._forward(np.array([0]), 0, [chunk])[0]
        self.forget(0)
        if not torch.allclose(logits, dense, rtol=0, atol=0.05 * float(dense.abs().max()), equal_nan=True):
            raise ConfigError(f"{type(self._model).__name__} does not compute the same with a slot cache as without")


def _check_config(model: PreTrainedModel, capacity: int) -> None:
    """Refuse what would be silently wrong."""
    name, config = type(model).__name__, model.config.get_text_config()
    if not model._supports_attention_backend:
        raise ConfigError(f"{name} does not use transformers' attention interface")
    for key in ("max_position_embeddings", "sliding_window", "attention_chunk_size"):
        bound = getattr(config, key, None)
        if bound is not None and bound < capacity:
            raise ConfigError(f"capacity is {capacity}, but {name} has {key} = {bound}")
