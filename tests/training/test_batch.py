from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.training.batch import collate, micro_batches


def rows(*spoken: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sequences from pictures: `.` is a token heard, `x` one spoken; ids count up from 10 a row."""
    ids = [np.arange(10 * (i + 1), 10 * (i + 1) + len(s), dtype=np.int32) for i, s in enumerate(spoken)]
    return ids, [np.array([c == "x" for c in s]) for s in spoken]


def test_padding_and_alignment_by_hand() -> None:
    batch = collate(*rows("..xx.x", ".x"), temperatures=[1.0, 0.5], pad_id=7)
    assert batch.token_ids.tolist() == [[10, 11, 12, 13, 14, 15], [20, 21, 7, 7, 7, 7]]
    # position t predicts token t + 1
    assert batch.predicts_action.int().tolist() == [[0, 1, 1, 0, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert batch.targets.tolist() == [12, 13, 15, 21]
    assert batch.temperatures.tolist() == [1.0, 1.0, 1.0, 0.5]


def test_a_pad_id_that_means_end_of_sequence_masks_nothing() -> None:
    """The mask comes from lengths: an end token that is spelled like padding is an action like any other."""
    ids, masks = [np.array([5, 2, 2], np.int32), np.array([5, 2], np.int32)], [np.array([0, 1, 1], bool)] * 2
    batch = collate(ids, [masks[0], masks[1][:2]], [1.0, 1.0], pad_id=2)
    assert batch.targets.tolist() == [2, 2, 2]
    assert batch.predicts_action.int().tolist() == [[1, 1, 0], [1, 0, 0]]


def test_a_row_without_actions_is_fine() -> None:
    batch = collate(*rows("...", ".x"), temperatures=[1.0, 1.0])
    assert batch.targets.tolist() == [21]


def test_the_first_token_cannot_be_an_action() -> None:
    with pytest.raises(ValueError, match="sequence 1: the first token"):
        collate(*rows("..x", "x."), temperatures=[1.0, 1.0])


@given(st.lists(st.text("x.", min_size=1, max_size=12).map(lambda s: "." + s), min_size=1, max_size=6))
def test_targets_are_the_spoken_tokens_in_order(pictures: list[str]) -> None:
    ids, masks = rows(*pictures)
    batch = collate(ids, masks, [1.0 + i for i in range(len(ids))])
    assert batch.targets.tolist() == [int(t) for i, m in zip(ids, masks, strict=True) for t in i[m]]
    assert batch.temperatures.tolist() == [1.0 + i for i, m in enumerate(masks) for _ in range(m.sum())]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_micro_batches_hold_every_index_once_within_the_limit(lengths: list[int], most: int) -> None:
    batches = list(micro_batches(lengths, most))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= most
    in_order = [lengths[i] for batch in batches for i in batch]
    assert in_order == sorted(lengths, reverse=True)


def test_micro_batches_are_no_smaller_than_they_must_be() -> None:
    assert list(micro_batches([3, 5, 3, 2], 10)) == [[1, 0], [2, 3]]
    assert list(micro_batches([20, 1, 1], 10)) == [[0], [1, 2]]
