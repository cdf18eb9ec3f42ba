"""What is wrong with an environment or its reward, found by agents that deserve nothing and one that deserves all.

`check_environment` lets the null agent, the reference and a set of cheating agents play the same tasks, and looks
whether the environment keeps its own promises (same seed, same episode; a refused call changes nothing). A reward
that pays a cheat will be found by reinforcement learning: better to find it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Literal

import jsonschema

from rlkit.envs.agents import Agent, echo, play, silent
from rlkit.envs.cheats import CHEATS, Cheat, canonical
from rlkit.envs.environment import Environment, Episode, Tool
from rlkit.envs.grading import Rubric
from rlkit.envs.task import Task
from rlkit.logs.trace import ToolCall, Trace

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["reference", "null", "cheat"]
NULL_SCORE = 0.05
"""What an agent that does nothing may earn on average."""
CHEAT_SCORE = 0.8
"""What a cheat may earn on average."""


@dataclass
class Exam:
    """How one agent did on all tasks."""

    agent: str
    kind: Kind
    scores: list[float | None] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    """Ids of the tasks on which it counts as a success."""
    same: int = 0
    """Tasks on which a cheat ended as the reference did, state and words: nothing to blame it for; left out."""
    errors: list[str] = field(default_factory=list)
    """What kept checks from saying a score, as `task: check: error`."""
    lost: list[str] = field(default_factory=list)
    """Where points were lost, as `task: check = score`."""

    @property
    def score(self) -> float | None:
        """The mean over what could be scored."""
        scored = [score for score in self.scores if score is not None]
        return mean(scored) if scored else None


@dataclass
class EnvironmentCheck:
    """What `check_environment` found; `problems` is empty where all is well."""

    exams: list[Exam] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    step_ms: float = 0.0
    """Mean time of a tool call."""

    def table(self) -> pd.DataFrame:
        """A row an agent: what it earned, and what it should have."""
        import pandas as pd

        wanted = {"reference": "exactly 1", "null": f"≤ {NULL_SCORE:g}", "cheat": "never a success"}
        rows = [
            {"kind": e.kind, "episodes": len(e.scores), "score": e.score, "passed": len(e.passed),
             "errors": len(e.errors), "wanted": wanted[e.kind]}
            for e in self.exams
        ]  # fmt: skip
        return pd.DataFrame(rows, pd.Index([e.agent for e in self.exams], name="agent"))


def check_environment(
    environment: Environment,
    rubric: Rubric,
    tasks: Sequence[Task],
    reference: Agent | None = None,
    cheats: Mapping[str, Agent] | None = None,
    seed: int = 0,
    max_turns: int = 8,
) -> EnvironmentCheck:
    """Examine an environment and its rubric on `tasks`.

    - The null agents (silent, echo) must score at most `NULL_SCORE` on average and never succeed.
    - `reference`, where there is one, must score exactly 1 on every task.
    - No cheat may succeed where it did not end as the reference did: those made from the reference's own episode
      (`rlkit.envs.cheats`), and yours.
    - Same task and seed give the same episode; snapshot and restore are exact; a refused call changes no state; tasks
      are not touched; schemas are JSON schemas.
    - No cheat may earn more than `CHEAT_SCORE` on average either: a shaped reward that pays it will be found.

    Whatever breaks is a problem that is told, and the rest is examined; but where a schema is none, that is all.
    Raises `ValueError` for no tasks, and for two of one id.
    """
    if len({task.id for task in tasks}) < max(1, len(tasks)):
        raise ValueError("no tasks to check the environment on, or two of one id")
    found, before = EnvironmentCheck(), [task.model_dump_json() for task in tasks]
    for tool in environment.tools:
        found.problems += [f"tool {tool.name!r}: {wrong}" for wrong in _schema_faults(tool)]
    if any("no JSON schema" in problem for problem in found.problems):
        return found
    gold: dict[str, tuple[Trace, Episode]] = {}
    begun, calls = time.perf_counter(), 0
    if reference is not None:
        for task in tasks:
            try:
                trace, episode = play(environment, reference, task, seed, max_turns=max_turns)
                found.problems += [f"task {task.id}: {wrong}" for wrong in _broken_promises(task, trace, episode, seed)]
            except Exception as error:  # somebody's tool or agent: what broke is what we are here to find
                found.problems.append(f"task {task.id}: {type(error).__name__}: {error}")
                continue
            gold[task.id] = trace, episode
            calls += len(trace.tool_calls)
    found.step_ms = 1000 * (time.perf_counter() - begun) / max(1, calls)

    def examine(name: str, kind: Kind, agent_for: Callable[[Task], Agent | None]) -> None:
        exam = _examine(name, kind, agent_for, environment, rubric, tasks, gold, seed, max_turns)
        found.exams.append(exam)
        found.problems += _verdict(exam)

    if reference is not None:
        examine("reference", "reference", lambda task: reference)
    examine("silent", "null", lambda task: silent)
    examine("echo", "null", lambda task: echo)
    for name, make in CHEATS.items() if gold else ():
        examine(name, "cheat", lambda task, make=make: _made(make, environment, gold.get(task.id)))  # type: ignore[misc]
    for name, agent in (cheats or {}).items():
        examine(name, "cheat", lambda task, agent=agent: agent)  # type: ignore[misc]
    touched = [task.id for task, was in zip(tasks, before, strict=True) if task.model_dump_json() != was]
    found.problems += [f"task {id}: it was changed by being played" for id in touched]
    return found


def _made(make: Cheat, environment: Environment, gold: tuple[Trace, Episode] | None) -> Agent | None:
    return None if gold is None else make(environment, *gold)


def _examine(
    name: str,
    kind: Kind,
    agent_for: Callable[[Task], Agent | None],
    environment: Environment,
    rubric: Rubric,
    tasks: Sequence[Task],
    gold: Mapping[str, tuple[Trace, Episode]],
    seed: int,
    max_turns: int,
) -> Exam:
    exam = Exam(name, kind)
    for task in tasks:
        agent = agent_for(task)
        if agent is None:
            continue
        turns = max_turns if kind == "reference" else 4 * max_turns + len(environment.tools)
        try:
            trace, episode = play(environment, agent, task, seed, max_turns=turns)
        except Exception as error:
            exam.errors.append(f"{task.id}: {type(error).__name__}: {error}")
            continue
        if kind == "cheat" and task.id in gold and _same_end((trace, episode), gold[task.id]):
            exam.same += 1
            continue
        grade = rubric.grade(task, trace, episode.state, "truncated" if trace.final_reply is None else "completed")
        exam.scores.append(grade.score)
        if grade.status == "success":
            exam.passed.append(task.id)
        if grade.status == "truncated":
            exam.lost.append(f"{task.id}: cut off after {turns} turns")
        for check in grade.checks:
            if check.error is not None:
                exam.errors.append(f"{task.id}: {check.name}: {check.error}")
            elif check.score is not None and check.score < 1:
                exam.lost.append(f"{task.id}: {check.name} = {check.score:g}")
    return exam


def _same_end(ours: tuple[Trace, Episode], theirs: tuple[Trace, Episode]) -> bool:
    same_state = canonical(ours[1].state) == canonical(theirs[1].state)
    return same_state and ours[0].final_reply == theirs[0].final_reply


def _verdict(exam: Exam) -> Iterator[str]:
    """What an exam says against the reward, a sentence each."""
    if exam.errors:
        yield f"agent {exam.agent!r}: {len(exam.errors)} times no score, first {exam.errors[0]}"
    if not exam.scores:
        return
    episodes, passed = len(exam.scores), len(exam.passed)
    if exam.kind == "reference" and any(score is not None and score < 1 for score in exam.scores):
        short = sum(score is not None and score < 1 for score in exam.scores)
        yield f"the reference scores below 1 on {short} of {episodes} tasks, first {exam.lost[0]}"
    if exam.kind != "reference" and passed:
        what = "doing nothing" if exam.kind == "null" else "a cheat"
        yield f"{what} succeeds: agent {exam.agent!r} on {passed} of {episodes} tasks, first {exam.passed[0]}"
    elif exam.kind == "null" and exam.score is not None and exam.score > NULL_SCORE:
        yield f"agent {exam.agent!r} earns {exam.score:.2f} for nothing (at most {NULL_SCORE:g}): some check is free"
    elif exam.kind == "cheat" and exam.score is not None and exam.score > CHEAT_SCORE:
        yield f"a cheat is paid well: agent {exam.agent!r} earns {exam.score:.2f} (at most {CHEAT_SCORE:g})"


def _broken_promises(task: Task, trace: Trace, episode: Episode, seed: int) -> Iterator[str]:
    """Whether the environment does again what it did, and comes back to where it was."""
    environment, told = episode.environment, [m.content for m in trace.messages if m.role == "tool"]
    again = environment.reset(task, seed)
    middle = len(trace.tool_calls) // 2
    seen, twin = [], again
    for at, call in enumerate(trace.tool_calls):
        if at == middle:
            twin = again.fork()
        saved = again.snapshot()
        again.step(call)
        again.restore(saved)
        seen.append(again.step(call).content)
    if seen != told or canonical(again.state) != canonical(episode.state):
        yield "the same seed gives another episode, or restore does not bring back all of it"
    rest = [twin.step(call).content for call in trace.tool_calls[middle:]]
    if trace.tool_calls and (rest != told[middle:] or canonical(twin.state) != canonical(episode.state)):
        yield "a fork goes on otherwise than the episode it was taken from"
    before = canonical(again.state)
    for call in (ToolCall("x", "no such tool", {}), *(ToolCall("x", tool.name, None) for tool in environment.tools)):
        if not again.step(call).error:
            yield f"a call of {call.name!r} without proper arguments is not refused"
    if canonical(again.state) != before:
        yield "a refused call changes the state"
    again.snapshot()


def _schema_faults(tool: Tool) -> Iterator[str]:
    try:
        jsonschema.Draft202012Validator.check_schema(tool.parameters)
    except jsonschema.SchemaError as error:
        yield f"its parameters are no JSON schema: {error.message}"
    if not tool.description.strip():
        yield "no description: the agent sees only its name"
