from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from rlkit.envs.environment import Environment, Episode, InfrastructureError, Tool
from rlkit.envs.grading import Check, Rubric
from rlkit.envs.task import Task
from rlkit.examples import support
from rlkit.logs.trace import Message, ToolCall
from rlkit.models import tiny_llama, train_tokenizer
from rlkit.sampling.chat import SPECIAL_TOKENS, ChatFormat, render_texts
from rlkit.sampling.rollout import Harness, Rollout, run_episode
from rlkit.sampling.sampler import Completion, ContextOverflow, SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler


def _tokenizer() -> Any:
    rng = random.Random(0)
    tasks = [support.sample_task(rng) for _ in range(60)]
    sessions = [support.play(support.oracle, task, i)[0].messages for i, task in enumerate(tasks)]
    return train_tokenizer([t for s in sessions for t in render_texts(s)], SPECIAL_TOKENS, 320)


TOKENIZER = _tokenizer()
CHAT = ChatFormat(TOKENIZER)
VOCAB = len(TOKENIZER)
PARAMS = SamplingParams(temperature=0.7, max_tokens=40, stop_token_ids=(CHAT.end_id,))


class ScriptedSampler:
    """Says what it is told to, turn by turn: messages, or token ids that stand for a turn cut short."""

    def __init__(self, script: Sequence[Message | list[int]], capacity: int = 10_000) -> None:
        self.script, self.capacity = script, capacity
        self.contexts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.open = 0

    version = 0

    def update_weights(self, weights: Mapping[str, Any], version: int) -> None: ...

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ScriptedSampler]:
        self.open += 1
        yield self
        self.open -= 1

    async def sample(self, token_ids: Sequence[int], params: SamplingParams) -> Completion:
        if len(token_ids) >= self.capacity:
            raise ContextOverflow("full")
        turn = self.script[len(self.contexts)]
        self.contexts.append(list(token_ids))
        self.params.append(params)
        ids = turn if isinstance(turn, list) else CHAT.conversation([turn])[0][1:]
        n = len(self.contexts)
        return Completion(
            token_ids=np.array(ids, np.int32),
            logprobs=-(100 * n + np.arange(len(ids), dtype=np.float32)),
            versions=np.full(len(ids), 7 + n, np.int32),
            finish_reason="length" if isinstance(turn, list) else "stop",
        )


def call(name: str, **arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id="c", name=name, arguments=arguments)])


def reply(text: str) -> Message:
    return Message(role="assistant", content=text)


TASK = support.sample_task(random.Random(4))
ORDER = TASK.state["order"]["id"]
HARNESS = Harness(support.environment, support.rubric, CHAT)


def play(script: Sequence[Message | list[int]], harness: Harness = HARNESS, **sampler: Any) -> Rollout:
    player = ScriptedSampler(script, **sampler)
    rollout = asyncio.run(run_episode(player, harness, TASK, PARAMS, seed=3))
    assert player.open == 0
    return rollout


# --- token by token -----------------------------------------------------------------------------------------------


def test_tokens_are_the_prompt_the_turns_and_the_results_end_to_end() -> None:
    script = [call("get_order", id=ORDER), call("deny", id=ORDER), reply("Sorry, I cannot give anything.")]
    sampler = ScriptedSampler(script)
    rollout = asyncio.run(run_episode(sampler, HARNESS, TASK, PARAMS, seed=3))
    ids: list[int] = CHAT.prompt(TASK.messages)
    mask, logprobs, versions = [False] * len(ids), [0.0] * len(ids), [-1] * len(ids)
    results = [m for m in rollout.trace.messages if m.role == "tool"]
    assert len(results) == 2
    for number, turn in enumerate(script):
        assert sampler.contexts[number] == ids  # the model saw just this
        said = CHAT.conversation([turn])[0][1:]
        assert said[-1] == CHAT.end_id
        ids += said
        mask += [True] * len(said)
        logprobs += [-(100 * (number + 1) + i) for i in range(len(said))]
        versions += [8 + number] * len(said)
        if number < 2:
            heard = CHAT.extension([results[number]])
            ids += heard
            mask += [False] * len(heard)
            logprobs += [0.0] * len(heard)
            versions += [-1] * len(heard)
    assert rollout.token_ids.tolist() == ids
    assert rollout.action_mask.tolist() == mask
    assert rollout.logprobs.tolist() == logprobs
    assert rollout.versions.tolist() == versions
    dtypes = [rollout.token_ids.dtype, rollout.action_mask.dtype, rollout.logprobs.dtype, rollout.versions.dtype]
    assert dtypes == [np.int32, bool, np.float32, np.int32]
    assert rollout.action_tokens == sum(mask)


