from __future__ import annotations

import asyncio
import copy
import dataclasses
import random
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlkit.envs.grading import Check, Grade, Rubric
from rlkit.examples import support
from rlkit.logs.trace import Message, ToolCall
from rlkit.loop import LoopConfig
from rlkit.models import CheckpointError, load_model, tiny_llama, train_tokenizer
from rlkit.paths import data_dir
from rlkit.sampling.chat import SPECIAL_TOKENS, ChatFormat, render_texts
from rlkit.sampling.rollout import Harness, Rollout, RolloutGroup, run_episode
from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler
from rlkit.training.batch import collate
from rlkit.training.logprobs import policy_logprobs
from rlkit.training.trainer import GRPOConfig, GRPOTrainer

WARM_START = data_dir() / "models" / "support-warm-start"
NO_CLIP = 1e9
TEMPERATURES = (0.6, 1.0, 1.7)


class CallsTwice(ChatFormat):
    """Reads a tool call into whatever the model says on its first turns: a random model plays several turns."""

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        message = super().parse(token_ids, turn)
        if turn >= 1 + sum(token_ids) % 3:
            return message
        call = ToolCall(id=f"call_{turn}", name="get_order", arguments={"id": "1234"})
        return dataclasses.replace(message, tool_calls=[call])


RUBRIC = Rubric("length", (Check("length", 1, lambda task, trace, state: len(trace.final_reply or "") % 4 / 3),))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    rng = random.Random(0)
    traces = [support.play(support.production_agent(rng), support.sample_task(rng), i)[0] for i in range(60)]
    return train_tokenizer([text for t in traces for text in render_texts(t.messages)], SPECIAL_TOKENS, 300)


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    return tiny_llama(len(tokenizer), hidden_size=32, layers=2, initializer_range=0.2)


@pytest.fixture(scope="module")
def groups(model: Any, tokenizer: Any) -> list[RolloutGroup]:
    """6 tasks × 5 rollouts of mixed lengths, turns and temperatures; one group has no spread."""
    harness = Harness(support.environment, RUBRIC, CallsTwice(tokenizer), max_turns=4)
    sampler = TorchSampler(model, slots=8, capacity=256)
    stops = tuple(i for i in range(len(tokenizer)) if i % 7 == 0)
    rng = random.Random(1)
    tasks = [support.sample_task(rng) for _ in range(6)]

    async def play() -> list[RolloutGroup]:
        async def one(number: int, index: int) -> Rollout:
            params = SamplingParams(temperature=TEMPERATURES[index % 3], stop_token_ids=stops, max_tokens=40)
            return await run_episode(sampler, harness, tasks[number], params, seed=10 * number + index)

        return [RolloutGroup(t, await asyncio.gather(*(one(n, i) for i in range(5)))) for n, t in enumerate(tasks)]

    played = asyncio.run(play())
    flat = [dataclasses.replace(r, grade=Grade("failure", 0.0, [], "v")) for r in played[2].rollouts]
    played[2] = RolloutGroup(played[2].task, flat)
    return played


def trainer_of(model: Any, **config: Any) -> GRPOTrainer:
    return GRPOTrainer(copy.deepcopy(model), GRPOConfig(**config))


def gradients(trainer: GRPOTrainer) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def weights(trainer: GRPOTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], atol: float) -> None:
    assert a.keys() == b.keys()
    assert len(a) > 0
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=atol)


def assert_same(a: Any, b: Any) -> None:
    """Bit for bit, through nested dicts and lists."""
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    else:
        assert a == b


