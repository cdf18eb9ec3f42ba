"""What every sampler is: tokens in, tokens out, with the logprob each was really drawn with.

`Sampler` is a protocol, so that the embedded engine, vLLM and a pool of servers serve the same `run_episode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self

import numpy as np
from pydantic import Field

from rlkit.config import Config

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length"]


class SamplingParams(Config):
    """How to draw tokens. Order of operations: logits / temperature, then top-k, then top-p, then draw."""

    temperature: float = Field(1.0, ge=0)
    """0 is greedy; the recorded logprob is then 0, that of a distribution with one outcome."""
    top_k: int = Field(0, ge=0)
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the most likely tokens until their mass reaches top_p (the one that crosses it is kept)."""
    max_tokens: int = Field(64, ge=1)
    """At most this many tokens in one completion (one turn)."""
    stop_token_ids: tuple[int, ...] = ()
    """A completion ends with the first of these; it is part of the completion."""
    seed: int = 0
    """The draw at position i of a completion depends on (seed, i) and the distribution alone."""

    def with_seed(self, seed: int) -> Self:
        """The same settings under another seed."""
        return self.model_copy(update={"seed": seed})


@dataclass(frozen=True, eq=False)
class Completion:
    """What the sampler emitted in one turn, token by token."""

    token_ids: np.ndarray
    """int32 [tokens], the stop token included where one was drawn."""
    logprobs: np.ndarray
    """float32 [tokens]: log q of each token under the distribution it was drawn from (temperature and
    truncation applied, renormalised over what was kept)."""
    versions: np.ndarray
    """int32 [tokens]: the policy version that drew each token."""
    finish_reason: FinishReason


class Session(Protocol):
    """One conversation with a sampler; an engine may keep its KV cache between calls."""

    async def sample(self, token_ids: Sequence[int], params: SamplingParams) -> Completion:
        """Continue `token_ids`, the whole context so far. Raises `ContextOverflow` where it does not fit."""
        ...


class ContextOverflow(ValueError):
    """The context leaves no room for even one token."""


class Sampler(Protocol):
    """Draws completions under the newest weights it was given."""

    @property
    def version(self) -> int:
        """The policy version in use."""
        ...

    def session(self) -> AbstractAsyncContextManager[Session]:
        """Open a conversation; leaving the context frees what it held."""
        ...

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace the weights; tokens drawn from now on carry `version`."""
        ...
