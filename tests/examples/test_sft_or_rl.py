"""Imitate or reinforce: no arm sees what it must not, and the committed results are what they say they are."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

import rlkit
from rlkit.examples.support.branching import ASK, branching_sessions
from rlkit.examples.support.mining import final_state
from rlkit.examples.support.rubric import rubric
from rlkit.examples.support.sft_or_rl import (
    ARMS,
    BRANCHES,
    UNSEEN,
    branch_of,
    exam,
    examine,
    lessons,
    pooled,
    side_of,
    tally,
    train_arm,
)
from rlkit.examples.support.world import COMPLAINTS, read_complaint

SESSIONS = list(branching_sessions(150))
GIVEN = lessons(SESSIONS)
COUNTS = ["n", "successes", "n_timed_out", "successes_timed_out"]


@pytest.fixture(scope="module")
def committed() -> pd.DataFrame:
    return pd.read_csv(rlkit.data_path("experiments/sft_or_rl.csv"))


def test_the_branches_are_all_there_are_and_some_are_unseen():
    assert {complaint for complaint, _ in BRANCHES} == set(COMPLAINTS)
    assert set(UNSEEN) < set(BRANCHES)
    assert len(set(BRANCHES)) == 11
    assert Counter(side_of(branch) for branch in BRANCHES) == {"seen": 7, "unseen": 4}


def test_no_path_and_no_task_is_of_an_unseen_branch():
    assert {branch_of(path.task) for path in GIVEN.paths} == set(BRANCHES) - set(UNSEEN)
    assert {branch_of(task) for task in GIVEN.tasks} == set(BRANCHES) - set(UNSEEN)
    whole = {complaint for complaint in COMPLAINTS if all(b in UNSEEN for b in BRANCHES if b[0] == complaint)}
    assert whole == {"cold"}
    for path in GIVEN.paths:  # nor is such a complaint anywhere in what is imitated, an edited one say
        said = [message.content for message in path.trace.messages if message.role == "user"]
        assert len(said) == 1
        assert read_complaint(said[0])[0] == path.task.tags["complaint"] not in whole


def test_nothing_of_an_exam_is_in_the_lessons():
    tasks = exam(4, seed=0)
    rlkit.TaskSet(train=GIVEN.tasks, heldout=tasks)  # raises where a user, an order or a phrasing is shared
    assert Counter(branch_of(task) for task in tasks) == dict.fromkeys(BRANCHES, 4)
    assert exam(4, seed=0) == tasks
    assert not {task.id for task in tasks} & {task.id for task in exam(4, seed=1)}


def test_the_good_paths_are_the_successes_and_all_of_them():
    def succeeded(path):
        state = final_state(path.trace, path.task)
        return rubric.grade(path.task, path.trace, state).status == "success"

    good = {path.trace.id for path in GIVEN.good}
    assert good == {path.trace.id for path in GIVEN.paths if succeeded(path)}
    assert 0 < len(good) < len(GIVEN.paths)


def test_every_main_line_and_fork_is_used_or_counted():
    lines = [trace for session in SESSIONS for trace in session if trace.relation != "subagent"]
    assert len(GIVEN.paths) + GIVEN.left_out.total() == len(lines)
    assert set(GIVEN.left_out) == {"asks the specialist", "of an unseen branch"}
    assert any(path.trace.relation == "fork" for path in GIVEN.paths)
    assert all(call.name != ASK for path in GIVEN.paths for call in path.trace.tool_calls)
    assert len(GIVEN.tasks) == len({task.messages[-1].content for task in GIVEN.tasks}) < len(GIVEN.paths)


def test_what_is_imitated_is_known_to_the_tokenizer_but_for_a_slip_of_the_agent():
    chat = rlkit.ChatFormat(rlkit.load_model(rlkit.data_path("models/support-warm-start"))[1])
    unknown = [p for p in GIVEN.paths if "<unk>" in chat.text(chat.conversation(p.trace.messages)[0])]
    assert all("for the None" in path.trace.final_reply for path in unknown)
    assert all(path.grade.status == "failure" for path in unknown)


def test_counts_and_intervals():
    rows = [("a", "seen", 1.0, True), ("b", "seen", 1.0, False), ("c", "unseen", None, False)]
    results = pd.DataFrame(rows, columns=["task", "side", "score", "timed_out"])
    results = results.assign(success=results["score"].notna(), complaint="late", outcome="deny")
    counts = tally(results)
    assert counts[COUNTS].to_numpy().tolist() == [[2, 2, 1, 1]]
    interval = pooled(counts, ["side"])["success"]["seen"]
    assert interval.low < interval.mean == interval.high == 1


def test_the_committed_table_is_whole(committed):
    test = committed[committed["split"] == "test"]
    cells = test.groupby(["arm", "seed", "temperature"])
    assert len(cells) == len(ARMS) * 3 * 2
    assert set(test["arm"]) == set(ARMS)
    gentle = committed[committed["split"] == "gentle"]
    assert set(gentle["arm"]) == {"sft_good"}
    more = gentle.groupby(["conversations", "learning_rate", "seed", "temperature"])
    assert len(more) == 2 * 3 * 2
    for _, cell in [*cells, *more]:
        branches = set(zip(cell["complaint"], cell["outcome"], strict=True))
        assert len(cell) == len(BRANCHES)
        assert branches == set(BRANCHES)
    assert test["n"].nunique() == 1
    sides = [side_of(branch) for branch in zip(committed["complaint"], committed["outcome"], strict=True)]
    assert committed["side"].tolist() == sides
    assert (committed["successes"] <= committed["n"]).all()
    assert (committed["n_timed_out"] <= committed["n"]).all()
    assert (committed["successes_timed_out"] <= committed[["successes", "n_timed_out"]].min(axis=1)).all()
    assert not committed.isna().any().any()


def test_settings_were_chosen_on_seen_branches_of_other_sessions(committed):
    tried, test = (committed[committed["split"] == split] for split in ("validation", "test"))
    assert set(tried["side"]) == {"seen"}
    assert not set(tried["seed"]) & set(test["seed"])
    rates = tried.groupby(["arm", "conversations", "learning_rate"])["successes"].sum()
    for arm in ARMS:
        (chosen,) = set(zip(*(test[test["arm"] == arm][c] for c in ("conversations", "learning_rate")), strict=True))
        assert rates[arm][chosen] == rates[arm].max()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_run():
    model, tokenizer = rlkit.load_model(rlkit.data_path("models/support-warm-start"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    given, tasks = lessons(branching_sessions(600, seed=3)), exam(24, seed=3)
    rates = {}
    for arm, rate in (("nothing", 0.0), ("sft_all", 1e-3), ("sft_good", 1e-3), ("grpo", 8e-4)):
        trained = train_arm(arm, model, tokenizer, given, 3840, rate, seed=3)
        counts = tally(examine(trained.model, tokenizer, tasks, 1.0, seed=3))
        assert counts["n"].tolist() == [24] * 11
        rates[arm] = pooled(counts, ["side"])["success"]["seen"].mean
        assert trained.conversations == (0 if arm == "nothing" else 3840)
        assert (trained.tokens > 0) == (arm != "nothing")
    assert all(before[name].equal(value) for name, value in model.state_dict().items())
    assert rates["grpo"] > rates["nothing"] + 0.1
    assert rates["sft_good"] > rates["nothing"]
    assert abs(rates["sft_all"] - rates["nothing"]) < 0.12
