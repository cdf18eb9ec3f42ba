"""From production logs to a better agent: the names a notebook uses, and nothing else.

Each name is imported when it is first used (PEP 562), so that `import rlkit` is instant and pulls in neither torch nor
pandas. Everything else is imported from its station: `rlkit.logs`, `rlkit.envs`, `rlkit.sampling`, `rlkit.training`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "Trace": "rlkit.logs.trace",
    "Message": "rlkit.logs.trace",
    "ToolCall": "rlkit.logs.trace",
    "ReadReport": "rlkit.logs.report",
    "read_traces": "rlkit.logs.readers",
    "Task": "rlkit.envs.task",
    "TaskSet": "rlkit.envs.task",
    "split_tasks": "rlkit.envs.task",
    "Environment": "rlkit.envs.environment",
    "Episode": "rlkit.envs.environment",
    "Tool": "rlkit.envs.environment",
    "Check": "rlkit.envs.grading",
    "Rubric": "rlkit.envs.grading",
    "Near": "rlkit.envs.replay",
    "ReplayEnvironment": "rlkit.envs.replay",
    "Judge": "rlkit.envs.judge",
    "calibrate": "rlkit.envs.calibration",
    "check_environment": "rlkit.envs.env_check",
    "cluster_failures": "rlkit.envs.similar",
    "explain_failure": "rlkit.envs.failures",
    "fidelity": "rlkit.envs.fidelity",
    "find_leaks": "rlkit.envs.leaks",
    "mine": "rlkit.envs.mining",
    "SamplingParams": "rlkit.sampling.sampler",
    "ChatFormat": "rlkit.sampling.chat",
    "TorchSampler": "rlkit.sampling.torch_sampler",
    "Harness": "rlkit.sampling.rollout",
    "Rollout": "rlkit.sampling.rollout",
    "RolloutGroup": "rlkit.sampling.rollout",
    "run_episode": "rlkit.sampling.rollout",
    "SFTConfig": "rlkit.training.sft",
    "train_sft": "rlkit.training.sft",
    "group_advantages": "rlkit.training.advantages",
    "LossInputs": "rlkit.training.loss",
    "grpo_loss": "rlkit.training.loss",
    "GRPOConfig": "rlkit.training.trainer",
    "GRPOTrainer": "rlkit.training.trainer",
    "LoopConfig": "rlkit.loop",
    "train": "rlkit.loop",
    "compare": "rlkit.evaluate",
    "evaluate_policy": "rlkit.evaluate",
    "evaluate_traces": "rlkit.evaluate",
    "pass_k": "rlkit.evaluate",
    "pilot": "rlkit.evaluate",
    "trainable": "rlkit.evaluate",
    "success": "rlkit.evaluate",
    "success_by": "rlkit.evaluate",
    "load_model": "rlkit.models",
    "ChatClient": "rlkit.chat_client",
    "data_path": "rlkit.paths",
}

__all__ = ["__version__", *_EXPORTS]

if TYPE_CHECKING:  # the same names for editors and mypy; a test compares the two lists
    from rlkit.chat_client import ChatClient
    from rlkit.envs.calibration import calibrate
    from rlkit.envs.env_check import check_environment
    from rlkit.envs.environment import Environment, Episode, Tool
    from rlkit.envs.failures import explain_failure
    from rlkit.envs.fidelity import fidelity
    from rlkit.envs.grading import Check, Rubric
    from rlkit.envs.judge import Judge
    from rlkit.envs.leaks import find_leaks
    from rlkit.envs.mining import mine
    from rlkit.envs.replay import Near, ReplayEnvironment
    from rlkit.envs.similar import cluster_failures
    from rlkit.envs.task import Task, TaskSet, split_tasks
    from rlkit.evaluate import (
        compare,
        evaluate_policy,
        evaluate_traces,
        pass_k,
        pilot,
        success,
        success_by,
        trainable,
    )
    from rlkit.logs.readers import read_traces
    from rlkit.logs.report import ReadReport
    from rlkit.logs.trace import Message, ToolCall, Trace
    from rlkit.loop import LoopConfig, train
    from rlkit.models import load_model
    from rlkit.paths import data_path
    from rlkit.sampling.chat import ChatFormat
    from rlkit.sampling.rollout import Harness, Rollout, RolloutGroup, run_episode
    from rlkit.sampling.sampler import SamplingParams
    from rlkit.sampling.torch_sampler import TorchSampler
    from rlkit.training.advantages import group_advantages
    from rlkit.training.loss import LossInputs, grpo_loss
    from rlkit.training.sft import SFTConfig, train_sft
    from rlkit.training.trainer import GRPOConfig, GRPOTrainer


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlkit' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
