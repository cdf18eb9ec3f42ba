"""The embedded engine: continuous batching for any Hugging Face causal LM, with the KV kept across turns.

A *slot* is a row of a static KV cache and belongs to one conversation from its first call to its end. One driver
task serves all of them: prefill what was newly submitted, decode one token for every slot that is generating,
hand out what is finished, and yield once, so that the episodes just finished step their tools and submit their next
turn while the others decode. Per-slot state lives in numpy arrays; Python loops run over finished rows only.

Left out: paged KV (a slot reserves `capacity` tokens), sharing one prompt's KV between conversations, speculation,
several devices.
"""

from __future__ import annotations

import asyncio
import copy
import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlkit.sampling import kv_cache
from rlkit.sampling.draw import draw, uniform
from rlkit.sampling.sampler import Completion, ContextOverflow, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFILL_TOKENS = 2048
"""No further context joins a forward that already prefills this many tokens: bounds the activations."""


@dataclass
class SamplerStats:
    """What the engine has done so far, in tokens and forwards."""

    prefilled_tokens: int = 0
    """Context tokens run through the model, padding not counted."""
    decoded_tokens: int = 0
    """Tokens drawn; the first of each completion comes from its prefill."""
    steps: int = 0
    """Forwards."""


@dataclass(eq=False)
class _Request:
    """One call of `sample`, waiting in the queue or generating in its slot."""

    slot: int
    context: np.ndarray
    params: SamplingParams
    future: asyncio.Future[Completion] = field(repr=False)


