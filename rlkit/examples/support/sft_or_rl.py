"""Imitate all sessions, imitate the good ones, or reinforce: arms that learn from the same branching sessions.

Every path of a session (its main line and its forks, no sub-agents) is a conversation that the rubric grades once its
task is rebuilt. Some branches of the policy are kept from all arms, paths and tasks alike, and each arm is examined on
other customers, orders and phrasing: on the branches it saw, and on those it did not. The warm start has imitated
production on every branch, so *unseen* means unseen in this training.

Left out: paths that ask the specialist. The desk of the rollouts has no such tool, and much of what is said there is
`<unk>` to the frozen tokenizer.
"""

from __future__ import annotations

import copy
import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from rlkit.envs.mining import Mined, mine
from rlkit.envs.task import Task
from rlkit.evaluate import evaluate_policy
from rlkit.examples.support.branching import ASK
from rlkit.examples.support.environment import environment
from rlkit.examples.support.mining import final_state, task_from_trace
from rlkit.examples.support.rubric import count_timeouts, rubric
from rlkit.examples.support.world import sample_task
from rlkit.logs.trace import Trace
from rlkit.loop import LoopConfig, train
from rlkit.sampling.chat import ChatFormat
from rlkit.sampling.rollout import Harness
from rlkit.sampling.sampler import SamplingParams
from rlkit.sampling.torch_sampler import TorchSampler
from rlkit.stats import wilson
from rlkit.training.sft import SFTConfig, train_sft

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Arm = Literal["nothing", "sft_all", "sft_good", "grpo"]
ARMS: dict[Arm, str] = {
    "nothing": "nothing (warm start)",
    "sft_all": "SFT on all paths",
    "sft_good": "SFT on the good paths",
    "grpo": "GRPO on their tasks",
}
Branch = tuple[str, str]
"""(complaint, outcome): one line of the policy, one way."""
BRANCHES: tuple[Branch, ...] = (
    ("late", "voucher"),
    ("late", "deny"),
    ("cold", "voucher"),
    ("missing", "refund"),
    ("missing", "deny"),
    ("wrong", "refund"),
    ("wrong", "deny"),
    ("never_arrived", "refund"),
    ("never_arrived", "escalate"),
    ("charged_twice", "refund"),
    ("charged_twice", "deny"),
)
UNSEEN: dict[Branch, str] = {
    ("wrong", "deny"): "production fails it (refunds again); its twin `missing · deny` is trained on",
    ("never_arrived", "refund"): "production fails it (denies lost orders); no other branch has its rule",
    ("charged_twice", "deny"): "production handles it; only the other outcome of the complaint is trained on",
    ("cold", "voucher"): "production handles it but for gateway timeouts; the whole complaint is left out",
}
"""The branches kept from training, and why these."""


@dataclass(frozen=True)
class Lessons:
    """What the arms may learn from."""

    paths: list[Mined]
    """Graded conversations of the seen branches."""
    left_out: Counter[str]
    """Paths that no arm gets, by reason."""

    @property
    def good(self) -> list[Mined]:
        """The paths that the rubric calls a success."""
        return [path for path in self.paths if path.grade.status == "success"]

    @property
    def tasks(self) -> list[Task]:
        """The tasks of all paths, each once: a reply that was asked for again is a path more, not a task more."""
        return list({path.task.messages[-1].content: path.task for path in self.paths}.values())


@dataclass(frozen=True)
class Trained:
    """A policy, and what it took."""

    model: PreTrainedModel
    conversations: int = 0
    """Sessions imitated, repeats counted, or rollouts drawn."""
    tokens: int = 0
    """Tokens of the agent in them: those that the loss is about."""
    seconds: float = 0.0


def branch_of(task: Task) -> Branch:
    """The branch a task belongs to."""
    return task.tags["complaint"], task.tags["outcome"]


def lessons(sessions: Iterable[Sequence[Trace]], unseen: Collection[Branch] = tuple(UNSEEN)) -> Lessons:
    """All main lines and forks that can be graded, but for `unseen` branches and paths that ask the specialist."""
    traces = [trace for session in sessions for trace in session if trace.relation != "subagent"]
    plain = [trace for trace in traces if all(call.name != ASK for call in trace.tool_calls)]
    mining = mine(plain, task_from_trace, final_state, rubric)
    paths = [mined for mined in mining.sessions if branch_of(mined.task) not in unseen]
    left_out = Counter(mining.dropped)
    left_out["asks the specialist"] = len(traces) - len(plain)
    left_out["of an unseen branch"] = len(mining.sessions) - len(paths)
    return Lessons(paths, left_out)


