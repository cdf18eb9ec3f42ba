"""How many times faster `TorchSampler` plays the course's episodes than a loop over `transformers.generate`.

Both play the same support tasks with the same model, tools and grading: three to six turns of a sampled completion and
a tool's result, at temperature 1. The baseline is the best simple one: a batch of episodes in lockstep, one left-padded
`generate` a turn for those not yet done, stopping at the end-of-turn token, the context prefilled each time.

    python -m tests.benchmarks.bench_rollouts --episodes 512 --repeats 7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from functools import partial

import torch
from transformers import GenerationConfig, PreTrainedModel

from rlkit.envs.task import Task
from rlkit.evaluate import play
from rlkit.examples import support
from rlkit.logs.trace import Message, Trace
from rlkit.models import load_model
from rlkit.paths import data_path
from rlkit.sampling.rollout import Harness
from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler
from rlkit.workbench import Workbench
from tests.benchmarks.paired import summary, tokens_per_second

MAX_TOKENS = 48


def play_sampler(sampler: TorchSampler, harness: Harness, tasks: list[Task]) -> int:
    """Every episode at once; the number of sampled tokens."""
    params = SamplingParams(max_tokens=MAX_TOKENS, stop_token_ids=(harness.chat.end_id,))
    rollouts = asyncio.run(play(sampler, harness, [(task, i) for i, task in enumerate(tasks)], params))
    return sum(rollout.action_tokens for rollout in rollouts)


def play_generate(model: PreTrainedModel, harness: Harness, tasks: list[Task], batch: int) -> int:
    """`batch` episodes at a time in lockstep; the number of sampled tokens up to each end of turn."""
    return sum(_lockstep(model, harness, tasks[i : i + batch]) for i in range(0, len(tasks), batch))


def _lockstep(model: PreTrainedModel, harness: Harness, tasks: list[Task]) -> int:
    chat, sampled = harness.chat, 0
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0, eos_token_id=chat.end_id,
        max_new_tokens=MAX_TOKENS,
    )  # fmt: skip
    contexts = [chat.prompt(task.messages) for task in tasks]
    episodes = [harness.environment.reset(task, i) for i, task in enumerate(tasks)]
    messages = [list(task.messages) for task in tasks]
    running = list(range(len(tasks)))
    for turn in range(harness.max_turns):
        width = max(len(contexts[i]) for i in running)
        ids = torch.tensor([[0] * (width - len(contexts[i])) + contexts[i] for i in running])
        mask = torch.tensor([[0] * (width - len(contexts[i])) + [1] * len(contexts[i]) for i in running])
        with torch.inference_mode():
            completions = model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        going_on = []
        for i, completion in zip(running, completions, strict=True):
            if chat.end_id in completion:
                completion = completion[: completion.index(chat.end_id) + 1]
            sampled += len(completion)
            contexts[i] += completion
            message = chat.parse(completion, turn)
            messages[i].append(message)
            if message.tool_calls and completion[-1] == chat.end_id:
                results = [
                    Message(role="tool", content=episodes[i].step(call).content, tool_call_id=call.id, name=call.name)
                    for call in message.tool_calls
                ]
                messages[i] += results
                contexts[i] += chat.extension(results)
                going_on.append(i)
        running = going_on
        if not running:
            break
    for task, said, episode in zip(tasks, messages, episodes, strict=True):
        harness.rubric.grade(task, Trace(id=task.id, messages=said), episode.state)
    return sampled


def measure(episodes: int, slots: int, batch: int, repeats: int, seed: int) -> dict[str, object]:
    """Paired repeats on fresh tasks; sampled tokens a second of each side, and the ratio pair by pair."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    model, tokenizer = load_model(data_path("models/support-warm-start"))
    harness = Workbench.load().harness(tokenizer)
    sampler = TorchSampler(model, slots=slots)
    ours, theirs = [], []
    for _ in range(repeats + 1):
        tasks = [support.sample_task(rng) for _ in range(episodes)]
        ours.append(tokens_per_second(partial(play_sampler, sampler, harness, tasks)))
        theirs.append(tokens_per_second(partial(play_generate, model, harness, tasks, batch)))
    return {"episodes": episodes, "slots": slots, "batch": batch, **summary(ours, theirs)}


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--slots", type=int, default=128, help="conversations at once in the sampler")
    parser.add_argument("--batch", type=int, default=128, help="in the baseline; 1 plays one episode after the other")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of torch; so small a model gains nothing from more")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    torch.set_num_threads(options.pop("threads"))
    print(json.dumps(measure(**options)))


if __name__ == "__main__":
    main()
