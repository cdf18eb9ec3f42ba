"""What a person sees: figures, transcripts and small widgets for notebooks and reports.

Names are imported when they are first used (PEP 562), so that the command line does not wait for matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "check_table": "plots",
    "diagnostics_table": "logs_view",
    "funnel": "plots",
    "live_training_curves": "curves",
    "style": "plots",
    "success_bars": "plots",
    "success_table": "plots",
    "training_curves": "curves",
    "failure_table": "mining_view",
    "plot_calibration": "env_view",
    "plot_clusters": "mining_view",
    "plot_difficulty": "mining_view",
    "plot_exams": "env_view",
    "plot_fidelity": "env_view",
    "plot_report": "logs_view",
    "plot_session_tree": "session_tree",
    "show_tokens": "rollout_view",
    "show_trace": "rollout_view",
    "side_by_side": "rollout_view",
    "transcript": "rollout_view",
    "rollout_browser": "widgets",
}

__all__ = [*_EXPORTS]

# ruff: noqa: F401
if TYPE_CHECKING:  # the same names for editors and mypy; a test compares the two lists
    from rlkit.show.curves import live_training_curves, training_curves
    from rlkit.show.env_view import plot_calibration, plot_exams, plot_fidelity
    from rlkit.show.logs_view import diagnostics_table, plot_report
    from rlkit.show.mining_view import failure_table, plot_clusters, plot_difficulty
    from rlkit.show.plots import check_table, funnel, style, success_bars, success_table
    from rlkit.show.rollout_view import show_tokens, show_trace, side_by_side, transcript
    from rlkit.show.session_tree import plot_session_tree
    from rlkit.show.widgets import rollout_browser


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlkit.show' has no attribute {name!r}")
    value = getattr(import_module(f"rlkit.show.{_EXPORTS[name]}"), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
