"""What came out of the logs, to look at: the read report as a picture and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rlkit.logs.report import CODES, ReadReport
from rlkit.show.plots import BLUE, GREY, ORANGE, Picture, style

if TYPE_CHECKING:
    import pandas as pd

SEVERITIES = {"error": ORANGE, "warning": "#E69F00", "info": BLUE}


def diagnostics_table(report: ReadReport) -> pd.DataFrame:
    """A row for each code that was noted: how bad, how often, what it means, and where first (without the folder).

    The worst come first.
    """
    import pandas as pd

    rows = [
        {"severity": t.severity, "count": t.count, "meaning": CODES[code][1], "first": _without_folder(t.first)}
        for code, t in report.worst_first()
    ]
    codes = pd.Index([code for code, _ in report.worst_first()], name="code")
    return pd.DataFrame(rows, codes, columns=["severity", "count", "meaning", "first"])


def plot_report(report: ReadReport) -> Figure:
    """What became of the records, and how often each oddity was noted, on a logarithmic axis."""
    rows = report.worst_first()
    with style():
        figure = Picture(figsize=(10, 1.2 + 0.22 * max(len(rows), 4)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1, 2.2])
        kept = {"records": report.records, "skipped": report.skipped, "traces": report.traces,
                "quarantined": report.quarantined}  # fmt: skip
        colors = [GREY, ORANGE, BLUE, ORANGE]
        left.bar_label(left.barh(list(kept), list(kept.values()), color=colors), fmt="{:,.0f}", padding=3, fontsize=8)
        left.invert_yaxis()
        left.set_title("Records read, and the traces in them")
        left.margins(x=0.2)
        codes, counts = [code for code, _ in rows], [tally.count for _, tally in rows]
        bars = right.barh(codes, counts, color=[SEVERITIES[tally.severity] for _, tally in rows], log=True)
        right.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        right.invert_yaxis()
        right.set_title("Oddities by code" if rows else "Nothing odd")
        right.set_xlim(left=0.7)
        right.margins(x=0.1)
        right.legend(handles=[Patch(color=color, label=severity) for severity, color in SEVERITIES.items()])
        for ax in (left, right):
            ax.grid(False)
            ax.tick_params(axis="y", length=0)
    return figure


def _without_folder(place: str) -> str:
    """`log.jsonl:7 messages[3]` of `/data/log.jsonl:7 messages[3]`."""
    file, space, path = place.partition(" ")
    return file.rpartition("/")[2] + space + path
