"""Train the course's warm-start checkpoint: `python data/make_warm_start.py` (about four CPU-minutes).

30,000 synthetic production sessions, one pass and a half of next-token prediction on what the agent said. Prints how
well the model does on held-out tasks before it writes anything.
"""

import argparse
import random
from pathlib import Path

import torch

from rlkit.evaluate import evaluate_policy, success, success_by
from rlkit.examples import support
from rlkit.examples.support.production import warm_start
from rlkit.models import save_model
from rlkit.sampling.chat import ChatFormat
from rlkit.sampling.rollout import Harness
from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models" / "support-warm-start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1400)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small gain nothing from more, and one thread repeats itself bit for bit
    model, tokenizer = warm_start(steps=arguments.steps, seed=arguments.seed)
    harness = Harness(support.environment, support.rubric, ChatFormat(tokenizer))
    rng = random.Random(0)
    tasks = [support.sample_task(rng, "heldout") for _ in range(1024)]
    for temperature in (1.0, 0.0):
        params = SamplingParams(temperature=temperature, max_tokens=48, stop_token_ids=(harness.chat.end_id,))
        results, _ = evaluate_policy(TorchSampler(model), harness, tasks, params)
        print(f"temperature {temperature:g}: held-out success {success(results)}")
        print(success_by(results, ["complaint", "outcome"]).round(2).to_string())
    save_model(model, tokenizer, arguments.out)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
