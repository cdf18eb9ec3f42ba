"""Why sessions failed, to look at: kinds of failure, clusters, and how hard the tasks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rlkit.envs.failures import Failure
from rlkit.envs.similar import Cluster
from rlkit.envs.task import Task
from rlkit.logs.trace import Trace
from rlkit.show.plots import BLUE, GREEN, GREY, ORANGE, WIDTH, Picture, style

if TYPE_CHECKING:
    import pandas as pd

FAULTS: dict[str, str] = {"agent": BLUE, "environment": ORANGE, "user": GREEN, "grader": "#CC79A7", "unknown": GREY}


def failure_table(failed: Sequence[tuple[Trace, Failure]]) -> pd.DataFrame:
    """A row a kind of failure, a column a fault, the most frequent kind first."""
    import pandas as pd

    counts: Counter[tuple[str, str]] = Counter((failure.kind, failure.fault) for _, failure in failed)
    kinds = sorted({kind for kind, _ in counts}, key=lambda kind: -sum(counts[kind, fault] for fault in FAULTS))
    rows = [{fault: counts[kind, fault] for fault in FAULTS} for kind in kinds]
    table = pd.DataFrame(rows, pd.Index(kinds, name="kind"), columns=list(FAULTS))
    return table.loc[:, table.any(axis=0)]


def plot_clusters(clusters: Sequence[Cluster], most: int = 12, title: str = "") -> Figure:
    """The largest clusters of failures with their labels, coloured by whose fault they are."""
    shown = list(clusters[:most])
    rest = sum(map(len, clusters[most:]))
    total = sum(map(len, clusters))
    with style():
        figure = Picture(figsize=(WIDTH, 0.7 + 0.27 * (len(shown) + (rest > 0))), layout="constrained")
        ax = figure.subplots()
        labels = [cluster.label for cluster in shown] + [f"{len(clusters) - most} smaller clusters"] * (rest > 0)
        sizes = [len(cluster) for cluster in shown] + [rest] * (rest > 0)
        colors = [FAULTS[cluster.fault] for cluster in shown] + ["#D0D0D0"] * (rest > 0)
        bars = ax.barh(range(len(sizes)), sizes, color=colors, height=0.75)
        ax.bar_label(bars, [f"{size}  {size / max(1, total):.0%}" for size in sizes], padding=3, fontsize=8)
        ax.set_yticks(range(len(sizes)), labels)
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_title(title or f"{total} failures in {len(clusters)} clusters")
        ax.tick_params(axis="y", length=0)
        ax.grid(False)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        faults = dict.fromkeys(cluster.fault for cluster in shown)
        ax.legend(handles=[Patch(color=FAULTS[fault], label=f"{fault}'s fault") for fault in faults], loc="lower right")
    return figure


def plot_difficulty(tasks: Sequence[Task]) -> Figure:
    """How many tasks the pilot failed how often; those always right or always wrong teach nothing now."""
    difficulties = np.array([task.difficulty for task in tasks if task.difficulty is not None])
    with style():
        figure = Picture(figsize=(0.65 * WIDTH, 2.6), layout="constrained")
        ax = figure.subplots()
        values, counts = np.unique(np.round(difficulties, 6), return_counts=True)
        step = min(np.diff(values), default=0.1)
        edge = (values == 0) | (values == 1)
        bars = ax.bar(values, counts, width=0.8 * step, color=np.where(edge, GREY, BLUE))
        ax.bar_label(bars, fontsize=8)
        ax.set_xlabel("difficulty: share of the pilot's rollouts that failed")
        ax.set_ylabel("tasks")
        mixed = int(counts[~edge].sum())
        ax.set_title(f"{mixed} of {len(tasks)} tasks have something to teach ({mixed / max(1, len(tasks)):.0%})")
        ax.legend(handles=[Patch(color=BLUE, label="trainable"), Patch(color=GREY, label="kept for evaluation")])
    return figure
