"""Does the rebuilt environment answer as production did? Replay every recorded call and compare.

τ-bench is the example to remember: 1,044 of 1,164 recorded answers came back byte for byte, and all of the other 120
were one field that had been renamed after the recording.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tqdm.auto import tqdm

from rlkit.envs.drift import (
    Difference,
    Finding,
    Renaming,
    differences,
    renamings,
    schema_drift,
    short,
    unexplained,
    without,
)
from rlkit.envs.environment import Environment
from rlkit.envs.failures import is_error
from rlkit.envs.mining import NotATask
from rlkit.envs.task import Task
from rlkit.logs.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Result = Literal["exact", "equal", "different", "error", "luck"]
WRONG_TOOL = 0.5
"""The share of a tool's answers, less those that a drift explains, from which the tool as a whole is wrong."""
SLOWER, SLOWER_S = 2.0, 0.02
"""A tool is slower than recorded where it takes this many times as long, and this much longer."""


class Compared(NamedTuple):
    """One recorded call, replayed."""

    trace: str
    tool: str
    result: Result
    """`exact`: byte for byte. `equal`: the same JSON, or the same but for the declared fields. `different`. `error`:
    the environment failed, or refused what production answered. `luck`: declared as chance, not replayed."""
    recorded: str
    replayed: str
    differences: tuple[Difference, ...]
    recorded_s: float | None
    """From the call's timestamp to its result's, where the log has both."""
    replayed_s: float


