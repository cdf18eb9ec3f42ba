"""Checks that most rubrics are made of: the final state, the reply's words, its JSON, unit tests.

Each returns a `Check`. `of_task` stands for a value or a function of the task that gives one, since what is right
usually depends on the task. A judge's check is `rlkit.envs.judge.Judge.check`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import jsonschema

from rlkit.envs.environment import State
from rlkit.envs.grading import Check, Verdict
from rlkit.envs.sandbox import Case, run_cases, same_json
from rlkit.envs.task import Task
from rlkit.logs.trace import Trace

T = TypeVar("T")
OfTask: TypeAlias = T | Callable[[Task], T]


def state_equals(name: str, path: str, expected: OfTask[Any], weight: float = 1.0) -> Check:
    """The final state at a dotted path (`order.status`, `actions.0.tool`; all of it for `""`) is as expected.

    A path that is not there is a score of 0.
    """

    def run(task: Task, trace: Trace, state: State) -> bool:
        found, value = _at(state, path)
        return found and same_json(value, _of(expected, task))

    return Check(name, weight, run)


def reply_matches(name: str, pattern: OfTask[str], weight: float = 1.0, whole: bool = False) -> Check:
    """The agent's last message holds a match of a regular expression, or is one (`whole`); case does not matter.

    Escape what comes from the task (`re.escape`). No last message is a score of 0.
    """

    def run(task: Task, trace: Trace, state: State) -> bool:
        compiled = re.compile(_of(pattern, task), re.IGNORECASE | re.DOTALL)
        reply = trace.final_reply
        return reply is not None and bool((compiled.fullmatch if whole else compiled.search)(reply.strip()))

    return Check(name, weight, run)


def reply_is_json(name: str, schema: OfTask[dict[str, Any]], weight: float = 1.0) -> Check:
    """The agent's last message is one JSON value that satisfies a JSON schema.

    A schema that is none is the grader's error, whatever the agent said.
    """

    def run(task: Task, trace: Trace, state: State) -> bool:
        wanted = _of(schema, task)
        jsonschema.Draft202012Validator.check_schema(wanted)
        try:
            value = json.loads(trace.final_reply or "", parse_constant=_no_json, parse_float=_finite)
            return bool(jsonschema.Draft202012Validator(wanted).is_valid(value))
        except (ValueError, ArithmeticError, RecursionError):  # what the agent wrote, not what is wrong with the grader
            return False

    return Check(name, weight, run)


def passes_tests(
    name: str,
    code: Callable[[Task, Trace, State], str | None],
    cases: OfTask[Sequence[Case]],
    weight: float = 1.0,
    timeout_s: float = 10.0,
) -> Check:
    """The share of `cases` that the agent's code passes, in a sandbox; `code` finds it in the state or the reply.

    No code, or code that hangs or dies, is the agent's doing and scores 0; a sandbox that cannot start is the grader's
    error. The candidate never sees what is expected. Raises `ValueError` where the task has no cases.
    """

    def run(task: Task, trace: Trace, state: State) -> Verdict:
        wanted = list(_of(cases, task))
        if not wanted:
            raise ValueError("no cases to test the code with")
        text = code(task, trace, state)
        if text is None:
            return Verdict(0.0)
        results = run_cases(text, wanted, timeout_s)
        parts = {f"case {n}": float(result.passed) for n, result in enumerate(results)}
        return Verdict(sum(parts.values()) / len(parts), parts)

    return Check(name, weight, run)


def code_block(task: Task, trace: Trace, state: State) -> str | None:
    """The last fenced block of the agent's last message: `code` of `passes_tests` where the agent replies with code."""
    blocks = re.findall(r"```[\w+-]*\n(.*?)```", trace.final_reply or "", re.DOTALL)
    return blocks[-1] if blocks else None


def _of(value: OfTask[T], task: Task) -> T:
    return value(task) if callable(value) else value


def _at(state: Any, path: str) -> tuple[bool, Any]:
    for part in path.split(".") if path else ():
        if isinstance(state, dict) and part in state:
            state = state[part]
        elif isinstance(state, list) and part.isdecimal() and int(part) < len(state):
            state = state[int(part)]
        else:
            return False, None
    return True, state


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is beyond what a float holds")
    return value


def _no_json(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")
