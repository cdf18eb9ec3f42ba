"""The course's running example: the support desk of a food delivery service, multi-turn, with hidden state.

A module with these names is what `rlkit train` and `rlkit eval` call an environment module; write your own the
same way: `environment` (the tools), `rubric` (what counts), `task_from_trace` (a production session as a task),
`final_state` (where a session left the world).
"""

from rlkit.examples.support.agents import oracle, play, production_agent
from rlkit.examples.support.environment import environment
from rlkit.examples.support.mining import final_state, task_from_trace
from rlkit.examples.support.rubric import rubric
from rlkit.examples.support.world import sample_task

__all__ = [
    "environment",
    "final_state",
    "oracle",
    "play",
    "production_agent",
    "rubric",
    "sample_task",
    "task_from_trace",
]