@dataclass
class Fidelity:
    """What `fidelity` found."""

    calls: list[Compared] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Sessions that are no task, by reason."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def counts(self) -> Counter[Result]:
        """Calls by result."""
        return Counter(call.result for call in self.calls)

    @property
    def share(self) -> float:
        """The share of replayed calls that came back exact or equal; nan for none."""
        counts = self.counts
        replayed = sum(counts.values()) - counts["luck"]
        return (counts["exact"] + counts["equal"]) / replayed if replayed else float("nan")

    def table(self) -> pd.DataFrame:
        """A row a tool: calls by result, and how long it took then and now (medians, milliseconds)."""
        import pandas as pd

        rows = {}
        for tool, calls in _by_tool(self.calls).items():
            counts = Counter(call.result for call in calls)
            recorded, replayed = _medians(calls)
            kinds: tuple[Result, ...] = ("exact", "equal", "different", "error", "luck")
            rows[tool] = {"calls": len(calls)} | {kind: counts[kind] for kind in kinds} | {
                "recorded_ms": None if recorded is None else 1000 * recorded, "replayed_ms": 1000 * replayed
            }  # fmt: skip
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tool")

    def fields(self) -> pd.DataFrame:
        """A row for each (tool, field) that differs: how, how often, and an example."""
        import pandas as pd

        counts: Counter[tuple[str, str, str]] = Counter()
        example: dict[tuple[str, str, str], Difference] = {}
        for call in self.calls:
            for d in call.differences:
                counts[call.tool, d.path, d.change] += 1
                example.setdefault((call.tool, d.path, d.change), d)
        rows = [
            {"tool": key[0], "field": key[1], "change": key[2], "count": count,
             "recorded": example[key].recorded, "replayed": example[key].replayed}
            for key, count in counts.most_common()
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["tool", "field", "change", "count", "recorded", "replayed"])

    def __str__(self) -> str:
        counts = self.counts
        told = ", ".join(f"{counts[kind]} {kind}" for kind in ("exact", "equal", "different", "error", "luck"))
        back = "nothing to replay" if self.share != self.share else f"{self.share:.1%} come back as they were"
        lines = [f"{sum(counts.values())} recorded calls: {told}; {back}"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  not replayed: {count} sessions, {reason}" for reason, count in self.dropped.most_common()]
        return "\n".join(lines)


def fidelity(
    environment: Environment,
    traces: Iterable[Trace],
    task_from_trace: Callable[[Trace], Task],
    equal: Collection[str] = (),
    luck: Callable[[str], bool] | None = None,
    progress: bool = False,
) -> Fidelity:
    """Replay every recorded tool call that has a result, in the order of its session, and compare.

    - `equal`: fields that may differ, by name or dotted path (times, ids that are made up anew).
    - `luck`: whether a recorded result was chance (a gateway timeout, say): such calls are counted, not replayed. The
      task should not throw dice of its own: let `task_from_trace` set its rates to 0.
    - A session that `task_from_trace` cannot rebuild (`NotATask`) is counted under its reason.
    After a difference, the session's later calls may differ because of it; all are counted.
    """
    found = Fidelity()
    for trace in tqdm(traces, "replaying", unit="session", disable=not progress):
        try:
            task = task_from_trace(trace)
        except NotATask as reason:
            found.dropped[str(reason)] += 1
            continue
        found.calls += _replay(environment, trace, task, frozenset(equal), luck)
    found.calls = _paired(found.calls, frozenset(equal))
    found.findings = _findings(found.calls)
    return found


def _paired(calls: list[Compared], equal: frozenset[str]) -> list[Compared]:
    """The calls with their renamings chosen over all results: one alone admits several where values happen to agree."""
    votes: Counter[Renaming] = Counter()
    pairs: dict[int, tuple[Any, Any]] = {}
    for n, call in enumerate(calls):
        if any(d.change == "renamed" for d in call.differences):
            pairs[n] = without(_json(call.recorded), equal), without(_json(call.replayed), equal)
            votes.update(renamings(*pairs[n]))
    return [
        call._replace(differences=tuple(differences(*pairs[n], votes))) if n in pairs else call
        for n, call in enumerate(calls)
    ]


def _replay(
    environment: Environment,
    trace: Trace,
    task: Task,
    equal: frozenset[str],
    luck: Callable[[str], bool] | None,
) -> Iterable[Compared]:
    episode = environment.reset(task)
    called = {call.id: message.timestamp for message in trace.messages for call in message.tool_calls}
    for call, result in trace.answered:
        if result is None:
            continue
        recorded = result.content or ""
        took = _seconds(called.get(call.id), result.timestamp)
        if luck is not None and luck(recorded):
            yield Compared(trace.id, call.name, "luck", recorded, "", (), took, 0.0)
            continue
        begun = time.perf_counter()
        try:
            seen = episode.step(call)
            replayed, failed = seen.content, seen.error and not is_error(result)
        except Exception as error:  # the environment's own failure is what we look for
            replayed, failed = f"{type(error).__name__}: {error}", True
        seconds = time.perf_counter() - begun
        kind, how = ("error", ()) if failed else _compare(recorded, replayed, equal)
        yield Compared(trace.id, call.name, kind, recorded, replayed, how, took, seconds)


def _compare(recorded: str, replayed: str, equal: frozenset[str]) -> tuple[Result, tuple[Difference, ...]]:
    if recorded == replayed:
        return "exact", ()
    try:
        a, b = _json(recorded), _json(replayed)
        found = tuple(differences(without(a, equal), without(b, equal)))
    except RecursionError:  # nested too deep to tell more
        found = (Difference("value", "", recorded, replayed),)
    return ("different", found) if found else ("equal", ())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _seconds(called: str | None, answered: str | None) -> float | None:
    try:
        begun, ended = (datetime.fromisoformat(time or "") for time in (called, answered))
        return max(0.0, (ended - begun).total_seconds())
    except (ValueError, TypeError):
        return None


def _findings(calls: list[Compared]) -> list[Finding]:
    """Drifts of fields, then what they do not explain: tools that answer otherwise or fail, values, latencies."""
    compared = [c for c in calls if c.result in ("exact", "equal", "different") and not _is_refusal(c.recorded)]
    drifts = schema_drift((c.tool, _json(c.recorded), c.differences) for c in compared)
    findings = list(drifts)
    for tool, all_calls in sorted(_by_tool(calls).items()):
        mine = [call for call in all_calls if call.result != "luck"]
        failed = [call for call in mine if call.result == "error"]
        odd = [left for call in mine if (left := unexplained(tool, call.differences, drifts))]
        if failed and len(failed) >= WRONG_TOOL * len(mine):
            findings.append(Finding("error", tool, [tool], len(failed), len(mine), short(failed[0].replayed)))
        elif odd and len(odd) >= WRONG_TOOL * len(mine):
            findings.append(Finding("tool", tool, [tool], len(odd), len(mine), ", ".join(map(_told, odd[0][:2]))))
        else:
            for call in failed[:1]:
                findings.append(Finding("error", tool, [tool], len(failed), len(mine), short(call.replayed)))
            findings += _fields(tool, odd, len(mine))
        recorded, replayed = _medians(mine)
        if recorded is not None and replayed > SLOWER * recorded and replayed - recorded > SLOWER_S:
            timed = sum(call.recorded_s is not None for call in mine)
            example = f"{1000 * recorded:.0f} ms recorded, {1000 * replayed:.0f} ms replayed (medians)"
            findings.append(Finding("latency", tool, [tool], timed, len(mine), example))
    return findings


def _fields(tool: str, odd: list[list[Difference]], of: int) -> Iterable[Finding]:
    """What is otherwise now and then, field by field."""
    first: dict[tuple[str, str], Difference] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for left in odd:
        counts.update({(d.change, d.path) for d in left})
        for d in left:
            first.setdefault((d.change, d.path), d)
    for (change, path), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        d = first[change, path]
        yield Finding(change, path or "(all)", [tool], count, of, f"{short(d.recorded)} → {short(d.replayed)}")


def _told(d: Difference) -> str:
    return f"{d.path or '(all)'}: {short(d.recorded)} → {short(d.replayed)}"


def _is_refusal(text: str) -> bool:
    value = _json(text)
    return isinstance(value, dict) and bool(value.get("error"))


def _by_tool(calls: Iterable[Compared]) -> dict[str, list[Compared]]:
    tools: dict[str, list[Compared]] = defaultdict(list)
    for call in calls:
        tools[call.tool].append(call)
    return tools


def _medians(calls: Collection[Compared]) -> tuple[float | None, float]:
    recorded = [call.recorded_s for call in calls if call.recorded_s is not None]
    replayed = [call.replayed_s for call in calls if call.result != "luck"]
    return (median(recorded) if recorded else None), (median(replayed) if replayed else 0.0)
