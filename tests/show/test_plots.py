"""Figures show the numbers they were given, under the names they were given."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import rlkit.show
from rlkit.envs.grading import CheckResult, Grade
from rlkit.envs.mining import Mining
from rlkit.show import check_table, funnel, live_training_curves, success_bars, success_table, training_curves
from rlkit.stats import Interval

STEP = {
    "rollout/reward": 0.5,
    "rollout/success": 0.25,
    "rollout/reward_std": 0.4,
    "rollout/zero_variance_groups": 0.125,
    "rollout/entropy": 0.3,
    "rollout/tokens": 70.0,
    "rollout/action_tokens": 28.0,
    "rollout/turns": 3.0,
    "rollout/truncated": 0.0,
    "mismatch/kl": -1e-6,
    "mismatch/k3": 1e-6,
    "time/sample_s": 2.0,
    "time/train_s": 1.0,
    "time/sync_s": 0.5,
}


def run(steps, **changes):
    return [{"step": i} | STEP | {key: value(i) for key, value in changes.items()} for i in range(steps)]


def panel(figure, title):
    (found,) = [ax for ax in figure.axes if ax.get_title("left").startswith(title)]
    return found


def lines(ax, bold):
    return [line.get_ydata() for line in ax.lines if (line.get_linewidth() > 1.5) == bold]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def labels(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def drawn(figure):
    """Lay out and render, which is where matplotlib finds most of what is wrong; the artists are then final."""
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == []  # pyplot does not know of it, so nothing is shown twice
    return figure


def test_the_lazy_names_are_those_editors_see():
    listed = "import rlkit.show, sys; print('matplotlib' in sys.modules, 'ipywidgets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True).stdout == "False False\n"
    for name in rlkit.show.__all__:
        assert getattr(rlkit.show, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rlkit.show.nothing


def test_short_run_is_drawn_as_it_was():
    metrics = run(12, **{"rollout/reward": lambda i: i / 12, "time/train_s": lambda i: i})
    figure = drawn(training_curves(metrics))
    assert len(figure.axes) == 9
    (reward,) = panel(figure, "Reward").lines
    np.testing.assert_allclose(reward.get_ydata(), [m["rollout/reward"] for m in metrics])
    np.testing.assert_allclose(reward.get_xdata(), range(12))
    tokens, spoken = panel(figure, "Length").lines
    assert set(tokens.get_ydata()) == {70.0}
    assert set(spoken.get_ydata()) == {28.0}
    sample, train, sync = panel(figure, "Time").patches
    np.testing.assert_allclose(sample.get_data().values, 2)
    np.testing.assert_allclose(train.get_data().values, 2 + np.arange(12))
    np.testing.assert_allclose(sync.get_data().values, 2.5 + np.arange(12))
    np.testing.assert_allclose(sync.get_data().edges, np.arange(13) - 0.5)
    assert all(ax.get_ylabel() and ax.get_title("left") for ax in figure.axes)


def test_long_run_gets_running_mean_and_band():
    metrics = run(48, **{"rollout/reward": lambda i: float(i % 2)})  # a window of 48 // 16 · 2 + 1 = 7
    figure = drawn(training_curves(metrics))
    ax = panel(figure, "Reward")
    ((raw,), (mean,)) = lines(ax, bold=False), lines(ax, bold=True)
    np.testing.assert_allclose(raw, [m["rollout/reward"] for m in metrics])
    assert mean[0] == 0.5  # steps 0 to 3
    assert mean[10] == pytest.approx(4 / 7)  # of steps 7 to 13, four are odd
    band = ax.collections[0].get_paths()[0].vertices
    at_ten = band[band[:, 0] == 10][:, 1]
    deviation = math.sqrt(7 * (3 / 7) * (4 / 7) / 6)  # of four and three, n - 1 = 6
    np.testing.assert_allclose(at_ten.max() - at_ten.min(), 4 * deviation / math.sqrt(7))
    assert "mean over 7 steps" in figure.get_supxlabel()


def test_seeds_are_averaged_and_the_band_is_theirs():
    seeds = [run(4, **{"rollout/reward": lambda i, r=r: r}) for r in (0.2, 0.4, 0.6)]
    seeds[2] = seeds[2][:3]  # stopped early
    figure = drawn(training_curves(seeds))
    ax = panel(figure, "Reward")
    assert len(lines(ax, bold=False)) == 3
    np.testing.assert_allclose(lines(ax, bold=True)[0], [0.4, 0.4, 0.4, 0.3])
    band = ax.collections[0].get_paths()[0].vertices
    first = band[band[:, 0] == 0][:, 1]
    np.testing.assert_allclose([first.min(), first.max()], [0.4 - 0.4 / math.sqrt(3), 0.4 + 0.4 / math.sqrt(3)])
    assert "3 seeds" in figure.get_supxlabel()


def test_one_step_can_be_seen():
    figure = drawn(training_curves(run(1)))
    (point,) = panel(figure, "Reward").lines
    assert (list(point.get_ydata()), point.get_marker()) == ([0.5], ".")


def test_missing_metrics_have_no_panel_and_gaps_stay_gaps():
    values = [0.1, math.nan, None, 0.4]
    figure = drawn(training_curves([{"rollout/reward": value, "rollout/entropy": math.nan} for value in values]))
    assert [ax.get_title("left") for ax in figure.axes] == ["Reward: should rise"]
    np.testing.assert_equal(figure.axes[0].lines[0].get_ydata(), [0.1, math.nan, math.nan, 0.4])


@pytest.mark.parametrize("nothing", [[], [[]], [{"rollout/entropy": None}], [{"loss": 1.0}]])
def test_nothing_to_plot_is_said(nothing):
    with pytest.raises(ValueError, match="no metrics to plot"):
        training_curves(nothing)


def test_the_lowest_branch_is_named():
    branches = {"rollout/success/cold/voucher": lambda i: 0.9, "rollout/success/late/deny": lambda i: 0.5 - i / 10}
    ax = panel(drawn(training_curves(run(5, **branches))), "Success")
    assert labels(ax) == ["all rollouts", "lowest: late/deny"]
    lowest = next(line for line in ax.lines if line.get_label() == "lowest: late/deny")
    np.testing.assert_allclose(lowest.get_ydata(), [0.5, 0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(("growth", "scale"), [(1.0, "linear"), (3.0, "log")])
def test_mismatch_is_logarithmic_where_it_grows(growth, scale):
    figure = drawn(training_curves(run(10, **{"mismatch/k3": lambda i: 1e-6 * growth**i})))
    ax = panel(figure, "Mismatch")
    assert ax.get_yscale() == scale
    sign = {"linear": -1, "log": 1}[scale]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), sign * 1e-6)
    assert labels(ax)[1] == {"linear": "mean log q/p", "log": "|mean log q/p|"}[scale]


def test_live_curves_update_one_display(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda figure: shown.append(("update", len(figure.axes))))

    def display(figure, display_id):
        shown.append(("display", len(figure.axes)))
        return handle

    monkeypatch.setattr("IPython.core.getipython.get_ipython", object)
    monkeypatch.setattr("IPython.display.display", display)
    draw = live_training_curves(every=4)
    for step in range(1, 11):
        draw(SimpleNamespace(metrics=run(step), trainer=SimpleNamespace(config=SimpleNamespace(steps=10))))
    assert shown == [("display", 3), *[("update", 3)] * 3]  # steps 1, 4, 8 and the last


def test_live_curves_do_nothing_outside_a_notebook():
    live_training_curves()(None)


def results(**cells):
    """`late_deny="110"` is three tasks of a branch, two of them successes; `x` is masked."""
    rows = [
        {"task": f"{cell}{i}", "success": mark == "1", "score": {"1": 1.0, "0": 0.0, "x": None}[mark]}
        | dict(zip(("complaint", "outcome"), cell.split("_"), strict=True))
        for cell, marks in cells.items()
        for i, mark in enumerate(marks)
    ]
    return pd.DataFrame(rows)


def test_success_table_prints_every_branch():
    before = results(late_deny="0001", cold_voucher="11x")
    after = results(late_deny="1111", lost_refund="10")
    figure = drawn(success_table({"before": before, "after": after}))
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "cold · voucher",
        "late · deny",
        "lost · refund",
        "all episodes",
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["before", "after"]
    shares = ax.collections[0].get_array().filled(np.nan)
    np.testing.assert_allclose(shares, [[1, np.nan], [0.25, 1], [np.nan, 0.5], [0.5, 5 / 6]])
    assert texts(ax)[:6] == ["1.00", "n = 2", ".25", "n = 4", "–", ""]
    assert texts(ax)[6] == ".50"
    assert texts(ax)[7].startswith("[.")
    norm = ax.collections[0].norm
    assert (norm.vmin, norm.vcenter, norm.vmax) == (0, 0.75, 1)


def test_success_table_by_one_tag_and_of_masked_episodes_only():
    figure = drawn(success_table({"before": results(late_deny="x")}, tags=["complaint"]))
    assert texts(figure.axes[0]) == ["–", "[.00, 1.00]"]
    figure = drawn(success_table({"before": results(late_deny="10")}, tags=["complaint"]))
    assert figure.axes[0].get_yticklabels()[0].get_text() == "late"


def test_success_bars_print_the_numbers():
    (ax,) = drawn(success_bars({"before": Interval(0.4, 0.5, 0.6), "none": Interval(0, math.nan, 1)})).axes
    assert texts(ax) == ["0.50 [0.40, 0.60]", "nan [0.00, 1.00]"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["before", "none"]
    np.testing.assert_allclose(ax.collections[0].get_segments()[0], [[0.4, 0], [0.6, 0]])
    assert list(ax.lines[0].get_xdata()) == [0.5]


def test_funnel_shows_counts_and_shares():
    (ax,) = drawn(funnel({"logs": 2000, "sessions": 1000, "failures": 0, "tasks": 0})).axes
    assert texts(ax) == ["2,000", "1,000  (50% of logs)", "0  (0% of sessions)", "0"]
    assert [bar.get_width() for bar in ax.patches] == [2000, 1000, 0, 0]


def test_check_table_counts_errors_apart_from_failures():
    def graded(*scores):
        checks = [CheckResult(name, score, 1.0) for name, score in zip("ab", scores, strict=False)]
        return SimpleNamespace(grade=Grade("failure", 0.0, checks, "r@1"))

    sessions = [graded(1.0, 0.5), graded(0.0, None), graded(1.0, None), graded()]
    table = check_table(sessions)
    assert table.loc["a"].tolist() == [pytest.approx(2 / 3), 3, 0]
    assert table.loc["b"].tolist() == [0, 1, 2]
    pd.testing.assert_frame_equal(check_table(Mining(sessions=sessions)), table)
    assert math.isnan(check_table([graded(None)]).loc["a", "passed"])
    assert list(check_table([]).columns) == ["passed", "scored", "errors"]