class TorchSampler:
    """Samples from a copy of `model` with continuous batching over `slots` conversations of up to `capacity` tokens.

    A conversation's capacity counts its context and what is sampled. Further conversations wait for a free slot, first
    come first served; so a task that holds one session must not wait for a second. Weights replaced in the middle of
    a completion apply from the next token on; the KV already computed under the old ones is kept, as in PipelineRL
    (Piché et al. 2025), until its session ends. The same calls in the same order give bit-identical results.

    Raises `ValueError` for a model that this engine can't run faithfully: attention that bypasses transformers'
    attention interface, a window or a maximal position below `capacity`, or logits that differ from a dense forward.
    """

    def __init__(self, model: PreTrainedModel, *, slots: int = 128, capacity: int = 256) -> None:
        if slots < 1 or capacity < 2:
            raise ValueError(f"slots must be at least 1 and capacity at least 2, got {slots} and {capacity}")
        _check_config(model, capacity)
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._model.zero_grad(set_to_none=True)
        self._device = self._model.device
        self._like = torch.empty(0, dtype=self._model.dtype, device=self._device)
        self._vocab = self._model.get_input_embeddings().num_embeddings
        self._version = 0
        self.slots, self.capacity = slots, capacity
        self.stats = SamplerStats()
        self._cache = kv_cache.SlotCache(slots, capacity)
        self._state(slots, capacity)
        self._queue: deque[_Request] = deque()
        self._requests: dict[int, _Request] = {}  # generating, by slot
        self._free = list(range(slots))  # a heap: low slots first, so that busy rows stay a prefix
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._driver: asyncio.Task[None] | None = None
        self._check_model()

    def _state(self, slots: int, capacity: int) -> None:
        """Per-slot state. `tokens[s, :length[s]]` are in the KV; `tokens[s, start[s]:]` are being generated."""
        self._tokens = np.zeros((slots, capacity), np.int64)
        self._logprobs = np.zeros((slots, capacity), np.float32)
        self._versions = np.zeros((slots, capacity), np.int32)
        self._length = np.zeros(slots, np.int64)
        self._start = np.zeros(slots, np.int64)
        self._limit = np.zeros(slots, np.int64)
        self._active = np.zeros(slots, bool)
        self._temperature = np.ones(slots, np.float32)
        self._top_k = np.zeros(slots, np.int64)
        self._top_p = np.ones(slots, np.float64)
        self._seed = np.zeros(slots, np.uint64)
        self._stops = np.full((slots, 1), -1, np.int64)

    @property
    def version(self) -> int:
        """The policy version in use; 0 until the first `update_weights`."""
        return self._version

    def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy `weights` in by name; tokens drawn from now on carry `version`.

        The names are those of the model's `state_dict`; of tensors tied together one is enough. Raises `ValueError`
        that names what is missing, unexpected, of another shape or differs between tied names, and then changes
        nothing.
        """
        own = self._model.state_dict()
        groups: dict[int, list[str]] = {}
        for name, tensor in own.items():
            groups.setdefault(tensor.data_ptr() or id(tensor), []).append(name)
        problems = [f"unexpected {name}" for name in weights if name not in own]
        for names in groups.values():
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
        self._version = version

    # --- conversations -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self) -> AsyncIterator[TorchSession]:
        """Open a conversation. It takes a slot at its first `sample` and gives it back on leaving the context."""
        session = TorchSession(self)
        try:
            yield session
        finally:
            session.close()

    async def _acquire(self) -> int:
        """The lowest free slot, or the next one to come free, first come first served."""
        if self._free:
            return heapq.heappop(self._free)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # the caller was cancelled just after it was served: pass the slot on
                self._release(waiter.result())
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
            raise

    def _release(self, slot: int) -> None:
        self._length[slot] = 0
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        heapq.heappush(self._free, slot)

    def _submit(self, slot: int, context: np.ndarray, params: SamplingParams) -> _Request:
        loop = asyncio.get_running_loop()
        if self._driver is not None and self._driver.done():
            self._driver_done(self._driver)
        if self._driver is None:
            self._driver = loop.create_task(self._drive())
            self._driver.add_done_callback(self._driver_done)
        elif self._driver.get_loop() is not loop:
            raise RuntimeError("the sampler is in use by another event loop")
        request = _Request(slot, context, params, loop.create_future())
        self._queue.append(request)
        return request

    def _withdraw(self, request: _Request) -> None:
        """Forget a request that nobody waits for; the KV its slot holds stays valid."""
        if request in self._queue:
            self._queue.remove(request)
        if self._requests.get(request.slot) is request:
            del self._requests[request.slot]
            self._active[request.slot] = False
        request.future.cancel()

    # --- the driver --------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Serve until there is no work. What it raises reaches every waiting caller through `_driver_done`."""
        while self._queue or self._requests:
            self._step()
            # those whose future was just resolved run before the driver does: their next turn joins the next step
            await asyncio.sleep(0)
        self._driver = None

    def _driver_done(self, driver: asyncio.Task[None]) -> None:
        """Where the driver failed or was cancelled, tell every caller, and distrust all KV."""
        if self._driver is not driver:
            return
        self._driver = None
        pending = [*self._queue, *self._requests.values()]
        error = None if driver.cancelled() else driver.exception()
        for request in pending:
            if error is not None and not request.future.done():
                request.future.set_exception(error)
            self._withdraw(request)
        self._length[:] = 0
        self._cache = kv_cache.SlotCache(self.slots, self.capacity)

    def _step(self) -> None:
        """One forward: the next token of every generating slot, and what is new in the contexts just submitted."""
        decoding = np.flatnonzero(self._active)
        filling: list[int] = []
        extensions: list[np.ndarray] = []
        budget = PREFILL_TOKENS
        while self._queue and budget > 0:
            request = self._queue.popleft()
            filling.append(request.slot)
            extensions.append(self._admit(request))
            budget -= len(extensions[-1])
        self.stats.steps += 1
        self.stats.prefilled_tokens += sum(map(len, extensions))
        logits, slots = self._forward(decoding, np.array(filling, np.int64), extensions)
        self._draw(slots, logits)

    def _admit(self, request: _Request) -> np.ndarray:
        """Set up a request's slot; return the part of its context that is not in the KV (never empty)."""
        slot, context, params = request.slot, request.context, request.params
        n = len(context)
        held = min(int(self._length[slot]), n - 1)  # the last token is always fed: its logits are needed
        same = self._tokens[slot, :held] == context[:held]
        keep = held if same.all() else int(same.argmin())
        self._tokens[slot, :n] = context
        self._length[slot], self._start[slot] = keep, n
        self._limit[slot] = min(n + params.max_tokens, self.capacity)
        self._temperature[slot], self._top_k[slot] = params.temperature, params.top_k
        self._top_p[slot] = params.top_p
        self._seed[slot] = params.seed & 0xFFFFFFFFFFFFFFFF
        stops = params.stop_token_ids
        if len(stops) > self._stops.shape[1]:
            extra = len(stops) - self._stops.shape[1]
            self._stops = np.pad(self._stops, ((0, 0), (0, extra)), constant_values=-1)
        self._stops[slot] = -1
        self._stops[slot, : len(stops)] = stops
        self._active[slot] = True
        self._requests[slot] = request
        return context[keep:]

    @torch.inference_mode()
    def _forward(
        self, decoding: np.ndarray, filling: np.ndarray, extensions: Sequence[np.ndarray]
    ) -> tuple[Tensor, np.ndarray]:
        """Feed the slots `decoding` their latest token and the slots `filling` their extensions.

        Returns float32 logits [slots, vocab] after each slot's last token, and the slots in that order.
        """
        counts = np.array([len(extension) for extension in extensions], np.int64)
        order = np.argsort(counts, kind="stable")
        filling, counts = filling[order], counts[order]
        slots = np.concatenate([decoding, filling])
        counts = np.concatenate([np.ones(len(decoding), np.int64), counts])
        ends, starts = np.cumsum(counts), self._length[slots]
        tokens = [self._tokens[decoding, starts[: len(decoding)]], *(extensions[i] for i in order)]
        positions = np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
        parts = self._segments(slots, counts, starts, len(decoding))
        self._length[slots] += counts
        columns = torch.from_numpy(positions).to(self._device)
        self._cache.write_to(torch.from_numpy(np.repeat(slots, counts)).to(self._device), columns)
        output = self._model(
            input_ids=torch.from_numpy(np.concatenate(tokens))[None].to(self._device),
            position_ids=columns[None],
            past_key_values=self._cache,
            use_cache=True,
            segments=parts,
            logits_to_keep=torch.from_numpy(ends - 1).to(self._device),
        )
        return output.logits[0].float(), slots

    def _segments(
        self, slots: np.ndarray, counts: np.ndarray, starts: np.ndarray, decoding: int
    ) -> list[kv_cache.Segment]:
        """Who attends together: the `decoding` first slots, then the others by like `counts`, which are ascending."""
        parts = []
        if decoding:
            rows: np.ndarray | int = slots[:decoding]
            one, at = counts[:decoding], starts[:decoding]
            high = int(slots[decoding - 1]) + 1
            if high <= 3 * decoding:  # idle rows cost less than copies: reading a row is a third of copying it first
                one, at = np.zeros((2, high), np.int64)
                one[rows], at[rows], rows = 1, starts[:decoding], high
            parts.append(kv_cache.segment(rows, 0, one, at, self._like))
        first = decoding
        while first < len(slots):
            until = int(np.searchsorted(counts[decoding:], 2 * counts[first] + 16)) + decoding
            part = slice(first, until)
            done = int(counts[:first].sum())
            parts.append(kv_cache.segment(slots[part], done, counts[part], starts[part], self._like))
            first = until
        return parts

    @torch.inference_mode()
    def _draw(self, slots: np.ndarray, logits: Tensor) -> None:
        """Draw the next token of each slot, record it, and resolve what is finished."""
        at = self._length[slots]
        u = uniform(self._seed[slots], (at - self._start[slots]).astype(np.uint64))
        try:
            ids, logprobs = draw(logits, self._temperature[slots], self._top_k[slots], self._top_p[slots], u)
        except FloatingPointError as error:
            raise FloatingPointError(f"{error} under policy version {self._version}") from None
        drawn = ids.cpu().numpy()
        self._tokens[slots, at] = drawn
        self._logprobs[slots, at] = logprobs.cpu().numpy()
        self._versions[slots, at] = self._version
        self.stats.decoded_tokens += len(slots)
        stopped = (self._stops[slots] == drawn[:, None]).any(1)
        done = stopped | (at + 1 >= self._limit[slots])
        for row in np.flatnonzero(done):
            self._finish(int(slots[row]), "stop" if stopped[row] else "length")

    def _finish(self, slot: int, reason: Any) -> None:
        self._active[slot] = False
        span = slice(int(self._start[slot]), int(self._length[slot]) + 1)
        completion = Completion(
            token_ids=self._tokens[slot, span].astype(np.int32),
            logprobs=self._logprobs[slot, span].copy(),
            versions=self._versions[slot, span].copy(),
            finish_reason=reason,
        )
        future = self._requests.pop(slot).future
        if not future.done():
            future.set_result(completion)

    # --- construction ------------------------------------------------------------------------------------------

    def _check_model(self) -> None:
        """Switch the copy to `kv_cache.attention`, and see that logits agree with a dense forward."""
        from transformers import AttentionInterface

        ids = np.arange(5) % self._vocab
        with torch.inference_mode():
            dense = self._model(input_ids=torch.from_numpy(ids)[None].to(self._device)).logits[0, -1].float()
        AttentionInterface.register(kv_cache.ATTENTION, kv_cache.attention)
        self._model.set_attn_implementation(kv_cache.ATTENTION)
        slot = np.array([0])
        for chunk in (ids[:3], ids[3:]):
            logits = self._forward(slot[:0], slot, [chunk])[0][0]
        self._length[0] = 0
        if not torch.allclose(logits, dense, rtol=0, atol=0.05 * float(dense.abs().max()), equal_nan=True):
            raise ValueError(f"{type(self._model).__name__} does not compute the same with a slot cache as without")


