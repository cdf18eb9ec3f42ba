from __future__ import annotations

import asyncio
import copy
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlkit.sampling.sampler import ContextOverflow, SamplingParams
from rlkit.sampling.torch_sampler import PREFILL_TOKENS, TorchSampler

VOCAB = 96
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3,
}  # fmt: skip


def llama(**changes):
    # two keys for four heads: grouped-query attention
    config = {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True, **changes}
    return seeded(LlamaForCausalLM, LlamaConfig(**config))


def gpt2():
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return seeded(GPT2LMHeadModel, config)


def qwen2():
    return seeded(Qwen2ForCausalLM, Qwen2Config(**SMALL, num_key_value_heads=1))


def gemma2():
    # soft-capped attention and logits, head size apart from the width
    return seeded(
        Gemma2ForCausalLM,
        Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16, attn_logit_softcapping=5.0, sliding_window=128),
    )


def seeded(kind, config):
    torch.manual_seed(0)
    return kind(config).eval()


def prompts(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCAB, n).tolist() for n in lengths]


async def one(sampler, context, params):
    async with sampler.session() as session:
        return await session.sample(context, params)


def sample(sampler, contexts, params):
    """Sample all contexts at once, each in a session of its own; `params` for all or one for each."""
    if isinstance(params, SamplingParams):
        params = [params] * len(contexts)

    async def run():
        return await asyncio.gather(*(one(sampler, *pair) for pair in zip(contexts, params, strict=True)))

    return asyncio.run(run())


def dense_logprobs(model, context, completion, params):
    """log q of each token of a completion by one forward over everything, truncation written as a plain loop."""
    tokens = [int(token) for token in completion]
    with torch.no_grad():
        logits = model(torch.tensor([context + tokens])).logits[0, len(context) - 1 : -1].double()
    result = []
    for row, token in zip(logits, tokens, strict=True):
        if params.temperature == 0:
            assert token == int(row.argmax())
            result.append(0.0)
            continue
        logprobs = (row / params.temperature).log_softmax(-1)
        order = logprobs.argsort(descending=True)[: params.top_k or None].tolist()
        probabilities, kept, mass = logprobs[order].softmax(-1).tolist(), [], 0.0
        for candidate, probability in zip(order, probabilities, strict=True):
            if mass >= params.top_p and params.top_p < 1:
                break
            kept.append(candidate)
            mass += probability
        assert token in kept
        result.append(float(logprobs[token] - logprobs[kept].logsumexp(-1)))
    return np.array(result)


# --- what is computed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [llama, gpt2, qwen2, gemma2])
def test_greedy_equals_generate(build):
    model = build()
    contexts = prompts(3, 17, 1, 9, 40)
    results = sample(TorchSampler(model, slots=4, capacity=64), contexts, SamplingParams(temperature=0, max_tokens=12))
    for context, result in zip(contexts, results, strict=True):
        expected = model.generate(
            torch.tensor([context]), attention_mask=torch.ones(1, len(context)), do_sample=False, max_new_tokens=12
        )
        assert result.token_ids.tolist() == expected[0, len(context) :].tolist()
        assert result.finish_reason == "length"


async def converse(sampler, context, turns):
    """Play (params, tool result) turns; yields each context and completion, and the final context."""
    played, context = [], list(context)
    async with sampler.session() as session:
        for params, result in turns:
            completion = await session.sample(context, params)
            played.append((list(context), completion, params))
            context += completion.token_ids.tolist() + result
    return played


def mixed_turns(index):
    rng = np.random.default_rng(index)
    kinds = [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 20, 0.9), (0.0, 0, 1.0)]
    turns = []
    for turn in range(3):
        temperature, top_k, top_p = kinds[(index + turn) % len(kinds)]
        params = SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=int(rng.integers(1, 9)),
            seed=index * 10 + turn, stop_token_ids=(1, 2, 3)[: turn + 1],
        )  # fmt: skip
        turns.append((params, rng.integers(1, VOCAB, rng.integers(0, 15)).tolist()))
    return turns


