"""Why a session failed: whose fault × what kind, by rules that name their evidence.

The taxonomy is that of τ-bench's error identification (who: agent, user, environment; what: wrong tool, wrong
arguments, goal partially completed) with the kinds that production adds. Where no rule applies the answer is
`unknown`, and outcomes that nobody gave stay `unknown`: a guess is never mixed with a fact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlkit.envs.grading import Grade
from rlkit.logs.trace import Message, Outcome, Status, ToolCall, Trace

Fault = Literal["agent", "user", "environment", "grader", "unknown"]
Kind = Literal[
    "wrong_tool",
    "wrong_arguments",
    "no_write",
    "extra_write",
    "missing_information",
    "policy_violated",
    "gave_up",
    "loop",
    "truncated",
    "parse_error",
    "infrastructure",
    "disagreement",
    "unknown",
]
LOOP = 3
"""So many identical calls with identical results in a row are a loop."""
_INFRASTRUCTURE = re.compile(
    r"time[d\- ]*out|\b50[0234]\b|connection (?:refused|reset)|unavailable|internal server error|rate limit", re.I
)


@dataclass(frozen=True)
class Failure:
    """Whose fault a failed session was, of what kind, and how that was seen."""

    fault: Fault
    kind: Kind
    evidence: str
    """One sentence with the names and values that decided."""


@dataclass(frozen=True)
class Expected:
    """What a session should have done to the world, and said. A reference, not a requirement on the path taken."""

    writes: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """(tool, arguments) of the calls that change the world."""
    said: Sequence[str] = ()
    """What some message of the agent must contain, upper and lower case alike."""


@dataclass(frozen=True)
class Rules:
    """What the rules must know of an environment."""

    writes: Collection[str]
    """Tools that change the world; all others are reads, whose use is nobody's fault."""
    gives_up: Collection[str] = ()
    """Tools that hand the case to somebody else."""
    checks: Mapping[str, Kind] = field(default_factory=dict)
    """The kind of failure that a failed check of the rubric shows, where the calls were right."""


def explain_failure(
    trace: Trace, rules: Rules, expected: Expected | None = None, grade: Grade | None = None
) -> Failure:
    """Why a session failed; rules in this order, the first that applies decides.

    1. The grader broke, or the log and the rubric disagree about it. 2. It ended in an infrastructure error, or kept
    meeting one. 3. It went round in circles, was cut off, or never wrote a call that could be parsed. 4. It wrote
    nothing of what was expected, and its last question was never answered. 5. Its writes against `expected`, and what
    it did not say. 6. Checks that failed; tools that give up. Else unknown.
    """
    for rule in (_grader, _environment):
        if (found := rule(trace, grade)) is not None:
            return found
    if (found := _form(trace, grade, rules.gives_up)) is not None:
        return found
    if expected is not None:
        question = _unanswered(trace)
        if question is not None and expected.writes and not _made(trace, rules.writes):
            return Failure("user", "missing_information", f"nobody answered: {question}")
        if (found := _calls(trace, rules, expected)) is not None:
            return found
    lost = [check.name for check in (grade.checks if grade else []) if check.score is not None and check.score < 1]
    for name in lost:
        if name in rules.checks:
            return Failure("agent", rules.checks[name], f"check {name} failed")
    if expected is None:
        given_up = next((call for call in trace.tool_calls if call.name in rules.gives_up), None)
        if given_up is not None:
            return Failure("agent", "gave_up", f"called {given_up.name}")
    elif grade is None:
        return Failure("grader", "disagreement", "did and said all that was expected, and counts as failed")
    return Failure("unknown", "unknown", f"checks that failed: {', '.join(lost)}" if lost else "no rule applies")


def _grader(trace: Trace, grade: Grade | None) -> Failure | None:
    if grade is None:
        return None
    if grade.status == "grader_error":
        broken = [f"check {check.name}: {check.error}" for check in grade.checks if check.error is not None]
        return Failure("grader", "infrastructure", broken[0] if broken else "ended as grader_error")
    if {grade.status, trace.outcome.status} == {"success", "failure"}:
        source = trace.outcome.source or "the log"
        told = f"{source} says {trace.outcome.status}, {grade.rubric} {grade.status}"
        return Failure("grader", "disagreement", told)
    return None


def _environment(trace: Trace, grade: Grade | None) -> Failure | None:
    if trace.outcome.status == "infra_error" or (grade is not None and grade.status == "infra_error"):
        told = next((d.detail for d in trace.diagnostics if d.code == "infra_error"), "")
        return Failure("environment", "infrastructure", told or "ended as infra_error")
    errors = [(call, text) for call, text in _errors(trace) if _INFRASTRUCTURE.search(text)]
    if errors and trace.answered[-1][0] is errors[-1][0] and len(errors) > 1:
        call, text = errors[-1]
        return Failure(
            "environment", "infrastructure", f"{call.name} failed {len(errors)} times, last with {text[:80]}"
        )
    return None


def _form(trace: Trace, grade: Grade | None = None, final: Collection[str] = ()) -> Failure | None:
    run, last = 0, None
    for call, result in trace.answered:
        this = (call.name, _plain(call.arguments), result.content if result else None)
        run, last = (run + 1 if this == last else 1), this
        if run >= LOOP:
            return Failure("agent", "loop", f"{call.name} {run} times with the same arguments and the same result")
    unparsed = [call for call in trace.tool_calls if call.arguments is None]
    if unparsed and trace.tool_calls[-1] is unparsed[-1]:
        return Failure("agent", "parse_error", f"{unparsed[-1].name}: {(unparsed[-1].raw_arguments or '')[:80]}")
    status = trace.outcome.status if grade is None else grade.status
    handed_over = bool(trace.tool_calls) and trace.tool_calls[-1].name in final
    if (status == "truncated" or cut_off(trace)) and not handed_over:
        return Failure("agent", "truncated", f"cut off after {len(trace.messages)} messages")
    return None


