from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlkit.models import tiny_llama
from rlkit.training import sft
from rlkit.training.sft import SFTConfig, train_sft

VOCAB = 24


def sessions(count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two tokens heard, then the agent repeats the second one twice."""
    rng = np.random.default_rng(seed)
    heard = rng.integers(1, VOCAB, (count, 2))
    return [(np.array([a, b, b, b], np.int32), np.array([False, False, True, True])) for a, b in heard]


def trained(data: list[tuple[np.ndarray, np.ndarray]], seed: int = 0, **config: object) -> tuple[list[float], object]:
    model = tiny_llama(VOCAB, hidden_size=32, layers=1)
    losses = train_sft(model, data, SFTConfig(batch_size=16, seed=seed, **config), progress=False)  # type: ignore[arg-type]
    assert not model.training
    return losses, model


def test_it_learns_what_the_agent_said() -> None:
    losses, _ = trained(sessions(200), steps=120, learning_rate=1e-2)
    assert len(losses) == 120
    assert 2 < losses[0] < math.log(VOCAB)  # nats a token; tied embeddings favour a repetition from the start
    assert sum(losses[-10:]) / 10 < 0.1


def test_only_the_agents_tokens_count() -> None:
    """What was heard last but never answered changes nothing."""
    data = sessions(40)
    longer = [(np.append(ids, 5).astype(np.int32), np.append(mask, False)) for ids, mask in data]
    (one, a), (two, b) = trained(data, steps=5), trained(longer, steps=5)
    assert one == pytest.approx(two, abs=1e-6)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(p, q, rtol=0, atol=1e-4)


def test_a_seed_fixes_it() -> None:
    data = sessions(50)
    assert trained(data, steps=6)[0] == trained(data, steps=6)[0]
    assert trained(data, steps=6)[0] != trained(data, steps=6, seed=1)[0]


def test_no_session_comes_twice_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    data = [(np.array([0, 1 + i, 1], np.int32), np.array([False, False, True])) for i in range(20)]

    def recording(ids: list[np.ndarray], masks: list[np.ndarray], temperatures: list[float]) -> object:
        seen.extend(int(row[1]) - 1 for row in ids)
        return collate(ids, masks, temperatures)

    collate = sft.collate
    monkeypatch.setattr(sft, "collate", recording)
    trained(data, steps=3)  # batches of 16 from 20: the last 4 of a round are left out, not mixed into the next
    rounds = [seen[i : i + 16] for i in range(0, 48, 16)]
    assert all(len(set(one)) == 16 for one in rounds)
    assert len({tuple(one) for one in rounds}) == 3


def test_fewer_sessions_than_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="3 sessions are fewer than one batch of 16"):
        trained(sessions(3), steps=1)