def exam(per_branch: int, seed: int) -> list[Task]:
    """`per_branch` held-out tasks of each branch; other tasks for every seed."""
    rng = random.Random(f"sft_or_rl:{seed}")
    found: dict[Branch, list[Task]] = {branch: [] for branch in BRANCHES}
    while any(len(tasks) < per_branch for tasks in found.values()):
        task = sample_task(rng, "heldout")
        if len(found[branch_of(task)]) < per_branch:
            found[branch_of(task)].append(task)
    return [task for tasks in found.values() for task in tasks]


def train_arm(
    arm: Arm,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    given: Lessons,
    conversations: int,
    learning_rate: float,
    seed: int,
    progress: bool = False,
) -> Trained:
    """A copy of `model`, trained as `arm` says on about so many conversations: paths imitated, or rollouts."""
    if arm == "nothing":
        return Trained(model)
    started = time.perf_counter()
    if arm == "grpo":
        per_step = LoopConfig().prompts_per_step * LoopConfig().rollouts_per_prompt
        config = LoopConfig(steps=max(1, conversations // per_step), learning_rate=learning_rate, seed=seed)
        run = train(model, tokenizer, _harness(tokenizer), given.tasks, config, progress=progress)
        tokens = sum(step["optim/action_tokens"] for step in run.metrics)
        done, model = len(run.metrics) * per_step, run.trainer.model
    else:
        chat, paths = ChatFormat(tokenizer), given.good if arm == "sft_good" else given.paths
        pairs = [chat.conversation(path.trace.messages) for path in paths]
        data = [(np.array(ids, np.int32), np.array(mask)) for ids, mask in pairs]
        batch = SFTConfig().batch_size
        sft = SFTConfig(steps=max(1, conversations // batch), learning_rate=learning_rate, seed=seed)
        model = copy.deepcopy(model)
        train_sft(model, data, sft, progress)
        done = sft.steps * batch
        tokens = done * float(np.mean([mask.sum() for _, mask in data]))
    return Trained(model, done, round(tokens), time.perf_counter() - started)


def examine(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tasks: Sequence[Task], temperature: float, seed: int
) -> pd.DataFrame:
    """A row for each task as `evaluate_policy` has it, with `side` (seen, unseen) and `timed_out`.

    `timed_out`: the right call was made and met a gateway timeout, so a policy that does the wrong thing has few.
    """
    harness = _harness(tokenizer)
    params = SamplingParams(temperature=temperature, max_tokens=48, stop_token_ids=(harness.chat.end_id,))
    results, rollouts = evaluate_policy(TorchSampler(model), harness, tasks, params, seed=seed)
    timeouts = [count_timeouts(task, rollout.trace) > 0 for task, rollout in zip(tasks, rollouts, strict=True)]
    return results.assign(side=[side_of(branch_of(task)) for task in tasks], timed_out=timeouts)


def side_of(branch: Branch) -> str:
    """Whether the arms were trained on a branch."""
    return "unseen" if branch in UNSEEN else "seen"


def tally(results: pd.DataFrame) -> pd.DataFrame:
    """The counts of `examine`'s table, a row a branch; episodes that could not be scored are left out."""
    scored = results[results["score"].notna()]
    counted = scored.assign(
        n=1,
        successes=scored["success"].astype(int),
        n_timed_out=scored["timed_out"].astype(int),
        successes_timed_out=(scored["success"] & scored["timed_out"]).astype(int),
    )
    columns = ["n", "successes", "n_timed_out", "successes_timed_out"]
    return counted.groupby(["side", "complaint", "outcome"], as_index=False)[columns].sum()


def pooled(counts: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Success of `tally`'s counts pooled over everything but `by`: `n`, and an `Interval` over tasks as `success`.

    Every task of an exam is played once by an arm and every seed has its own, so an episode is a cluster and Wilson's
    interval is the clustered one. It is about these trained models: how much another seed of training would move the
    number, the spread between seeds shows.
    """
    import pandas as pd

    sums = counts.groupby(list(by))[["n", "successes"]].sum()
    intervals = [wilson(won, n) for won, n in zip(sums["successes"].tolist(), sums["n"].tolist(), strict=True)]
    sums["success"] = pd.Series(intervals, sums.index, dtype=object)
    return sums[["n", "success"]]


def _harness(tokenizer: PreTrainedTokenizerFast) -> Harness:
    return Harness(environment, rubric, ChatFormat(tokenizer))
