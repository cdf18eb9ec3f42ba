"""An environment module put to work: what `rlkit train` and `rlkit eval` do with one, and the config of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator

from rlkit.config import ConfigError
from rlkit.envs import mining
from rlkit.envs.agents import Agent
from rlkit.envs.environment import Environment, State
from rlkit.envs.failures import Expected, Failure, Rules, explain_failure
from rlkit.envs.grading import Rubric
from rlkit.envs.mining import Mining, NotATask
from rlkit.envs.task import Task
from rlkit.logs.readers import read_traces
from rlkit.logs.report import ReadReport
from rlkit.logs.trace import Trace
from rlkit.loop import LoopConfig
from rlkit.sampling.chat import ChatFormat
from rlkit.sampling.rollout import Harness

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from rlkit.logs.readers.source import Paths

SUPPORT = "rlkit.examples.support"


class RunConfig(LoopConfig):
    """A run as `rlkit train` reads it from YAML: the loop's settings, and what goes in and out.

    Paths are taken from the current directory, as paths on a command line are.
    """

    model: str
    """The checkpoint folder to start from."""
    logs: list[str] = Field(min_length=1)
    """Production logs: a file, a folder, a glob, or a list of them."""
    environment: str = SUPPORT
    """Import path of the environment module; see `Workbench.load`."""
    output: str | None = None
    """The run's folder; `runs/` and the config file's name where it is absent."""

    @field_validator("logs", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Workbench:
    """What an environment module offers, ready to be used on logs and models."""

    environment: Environment
    rubric: Rubric
    task_from_trace: Callable[[Trace], Task]
    """A production session as a task; raises `NotATask` where it shows too little."""
    final_state: Callable[[Trace, Task], State]
    """The world as a production session left it."""
    oracle: Agent | None = None
    """An agent that gets everything right: the reference of `rlkit env check`."""
    cheats: Mapping[str, Agent] = field(default_factory=dict)
    """Agents that must never succeed, by name."""
    sample_task: Callable[[random.Random], Task] | None = None
    """Tasks out of nothing, where there are no logs."""
    rules: Rules | None = None
    """What `explain_failure` must know of the environment."""
    expected: Callable[[Task], Expected] | None = None
    """What a task asks to be done and said."""
    replay_task: Callable[[Trace], Task] | None = None
    """As `task_from_trace`, with no luck in the world, for `fidelity`."""
    luck: Callable[[str], bool] | None = None
    """Whether a recorded result was luck, which `fidelity` leaves out."""

    @classmethod
    def load(cls, module: str = SUPPORT) -> Self:
        """From an import path: a module with the names `environment`, `rubric`, `task_from_trace`, `final_state`, and
        any of the others above.

        Raises `ConfigError` naming the module and what it lacks. What goes wrong inside the module propagates.
        """
        try:
            found = import_module(module)
        except (ImportError, SyntaxError, TypeError, ValueError) as error:  # the last two: ".support", or nothing
            raise ConfigError(f"environment {module!r} cannot be imported: {error}") from error
        wanted: dict[str, Any] = {
            "environment": Environment,
            "rubric": Rubric,
            "task_from_trace": Callable,
            "final_state": Callable,
        }
        lacks = [name for name in wanted if not hasattr(found, name)]
        if lacks:
            raise ConfigError(f"environment {module!r} lacks {', '.join(lacks)}; rlkit.examples.support has them all")
        for name, kind in wanted.items():
            if not isinstance(getattr(found, name), kind):
                have = type(getattr(found, name)).__name__
                raise ConfigError(f"environment {module!r}: {name} is no {kind.__name__}, but of type {have}")
        for name in ("oracle", "sample_task", "expected", "replay_task", "luck"):
            if not callable(getattr(found, name, print)):
                raise ConfigError(f"environment {module!r}: {name} is no function")
        names = (field.name for field in fields(cls))
        return cls(**{name: getattr(found, name) for name in names if hasattr(found, name)})

    def mine(self, paths: Paths, format: str = "auto", progress: bool = True) -> tuple[Mining, ReadReport]:
        """Read logs and rebuild the sessions as tasks, graded: (what came out, what was odd in the files).

        Raises `LogFormatError` where nothing could be read, and `NotATask` where no session could be rebuilt.
        """
        report = ReadReport()
        traces = read_traces(paths, format, report, progress)
        mined = mining.mine(traces, self.task_from_trace, self.final_state, self.rubric)
        if not mined.sessions:
            raise NotATask(f"none of the {report.traces} sessions could be rebuilt as a task ({dropped(mined)})")
        return mined, report

    def failures(self, mining: Mining) -> list[tuple[Trace, Failure]]:
        """The sessions that failed, and why. Raises `ConfigError` where the module has no `rules`."""
        if self.rules is None:
            raise ConfigError("the environment module has no `rules`, which say what changes the world")
        return [
            (m.trace, explain_failure(m.trace, self.rules, self.expected(m.task) if self.expected else None, m.grade))
            for m in mining.sessions
            if m.grade.status != "success"
        ]

    def harness(self, tokenizer: PreTrainedTokenizerFast) -> Harness:
        """The agent around a model with this tokenizer. Raises `ConfigError` where it lacks the chat tokens."""
        try:
            chat = ChatFormat(tokenizer)
        except ValueError as error:
            raise ConfigError(f"not a model of the course's chat format: {error}") from None
        return Harness(self.environment, self.rubric, chat)


def dropped(mined: Mining) -> str:
    """Why sessions were dropped, as in `12 × the order was never looked up, 3 × no user message`."""
    return ", ".join(f"{count} × {reason}" for reason, count in mined.dropped.most_common())