def test_the_trace_is_the_whole_conversation_with_its_outcome() -> None:
    rollout = play([call("get_order", id=ORDER), reply("A colleague will help you, ticket 12.")])
    roles = [m.role for m in rollout.trace.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert rollout.trace.messages[:2] == TASK.messages
    assert rollout.trace.messages[3].tool_call_id == rollout.trace.messages[2].tool_calls[0].id
    assert rollout.trace.messages[3].name == "get_order"
    assert rollout.trace.tools == support.environment.schemas
    assert (rollout.trace.outcome.status, rollout.trace.outcome.score) == ("failure", 0.2)
    assert rollout.trace.outcome.source == f"rubric:{support.rubric.version}"
    assert (rollout.task_id, rollout.seed, rollout.temperature) == (TASK.id, 3, 0.7)


def test_two_calls_in_a_turn_are_both_answered_before_the_next() -> None:
    calls = [ToolCall(id=name, name=name, arguments={"id": ORDER}) for name in ("get_order", "escalate")]
    both = Message(role="assistant", tool_calls=calls)
    rollout = play([both, reply("done")])
    roles = [m.role for m in rollout.trace.messages]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    results = rollout.trace.messages[3:5]
    assert [r.name for r in results] == ["get_order", "escalate"]
    heard = CHAT.extension(results)
    joined = rollout.token_ids.tolist()
    assert any(joined[i : i + len(heard)] == heard for i in range(len(joined)))
    assert [a["tool"] for a in rollout.final_state["actions"]] == ["escalate"]


def test_every_turn_draws_under_a_seed_of_its_own() -> None:
    script = [call("get_order", id=ORDER), reply("ok")]
    seeds = []
    for seed in (3, 3, 4):
        sampler = ScriptedSampler(script)
        asyncio.run(run_episode(sampler, HARNESS, TASK, PARAMS, seed=seed))
        seeds += [p.seed for p in sampler.params]
        assert all(p.with_seed(0) == PARAMS for p in sampler.params)
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4
    assert all(0 <= s < 2**63 for s in seeds)


# --- how an episode ends ------------------------------------------------------------------------------------------


def test_a_turn_without_its_end_is_truncated() -> None:
    cut = CHAT.conversation([call("escalate", id=ORDER)])[0][1:-1]
    rollout = play([call("get_order", id=ORDER), cut])
    assert (rollout.grade.status, rollout.reward) == ("truncated", 0.0)
    assert rollout.token_ids.tolist()[-len(cut) :] == cut
    assert rollout.action_mask[-len(cut) :].all()
    assert rollout.final_state["actions"] == []  # a call that was cut short is not run


def test_a_full_context_is_truncated_with_what_was_said() -> None:
    rollout = play([call("get_order", id=ORDER)] * 5, capacity=90)
    assert rollout.grade.status == "truncated"
    assert rollout.trace.messages[-1].role == "tool"
    assert not rollout.action_mask[-1]
    assert rollout.action_tokens > 0


def test_a_prompt_that_does_not_fit_is_truncated_not_a_crash() -> None:
    rollout = play([], capacity=5)
    assert rollout.grade.status == "truncated"
    assert rollout.token_ids.tolist() == CHAT.prompt(TASK.messages)
    assert rollout.action_tokens == 0


def test_max_turns_is_truncated() -> None:
    harness = Harness(support.environment, support.rubric, CHAT, max_turns=3)
    rollout = play([call("get_order", id=ORDER)] * 9, harness)
    assert rollout.grade.status == "truncated"
    assert sum(m.role == "assistant" for m in rollout.trace.messages) == 3


def test_a_success_needs_no_more_than_the_right_messages() -> None:
    rng = random.Random(1)
    task = next(t for t in (support.sample_task(rng) for _ in range(99)) if t.goal["action"] == "deny")
    order = task.state["order"]["id"]
    script = [
        call("get_order", id=order),
        call("deny", id=order),
        reply("Sorry, I cannot give anything for this order."),
    ]
    rollout = asyncio.run(run_episode(ScriptedSampler(script), HARNESS, task, PARAMS))
    assert (rollout.grade.status, rollout.reward) == ("success", 1.0)


def broken(episode: Episode, id: str) -> Any:
    raise InfrastructureError("the database is down")


BROKEN = Environment("broken", [Tool("get_order", "", {"properties": {"id": {}}}, broken)])


def test_an_infrastructure_error_masks_the_rollout_and_says_why() -> None:
    rollout = play([call("get_order", id=ORDER), reply("never said")], Harness(BROKEN, support.rubric, CHAT))
    assert (rollout.grade.status, rollout.grade.score, rollout.reward) == ("infra_error", None, None)
    assert rollout.action_tokens > 0  # what was sampled is kept
    assert rollout.trace.outcome.status == "infra_error"
    (diagnostic,) = rollout.trace.diagnostics
    assert (diagnostic.code, diagnostic.detail) == ("infra_error", "the database is down")
    assert diagnostic.path == "messages[2]"


def test_a_grader_error_masks_the_rollout() -> None:
    rubric = Rubric("r", (Check("breaks", 1, lambda task, trace, state: 1 / 0),))
    rollout = play([reply("hello")], Harness(support.environment, rubric, CHAT))
    assert (rollout.grade.status, rollout.reward) == ("grader_error", None)


def bug(episode: Episode, id: str) -> Any:
    raise KeyError("a bug in the tool")


def test_a_bug_in_a_tool_is_not_swallowed() -> None:
    environment = Environment("bug", [Tool("get_order", "", {"properties": {"id": {}}}, bug)])
    with pytest.raises(KeyError, match="a bug in the tool"):
        play([call("get_order", id=ORDER)], Harness(environment, support.rubric, CHAT))


@pytest.mark.parametrize(
    "bad",
    [
        call("get_order"),
        call("get_order", id=4821),
        call("fly", to="mars"),
        Message(role="assistant", tool_calls=[ToolCall(id="c", name="refund", arguments=None, raw_arguments='{"id":')]),
    ],
)
def test_after_a_bad_call_the_agent_reads_an_error_and_goes_on(bad: Message) -> None:
    rollout = play([bad, call("escalate", id=ORDER), reply("ok")])
    results = [m.content or "" for m in rollout.trace.messages if m.role == "tool"]
    assert results[0].startswith('{"error":')
    assert results[1].startswith('{"ok":true')
    assert rollout.grade.status == "failure"
    assert [a["tool"] for a in rollout.final_state["actions"]] == ["escalate"]


# --- with the engine ----------------------------------------------------------------------------------------------


class CallsFirst(ChatFormat):
    """Reads a call into the first turn: a random model plays two."""

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        one = ToolCall(id="call_0", name="get_order", arguments={"id": "1234"})
        return dataclasses.replace(super().parse(token_ids, turn), tool_calls=[one] if turn == 0 else [])


def play_many(count: int, slots: int, tasks: list[Task], seed: int = 0) -> list[Rollout]:
    sampler = TorchSampler(
        tiny_llama(VOCAB, hidden_size=32, layers=1, initializer_range=0.2), slots=slots, capacity=128
    )
    harness = Harness(support.environment, support.rubric, CallsFirst(TOKENIZER))
    params = SamplingParams(max_tokens=10, stop_token_ids=tuple(range(0, VOCAB, 3)))

    async def everyone() -> list[Rollout]:
        runs = [run_episode(sampler, harness, tasks[i % len(tasks)], params, seed + i) for i in range(count)]
        return await asyncio.gather(*runs)

    return asyncio.run(everyone())


def tasks(count: int) -> list[Task]:
    rng = random.Random(2)
    return [support.sample_task(rng) for _ in range(count)]


def test_three_hundred_episodes_at_once_keep_their_books_apart() -> None:
    rollouts = play_many(300, 64, tasks(30))
    assert len(rollouts) == 300
    for i, rollout in enumerate(rollouts):
        assert rollout.seed == i
        prompt = CHAT.prompt(rollout.trace.messages[:2])
        assert rollout.token_ids[: len(prompt)].tolist() == prompt
        starts = np.flatnonzero(np.diff(rollout.action_mask.astype(int)) == 1)
        assert len(starts) == sum(m.role == "assistant" for m in rollout.trace.messages)
        assert (rollout.logprobs[rollout.action_mask] < 0).all()
        assert (rollout.versions[rollout.action_mask] == 0).all()
    assert sum(len(r.trace.messages) == 5 for r in rollouts) > 100


def test_one_seed_gives_the_same_rollout() -> None:
    """The same plan twice, and every rollout's tokens whatever else is in the batch."""
    first, again, alone = play_many(20, 8, tasks(5)), play_many(20, 8, tasks(5)), play_many(1, 1, tasks(5))
    other = play_many(20, 8, tasks(5), seed=100)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
        assert a.trace == b.trace
    assert first[0].token_ids.tolist() == alone[0].token_ids.tolist()
    assert [r.token_ids.tolist() for r in first] != [r.token_ids.tolist() for r in other]
