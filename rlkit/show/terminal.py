"""What the command line prints of what came out: summaries in a few lines, and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from rlkit.evaluate import evaluate_traces, success, success_by
from rlkit.workbench import dropped

if TYPE_CHECKING:
    import pandas as pd

    from rlkit.envs.mining import Mining
    from rlkit.logs.report import ReadReport
    from rlkit.loop import Run

HEADLINES = [
    f"rollout/{name}" for name in ("reward", "success", "zero_variance_groups", "entropy", "turns", "truncated")
]


def headlines(metrics: Mapping[str, Any]) -> str:
    """The metrics that fit a line each."""

    def short(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

    shown = {key: text for key, value in metrics.items() if len(text := short(value)) < 60}
    width = max(map(len, shown), default=0)
    return "\n".join(f"  {key:<{width}}  {text}" for key, text in shown.items())


def mining_summary(mining: Mining, read: ReadReport) -> str:
    """What was read, what could be rebuilt, and how often production succeeded."""
    lost = f"; {read.skipped} records unreadable, `rlkit ingest` says why" if read.skipped else ""
    gone = f"; dropped: {dropped(mining)}" if mining.dropped else ""
    return (
        f"logs        {read.traces} sessions{lost}\n"
        f"tasks       {len(mining.tasks)} rebuilt{gone}\n"
        f"production  succeeded in {success(evaluate_traces(mining))}"
    )


def run_summary(run: Run) -> str:
    """The first and the last step side by side; rates of one step are noisy, `rlkit eval` is not."""
    if not run.metrics:
        return "no metrics: metrics.jsonl is gone"
    first, last = run.metrics[0], run.metrics[-1]
    rows = [("", *(f"step {metrics['step'] + 1:.0f}" for metrics in (first, last)))]
    rows += [(key, f"{first[key]:.3f}", f"{last[key]:.3f}") for key in HEADLINES]
    lines = [f"{key:<28}  {before:>10}  {after:>10}" for key, before, after in rows]
    return "\n".join([*lines, *([f"stopped early: {run.stopped}"] if run.stopped else [])])


def print_results(results: Mapping[str, pd.DataFrame]) -> None:
    """Success by policy, and by policy and cell where the tasks have tags."""
    table = Table("", "success", "episodes", "not graded")
    for label, result in results.items():
        ungraded = int(result["score"].isna().sum())
        table.add_row(label, str(success(result)), str(len(result)), str(ungraded))
    for shown in filter(None, (table, _cell_table(results))):
        Console().print(shown)


def print_frame(frame: pd.DataFrame, title: str) -> None:
    """A table as it is, numbers with two decimals."""
    table = Table(str(frame.index.name or ""), *map(str, frame.columns), title=title, title_justify="left")
    for label, row in zip(frame.index, frame.itertuples(index=False), strict=True):
        table.add_row(str(label), *map(_cell, row))
    Console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.2f}"
    return "-" if value is None else str(value)


def _cell_table(results: Mapping[str, pd.DataFrame]) -> Table | None:
    """Success for every combination of the tasks' tags; None where they have none."""
    production = results["production"]
    tags = list(production.columns[5:])
    if not tags:
        return None
    table = Table(*tags, "sessions", *results, title="success per cell", title_justify="left")
    rates: list[dict[Any, float]] = [success_by(result, tags)["success"].to_dict() for result in results.values()]
    for cell, rows in production.groupby(tags, dropna=False):
        key = cell if len(tags) > 1 else cell[0]
        shown = [f"{rate[key]:.2f}" if key in rate else "-" for rate in rates]
        table.add_row(*map(str, cell), str(len(rows)), *shown)
    return table
