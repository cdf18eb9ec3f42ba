"""Whether a judge can be believed: its verdicts against human labels, against itself, and against what should not
matter.

Every number comes with an interval and a sentence. None stands in for another: a judge that forgives too much, one
that likes long replies and one that throws dice all agree with people less well, and only the statistic meant for each
tells them apart (`rlkit.envs.judge_stats`).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from tqdm.auto import tqdm

from rlkit.aio import run_to_end
from rlkit.envs.judge import Better, Judge, JudgeError
from rlkit.envs.judge_stats import (
    cohen_kappa,
    corrected_interval,
    corrected_rate,
    length_bias,
    leniency,
    position_bias,
    rerun_noise,
    sensitivity,
    specificity,
    swap_consistency,
)
from rlkit.envs.labels import read_labels
from rlkit.envs.task import Task
from rlkit.logs.trace import Trace
from rlkit.stats import Interval, wilson

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Calibration",
    "Statistic",
    "calibrate",
    "cohen_kappa",
    "corrected_interval",
    "corrected_rate",
    "length_bias",
    "leniency",
    "position_bias",
    "read_labels",
    "rerun_noise",
    "sensitivity",
    "specificity",
    "swap_consistency",
]

T = TypeVar("T")
TOLERATED = 0.01
"""A share of unusable answers, or of verdicts that change, that is no flaw yet."""


@dataclass(frozen=True)
class Statistic:
    """One number, how sure it is, what it is of, and what it means."""

    value: Interval
    n: int
    """What it was computed from: sessions, or pairs of sessions."""
    reads: str
    """A sentence."""
    flaw: bool = False
    """Whether the interval excludes what a sound judge shows. Five statistics can say so, at 95 % each: now and then
    one of them does by chance."""


@dataclass(frozen=True)
class Calibration:
    """What is known of a judge; the fields that are a `Statistic` are the rows of `table`.

    Kappa, sensitivity, specificity and swap consistency describe how good it is, flaws of all kinds together.
    """

    judge: str
    """`Judge.version`."""
    kappa: Statistic
    sensitivity: Statistic
    specificity: Statistic
    corrected_rate: Statistic
    """The rate of successes behind the judge's pass rate over all sessions, labelled or not."""
    leniency: Statistic
    length_bias: Statistic
    unusable: Statistic
    """Sessions without a verdict in the first run."""
    rerun_noise: Statistic | None
    swap_consistency: Statistic | None
    position_bias: Statistic | None
    calls: int
    errors: dict[str, int]
    """Every unusable answer of all runs and comparisons, by kind."""
    ties: int
    """Comparisons in which the judge abstained, of 2 for each pair."""
    labels_unused: int
    """Labels of sessions that were not among the cases."""

    @property
    def flaws(self) -> list[str]:
        """The statistics that show one."""
        return [name for name, statistic in self._statistics() if statistic.flaw]

    def table(self) -> pd.DataFrame:
        """A row a statistic, with columns value, low, high, n, flaw, reads."""
        import pandas as pd

        rows = {name: (s.value.mean, s.value.low, s.value.high, s.n, s.flaw, s.reads) for name, s in self._statistics()}
        return pd.DataFrame.from_dict(rows, "index", columns=["value", "low", "high", "n", "flaw", "reads"])

    def _statistics(self) -> Iterator[tuple[str, Statistic]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Statistic):
                yield each.name, value


@dataclass
class _Said:
    """What the judge said: verdicts [run][case] and both orders of each pair; None where the answer was unusable."""

    runs: list[list[bool | None]] = field(default_factory=list)
    forward: list[Better | None] = field(default_factory=list)
    backward: list[Better | None] = field(default_factory=list)


def calibrate(
    judge: Judge,
    cases: Sequence[tuple[Task, Trace]],
    labels: Mapping[str, bool],
    reruns: int = 1,
    swaps: Sequence[tuple[Task, Trace, Trace]] = (),
    seed: int = 0,
    level: float = 0.95,
    progress: str = "",
) -> Calibration:
    """Let a judge grade `cases` 1 + `reruns` times and compare each pair of `swaps` in both orders.

    A session passes where all criteria do. `labels` are by trace id (`read_labels`); cases without one count towards
    the judge's pass rate. A bar with the label `progress` shows the calls. Rates take sessions as independent; kappa's
    interval is clustered by task. Raises `ValueError` for cases that share a trace id and where no case with a verdict
    has a label, and `GraderDown` as the judge does: give one that often answers badly a larger `max_errors_in_a_row`.
    """
    ids = [trace.id for _, trace in cases]
    if len(set(ids)) < len(ids):
        raise ValueError(f"two cases share the trace id {Counter(ids).most_common(1)[0][0]!r}")
    calls, errors = judge.report.calls, judge.report.errors.copy()
    said = run_to_end(_ask(judge, cases, reruns, swaps, progress))
    judged = [(case, verdict) for case, verdict in zip(cases, said.runs[0], strict=True) if verdict is not None]
    known = [(task, trace, verdict) for (task, trace), verdict in judged if trace.id in labels]
    if not known:
        raise ValueError(f"none of {len(cases)} cases has both a label and a verdict")
    same, position = _swaps(said, level)
    return Calibration(
        judge=judge.version,
        **_against_people(known, labels, [verdict for _, verdict in judged], seed, level),
        unusable=_unusable(len(cases) - len(judged), len(cases), level),
        rerun_noise=_noise(said, level),
        swap_consistency=same,
        position_bias=position,
        calls=judge.report.calls - calls,
        errors=dict(judge.report.errors - errors),
        ties=[*said.forward, *said.backward].count("tie"),
        labels_unused=len(set(labels).difference(ids)),
    )


