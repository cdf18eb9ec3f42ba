"""The embedded engine: continuous batching for any Hugging Face causal LM, with the KV kept across turns.

A *slot* is a row of a static KV cache and belongs to one conversation from its first call to its end. One driver
task serves all of them: admit what was newly submitted, take one step (`SlotEngine.step`: a forward that prefills the
new and decodes the rest), hand out what is finished, and yield once, so that the episodes just finished step their
tools and submit their next turn in time for the next step.

Left out: paged KV (a slot reserves `capacity` tokens), sharing one prompt's KV between conversations, speculation,
several devices.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlkit.sampling.sampler import Completion, ContextOverflow, SamplingParams
from rlkit.sampling.slot_engine import SamplerStats, SlotEngine

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PREFILL_TOKENS = 2048
"""No further context joins a forward that already prefills this many tokens: bounds the activations."""


@dataclass(eq=False)
class _Request:
    """One call of `sample`, waiting in the queue or generating in its slot."""

    slot: int
    context: np.ndarray
    params: SamplingParams
    future: asyncio.Future[Completion]


class TorchSampler:
    """Samples from a copy of `model` with continuous batching over `slots` conversations of up to `capacity` tokens.

    A conversation's capacity counts its context and what is sampled. Further conversations wait for a free slot, first
    come first served; so a task that holds one session must not wait for a second. The same calls in the same order
    give bit-identical results. It may be used from one event loop at a time, and from another afterwards.

    Raises `ValueError` for a model that the engine can't run faithfully; see `SlotEngine`.
    """

    def __init__(self, model: PreTrainedModel, *, slots: int = 128, capacity: int = 256) -> None:
        self._engine = SlotEngine(model, slots, capacity)
        self._queue: deque[_Request] = deque()
        self._requests: dict[int, _Request] = {}  # generating, by slot
        self._free = list(range(slots))  # a heap: low slots first, so that busy rows stay a prefix
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._driver: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The policy version in use; 0 until the first `update_weights`."""
        return self._engine.version

    @property
    def stats(self) -> SamplerStats:
        """Running counts of tokens and forwards."""
        return self._engine.stats

    @property
    def capacity(self) -> int:
        """The most tokens a conversation may have."""
        return self._engine.capacity

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy `weights` in by name; tokens drawn from now on carry `version`.

        The names are those of the model's `state_dict`; of tensors tied together one is enough. KV computed under the
        old weights is kept until its session ends, as in PipelineRL (Piché et al. 2025). Raises `ValueError` that names
        what is missing, unexpected, of another shape or differs between tied names, and then changes nothing.
        """
        self._engine.update_weights(weights, version)

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
        self._engine.forget(slot)
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
        """Forget a request that nobody waits for any more."""
        if request in self._queue:
            self._queue.remove(request)
        if self._requests.get(request.slot) is request:
            del self._requests[request.slot]
            self._engine.stop(request.slot)
        request.future.cancel()

    # --- the driver --------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        """Serve until there is no work. What it raises reaches every waiting caller through `_driver_done`."""
        while self._queue or self._requests:
            budget = PREFILL_TOKENS
            while self._queue and budget > 0:
                request = self._queue.popleft()
                self._requests[request.slot] = request
                budget -= self._engine.admit(request.slot, request.context, request.params)
            for slot, completion in self._engine.step():
                future = self._requests.pop(slot).future
                if not future.done():  # a caller cancelled just now has not yet withdrawn its request
                    future.set_result(completion)
            # those whose future was just resolved run before the driver does: their next turn joins the next step
            await asyncio.sleep(0)
        self._driver = None

    def _driver_done(self, driver: asyncio.Task[None]) -> None:
        """Where the driver failed or was cancelled, tell every caller, and distrust all KV."""
        if self._driver is not driver:
            return
        self._driver = None
        error = None if driver.cancelled() else driver.exception()
        for request in [*self._queue, *self._requests.values()]:
            if error is not None and not request.future.done():
                request.future.set_exception(error)
            self._withdraw(request)
        self._engine.reset()


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
        context = self._check(token_ids)
        if self._busy or self._closed:
            raise RuntimeError("a session takes one call at a time, and none after it is closed")
        self._busy = True
        try:
            if self._slot is None:
                self._slot = await self._sampler._acquire()
                if self._closed:
                    self.close()
                    raise RuntimeError("the session was closed while it waited for a slot")
            self._request = self._sampler._submit(self._slot, context, params)
            try:
                return await self._request.future
            except asyncio.CancelledError:
                if self._request is not None:
                    self._sampler._withdraw(self._request)
                raise
        finally:
            self._busy = False
            self._request = None

    def _check(self, token_ids: Sequence[int]) -> np.ndarray:
        engine, context = self._sampler._engine, np.asarray(token_ids, np.int64)
        if context.ndim != 1 or not len(context):
            raise ValueError("the context must be a non-empty sequence of token ids")
        if context.min() < 0 or context.max() >= engine.vocab:
            raise ValueError(f"a token id is outside the vocabulary of {engine.vocab}")
        if len(context) >= engine.capacity:
            raise ContextOverflow(f"a context of {len(context)} tokens leaves no room in {engine.capacity}")
        return context

    def close(self) -> None:
        """Give the slot back; a call still in flight is cancelled."""
        self._closed = True
        if self._request is not None:
            self._sampler._withdraw(self._request)
        if self._slot is not None:
            self._sampler._release(self._slot)
            self._slot = None
