"""Figures for notebooks and reports, in one style: success branch by branch, bars, the funnel from logs to tasks.

Every function returns a figure that pyplot does not know of, so a notebook shows it once, where it is the last line of
a cell or given to `display`, and a script saves it with `figure.savefig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from rlkit.envs.grading import Grade
from rlkit.envs.mining import Mining
from rlkit.evaluate import success, success_by
from rlkit.stats import Interval

if TYPE_CHECKING:
    import pandas as pd

# Okabe & Ito's palette: told apart by the colour-blind too.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8A8A8A"
WIDTH = 10.0  # inches; at 110 dpi as wide as a notebook's page

STYLE: Any = {
    "figure.dpi": 110,
    "savefig.dpi": "figure",
    "figure.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": "#444444",
    "axes.edgecolor": "#999999",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
}


def style() -> AbstractContextManager[None]:
    """The look of every figure here, for figures of your own: `with style(): …`."""
    return mpl.rc_context(STYLE)


class Picture(Figure):
    """A figure that a notebook can show even where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        """In 128 colours, which a plot does not miss: a third of the bytes in every notebook."""
        from PIL import Image

        drawn, small = BytesIO(), BytesIO()
        self.savefig(drawn, format="png", bbox_inches="tight")
        Image.open(drawn).convert("RGB").quantize(128).save(small, format="png", optimize=True)
        return small.getvalue()


def success_table(
    policies: Mapping[str, pd.DataFrame], tags: Sequence[str] = ("complaint", "outcome"), threshold: float = 0.75
) -> Figure:
    """Success of each policy (a column) in each combination of `tags` (a row), with the number of scored episodes.

    `policies` holds tables of `evaluate_policy` or `evaluate_traces`. Blue is above `threshold`, red below: a mean
    hides a branch that collapsed, this does not. The last row is the mean of all episodes with its 95 % interval.
    """
    cells = {name: success_by(table, tags).to_dict("index") for name, table in policies.items()}
    overall = {name: success(table) for name, table in policies.items()}
    branches = sorted({branch for table in cells.values() for branch in table}, key=str)
    rows = [[cells[name].get(branch, {}).get("success", np.nan) for name in policies] for branch in branches]
    shares = np.array([*rows, [interval.mean for interval in overall.values()]], dtype=float)
    labels = [" · ".join(map(str, branch)) if isinstance(branch, tuple) else str(branch) for branch in branches]
    with style():
        figure = Picture(figsize=(2.2 + 1.75 * len(policies), 0.85 + 0.3 * len(shares)), layout="constrained")
        ax = figure.subplots()
        norm, colors = TwoSlopeNorm(threshold, 0, 1), mpl.colormaps["RdBu"].with_extremes(bad="#F2F2F2")
        ax.pcolormesh(shares, norm=norm, cmap=colors, edgecolors="white", linewidth=2)
        for column, name in enumerate(policies):
            counts = [cells[name].get(branch, {}).get("count", 0) for branch in branches]
            notes = [f"n = {count:.0f}" if count else "" for count in counts]
            notes.append(f"[{_share(overall[name].low)}, {_share(overall[name].high)}]")
            for row, note in enumerate(notes):
                share, last = shares[row, column], row == len(branches)
                ink = "white" if np.isfinite(share) and _is_dark(colors(norm(share))) else "#222222"
                weight = "bold" if last else "normal"
                ax.text(
                    column + 0.42, row + 0.5, _share(share), ha="right", va="center_baseline", color=ink, weight=weight
                )
                ax.text(column + 0.5, row + 0.5, note, ha="left", va="center_baseline", color=ink, fontsize=7)
        ax.set_yticks(np.arange(len(shares)) + 0.5, [*labels, "all episodes"])
        ax.set_xticks(np.arange(len(policies)) + 0.5, list(policies))
        ax.axhline(len(branches), color="white", linewidth=6)
        ax.invert_yaxis()
        ax.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
        ax.spines[:].set_visible(False)
        ax.grid(False)
        figure.suptitle(f"Success by {' and '.join(tags)}: blue above {_share(threshold)}, red below", fontsize=9.5)
    return figure


def success_bars(policies: Mapping[str, Interval], title: str = "Success, with 95 % intervals") -> Figure:
    """A dot with its interval for each policy, the numbers printed beside it, from top to bottom."""
    with style():
        figure = Picture(figsize=(0.75 * WIDTH, 0.75 + 0.32 * len(policies)), layout="constrained")
        ax = figure.subplots()
        for row, interval in enumerate(policies.values()):
            ax.hlines(row, interval.low, interval.high, color=BLUE, linewidth=3, alpha=0.4)
            ax.plot([interval.mean], [row], "o", color=BLUE, markersize=6)
            ax.annotate(f"{interval:.2f}", (1.02, row), xycoords=("axes fraction", "data"), va="center")
        ax.set_yticks(range(len(policies)), list(policies))
        ax.set_ylim(len(policies) - 0.5, -0.5)
        ax.set_xlim(-0.02, 1.02)
        ax.set_xlabel("success rate")
        ax.set_title(title)
        ax.grid(axis="x")
        ax.tick_params(axis="y", length=0)
    return figure


def funnel(counts: Mapping[str, int], title: str = "From production logs to tasks") -> Figure:
    """How many are left at each stage, with the share of the stage before where it is one; in the order of `counts`."""
    stages, numbers = list(counts), list(counts.values())
    with style():
        figure = Picture(figsize=(0.75 * WIDTH, 0.6 + 0.36 * len(counts)), layout="constrained")
        ax = figure.subplots()
        ax.barh(range(len(stages)), numbers, color=BLUE, alpha=0.85, height=0.7)
        for row, number in enumerate(numbers):
            before = numbers[row - 1] if row else 0
            note = f"{number:,}" + (f"  ({number / before:.0%} of {stages[row - 1]})" if 0 < before >= number else "")
            ax.annotate(note, (number, row), (5, 0), textcoords="offset points", va="center")
        ax.set_yticks(range(len(stages)), stages)
        ax.set_ylim(len(stages) - 0.5, -0.5)
        ax.set_xlim(0, 1.3 * max([*numbers, 1]))
        ax.set_title(title)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(False)
    return figure


class Graded(Protocol):
    """A `Rollout` or a `Mined` session."""

    @property
    def grade(self) -> Grade: ...


def check_table(graded: Iterable[Graded] | Mining) -> pd.DataFrame:
    """Which checks fail: a row each, columns `passed` (the share with a full score, of those scored), `scored` and
    `errors`. Episodes that end in an infrastructure error have no checks."""
    import pandas as pd

    items = graded.sessions if isinstance(graded, Mining) else graded
    scores: dict[str, list[float | None]] = {}
    for item in items:
        for result in item.grade.checks:
            scores.setdefault(result.name, []).append(result.score)
    rows = []
    for name, of_check in scores.items():
        scored = [score for score in of_check if score is not None]
        passed = sum(score > 1 - 1e-6 for score in scored) / len(scored) if scored else np.nan
        rows.append({"check": name, "passed": passed, "scored": len(scored), "errors": len(of_check) - len(scored)})
    return pd.DataFrame(rows, columns=["check", "passed", "scored", "errors"]).set_index("check")


def _share(value: float) -> str:
    """`.93`, `1.00`; a dash where there is nothing."""
    return f"{value:.2f}".removeprefix("0") if np.isfinite(value) else "–"


def _is_dark(color: Sequence[float]) -> bool:
    return float(np.dot(color[:3], [0.299, 0.587, 0.114])) < 0.5