async def _ask(
    judge: Judge,
    cases: Sequence[tuple[Task, Trace]],
    reruns: int,
    swaps: Sequence[tuple[Task, Trace, Trace]],
    progress: str,
) -> _Said:
    async def verdict(task: Task, trace: Trace) -> bool:
        return all(ruling.passed for ruling in (await judge.rule(task, trace)).values())

    flipped: dict[Better, Better] = {"a": "b", "b": "a", "tie": "tie"}

    async def swapped(task: Task, a: Trace, b: Trace) -> Better:
        return flipped[await judge.compare(task, b, a)]

    said = _Said()
    total = len(cases) * (1 + reruns) + 2 * len(swaps)
    with tqdm(total=total, desc=progress, unit="call", disable=not progress) as bar:
        for _ in range(1 + reruns):
            said.runs.append(await _each(verdict, cases, bar))
        said.forward = await _each(judge.compare, swaps, bar)
        said.backward = await _each(swapped, swaps, bar)
    return said


async def _each(ask: Callable[..., Awaitable[T]], items: Sequence[tuple[Any, ...]], bar: tqdm[Any]) -> list[T | None]:
    """`ask(*item)` for all items at once; None where the judge gave nothing usable."""

    async def one(item: tuple[Any, ...]) -> T | None:
        try:
            return await ask(*item)
        except JudgeError:
            return None
        finally:
            bar.update()

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as group:  # a grader that is down is down for all: say it once
        raise group.exceptions[0] from None
    return [task.result() for task in running]


def _against_people(
    known: Sequence[tuple[Task, Trace, bool]],
    labels: Mapping[str, bool],
    all_verdicts: Sequence[bool],
    seed: int,
    level: float,
) -> dict[str, Statistic]:
    truth, verdicts = [labels[trace.id] for _, trace, _ in known], [verdict for _, _, verdict in known]
    positives, negatives = sum(truth), len(truth) - sum(truth)
    kappa = cohen_kappa(verdicts, truth, [task.id for task, _, _ in known], seed, level)
    tpr, tnr = sensitivity(verdicts, truth, level), specificity(verdicts, truth, level)
    passes = sum(all_verdicts) / len(all_verdicts)
    if positives and negatives and tpr.mean + tnr.mean > 1:
        hits, rejections = (round(tpr.mean * positives), positives), (round(tnr.mean * negatives), negatives)
        rate = corrected_interval((sum(all_verdicts), len(all_verdicts)), hits, rejections, seed, level)
        behind = f"the judge passes {passes:.0%}; behind that are {rate.mean:.0%} successes"
    else:
        rate, behind = Interval(0, math.nan, 1), f"the judge passes {passes:.0%}, which says nothing about successes"
    leans = leniency(verdicts, truth, level)
    lengths = [len(trace.final_reply or "") for _, trace, _ in known]
    length = length_bias(verdicts, truth, lengths, level)
    lean_words = "passes failures more than it fails successes", "fails successes more than it passes failures"
    length_words = (
        "of two sessions with one label, passes the longer",
        "of two sessions with one label, passes the shorter",
    )
    return {
        "kappa": Statistic(kappa, len(known), "agreement with people: 0 is chance, 1 is perfect"),
        "sensitivity": Statistic(tpr, positives, f"passes {tpr.mean:.0%} of what people call a success"),
        "specificity": Statistic(tnr, negatives, f"fails {tnr.mean:.0%} of what people call a failure"),
        "corrected_rate": Statistic(rate, len(all_verdicts), behind),
        "leniency": _signed(leans, len(known), *lean_words, "no lean to either kind of error seen"),
        "length_bias": _signed(length, len(known), *length_words, "no influence of the reply's length seen"),
    }


def _noise(said: _Said, level: float) -> Statistic | None:
    again = [(x, y) for run in said.runs[1:] for x, y in zip(said.runs[0], run, strict=True)]
    both = [(x, y) for x, y in again if x is not None and y is not None]
    if not both:
        return None
    noise = rerun_noise([x for x, _ in both], [y for _, y in both], level)
    return Statistic(noise, len(both), f"{noise.mean:.0%} of verdicts change when asked again", noise.low > TOLERATED)


def _swaps(said: _Said, level: float) -> tuple[Statistic | None, Statistic | None]:
    """(consistency, position bias) of the pairs with two usable answers."""
    both = [(x, y) for x, y in zip(said.forward, said.backward, strict=True) if x is not None and y is not None]
    if not both:
        return None, None
    forward, backward = [x for x, _ in both], [y for _, y in both]
    same, leans = swap_consistency(forward, backward, level), position_bias(forward, backward, level)
    words = "prefers what it reads first", "prefers what it reads second", "no preference for a position seen"
    return (
        Statistic(same, len(both), f"{same.mean:.0%} of pairs have one winner in both orders"),
        _signed(leans, len(both), *words),
    )


def _unusable(count: int, n: int, level: float) -> Statistic:
    share = wilson(count, n, level)
    return Statistic(share, n, f"no usable verdict on {share.mean:.1%} of sessions", share.low > TOLERATED)


def _signed(value: Interval, n: int, above: str, below: str, neither: str) -> Statistic:
    """A statistic that a sound judge has at 0."""
    flaw = value.low > 0 or value.high < 0
    return Statistic(value, n, (above if value.low > 0 else below) if flaw else neither, flaw)
