"""The course's running example: the support desk of a food delivery service, multi-turn, with hidden state.

A module with these names is what the command line calls an environment module; write your own the same way:
`environment` (the tools), `rubric` (what counts), `task_from_trace` (a production session as a task), `final_state`
(where a session left the world). It may also have `oracle` and `cheats` (agents that deserve all and nothing, for
`rlkit env check`), `sample_task` (tasks out of nothing), `rules` and `expected` (why sessions fail, for `rlkit mine`),
`replay_task` and `luck` (for `rlkit env fidelity`).
"""

from rlkit.examples.support.agents import oracle, play, production_agent
from rlkit.examples.support.cheats import cheats
from rlkit.examples.support.environment import environment
from rlkit.examples.support.mining import expected, final_state, luck, replay_task, rules, task_from_trace
from rlkit.examples.support.rubric import rubric
from rlkit.examples.support.world import sample_task

__all__ = [
    "cheats",
    "environment",
    "expected",
    "final_state",
    "luck",
    "oracle",
    "play",
    "production_agent",
    "replay_task",
    "rubric",
    "rules",
    "sample_task",
    "task_from_trace",
]