@pytest.mark.parametrize("build", [llama, gpt2])
def test_logprobs_equal_a_dense_forward_over_mixed_lengths_turns_and_settings(build):
    model = build()
    sampler = TorchSampler(model, slots=7, capacity=100)

    async def play():
        starts = prompts(*range(1, 25))
        return await asyncio.gather(*(converse(sampler, start, mixed_turns(i)) for i, start in enumerate(starts)))

    for episode in asyncio.run(play()):
        for context, completion, params in episode:
            expected = dense_logprobs(model, context, completion.token_ids, params)
            np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)
            stopped = int(completion.token_ids[-1]) in params.stop_token_ids
            assert completion.finish_reason == ("stop" if stopped else "length")
            assert not set(completion.token_ids[:-1].tolist()) & set(params.stop_token_ids)


def test_half_precision_stays_near_its_dense_forward():
    model = llama().to(torch.bfloat16)
    context = prompts(20)[0]
    params = SamplingParams(max_tokens=10, seed=4)
    (result,) = sample(TorchSampler(model, slots=1, capacity=32), [context], params)
    expected = dense_logprobs(model, context, result.token_ids, params)
    assert np.abs(result.logprobs - expected).max() < 0.2
    assert result.logprobs.dtype == np.float32


def test_draws_follow_the_models_distribution():
    model, context = llama(initializer_range=0.1), prompts(5)[0]
    n = 4_000
    params = [SamplingParams(max_tokens=1, seed=seed) for seed in range(n)]
    results = sample(TorchSampler(model, slots=100, capacity=8), [context] * n, params)
    with torch.no_grad():
        expected = n * model(torch.tensor([context])).logits[0, -1].softmax(-1).double().numpy()
    counts = np.bincount([int(result.token_ids[0]) for result in results], minlength=VOCAB)
    assert expected.min() > 5
    assert ((counts - expected) ** 2 / expected).sum() < 142.1  # chi-square, 95 degrees of freedom, p = .999 (142.1)


def test_a_result_does_not_depend_on_its_neighbours():
    sampler = TorchSampler(llama(), slots=8, capacity=64)
    contexts = prompts(5, 20, 11, 2, 30, 8)
    params = [SamplingParams(max_tokens=10 + i, seed=i, top_k=4 * (i % 2)) for i in range(6)]
    together = sample(sampler, contexts, params)
    for context, settings, result in zip(contexts, params, together, strict=True):
        (alone,) = sample(sampler, [context], settings)
        assert alone.token_ids.tolist() == result.token_ids.tolist()
        np.testing.assert_allclose(alone.logprobs, result.logprobs, atol=1e-5)


def test_the_same_calls_give_the_same_bits_in_every_event_loop():
    def play(sampler):
        async def run():
            starts = prompts(*range(1, 13))
            return await asyncio.gather(*(converse(sampler, start, mixed_turns(i)) for i, start in enumerate(starts)))

        return [completion for episode in asyncio.run(run()) for _, completion, _ in episode]

    sampler = TorchSampler(llama(), slots=4, capacity=100)
    first, second, other = play(sampler), play(sampler), play(TorchSampler(llama(), slots=4, capacity=100))
    for a, b, c in zip(first, second, other, strict=True):
        assert a.token_ids.tobytes() == b.token_ids.tobytes() == c.token_ids.tobytes()
        assert a.logprobs.tobytes() == b.logprobs.tobytes() == c.logprobs.tobytes()


def test_seeds_differ_and_repeat():
    sampler = TorchSampler(llama(), slots=8, capacity=40)
    context = prompts(4)[0]
    params = [SamplingParams(max_tokens=20, seed=seed) for seed in (0, 0, 1, -1, 2**64)]
    results = [result.token_ids.tolist() for result in sample(sampler, [context] * 5, params)]
    assert results[0] == results[1] == results[4]  # seeds count modulo 2 ** 64
    assert len({tuple(result) for result in results}) == 3


# --- KV across turns -------------------------------------------------------------------------------------------


def test_only_extensions_are_prefilled():
    sampler = TorchSampler(llama(), slots=2, capacity=64)
    start, first, second = prompts(10, 6, 3)
    params = SamplingParams(max_tokens=5)

    async def play():
        async with sampler.session() as session:
            context = list(start)
            for result in (first, second, []):
                context += (await session.sample(context, params)).token_ids.tolist() + result

    asyncio.run(play())
    # the last token of a completion is drawn but not fed: it belongs to the next extension
    assert sampler.stats.prefilled_tokens == 10 + (1 + 6) + (1 + 3)
    assert sampler.stats.decoded_tokens == 15
    assert sampler.stats.steps == 15


