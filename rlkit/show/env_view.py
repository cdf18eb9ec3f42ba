"""Whether an environment and its reward can be trusted, to look at: fidelity by tool, and what each agent earns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlkit.envs.fidelity import Fidelity, Result
from rlkit.show.plots import BLUE, GREEN, GREY, ORANGE, WIDTH, Picture, style

if TYPE_CHECKING:
    from rlkit.envs.calibration import Calibration
    from rlkit.envs.env_check import EnvironmentCheck

RESULTS: dict[Result, str] = {
    "exact": BLUE,
    "equal": "#56B4E9",
    "luck": "#D0D0D0",
    "different": "#E69F00",
    "error": ORANGE,
}


def plot_fidelity(found: Fidelity, title: str = "") -> Figure:
    """Recorded calls by tool, and how they came back."""
    tools: dict[str, Counter[Result]] = {}
    for call in found.calls:
        tools.setdefault(call.tool, Counter())[call.result] += 1
    names = sorted(tools, key=lambda tool: -tools[tool].total())
    with style():
        figure = Picture(figsize=(0.8 * WIDTH, 0.9 + 0.28 * len(names)), layout="constrained")
        ax = figure.subplots()
        left = [0] * len(names)
        for result, color in RESULTS.items():
            counts = [tools[name][result] for name in names]
            if any(counts):
                ax.barh(names, counts, left=left, color=color, label=result, height=0.75)
                left = [a + b for a, b in zip(left, counts, strict=True)]
        ax.invert_yaxis()
        ax.set_xlabel("recorded calls")
        ax.set_title(title or f"{found.share:.1%} of the recorded calls come back as they were")
        ax.tick_params(axis="y", length=0)
        ax.grid(False)
        ax.legend(loc="lower right")
    return figure


def plot_exams(check: EnvironmentCheck, title: str = "") -> Figure:
    """What each agent earns on average, and how often it succeeds; only the reference should."""
    colors = {"reference": GREEN, "null": GREY, "cheat": ORANGE}
    exams = check.exams
    with style():
        figure = Picture(figsize=(0.8 * WIDTH, 0.8 + 0.28 * len(exams)), layout="constrained")
        ax = figure.subplots()
        scores = [exam.score or 0.0 for exam in exams]
        ax.barh(range(len(exams)), scores, color=[colors[exam.kind] for exam in exams], alpha=0.45, height=0.75)
        for row, exam in enumerate(exams):
            said = f"{len(exam.passed)} of {len(exam.scores)} succeed" if exam.scores else "nothing to try"
            wrong = len(exam.passed) < len(exam.scores) if exam.kind == "reference" else bool(exam.passed)
            said += f", {len(exam.errors)} checks broke" if exam.errors else ""
            color = ORANGE if wrong and exam.scores else "#444444"
            ax.annotate(said, (scores[row], row), (5, 0), textcoords="offset points", va="center", color=color)
        ax.set_yticks(range(len(exams)), [exam.agent for exam in exams])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.3)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
        ax.set_xlabel("mean score")
        ax.set_title(title or f"What the reward pays: {len(check.problems)} problems found")
        ax.tick_params(axis="y", length=0)
        ax.grid(False)
    return figure


def plot_calibration(calibrations: Mapping[str, Calibration], title: str = "") -> Figure:
    """A row a judge, a column a statistic: its value, orange where its interval excludes what a sound judge shows."""
    tables = {judge: calibration.table() for judge, calibration in calibrations.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table.index))
    with style():
        figure = Picture(figsize=(WIDTH, 0.9 + 0.36 * len(tables)), layout="constrained")
        ax = figure.subplots()
        for row, table in enumerate(tables.values()):
            for column, name in enumerate(names):
                if name not in table.index:
                    continue
                value, flaw = table.loc[name, "value"], bool(table.loc[name, "flaw"])
                box = Rectangle((column - 0.47, row - 0.42), 0.94, 0.84, color=ORANGE if flaw else "#F2F2F2")
                ax.add_patch(box)
                said = f"{value:.2f}" if value == value else "–"
                ax.text(column, row, said, ha="center", va="center", color="white" if flaw else "#222222")
        ax.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
        ax.set_yticks(range(len(tables)), list(tables))
        ax.set_xlim(-0.6, len(names) - 0.4)
        ax.set_ylim(len(tables) - 0.4, -0.6)
        ax.xaxis.tick_top()
        ax.tick_params(length=0)
        ax.set_title(title or "Each judge by each statistic; orange: a flaw", pad=10)
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)
    return figure
