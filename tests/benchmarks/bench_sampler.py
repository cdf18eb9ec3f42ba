"""How many times faster `TorchSampler` plays multi-turn episodes than a loop over `transformers.generate`.

Both play the same episodes: a prompt, then turns of a sampled completion and a tool's result. The lengths come from a
seeded table; a completion has no stop token and ends at its length, so both sample the same number of useful tokens.
The baseline is the best simple one: all episodes in lockstep, one left-padded batched `generate` a turn (temperature
1, no truncation), the whole context prefilled each time, run until the longest completion of the turn is there.

    python -m tests.benchmarks.bench_sampler --episodes 128 --repeats 7
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler
from tests.benchmarks.paired import summary, tokens_per_second

VOCAB = 512


@dataclass(frozen=True)
class Script:
    """What an episode is fed, and how many tokens it samples in each turn."""

    prompt: list[int]
    results: list[list[int]]
    lengths: list[int]


def make_scripts(
    episodes: int, result_lengths: tuple[int, ...], completion: tuple[int, int], rng: np.random.Generator
) -> list[Script]:
    """Prompts of 12–16 tokens, tool results of the given lengths ± 2, completions of low to high tokens."""

    def tokens(n: int) -> list[int]:
        return rng.integers(1, VOCAB, n + rng.integers(-2, 3)).tolist()

    low, high = completion
    return [
        Script(
            tokens(14),
            [tokens(n) for n in result_lengths],
            rng.integers(low, high + 1, len(result_lengths) + 1).tolist(),
        )
        for _ in range(episodes)
    ]


def play_sampler(sampler: TorchSampler, scripts: list[Script]) -> int:
    """Play every episode at once; the number of sampled tokens."""

    async def play(index: int, script: Script) -> int:
        context, sampled = list(script.prompt), 0
        async with sampler.session() as session:
            for turn, length in enumerate(script.lengths):
                params = SamplingParams(max_tokens=length, seed=index * 100 + turn)
                completion = await session.sample(context, params)
                sampled += len(completion.token_ids)
                context += completion.token_ids.tolist()
                if turn < len(script.results):
                    context += script.results[turn]
        return sampled

    async def play_all() -> int:
        return sum(await asyncio.gather(*(play(i, script) for i, script in enumerate(scripts))))

    return asyncio.run(play_all())


def play_generate(model: LlamaForCausalLM, scripts: list[Script]) -> int:
    """Play every episode in lockstep; the number of useful tokens (each completion cut to its own length)."""
    contexts, sampled = [list(script.prompt) for script in scripts], 0
    for turn in range(len(scripts[0].lengths)):
        width = max(map(len, contexts))
        ids = torch.tensor([[0] * (width - len(context)) + context for context in contexts])
        mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts])
        config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0,
            max_new_tokens=max(script.lengths[turn] for script in scripts),
        )  # fmt: skip
        with torch.inference_mode():
            completions = model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        for script, context, completion in zip(scripts, contexts, completions, strict=True):
            sampled += script.lengths[turn]
            context += completion[: script.lengths[turn]]
            if turn < len(script.results):
                context += script.results[turn]
    return sampled


def measure(
    episodes: int, slots: int, width: int, completion: tuple[int, int], repeats: int, seed: int
) -> dict[str, object]:
    """Paired repeats on fresh episodes; tokens/s of each side, and the ratio pair by pair."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=3,
            num_attention_heads=width // 32, num_key_value_heads=width // 32, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    ).eval()  # fmt: skip
    sampler = TorchSampler(model, slots=slots, capacity=128)
    ours, theirs = [], []
    for _ in range(repeats + 1):
        scripts = make_scripts(episodes, (30, 8), completion, rng)
        ours.append(tokens_per_second(partial(play_sampler, sampler, scripts)))
        theirs.append(tokens_per_second(partial(play_generate, model, scripts)))
    return {"episodes": episodes, "slots": slots, "width": width, "completion": completion, **summary(ours, theirs)}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--width", type=int, default=64, help="of the 3-layer Llama, a multiple of 32")
    parser.add_argument("--completion", type=int, nargs=2, default=(8, 16), help="fewest and most tokens of one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch; so small a model gains nothing from more")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    torch.set_num_threads(options.pop("threads"))
    print(json.dumps(measure(**options)))


if __name__ == "__main__":
    main()
