"""The curves of a training run as small multiples: what to look at, and what to look for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlkit.show.plots import BLUE, GREEN, GREY, ORANGE, WIDTH, Picture, style

if TYPE_CHECKING:
    from rlkit.loop import Run

Metrics = Mapping[str, float | None]
COLORS = (BLUE, ORANGE, GREEN)
BRANCH = "rollout/success/"
"""Prefix of the success rates of single branches."""


@dataclass(frozen=True)
class Panel:
    """One small plot of `training_curves`."""

    title: str
    """What it is, and what to look for."""
    unit: str
    series: Mapping[str, str]
    """Metric → label."""
    limits: tuple[float | None, float | None] = (0, None)
    interval: bool = False
    """Draw the band of the running mean."""
    stacked: bool = False
    log: bool = False
    """Logarithmic where the first series spans more than two decades."""


PANELS = (
    Panel("Reward: should rise", "mean reward", {"rollout/reward": "all rollouts"}, (-0.03, 1.03), interval=True),
    Panel(
        "Success: every branch should rise",
        "share of rollouts",
        {"rollout/success": "all rollouts"},
        (-0.03, 1.03),
        interval=True,
    ),
    Panel(
        "Spread: without it nothing is learnt",
        "reward, share of groups",
        {"rollout/reward_std": "std of reward", "rollout/zero_variance_groups": "groups without any"},
        (-0.03, 1.03),
    ),
    Panel("Entropy: falls slowly, never to zero", "nats a token", {"rollout/entropy": "sampled"}),
    Panel(
        "Length: no drift towards the limit",
        "tokens an episode",
        {"rollout/tokens": "whole conversation", "rollout/action_tokens": "spoken by the model"},
    ),
    Panel("Turns: look up, act, reply", "turns an episode", {"rollout/turns": "model's turns"}),
    Panel(
        "Mismatch of trainer and sampler: small",
        "nats a token",
        {"mismatch/k3": "KL, k3 estimate", "mismatch/kl": "mean log q/p"},
        (None, None),
        log=True,
    ),
    Panel(
        "Lost rollouts: near zero",
        "share of rollouts",
        {
            "rollout/truncated": "truncated",
            "rollout/infra_error": "infrastructure error",
            "rollout/grader_error": "grader error",
        },
        (-0.005, None),
    ),
    Panel(
        "Time: what a step waits for",
        "seconds a step",
        {"time/sample_s": "sample", "time/train_s": "train", "time/sync_s": "sync weights"},
        stacked=True,
    ),
)


def training_curves(
    metrics: Sequence[Metrics] | Sequence[Sequence[Metrics]], panels: Sequence[Panel] = PANELS
) -> Figure:
    """Small multiples of a run's metrics (`Run.metrics`, a mapping a step), or of several seeds' (a list of runs).

    Thin lines are the steps, bold ones a running mean whose window the caption states. The band around reward and
    success is ± 2 standard errors of that mean: from the scatter of its steps, or over seeds where there are several.
    Metrics that no step recorded have no panel; NaN and None leave a gap. Raises `ValueError` for nothing to plot.
    """
    runs: Any = [metrics] if metrics and isinstance(metrics[0], Mapping) else metrics
    curves = _Curves([list(run) for run in runs if run])
    panels = [panel for panel in panels if any(curves.has(key) for key in panel.series)]
    if not panels:
        raise ValueError("no metrics to plot")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with style():
        figure = Picture(figsize=(WIDTH * columns / 3, 2.25 * rows + 0.35), layout="constrained")
        axes = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            _draw_panel(ax, panel, curves)
        for ax in axes[len(panels) :]:
            ax.remove()
        for ax in axes[max(0, len(panels) - columns) : len(panels)]:
            ax.set_xlabel("optimizer step")
            ax.xaxis.set_tick_params(labelbottom=True)
        figure.supxlabel(curves.caption(), fontsize=8, color="#666666")
    return figure


class _Curves:
    """Metrics as arrays [seeds, steps], padded with NaN, and their running means."""

    def __init__(self, runs: Sequence[Sequence[Metrics]]) -> None:
        self.runs = runs
        longest = max(runs, key=len, default=[])
        self.steps = np.array([entry.get("step", i) for i, entry in enumerate(longest)], dtype=float)
        # A sixteenth of the run to each side: smooth, and still far narrower than what one looks for.
        self.window = 2 * min(12, len(longest) // 16) + 1
        self.smoothed = self.window > 1 or len(runs) > 1

    def has(self, key: str) -> bool:
        return bool(np.isfinite(self.values(key)).any())

    def names(self, prefix: str) -> list[str]:
        return sorted({key for run in self.runs for entry in run for key in entry if key.startswith(prefix)})

    def values(self, key: str) -> np.ndarray:
        values = np.full((len(self.runs), len(self.steps)), np.nan)
        for row, run in zip(values, self.runs, strict=True):
            row[: len(run)] = [np.nan if entry.get(key) is None else entry[key] for entry in run]
        return values

    def smooth(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(running mean over the seeds, its standard error), both [steps] and NaN where no step was recorded."""
        half = self.window // 2
        padded = np.pad(values, [(0, 0), (half, half)], constant_values=np.nan)
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.window, axis=1)  # [seeds, steps, window]
        mean, error = _mean_and_error(windows)
        mean[np.isnan(values)] = np.nan
        return _mean_and_error(mean.T) if len(values) > 1 else (mean[0], error[0])

    def caption(self) -> str:
        over = f"over {self.window} steps" if self.window > 1 else ""
        if len(self.runs) > 1:
            text = f"Thin: each seed. Bold: mean of {len(self.runs)} seeds {over}".rstrip()
            text += ". Band: ± 2 standard errors over seeds."
        elif over:
            text = f"Thin: each step. Bold: mean {over}. Band: ± 2 standard errors, from the scatter of these steps."
        else:
            text = "Each step as it was: too few for running means and intervals."
        return text + " Grey: the other branches." * bool(self.names(BRANCH))


