"""Pictures of failures, clusters, difficulty, fidelity and exams say what their data say."""

from __future__ import annotations

import math
import random

import pytest
from matplotlib.figure import Figure

from rlkit.envs.calibration import calibrate
from rlkit.envs.drift import Difference
from rlkit.envs.env_check import check_environment
from rlkit.envs.failures import Failure
from rlkit.envs.fidelity import Compared, Fidelity
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.judge import Judge
from rlkit.envs.mining import mine
from rlkit.envs.similar import Cluster
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.examples.support.judges import CRITERIA, planted_judge, truth
from rlkit.examples.support.production import production_sessions
from rlkit.logs.trace import Trace
from rlkit.show import (
    failure_table,
    funnel,
    plot_calibration,
    plot_clusters,
    plot_difficulty,
    plot_exams,
    plot_fidelity,
)


def texts(figure: Figure) -> list[str]:
    (ax,) = figure.axes
    figure.canvas.draw()
    told = [ax.get_title(loc="left"), *(text.get_text() for text in ax.texts)]
    return [*told, *(label.get_text() for label in (*ax.get_yticklabels(), *ax.get_xticklabels()))]


def test_the_failure_table_counts_kinds_by_fault() -> None:
    trace = Trace(id="t", messages=[])
    failed = [(trace, Failure(fault, kind, "x")) for fault, kind in (("agent", "loop"), ("user", "gave_up"))]
    table = failure_table([*failed, failed[1]])
    assert table.to_dict() == {"agent": {"gave_up": 0, "loop": 1}, "user": {"gave_up": 2, "loop": 0}}
    assert failure_table([]).empty


def test_clusters_are_drawn_with_their_share_and_the_rest_together() -> None:
    sizes = (6, 3, 1)
    clusters = [Cluster(f"kind: way {n}", "agent", "loop", tuple(range(n))) for n in sizes]
    told = texts(plot_clusters(clusters, most=2))
    assert "10 failures in 3 clusters" in told
    assert {"kind: way 6", "kind: way 3", "1 smaller clusters", "6  60%", "3  30%", "1  10%"} <= set(told)
    plot_clusters([]).canvas.draw()


def test_difficulty_tells_what_can_be_trained_on() -> None:
    tasks = [Task(id=str(n), messages=[], state={}, difficulty=d) for n, d in enumerate((0, 0.5, 0.5, 1, None))]
    assert "2 of 5 tasks have something to teach (40%)" in texts(plot_difficulty(tasks))
    plot_difficulty([]).canvas.draw()


def test_a_funnel_gives_a_share_only_where_it_is_one() -> None:
    told = texts(funnel({"sessions": 100, "clusters": 5, "tasks": 60}))
    assert {"100", "5  (5% of sessions)", "60"} <= set(told)


def test_fidelity_is_drawn_by_tool() -> None:
    def call(tool: str, result: str) -> Compared:
        return Compared("t", tool, result, "", "", (Difference("value", "a", 1, 2),), None, 0.0)  # type: ignore[arg-type]

    found = Fidelity([call("look", "exact"), call("look", "different"), call("pay", "luck"), call("pay", "equal")])
    figure = plot_fidelity(found)
    assert "66.7% of the recorded calls come back as they were" in texts(figure)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["exact", "equal", "luck", "different"]
    assert math.isnan(Fidelity().share)


def test_exams_show_who_succeeds() -> None:
    tasks = [support.sample_task(random.Random(n)) for n in range(4)]
    polite = Rubric("polite", [Check("polite", 1, lambda task, trace, state: bool(trace.final_reply))])
    told = texts(plot_exams(check_environment(support.environment, polite, tasks, support.oracle)))
    assert told.count("4 of 4 succeed") >= 2
    assert "0 of 4 succeed" in told
    assert any(text.startswith("What the reward pays: ") and "0 problems" not in text for text in told)


def test_calibrations_show_every_statistic_and_a_dash_where_there_is_none() -> None:
    mining = mine(production_sessions(60), support.task_from_trace, support.final_state, support.rubric)
    cases = [(m.task, m.trace) for m in mining.sessions]
    labels = {trace.id: all(truth(task, trace).values()) for task, trace in cases}
    judges = {flaw: Judge(planted_judge(flaw, cases), CRITERIA, max_errors_in_a_row=99) for flaw in ("none", "noise")}
    told = texts(plot_calibration({name: calibrate(judge, cases, labels) for name, judge in judges.items()}))
    assert {"none", "noise", "kappa", "rerun\nnoise", "1.00", "–"} <= set(told)
    assert "swap\nconsistency" not in told


@pytest.mark.parametrize(
    "name", ["plot_calibration", "plot_exams", "plot_fidelity", "plot_clusters", "plot_difficulty", "failure_table"]
)
def test_they_are_public(name: str) -> None:
    import rlkit.show

    assert callable(getattr(rlkit.show, name))