class TorchSession:
    """One conversation with a `TorchSampler`."""

    def __init__(self, sampler: TorchSampler) -> None:
        self._sampler = sampler
        self._slot: int | None = None
        self._request: _Request | None = None
        self._busy = False
        self._closed = False

    async def sample(self, token_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Continue `token_ids`, the whole conversation so far; the part the KV holds already is not run again.

        Raises `ContextOverflow` where not even one token fits, `ValueError` for an empty context or an id outside
        the vocabulary, and whatever the model raised; afterwards the session can be used again.
        """
        sampler = self._sampler
        context = np.asarray(token_ids, np.int64)
        if context.ndim != 1 or not len(context):
            raise ValueError("the context must be a non-empty sequence of token ids")
        if context.min() < 0 or context.max() >= sampler._vocab:
            raise ValueError(f"a token id is outside the vocabulary of {sampler._vocab}")
        if len(context) >= sampler.capacity:
            raise ContextOverflow(f"a context of {len(context)} tokens leaves no room in {sampler.capacity}")
        if self._busy or self._closed:
            raise RuntimeError("a session takes one call at a time, and none after it is closed")
        self._busy = True
        try:
            if self._slot is None:
                self._slot = await sampler._acquire()
                if self._closed:
                    self.close()
                    raise RuntimeError("the session was closed while it waited for a slot")
            self._request = sampler._submit(self._slot, context, params)
            try:
                return await self._request.future
            except asyncio.CancelledError:
                sampler._withdraw(self._request)
                raise
        finally:
            self._busy = False
            self._request = None

    def close(self) -> None:
        """Give the slot back; a call still in flight is cancelled."""
        self._closed = True
        if self._request is not None:
            self._sampler._withdraw(self._request)
        if self._slot is not None:
            self._sampler._release(self._slot)
            self._slot = None


def _check_config(model: PreTrainedModel, capacity: int) -> None:
    """Refuse what would be silently wrong."""
    name, config = type(model).__name__, model.config.get_text_config()
    if not model._supports_attention_backend:
        raise ValueError(f"{name} does not use transformers' attention interface")
    for key in ("max_position_embeddings", "sliding_window", "attention_chunk_size"):
        bound = getattr(config, key, None)
        if bound is not None and bound < capacity:
            raise ValueError(f"capacity is {capacity}, but {name} has {key} = {bound}")