def test_a_context_that_diverges_rolls_back_to_what_is_common():
    model = llama()
    sampler = TorchSampler(model, slots=1, capacity=64)
    context = prompts(20)[0]
    other = [*context[:12], *prompts(5, seed=1)[0]]
    assert other[12] != context[12]
    params = SamplingParams(max_tokens=6, seed=3)

    async def play(session, *contexts):
        return [await session.sample(context, params) for context in contexts]

    async def run():
        async with sampler.session() as session:
            return await play(session, context, other, other, context[:3])

    results = asyncio.run(run())
    assert sampler.stats.prefilled_tokens == 20 + 5 + 1 + 1  # one token is always fed, for its logits
    fresh = sample(TorchSampler(model, slots=1, capacity=64), [context, other, other, context[:3]], params)
    for result, expected in zip(results, fresh, strict=True):
        assert result.token_ids.tolist() == expected.token_ids.tolist()
        np.testing.assert_allclose(result.logprobs, expected.logprobs, atol=1e-5)


def test_turns_started_while_others_decode_join_the_same_forward():
    sampler = TorchSampler(llama(), slots=2, capacity=64)
    short = [(SamplingParams(max_tokens=4), [5, 6])] * 3
    long = [(SamplingParams(max_tokens=12), [])]

    async def play():
        return await asyncio.gather(*(converse(sampler, [1, 2], turns) for turns in (short, long)))

    asyncio.run(play())
    assert sampler.stats.steps == 12  # three turns of four beside one of twelve


def test_long_prompts_are_prefilled_over_several_steps():
    model = llama()
    sampler = TorchSampler(model, slots=60, capacity=128)
    contexts = prompts(*[1, 120] * 30)
    assert sum(map(len, contexts)) > 1.5 * PREFILL_TOKENS
    params = SamplingParams(max_tokens=2)
    results = sample(sampler, contexts, params)
    assert sampler.stats.steps == 3
    for context, result in list(zip(contexts, results, strict=True))[-4:]:
        np.testing.assert_allclose(result.logprobs, dense_logprobs(model, context, result.token_ids, params), atol=2e-5)


# --- limits ----------------------------------------------------------------------------------------------------


def test_the_capacity_ends_a_completion_and_then_overflows():
    sampler = TorchSampler(llama(), slots=1, capacity=16)
    params = SamplingParams(max_tokens=50)

    async def run():
        async with sampler.session() as session:
            result = await session.sample([1] * 10, params)
            full = [1] * 10 + result.token_ids.tolist()
            with pytest.raises(ContextOverflow, match="16 tokens leaves no room in 16"):
                await session.sample(full, params)
            last = await session.sample(full[:-1], params)
            return result, last

    result, last = asyncio.run(run())
    assert (len(result.token_ids), result.finish_reason) == (6, "length")
    assert (len(last.token_ids), last.finish_reason) == (1, "length")


@pytest.mark.parametrize("context", [[], [VOCAB], [-1], [[1, 2]]])
def test_a_bad_context_hurts_its_caller_alone(context):
    sampler = TorchSampler(llama(), slots=2, capacity=16)

    async def run():
        params = SamplingParams(max_tokens=3)
        return await asyncio.gather(one(sampler, [1, 2], params), one(sampler, context, params), return_exceptions=True)

    good, bad = asyncio.run(run())
    assert len(good.token_ids) == 3
    assert isinstance(bad, ValueError)


def test_more_sessions_than_slots_are_served_in_order():
    sampler = TorchSampler(llama(), slots=2, capacity=16)
    finished = []

    async def play(index):
        await one(sampler, [1, 2, 3], SamplingParams(max_tokens=4))
        finished.append(index)

    async def run():
        await asyncio.gather(*map(play, range(7)))

    asyncio.run(run())
    assert finished == list(range(7))
    assert sorted(sampler._free) == [0, 1]


@pytest.mark.parametrize("build", [
    lambda: seeded(MistralForCausalLM, MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=32)),
    lambda: llama(max_position_embeddings=32),
    lambda: seeded(MambaForCausalLM, MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)),
], ids=["window", "positions", "recurrent"])  # fmt: skip
def test_a_model_it_cannot_run_faithfully_is_refused(build):
    with pytest.raises(ValueError, match=r"sliding_window = 32|max_position_embeddings = 32|attention interface"):
        TorchSampler(build(), slots=1, capacity=64)


