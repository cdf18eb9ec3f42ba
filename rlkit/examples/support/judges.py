"""Synthetic judges for the support desk, with flaws planted on purpose.

No language model is behind them: they read the session out of a judge's prompt, look up what is true of it (the
desk's rubric knows), and answer in the judge's format, wrong in one declared way and to a declared size. They show
that each statistic of `rlkit.envs.calibration` finds the flaw it is meant for. They say nothing about real judges.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from rlkit.envs.judge import Complete, Messages, render, shown_sessions
from rlkit.envs.task import Task
from rlkit.examples.support.agents import oracle, play
from rlkit.examples.support.mining import final_state
from rlkit.examples.support.rubric import rubric
from rlkit.logs.trace import Trace

Flaw = Literal["none", "lenient", "length_bias", "position_bias", "noise", "format_errors"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)

CRITERIA = {
    "looked_up_first": "The agent looked the order up before it tried anything else.",
    "right_action": "It did exactly the one thing that the policy in the system message asks for.",
    "told_the_truth": "Its last message says what it did, with the amount or the ticket, and nothing else.",
}


def truth(task: Task, trace: Trace) -> dict[str, bool]:
    """What is true of a session, criterion by criterion; it is a success where all are."""
    grade = rubric.grade(task, trace, final_state(trace, task))
    return {check.name: check.score == 1 for check in grade.checks}


def rivals(cases: Iterable[tuple[Task, Trace]], seed: int = 0) -> list[tuple[Task, Trace, Trace]]:
    """For each session the same task played by the oracle, in random order: pairs for a swap test."""
    rng, pairs = random.Random(seed), list[tuple[Task, Trace, Trace]]()
    for task, trace in cases:
        best, _ = play(oracle, task, rng.getrandbits(32), f"oracle-{trace.id}")
        first, second = rng.sample([trace, best], 2)
        pairs.append((task, first, second))
    return pairs


def planted_judge(flaw: Flaw, sessions: Iterable[tuple[Task, Trace]], size: float = 0.3, seed: int = 0) -> Complete:
    """A synthetic `complete` for a `Judge` with `CRITERIA`, which knows what is true of `sessions` and no others.

    `size` is a share, drawn by a hash of `seed` and the session, so that asking again changes nothing but for `noise`:

    - `none`: always right.
    - `lenient`: of failures, passed.
    - `length_bias`: of sessions, passed if the reply is in the longer half of those that truth calls the same, failed
      if not.
    - `position_bias`: of comparisons, won by what comes first.
    - `noise`: of verdicts, flipped; drawn anew each time.
    - `format_errors`: of answers, unusable, in five ways.

    Raises `ValueError` for an unknown flaw or a size outside [0, 1], and, asked about another session, `LookupError`.
    """
    if flaw not in FLAWS or not 0 <= size <= 1:
        raise ValueError(f"flaw must be one of {', '.join(FLAWS)} and size in [0, 1], got {flaw!r} and {size}")
    known = _known(sessions)
    asked: Counter[str] = Counter()

    def luck(*about: object) -> random.Random:
        return random.Random(f"{seed}:{flaw}:{about}")

    def verdict(key: str, occasion: str) -> dict[str, bool]:
        right, longer = known[key]
        drawn = luck(key, occasion if flaw == "noise" else "").random() < size
        passes = all(right.values())
        wanted = {"lenient": True, "length_bias": longer, "noise": not passes}.get(flaw, passes) if drawn else passes
        return right if wanted == passes else dict.fromkeys(right, wanted)

    async def complete(messages: Messages) -> str:
        await asyncio.sleep(0)
        keys = [_key(text) for text in shown_sessions(messages)]
        if unknown := [key for key in keys if key not in known]:
            raise LookupError(f"{len(unknown)} sessions that this synthetic judge was never told about")
        pair = "|".join(sorted(keys))  # in either order
        asked[pair] += 1
        if flaw == "format_errors" and luck(pair).random() < size:
            return luck("how", pair).choice(_BROKEN)
        said = [verdict(key, f"{pair} {asked[pair]}") for key in keys]
        if len(said) == 1:
            return json.dumps({name: {"pass": ok, "why": "synthetic"} for name, ok in said[0].items()})
        first, second = (all(one.values()) for one in said)
        better = "tie" if first == second else "first" if first else "second"
        if flaw == "position_bias" and luck(pair).random() < size:
            better = "first"
        return json.dumps({"better": better, "why": "synthetic"})

    return complete


_BROKEN = (
    "",
    "The agent did well, all in all.",
    '{"looked_up_first": {"pass": true, "why": "cut',
    '{"looked_up_first": {"pass": true, "why": "alone"}}',
    '{"looked_up_first": "yes", "right_action": "yes", "told_the_truth": "no"}',
)


def _known(sessions: Iterable[tuple[Task, Trace]]) -> dict[str, tuple[dict[str, bool], bool]]:
    """Session → (what is true of it, whether its reply is in the longer half of its kind), by its text's hash."""
    found: dict[str, tuple[dict[str, bool], int]] = {}
    for task, trace in sessions:
        found[_key(render(trace))] = truth(task, trace), len(trace.final_reply or "")
    longer = set[str]()
    for kind in (False, True):
        keys: Sequence[str] = [key for key, (right, _) in found.items() if all(right.values()) == kind]
        longer |= set(sorted(keys, key=lambda key: (found[key][1], key))[len(keys) // 2 :])
    return {key: (right, key in longer) for key, (right, _) in found.items()}


def _key(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