def all_rollouts(groups: list[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def with_status(group: RolloutGroup, index: int, status: Any) -> RolloutGroup:
    score = 0.0 if status == "truncated" else None
    rollouts = list(group.rollouts)
    rollouts[index] = dataclasses.replace(rollouts[index], grade=Grade(status, score, [], "v"))
    return RolloutGroup(group.task, rollouts)


def without(group: RolloutGroup, index: int) -> RolloutGroup:
    return RolloutGroup(group.task, [r for i, r in enumerate(group.rollouts) if i != index])


# --- the sampler's logprobs are the trainer's ---------------------------------------------------------------------


def trainer_logprobs(model: Any, rollouts: list[Rollout]) -> list[np.ndarray]:
    masks = [r.action_mask for r in rollouts]
    batch = collate([r.token_ids for r in rollouts], masks, [r.temperature for r in rollouts])
    with torch.no_grad():
        flat = policy_logprobs(model, batch, chunk=64).numpy()
    return np.split(flat, np.cumsum([m.sum() for m in masks])[:-1])


def test_the_recorded_logprobs_are_the_trainers_token_by_token(model: Any, groups: list[RolloutGroup]) -> None:
    rollouts = all_rollouts(groups)
    turns = {sum(m.role == "assistant" for m in r.trace.messages) for r in rollouts}
    assert turns >= {2, 3, 4}
    assert {r.temperature for r in rollouts} == set(TEMPERATURES)
    assert len({len(r.token_ids) for r in rollouts}) > 10
    for rollout, ours in zip(rollouts, trainer_logprobs(model, rollouts), strict=True):
        np.testing.assert_allclose(rollout.logprobs[rollout.action_mask], ours, rtol=0, atol=1e-4)


def test_on_policy_every_ratio_is_one_and_shifted_ones_are_not(model: Any, groups: list[RolloutGroup]) -> None:
    rollouts = all_rollouts(groups)
    ours = np.concatenate(trainer_logprobs(model, rollouts))
    recorded = np.concatenate([r.logprobs[r.action_mask] for r in rollouts])
    assert np.abs(np.exp(ours - recorded) - 1).max() < 1e-4
    assert np.abs(np.exp(ours[1:] - recorded[:-1]) - 1).mean() > 0.5


@pytest.mark.skipif(not WARM_START.exists(), reason="data/ is not here")
def test_the_same_holds_for_the_shipped_model() -> None:
    model, tokenizer = load_model(WARM_START)
    chat = ChatFormat(tokenizer)
    harness = Harness(support.environment, support.rubric, chat)
    sampler = TorchSampler(model, slots=16, capacity=256)
    rng = random.Random(5)

    async def play() -> list[Rollout]:
        runs = []
        for i in range(32):
            params = SamplingParams(temperature=TEMPERATURES[i % 3], stop_token_ids=(chat.end_id,), max_tokens=48)
            runs.append(run_episode(sampler, harness, support.sample_task(rng), params, seed=i))
        return await asyncio.gather(*runs)

    rollouts = asyncio.run(play())
    for rollout, ours in zip(rollouts, trainer_logprobs(model, rollouts), strict=True):
        np.testing.assert_allclose(rollout.logprobs[rollout.action_mask], ours, rtol=0, atol=1e-4)


# --- one step -----------------------------------------------------------------------------------------------------


def dense_gradient(model: Any, groups: list[RolloutGroup], config: GRPOConfig) -> dict[str, Tensor]:
    """The gradient of the step, written out: one unpadded sequence at a time, every rollout, full log-softmax."""
    model = copy.deepcopy(model)
    loss, tokens = torch.zeros(()), 0
    for group in groups:
        rewards = np.array([rollout.reward for rollout in group.rollouts])
        for rollout, advantage in zip(group.rollouts, rewards - rewards.mean(), strict=True):
            ids = torch.from_numpy(rollout.token_ids.astype(np.int64))
            logp = (model(input_ids=ids[None]).logits[0] / rollout.temperature).log_softmax(1)
            for t in np.flatnonzero(rollout.action_mask):
                ratio = (logp[t - 1, ids[t]] - float(rollout.logprobs[t])).exp()
                band = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
                loss = loss - torch.minimum(ratio * advantage, band * advantage)
                tokens += 1
    (loss / tokens).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_the_gradient_is_that_of_the_formula_over_all_rollouts(model: Any, groups: list[RolloutGroup]) -> None:
    """Rollouts without an advantage are skipped by the trainer and counted here: that changes nothing."""
    trainer = trainer_of(model, clip_norm=NO_CLIP)
    metrics = trainer.step(groups)
    assert metrics["optim/trained_rollouts"] < 30
    assert metrics["optim/action_tokens"] == sum(r.action_tokens for r in all_rollouts(groups))
    expected = dense_gradient(model, groups, trainer.config)
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-4
    assert_close(gradients(trainer), expected, atol=1e-7)


def test_off_policy_the_clipped_gradient_is_that_of_the_formula(model: Any, groups: list[RolloutGroup]) -> None:
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for p in moved.parameters():
            p += 0.03 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
    trainer = trainer_of(moved, clip_norm=NO_CLIP)
    metrics = trainer.step(groups[:2])
    assert metrics["optim/clipped_share"] > 0.02  # p differs from q, and the loss sees it
    assert metrics["mismatch/k3"] > 1e-3
    assert_close(gradients(trainer), dense_gradient(moved, groups[:2], trainer.config), atol=1e-6)


def test_micro_batches_change_nothing(model: Any, groups: list[RolloutGroup]) -> None:
    small, large = trainer_of(model, micro_batch_tokens=1), trainer_of(model, micro_batch_tokens=10**6)
    a, b = small.step(groups), large.step(groups)
    assert_close(gradients(small), gradients(large), atol=1e-7)
    assert_close(weights(small), weights(large), atol=1e-6)
    timeless = [{k: v for k, v in m.items() if not k.startswith("time/")} for m in (a, b)]
    assert timeless[0] == pytest.approx(timeless[1], rel=1e-3, abs=1e-5)


def test_the_order_of_groups_changes_nothing(model: Any, groups: list[RolloutGroup]) -> None:
    one, other = trainer_of(model), trainer_of(model)
    one.step(groups)
    other.step(groups[::-1])
    assert_close(gradients(one), gradients(other), atol=1e-7)


def test_a_step_raises_what_was_good_and_lowers_what_was_bad(model: Any, groups: list[RolloutGroup]) -> None:
    trainer = trainer_of(model, learning_rate=1e-3)
    trainer.step(groups)
    moved = 0.0
    for group in groups:
        rewards = np.array([r.reward for r in group.rollouts])
        before, after = (trainer_logprobs(m, group.rollouts) for m in (model, trainer.model))
        moved += sum(a * (y - x).sum() for a, x, y in zip(rewards - rewards.mean(), before, after, strict=True))
    assert moved > 0.1


def test_the_gradient_is_clipped_and_its_norm_reported_before(model: Any, groups: list[RolloutGroup]) -> None:
    free, clipped = trainer_of(model, clip_norm=NO_CLIP), trainer_of(model, clip_norm=1e-3)
    norms = [t.step(groups)["optim/grad_norm"] for t in (free, clipped)]
    assert norms[0] == pytest.approx(norms[1])
    norm = sum(float(g.square().sum()) for g in gradients(clipped).values()) ** 0.5
    assert norm == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("status", ["grader_error", "infra_error"])
def test_masked_rollouts_are_out_of_baseline_and_loss(model: Any, groups: list[RolloutGroup], status: str) -> None:
    masked, left_out = trainer_of(model), trainer_of(model)
    a = masked.step([with_status(groups[0], 1, status), groups[1]])
    b = left_out.step([without(groups[0], 1), groups[1]])
    assert a["optim/action_tokens"] == b["optim/action_tokens"]
    assert_same(weights(masked), weights(left_out))


def test_truncated_counts_as_zero_or_is_masked(model: Any, groups: list[RolloutGroup]) -> None:
    def graded(index: int, grade: Grade) -> RolloutGroup:
        rollouts = list(spread.rollouts)
        rollouts[index] = dataclasses.replace(rollouts[index], grade=grade)
        return RolloutGroup(spread.task, rollouts)

    spread = groups[0]
    spread = graded(0, Grade("success", 1.0, [], "v"))  # something to learn from, whatever the others did
    cut = [with_status(spread, 1, "truncated"), groups[1]]
    as_failure = graded(1, Grade("failure", 0.0, [], "v"))
    zero, failure = trainer_of(model), trainer_of(model)
    zero.step(cut)
    failure.step([as_failure, groups[1]])
    assert_same(weights(zero), weights(failure))
    mask, left_out = trainer_of(model, truncated="mask"), trainer_of(model)
    mask.step(cut)
    left_out.step([without(spread, 1), groups[1]])
    assert_same(weights(mask), weights(left_out))
    assert not torch.equal(mask.model.lm_head.weight, zero.model.lm_head.weight)


def test_where_all_is_masked_nothing_moves(model: Any, groups: list[RolloutGroup]) -> None:
    trainer = trainer_of(model)
    trainer.step(groups)  # momentum must not move anything either
    before, state = weights(trainer), copy.deepcopy(trainer.optimizer.state_dict())
    masked = groups[0]
    for i in range(5):
        masked = with_status(masked, i, "infra_error")
    metrics = trainer.step([masked])
    assert trainer.version == 2
    assert_same(weights(trainer), before)
    assert_same(trainer.optimizer.state_dict(), state)
    assert metrics["optim/loss"] == metrics["optim/grad_norm"] == metrics["optim/action_tokens"] == 0
    assert all(np.isfinite(value) for value in metrics.values())


def test_groups_without_spread_move_nothing(model: Any, groups: list[RolloutGroup]) -> None:
    trainer = trainer_of(model, weight_decay=0.1)
    metrics = trainer.step([groups[2]])
    assert_same(weights(trainer), dict(model.state_dict()))
    assert metrics["optim/trained_rollouts"] == 0
    assert metrics["optim/action_tokens"] > 0


def test_mean_std_is_the_mean_gradient_over_the_deviation(model: Any, groups: list[RolloutGroup]) -> None:
    mean = trainer_of(model, clip_norm=NO_CLIP)
    std = trainer_of(model, clip_norm=NO_CLIP, baseline="mean_std")
    mean.step(groups[:1])
    std.step(groups[:1])
    deviation = np.std([r.reward for r in groups[0].rollouts], ddof=1)
    assert_close({k: g * deviation for k, g in gradients(std).items()}, gradients(mean), atol=1e-7)


def test_greedy_rollouts_are_refused_and_change_nothing(model: Any, groups: list[RolloutGroup]) -> None:
    greedy = dataclasses.replace(groups[1].rollouts[0], temperature=0.0)
    trainer = trainer_of(model)
    with pytest.raises(ValueError, match=rf"{greedy.task_id}.*temperature 0"):
        trainer.step([groups[0], RolloutGroup(groups[1].task, [greedy, *groups[1].rollouts[1:]])])
    assert trainer.version == 0
    assert_same(weights(trainer), dict(model.state_dict()))


def test_the_model_is_in_eval_mode_and_fp32(model: Any) -> None:
    trainer = GRPOTrainer(copy.deepcopy(model).to(torch.bfloat16).train(), GRPOConfig())
    assert not trainer.model.training
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_resume_goes_on_bit_for_bit(model: Any, tokenizer: Any, groups: list[RolloutGroup], tmp_path: Path) -> None:
    trainer = trainer_of(model, learning_rate=1e-3, beta2=0.95, micro_batch_tokens=512)
    trainer.step(groups[:3])
    trainer.save(tmp_path / "step-1", tokenizer)
    twin = GRPOTrainer.resume(tmp_path / "step-1")
    assert twin.config == trainer.config
    assert twin.version == 1
    for _ in range(2):
        assert_same(weights(twin), weights(trainer))
        assert_same(twin.optimizer.state_dict(), trainer.optimizer.state_dict())
        metrics = [t.step(groups[3:]) for t in (trainer, twin)]
        assert_same(*({k: v for k, v in m.items() if not k.startswith("time/")} for m in metrics))


def test_resume_before_the_first_step(model: Any, tokenizer: Any, groups: list[RolloutGroup], tmp_path: Path) -> None:
    trainer = trainer_of(model)
    trainer.save(tmp_path / "start", tokenizer)
    twin = GRPOTrainer.resume(tmp_path / "start")
    for one in (trainer, twin):
        one.step(groups)
    assert_same(weights(twin), weights(trainer))


def test_the_learning_rate_decays_to_a_tenth_and_stays(model: Any, groups: list[RolloutGroup]) -> None:
    trainer = trainer_of(model, learning_rate=1e-3, decay_steps=4)
    rates = [trainer.step(groups)["optim/learning_rate"] for _ in range(6)]
    assert rates == pytest.approx([1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4, 1e-4])


def test_a_checkpoint_of_the_loop_resumes_without_its_config(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    config = LoopConfig(learning_rate=7e-4, steps=3)
    GRPOTrainer(copy.deepcopy(model), config).save(tmp_path / "loop", tokenizer)
    assert GRPOTrainer.resume(tmp_path / "loop").config == GRPOConfig(learning_rate=7e-4, decay_steps=150)
    assert GRPOTrainer.resume(tmp_path / "loop", config).config is config


def test_a_checkpoint_is_a_hugging_face_folder(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    trainer_of(model).save(tmp_path / "one", tokenizer)
    loaded, same_tokenizer = load_model(tmp_path / "one")
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    assert same_tokenizer.get_vocab() == tokenizer.get_vocab()


def test_save_never_writes_over_a_folder(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="mine"):
        trainer_of(model).save(tmp_path / "mine", tokenizer)
    assert [p.name for p in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which no file can grow beyond `size` bytes: writes fail as on a full one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("share", [0.5, 1.5])  # the weights do not fit; the weights do, the optimizer does not
def test_a_failing_write_leaves_nothing(
    model: Any, tokenizer: Any, groups: list[RolloutGroup], tmp_path: Path, share: float
) -> None:
    trainer = trainer_of(model)
    trainer.step(groups[:1])
    trainer.save(tmp_path / "good", tokenizer)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    size = 4 * sum(p.numel() for p in trainer.model.parameters())
    with files_of_at_most(int(share * size)), pytest.raises(OSError, match=r"."):
        trainer.save(tmp_path / "next", tokenizer)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["good"]
    trainer.save(tmp_path / "next", tokenizer)  # and once there is room it works


@pytest.mark.parametrize("name", ["optimizer.safetensors", "trainer.json"])
def test_resume_says_what_a_checkpoint_lacks(model: Any, tokenizer: Any, tmp_path: Path, name: str) -> None:
    trainer_of(model).save(tmp_path / "one", tokenizer)
    (tmp_path / "one" / name).unlink()
    with pytest.raises(CheckpointError, match=rf"one: nothing to resume from, it lacks {name}$"):
        GRPOTrainer.resume(tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer.json", b""),
        ("trainer.json", b"{}"),
        ("optimizer.safetensors", b""),
        ("optimizer.safetensors", b"\x10\0\0\0\0\0\0\0{}"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    model: Any, tokenizer: Any, groups: list[RolloutGroup], tmp_path: Path, name: str, content: bytes
) -> None:
    trainer = trainer_of(model)
    trainer.step(groups)
    folder = trainer.save(tmp_path / "c", tokenizer)
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        GRPOTrainer.resume(folder)


def test_an_optimizer_that_lacks_parameters_is_refused(
    model: Any, tokenizer: Any, groups: list[RolloutGroup], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    trainer = trainer_of(model)
    trainer.step(groups)
    folder = trainer.save(tmp_path / "c", tokenizer)
    path = folder / "optimizer.safetensors"
    save_file({name: t for name, t in load_file(path).items() if name.startswith(("0.", "1."))}, path)
    with pytest.raises(CheckpointError, match="does not hold the optimizer's state"):
        GRPOTrainer.resume(folder)
