"""Tasks: what they refuse, how they are split, how they are kept in files."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlkit.envs.task import LeakError, Task, TaskSet, read_tasks, split_tasks, write_tasks
from rlkit.logs.trace import Message


def task(id: str, *keys: str, **fields: object) -> Task:
    return Task(**{"id": id, "messages": [Message(role="user", content="hi")], "state": {}, "keys": keys} | fields)


pytestmark = pytest.mark.filterwarnings("ignore:one side of the split")

# few keys and many tasks make chains: a-b, b-c, c-d
graphs = st.lists(st.lists(st.sampled_from([f"k{i}" for i in range(12)]), max_size=3), max_size=30)


@given(graphs, st.floats(0, 1), st.integers(0, 5))
def test_split_never_leaks_and_loses_nothing(graph: list[list[str]], share: float, seed: int) -> None:
    tasks = [task(str(i), *keys) for i, keys in enumerate(graph)]
    split = split_tasks(tasks, share, seed)
    train, heldout = ({key for t in side for key in t.keys} for side in (split.train, split.heldout))
    assert not train & heldout
    assert sorted(t.id for t in split.train + split.heldout) == sorted(t.id for t in tasks)


def test_a_tag_that_would_hide_a_column_of_results_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be called score"):
        Task(id="t", messages=[], state={}, tags={"score": "high"})


@given(graphs, st.floats(0, 1), st.integers(0, 5))
def test_a_split_by_a_kind_of_key_never_leaks_and_loses_nothing(
    graph: list[list[str]], share: float, seed: int
) -> None:
    tasks = [task(str(i), *(f"{key[:2]}:{key}" for key in keys)) for i, keys in enumerate(graph)]
    split = split_tasks(tasks, share, seed, by="k1")
    train, heldout = ({key for t in side for key in t.keys} for side in (split.train, split.heldout))
    assert not train & heldout
    assert all(heldout & set(t.keys) for t in split.aside)
    together = split.train + split.heldout + split.aside
    assert sorted(t.id for t in together) == sorted(t.id for t in tasks)


@given(graphs, st.randoms())
def test_split_does_not_depend_on_order(graph: list[list[str]], random: object) -> None:
    tasks = [task(str(i), *keys) for i, keys in enumerate(graph)]
    heldout = {t.id for t in split_tasks(tasks, 0.5).heldout}
    random.shuffle(tasks)
    assert {t.id for t in split_tasks(tasks, 0.5).heldout} == heldout


def test_tasks_joined_through_a_third_stay_together() -> None:
    for seed in range(20):
        split = split_tasks([task("1", "a"), task("2", "c"), task("3", "a", "b"), task("4", "b", "c")], 0.5, seed)
        assert len(split.train) in (0, 4)


def test_share_is_met_and_seed_matters() -> None:
    tasks = [task(str(i), f"user:{i}") for i in range(2000)]
    first, second = split_tasks(tasks, 0.2, seed=0), split_tasks(tasks, 0.2, seed=1)
    assert 340 < len(first.heldout) < 460  # 400, within 3.4 standard deviations of 17.9
    assert {t.id for t in first.heldout} != {t.id for t in second.heldout}
    assert split_tasks(tasks, 0).heldout == []
    assert split_tasks(tasks, 1).train == []


def test_later_tasks_move_no_other_component() -> None:
    tasks = [task(str(i), f"user:{i}") for i in range(100)]
    before = {t.id for t in split_tasks(tasks, 0.5).heldout}
    after = {t.id for t in split_tasks([*tasks, task("new", "user:7", "order:1")], 0.5).heldout}
    assert before ^ after <= {"7", "new"}


@pytest.mark.parametrize("share", [-0.1, 20, math.nan])
def test_split_refuses_a_share_outside_0_to_1(share: float) -> None:
    with pytest.raises(ValueError, match="heldout_share must be in"):
        split_tasks([], share)


def test_task_set_names_the_leaked_key() -> None:
    with pytest.raises(ValidationError, match="1 keys are on both sides of the split: user:u1") as caught:
        TaskSet(train=[task("1", "user:u1", "order:1")], heldout=[task("2", "user:u1", "order:2")])
    assert isinstance(caught.value.errors()[0]["ctx"]["error"], LeakError)


def test_the_same_task_twice_is_a_leak_even_without_keys() -> None:
    with pytest.raises(ValidationError, match="task:1"):
        TaskSet(train=[task("1")], heldout=[task("1")])
    for seed in range(20):
        split_tasks([task("1", "a"), task("1", "b"), task("2")], 0.5, seed)


def test_counts_by_tag() -> None:
    cold = [task(id, tags={"complaint": "cold"}) for id in "12"]
    counts = TaskSet(train=[*cold, task("3")], heldout=[]).counts("complaint")
    assert counts == {"train": {"cold": 2, "?": 1}, "heldout": {}}


@pytest.mark.parametrize("bad", [{"x": math.nan}, {"x": (1, 2)}, {"x": {1: "a"}}, {"x": {1, 2}}])
def test_state_and_goal_are_plain_json(bad: dict[str, object]) -> None:
    for field in ("state", "goal"):
        with pytest.raises(ValidationError, match=field):
            task("1", **{field: bad})


def test_file_round_trip(tmp_path) -> None:
    tasks = [
        task("1", "user:ü", state={"price": 0.1, "items": [None, True, {"n": 2**70}]}, tags={"a": "b"}, difficulty=0.2),
        task("2\u2028", messages=[Message(role="user", content="line\nbreak\u2028and 🍜")]),
    ]
    path = tmp_path / "tasks.jsonl"
    write_tasks(tasks, path)
    assert read_tasks(path) == tasks
    write_tasks([], path)
    assert read_tasks(path) == []


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff\xfe\x00", "Invalid JSON"),
        (b"[]", "object"),
        (b'{"id": 1, "messages": [], "state": {}}', "id: "),
        (b'{"id": "1", "messages": [{"role": "robot"}], "state": {}}', r"messages\.0\.role: "),
    ],
)
def test_a_bad_record_is_named_by_file_and_line_in_one_line(tmp_path, record: bytes, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(task("1").model_dump_json().encode() + b"\n" + record + b"\n")
    with pytest.raises(ValueError, match=rf"tasks\.jsonl:2: not a task: .*{message}") as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)