def _calls(trace: Trace, rules: Rules, expected: Expected) -> Failure | None:
    """The writes that went through against those expected, order apart."""
    made = Counter((name, arguments) for name, arguments in _made(trace, rules.writes))
    wanted = Counter((name, _plain(arguments)) for name, arguments in expected.writes)
    lacking, extra = wanted - made, made - wanted
    given_up = next((call.name for call in trace.tool_calls if call.name in rules.gives_up), None)
    if lacking and given_up is not None and given_up not in {name for name, _ in wanted}:
        return Failure("agent", "gave_up", f"called {given_up} in place of {_told(lacking)}")
    if lacking and not extra:
        return Failure("agent", "no_write", f"never did {_told(lacking)}")
    if extra and not lacking:
        return Failure("agent", "extra_write", f"did {_told(extra)}, which nothing asked for")
    if lacking and Counter(n for n, _ in lacking.elements()) == Counter(n for n, _ in extra.elements()):
        return Failure("agent", "wrong_arguments", f"did {_told(extra)} in place of {_told(lacking)}")
    if lacking:
        return Failure("agent", "wrong_tool", f"did {_told(extra)} in place of {_told(lacking)}")
    spoken = "\n".join(m.content or "" for m in trace.messages if m.role == "assistant").casefold().replace(",", "")
    unsaid = [text for text in expected.said if not _is_said(text.casefold().replace(",", ""), spoken)]
    if unsaid:
        return Failure("agent", "missing_information", f"never said {', '.join(unsaid)}")
    return None


def _is_said(text: str, spoken: str) -> bool:
    """As whole words: 42 is not said by 1420."""
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", spoken) is not None


def _made(trace: Trace, writes: Collection[str]) -> list[tuple[str, str]]:
    """The writes that went through: (tool, arguments as text)."""
    refused = {id(call) for call, _ in _errors(trace)}
    return [(c.name, _plain(c.arguments)) for c in trace.tool_calls if c.name in writes and id(c) not in refused]


def _errors(trace: Trace) -> list[tuple[ToolCall, str]]:
    return [(call, result.content or "") for call, result in trace.answered if result is not None and is_error(result)]


def is_error(result: Message) -> bool:
    """Whether a tool's answer is an error: marked so, a JSON object with `error`, or text that begins so."""
    if result.extra and result.extra.get("is_error"):
        return True
    text = (result.content or "").lstrip()
    if text.startswith("{"):
        try:
            return bool(json.loads(text).get("error"))
        except (ValueError, RecursionError):
            return False
    return re.match(r"error\b", text, re.IGNORECASE) is not None


def _unanswered(trace: Trace) -> str | None:
    reply = (trace.final_reply or "").strip()
    return reply.splitlines()[-1] if reply.endswith("?") else None


def _plain(arguments: Mapping[str, Any] | None) -> str:
    """Arguments as text in which 1.0 is 1, as in JSON."""
    return json.dumps(_whole(arguments), sort_keys=True, ensure_ascii=False)


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _told(calls: Counter[tuple[str, str]]) -> str:
    texts = [f"{name} {arguments}" for name, arguments in calls.elements()]
    return ", ".join(text if len(text) <= 100 else f"{text[:97]}…" for text in texts)


# --- outcomes -------------------------------------------------------------------------------------------------------


def cut_off(trace: Trace) -> Status | None:
    """Truncated where the agent never came to a last word."""
    last = trace.messages[-1] if trace.messages else None
    return "truncated" if last is not None and (last.role == "tool" or last.tool_calls) else None


def user_gave_up(trace: Trace) -> Status | None:
    """A failure where the user's last message says so in set phrases."""
    text = next((m.content or "" for m in reversed(trace.messages) if m.role == "user"), "").casefold()
    phrases = ("this is useless", "you did not help", "didn't help", "not what i asked", "forget it", "human agent")
    return "failure" if any(phrase in text for phrase in phrases) else None


def goes_in_circles(trace: Trace) -> Status | None:
    """A failure where one call is made again and again with the same result."""
    found = _form(trace)
    return "failure" if found is not None and found.kind == "loop" else None


Heuristic = Callable[[Trace], Status | None]
HEURISTICS: tuple[Heuristic, ...] = (goes_in_circles, cut_off, user_gave_up)


def outcome(trace: Trace, grade: Grade | None = None, heuristics: Sequence[Heuristic] = HEURISTICS) -> Outcome:
    """How a session ended, and who says so: the log (feedback, evaluations, rewards), else our rubric, else a heuristic
    under its name (`heuristic:cut_off`), else nobody. Unknown stays unknown, and a heuristic gives no score."""
    if trace.outcome.status != "unknown":
        return trace.outcome
    if grade is not None:
        return Outcome(status=grade.status, score=grade.score, source=f"rubric:{grade.rubric}")
    for heuristic in heuristics:
        status = heuristic(trace)
        if status is not None:
            return Outcome(status=status, source=f"heuristic:{heuristic.__name__}")
    return Outcome()