# --- weights ---------------------------------------------------------------------------------------------------


def test_the_callers_model_is_left_alone():
    model = llama().train()
    before = copy.deepcopy(model.state_dict())
    sampler = TorchSampler(model, slots=1, capacity=16)
    sampler.update_weights({name: tensor + 1 for name, tensor in before.items()}, version=1)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_an_update_applies_from_the_next_token_on():
    old, new = llama(), llama()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.1)
    sampler = TorchSampler(old, slots=2, capacity=64)
    context, params = prompts(6)[0], SamplingParams(max_tokens=40, seed=1)
    (before,) = sample(sampler, [context], params)

    async def run():
        call = asyncio.create_task(one(sampler, context, params))
        for _ in range(12):
            await asyncio.sleep(0)
        sampler.update_weights(new.state_dict(), version=7)
        return await call

    across = asyncio.run(run())
    (after,) = sample(sampler, [context], params)
    switch = int((across.versions == 0).sum())
    assert 5 < switch < 15
    assert across.versions.tolist() == [0] * switch + [7] * (40 - switch)
    assert across.token_ids[:switch].tolist() == before.token_ids[:switch].tolist()
    np.testing.assert_allclose(across.logprobs[:switch], before.logprobs[:switch], atol=1e-5)
    assert after.versions.tolist() == [7] * 40
    np.testing.assert_allclose(after.logprobs, dense_logprobs(new, context, after.token_ids, params), atol=2e-5)


