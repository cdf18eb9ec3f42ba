"""`run_episode`: render, sample, parse, step, repeat, grade. A thousand of them run at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlkit.envs.environment import Environment, InfrastructureError, State
from rlkit.envs.grading import Ending, Grade, Rubric
from rlkit.envs.task import Task
from rlkit.logs.trace import Diagnostic, Message, Outcome, Trace
from rlkit.sampling.sampler import Completion, ContextOverflow, Sampler, SamplingParams


class Chat(Protocol):
    """How messages become tokens and back; `rlkit.sampling.chat.ChatFormat` is the course's."""

    end_id: int

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """A conversation's tokens, up to where the model speaks."""
        ...

    def extension(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the tools' answers to a finished turn, up to where the model speaks again."""
        ...

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        """What the model said in a turn; never raises."""
        ...


@dataclass(frozen=True)
class Harness:
    """Everything around the model that makes it an agent: the tools, the grading, the chat format."""

    environment: Environment
    rubric: Rubric
    chat: Chat
    max_turns: int = 8


@dataclass(frozen=True, eq=False)
class Rollout:
    """One episode, token by token. Arrays are [tokens] over the whole conversation.

    Where `action_mask` is False (the model did not speak) `logprobs` is 0 and `versions` is -1.
    """

    task_id: str
    seed: int
    token_ids: np.ndarray
    """int32: the conversation as the sampler saw and emitted it; never re-tokenised."""
    action_mask: np.ndarray
    """bool: True where the model spoke, its end-of-turn tokens included."""
    logprobs: np.ndarray
    """float32: log q of each token as it was sampled."""
    versions: np.ndarray
    """int32: the policy version that drew each token."""
    temperature: float
    grade: Grade
    trace: Trace
    final_state: State
    seconds: float
    """Wall time from reset to grade."""

    @property
    def reward(self) -> float | None:
        """In [0, 1]; None where the rollout is masked (infrastructure or grader error)."""
        return self.grade.reward

    @property
    def action_tokens(self) -> int:
        """How many tokens the model spoke."""
        return int(self.action_mask.sum())


@dataclass(frozen=True)
class RolloutGroup:
    """The rollouts of one task, compared with each other by the trainer."""

    task: Task
    rollouts: list[Rollout]


async def run_episode(sampler: Sampler, harness: Harness, task: Task, params: SamplingParams, seed: int = 0) -> Rollout:
    """Play one task to the end and grade it.

    The episode is truncated where a turn runs out of tokens, the context is full or `harness.max_turns` are over; an
    `InfrastructureError` from a tool ends it as `infra_error`, with what was sampled kept and the error named in the
    trace's diagnostics. `seed` fixes the environment's randomness and every draw.
    """
    started = time.perf_counter()
    chat = harness.chat
    episode = harness.environment.reset(task, seed)
    messages = list(task.messages)
    tokens = _Tokens(chat.prompt(messages))
    status: Ending = "truncated"
    diagnostics = []
    async with sampler.session() as session:
        for turn in range(harness.max_turns):
            try:
                completion = await session.sample(tokens.ids, params.with_seed(_turn_seed(seed, turn)))
            except ContextOverflow:
                break
            tokens.spoken(completion)
            message = chat.parse(completion.token_ids.tolist(), turn)
            messages.append(message)
            if completion.finish_reason == "length":
                break
            if not message.tool_calls:
                status = "completed"
                break
            try:
                results = [(call, episode.step(call)) for call in message.tool_calls]
            except InfrastructureError as error:
                status = "infra_error"
                where = f"messages[{len(messages) - 1}]"
                diagnostics = [Diagnostic(code=status, severity="error", path=where, detail=str(error))]
                break
            answers = [
                Message(role="tool", content=seen.content, tool_call_id=call.id, name=call.name)
                for call, seen in results
            ]
            messages += answers
            tokens.heard(chat.extension(answers))
    trace = Trace(id=f"{task.id}/{seed}", messages=messages, tools=harness.environment.schemas, diagnostics=diagnostics)
    grade = await harness.rubric.grade_async(task, trace, episode.state, status=status)
    trace.outcome = Outcome(status=grade.status, score=grade.score, source=f"rubric:{grade.rubric}")
    return Rollout(
        task_id=task.id,
        seed=seed,
        **tokens.arrays(),
        temperature=params.temperature,
        grade=grade,
        trace=trace,
        final_state=episode.state,
        seconds=time.perf_counter() - started,
    )


class _Tokens:
    """The growing conversation: what was heard and what was spoken, side by side."""

    def __init__(self, prompt: list[int]) -> None:
        self.ids: list[int] = []
        self._mask: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self.heard(prompt)

    def heard(self, ids: list[int]) -> None:
        self.ids += ids
        self._mask += [False] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._versions += [-1] * len(ids)

    def spoken(self, completion: Completion) -> None:
        ids = completion.token_ids.tolist()
        self.ids += ids
        self._mask += [True] * len(ids)
        self._logprobs += completion.logprobs.tolist()
        self._versions += completion.versions.tolist()

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "token_ids": np.array(self.ids, np.int32),
            "action_mask": np.array(self._mask, bool),
            "logprobs": np.array(self._logprobs, np.float32),
            "versions": np.array(self._versions, np.int32),
        }


def _turn_seed(seed: int, turn: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{turn}".encode(), digest_size=8).digest(), "big") >> 1