def _mean_and_error(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the last axis and its standard error, NaNs left out; NaN where too few are there."""
    count = np.isfinite(samples).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(np.isfinite(samples), samples, 0).sum(axis=-1) / count
        squares = np.where(np.isfinite(samples), samples - mean[..., None], 0) ** 2
        return mean, np.sqrt(squares.sum(axis=-1) / (count * (count - 1)))


def _draw_panel(ax: Axes, panel: Panel, curves: _Curves) -> None:
    shown = [key for key in panel.series if curves.has(key)]
    ax.set_title(panel.title, pad=16)  # the legend goes between title and axes, where it hides nothing
    ax.set_ylabel(panel.unit)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    log = panel.log and _spans_decades(curves.smooth(curves.values(shown[0]))[0])
    if panel.stacked:
        _stack(ax, panel, curves, shown)
    for color, key in zip(COLORS, [] if panel.stacked else shown, strict=False):
        values, label = curves.values(key), panel.series[key]
        if log and (values < 0).any():
            values, label = np.abs(values), f"|{label}|"
        _line(ax, curves, values, color, label, panel.interval)
    if "rollout/success" in shown:
        _branches(ax, curves)
    if log:
        ax.set_yscale("log")
    ax.set_ylim(*panel.limits)
    if len(ax.get_legend_handles_labels()[1]) > 1:
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=3, handlelength=1.2, columnspacing=1
        ).set_in_layout(False)


def _line(ax: Axes, curves: _Curves, values: np.ndarray, color: str, label: str, interval: bool) -> None:
    """Thin lines for what was recorded, [seeds, steps], and a bold one for its running mean."""
    mean, error = curves.smooth(values)
    if curves.smoothed:
        for run in values:
            ax.plot(curves.steps, run, color=color, linewidth=0.7, alpha=0.35)
    if interval:
        ax.fill_between(curves.steps, mean - 2 * error, mean + 2 * error, color=color, alpha=0.18, linewidth=0)
    ax.plot(curves.steps, mean, color=color, linewidth=1.8, label=label, marker="." if len(mean) < 4 else None)


def _branches(ax: Axes, curves: _Curves) -> None:
    """A grey line for each branch of the policy, and the name of the one that ends lowest: a mean hides it."""
    ends = {}
    for name in curves.names(BRANCH):
        mean, _ = curves.smooth(curves.values(name))
        seen = np.isfinite(mean)
        if seen.any():
            (line,) = ax.plot(curves.steps[seen], mean[seen], color=GREY, linewidth=0.8, alpha=0.6, zorder=1.5)
            ends[name.removeprefix(BRANCH)] = (mean[seen][-1], line)
    if ends:
        lowest = min(ends, key=lambda name: ends[name][0])
        ends[lowest][1].set(color=ORANGE, linewidth=1.2, alpha=1, label=f"lowest: {lowest:.28}", zorder=3)


def _stack(ax: Axes, panel: Panel, curves: _Curves, shown: Sequence[str]) -> None:
    """Running means on top of each other."""
    base = np.zeros(len(curves.steps))
    width = curves.steps[1] - curves.steps[0] if len(curves.steps) > 1 else 1.0
    edges = np.append(curves.steps - width / 2, curves.steps[-1] + width / 2)
    for color, key in zip(COLORS, shown, strict=False):
        top = base + np.nan_to_num(curves.smooth(curves.values(key))[0])
        ax.stairs(top, edges, baseline=base, fill=True, color=color, alpha=0.85, label=panel.series[key])
        base = top


def _spans_decades(values: np.ndarray) -> bool:
    positive = values[np.isfinite(values) & (values > 0)]
    return len(positive) > 1 and positive.max() > 100 * positive.min()


def live_training_curves(every: int = 10) -> Callable[[Run], None]:
    """A callback for `train(..., on_step=)` that redraws one figure in place, at the first step, every `every` and
    the last. Outside a notebook it does nothing.

    It shows reward, success and spread alone: the whole of `training_curves` takes a second of CPU to draw, these
    less than half.
    """
    from IPython.core.getipython import get_ipython

    handle: Any = None

    def draw(run: Run) -> None:
        nonlocal handle
        step, last = len(run.metrics), getattr(run.trainer.config, "steps", 0)
        if handle is not None and step % every and step != last:
            return
        from IPython.display import display

        figure = training_curves(run.metrics, PANELS[:3])
        if handle is None:
            handle = display(figure, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(figure)

    return draw if get_ipython() is not None else lambda run: None