def test_tied_weights_may_be_absent_or_agree():
    model = llama()
    sampler = TorchSampler(model, slots=1, capacity=16)
    weights = dict(model.named_parameters())
    assert "lm_head.weight" not in weights
    sampler.update_weights(weights, 1)
    sampler.update_weights(model.state_dict(), 2)
    sampler.update_weights({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, 3)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        sampler.update_weights({**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1}, 4)
    assert sampler.version == 3


@pytest.mark.parametrize(
    ("break_", "message"),
    [
        (lambda weights: weights.pop("model.norm.weight"), r"missing model\.norm\.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "unexpected extra"),
        (
            lambda weights: weights.update({"model.norm.weight": torch.zeros(31)}),
            r"model\.norm\.weight has shape \(31,\), expected \(32,\)",
        ),
    ],
)
def test_a_bad_update_changes_nothing(break_, message):
    sampler = TorchSampler(llama(), slots=1, capacity=16)
    context, params = [1, 2, 3], SamplingParams(max_tokens=8)
    (before,) = sample(sampler, [context], params)
    weights = {name: tensor + 1 for name, tensor in llama().state_dict().items()}
    break_(weights)
    with pytest.raises(ValueError, match=message):
        sampler.update_weights(weights, version=9)
    (after,) = sample(sampler, [context], params)
    assert sampler.version == 0
    assert after.logprobs.tobytes() == before.logprobs.tobytes()


# --- failure and cancellation ----------------------------------------------------------------------------------


def test_nan_weights_reach_every_caller_and_good_ones_mend_it():
    model = llama()
    sampler = TorchSampler(model, slots=2, capacity=32)
    contexts, params = prompts(4, 5, 6), SamplingParams(max_tokens=5)
    expected = sample(sampler, contexts, params)
    sampler.update_weights({name: tensor * torch.nan for name, tensor in model.named_parameters()}, version=3)

    async def run():
        calls = (one(sampler, context, params) for context in contexts)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)

    for error in asyncio.run(run()):
        assert isinstance(error, FloatingPointError)
        assert str(error) == "logits are NaN or infinite under policy version 3"
    sampler.update_weights(model.state_dict(), version=4)
    again = sample(sampler, contexts, params)  # no NaN is left behind in the KV
    assert [r.token_ids.tolist() for r in again] == [r.token_ids.tolist() for r in expected]


def test_what_the_model_raises_reaches_every_caller_and_its_session_lives_on():
    sampler = TorchSampler(llama(), slots=2, capacity=32)
    params = SamplingParams(max_tokens=6)
    forward, calls = sampler._engine._model.forward, []

    def fail_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room")
        return forward(*args, **kwargs)

    async def persist(context):
        async with sampler.session() as session:
            with pytest.raises(MemoryError, match="no room"):
                await session.sample(context, params)
            return await session.sample(context, params)

    contexts = prompts(4, 9)
    expected = sample(sampler, contexts, params)
    sampler._engine._model.forward = fail_once

    async def run():
        return await asyncio.wait_for(asyncio.gather(*map(persist, contexts)), 20)

    results = asyncio.run(run())
    assert [r.token_ids.tolist() for r in results] == [r.token_ids.tolist() for r in expected]


def test_cancelled_callers_free_their_slots():
    sampler = TorchSampler(llama(), slots=2, capacity=64)
    params = SamplingParams(max_tokens=50)

    async def run():
        running = [asyncio.create_task(one(sampler, [1, 2], params)) for _ in range(2)]
        waiting = [asyncio.create_task(one(sampler, [1, 2], params)) for _ in range(2)]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in (running[0], waiting[0]):
            task.cancel()
        done = await asyncio.gather(*running, *waiting, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in done] == [True, False, True, False]

    asyncio.run(asyncio.wait_for(run(), 20))
    assert sorted(sampler._free) == [0, 1]
    assert not sampler._requests
    assert not sampler._queue
    assert not sampler._waiting


def test_a_caller_cancelled_as_its_last_token_is_drawn_harms_nobody():
    sampler = TorchSampler(llama(), slots=2, capacity=16)

    async def run():
        calls = [asyncio.create_task(one(sampler, [1], SamplingParams(max_tokens=n))) for n in (1, 3)]
        await asyncio.sleep(0)  # both have submitted, and the driver's first step comes next
        calls[0].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    cancelled, kept = asyncio.run(asyncio.wait_for(run(), 20))
    assert isinstance(cancelled, asyncio.CancelledError)
    assert len(kept.token_ids) == 3
    assert sorted(sampler._free) == [0, 1]


def test_a_waiter_cancelled_as_it_is_served_passes_the_slot_on():
    sampler = TorchSampler(llama(), slots=1, capacity=16)

    async def run():
        async with sampler.session() as session:
            await session.sample([1], SamplingParams(max_tokens=1))
            waiter = asyncio.create_task(one(sampler, [1], SamplingParams(max_tokens=1)))
            await asyncio.sleep(0)
        waiter.cancel()  # the slot was handed over, but the waiter has not run yet
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return await one(sampler, [1], SamplingParams(max_tokens=1))

    assert len(asyncio.run(asyncio.wait_for(run(), 20)).token_ids) == 1
    assert sampler._free == [0]


def test_a_loop_that_ends_in_the_middle_leaves_a_working_sampler():
    sampler = TorchSampler(llama(), slots=2, capacity=64)

    async def abandon():
        for _ in range(3):
            asyncio.create_task(one(sampler, [1, 2], SamplingParams(max_tokens=60)))  # noqa: RUF006
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(abandon())
    assert sorted(sampler._free) == [0, 1]
    assert len(sample(sampler, [[1, 2]] * 3, SamplingParams(max_tokens=4))) == 3


def test_leaving_a_session_cancels_a_call_in_flight():
    sampler = TorchSampler(llama(), slots=1, capacity=64)

    async def run():
        async with sampler.session() as session:
            call = asyncio.create_task(session.sample([1, 2], SamplingParams(max_tokens=60)))
            for _ in range(3):
                await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one call at a time"):
                await session.sample([1], SamplingParams())
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(RuntimeError, match="closed"):
            await session.sample([1], SamplingParams())

    asyncio.run(asyncio.wait_for(run(), 20))
    assert sampler._free == [0]


# --- size ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("slots", [128, 1000])
def test_a_thousand_sessions_at_once_stay_under_two_gigabytes(slots):
    config = {
        **SMALL, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 170, "num_hidden_layers": 3,
        "num_attention_heads": 2,
    }  # fmt: skip
    model = llama(**config)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    sampler = TorchSampler(model, slots=slots, capacity=256)

    async def run():
        starts = prompts(*[14 + i % 5 for i in range(1000)])
        turns = [(SamplingParams(max_tokens=8, seed=i), [7] * (20 + i)) for i in range(3)]
        return await asyncio.gather(*(converse(sampler, start, turns) for start in starts))

    episodes = asyncio.run(run())
    assert sum(len(completion.token_ids) for episode in episodes for _, completion, _ in episode) == 24_000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of the whole run, so at worst too strict
    assert peak - before < 2e9
