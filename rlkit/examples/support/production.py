"""A month of production: the flawed agent's sessions, and the small model that starts where that agent stands."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rlkit.examples.support.agents import play, production_agent
from rlkit.examples.support.world import Pool, order_ids, sample_task
from rlkit.logs.trace import Message, Trace

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

WARM_START_SESSIONS = 30_000


def production_sessions(count: int, pool: Pool = "train", seed: int = 0, start: str = "2026-05-01") -> Iterator[Trace]:
    """`count` sessions of the flawed agent, reproducible from `seed`; no order comes twice before all have come."""
    rng = random.Random(f"{pool}:{seed}")
    clock = datetime.fromisoformat(start).replace(tzinfo=UTC)
    ids: list[str] = []
    for number in range(count):
        if not ids:
            ids = rng.sample(order_ids(pool), len(order_ids(pool)))
        task = sample_task(rng, pool, ids.pop())
        trace, _ = play(production_agent(rng), task, seed=rng.getrandbits(48), trace_id=f"{start[:7]}-{number:05d}")
        clock += timedelta(seconds=rng.randrange(20, 1800))
        user = next(key.removeprefix("user:") for key in task.keys if key.startswith("user:"))
        trace.metadata = {"user": user, "started_at": clock.isoformat(), "agent": "support-agent-v1"}
        yield trace


def warm_start(
    sessions: Sequence[Sequence[Message]] | None = None, steps: int = 1400, seed: int = 0, progress: bool = True
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A small model taught to talk as the production agent did, mistakes included; about four CPU-minutes.

    `sessions` are conversations to imitate; by default 30,000 fresh ones of the training pool.
    """
    import numpy as np
    from tqdm.auto import tqdm

    from rlkit.models import tiny_llama, train_tokenizer
    from rlkit.sampling.chat import SPECIAL_TOKENS, ChatFormat, render_texts
    from rlkit.training.sft import SFTConfig, train_sft

    if sessions is None:
        logs = production_sessions(WARM_START_SESSIONS, "train", seed=1)
        sessions = [t.messages for t in tqdm(logs, "sessions", WARM_START_SESSIONS, disable=not progress)]
    tokenizer = train_tokenizer((text for s in sessions[:3000] for text in render_texts(s)), SPECIAL_TOKENS)
    chat = ChatFormat(tokenizer)
    pairs = [chat.conversation(session) for session in sessions]
    data = [(np.array(ids, np.int32), np.array(mask)) for ids, mask in pairs]
    model = tiny_llama(len(tokenizer), seed)
    train_sft(model, data, SFTConfig(steps=steps, seed=seed), progress)
    return model, tokenizer
