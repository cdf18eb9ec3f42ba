"""Production sessions → graded sessions → tasks: the failures become what the agent trains on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rlkit.envs.environment import State
from rlkit.envs.grading import Ending, Grade, Rubric
from rlkit.envs.task import Task
from rlkit.logs.trace import Trace


class NotATask(ValueError):
    """A session does not show enough to rebuild the world it ran in; the message says what is missing."""


@dataclass(frozen=True)
class Mined:
    """One session that could be rebuilt: the task it was, and how it went in production."""

    task: Task
    trace: Trace
    grade: Grade


@dataclass
class Mining:
    """What came out of the logs."""

    sessions: list[Mined] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Sessions that could not be rebuilt, by reason."""

    @property
    def failures(self) -> list[Task]:
        """The tasks that production failed."""
        return [mined.task for mined in self.sessions if mined.grade.status == "failure"]

    @property
    def tasks(self) -> list[Task]:
        """Every task that could be rebuilt, failed or not."""
        return [mined.task for mined in self.sessions]


def mine(
    traces: Iterable[Trace],
    task_from_trace: Callable[[Trace], Task],
    final_state: Callable[[Trace, Task], State],
    rubric: Rubric,
) -> Mining:
    """Rebuild each session's task and grade the session with the rubric that will grade the rollouts.

    A session that does not show its world (`NotATask`) is counted under its reason. One that ends without a reply
    from the agent is graded as truncated.
    """
    mining = Mining()
    for trace in traces:
        try:
            task = task_from_trace(trace)
        except NotATask as reason:
            mining.dropped[str(reason)] += 1
            continue
        status: Ending = "truncated" if trace.final_reply is None else "completed"
        grade = rubric.grade(task, trace, final_state(trace, task), status=status)
        mining.sessions.append(Mined(task, trace, grade))
    return mining
