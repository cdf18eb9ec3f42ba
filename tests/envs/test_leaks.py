"""Planted leaks are caught, each by its kind; a split by keys has none."""

from __future__ import annotations

import random
import warnings

import pytest

from rlkit.envs.leaks import Leak, find_leaks, with_near_keys
from rlkit.envs.task import Task, TaskSet, split_tasks
from rlkit.examples import support
from rlkit.logs.trace import Message


def task(id: str, prompt: str, *keys: str, sources: tuple[str, ...] = ()) -> Task:
    messages = [Message(role="user", content=prompt)]
    return Task(id=id, messages=messages, state={}, keys=list(keys), source_trace_ids=list(sources))


CLEAN = [task("a", "order 1 was late", "user:1", sources=("7",)), task("b", "soup came cold", "user:2", sources=("8",))]


@pytest.mark.parametrize(
    ("planted", "kind", "evidence"),
    [
        (task("x", "where is my refund", "user:2"), "key", "user:2"),
        (task("a", "where is my refund"), "key", "task:a"),
        (task("x", "where is my refund", sources=("7",)), "source", "7"),
        (task("x", "where is my refund", sources=("7#2",)), "session", "7"),
        (task("x", "Order 99 was late!"), "prompt", "order # was late"),
        (task("x", "order 99 was so late"), "near_prompt", "order # was late"),
    ],
)
def test_a_planted_leak_is_caught_by_its_kind(planted: Task, kind: str, evidence: str) -> None:
    (leak,) = find_leaks(CLEAN, [task("y", "nothing like it", "user:3", sources=("9",)), planted], 0.85)
    assert (leak.kind, leak.heldout) == (kind, planted.id)
    assert evidence in leak.evidence


def test_a_canary_in_a_training_task_is_caught() -> None:
    marked = task("c", "hello BENCHMARK-CANARY-7")
    assert find_leaks([*CLEAN, marked], [], canary="BENCHMARK-CANARY-7") == [
        Leak("canary", "c", "", "BENCHMARK-CANARY-7")
    ]


@pytest.mark.parametrize("canary", ['"CANARY" \\', "BENCHMARK\nDATA", "注文"])
def test_a_canary_of_any_characters_is_caught(canary: str) -> None:
    assert len(find_leaks([task("c", f"before {canary} after")], [], canary=canary)) == 1


def test_prompts_without_words_and_in_other_scripts_are_told_apart() -> None:
    assert find_leaks([task("a", "4821"), task("b", "")], [task("x", "17"), task("y", "")]) == []
    train, other, same = "注文1234が届きません", "2回も返金を頼みました", "注文99が届きません"
    assert find_leaks([task("a", train)], [task("x", other)]) == []
    assert [leak.kind for leak in find_leaks([task("a", train)], [task("x", same)])] == ["prompt"]


def test_a_clean_split_has_none_and_near_duplicates_stay_together() -> None:
    assert find_leaks(CLEAN, [task("y", "nothing like it", "user:3")]) == []
    prompts = [f"{word} order {n} was so late today" for n in range(30) for word in ("my", "the", "an", "this")]
    tasks = with_near_keys([task(str(n), prompt) for n, prompt in enumerate(prompts)], 0.95)
    assert all(key.startswith("near:") for made in tasks for key in made.keys)
    split = split_tasks(tasks, 0.5, seed=1)
    assert find_leaks(split.train, split.heldout, 0.95) == []


def test_a_split_by_one_kind_of_key_sets_aside_what_would_leak() -> None:
    rng = random.Random(0)
    tasks = [support.sample_task(rng, "train") for _ in range(1500)]
    with pytest.warns(UserWarning, match=r"one side of the split is empty.* by=, out of order, phrase, user"):
        assert not split_tasks(tasks, 0.2).heldout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = split_tasks(tasks, 0.2, by="phrase")
    assert len(split.train) + len(split.heldout) + len(split.aside) == 1500
    assert 150 < len(split.heldout) < 500
    assert 0 < len(split.aside) < 500
    assert [leak for leak in find_leaks(split.train, split.heldout) if leak.kind != "near_prompt"] == []
    unseen = {key for made in split.heldout for key in made.keys}
    assert all(unseen & set(made.keys) for made in split.aside)
    assert not any(unseen & set(made.keys) for made in split.train)


def test_the_leak_check_of_a_task_set_and_find_leaks_agree() -> None:
    leaky = [task("x", "where is my refund", "user:2")]
    assert find_leaks(CLEAN, leaky)
    with pytest.raises(ValueError, match="user:2"):
        TaskSet(train=CLEAN, heldout=leaky)
