"""To and from verifiers' v1 API (tested with 0.4.0): `pip install verifiers`. Not beside OpenEnv, whose pins differ.

What crosses is the evaluation: verifiers' traces scored by our rubrics, and ours by its rewards. To have verifiers
*play* an environment of ours, give it a `Harness` that steps it in this process, as tests/adapters/verifiers_play.py
does. Its own OpenEnv taskset is no way: pip cannot install both packages, and it counts a masked reward as 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rlkit.aio import run_to_end
from rlkit.envs.adapters.wire import package
from rlkit.envs.environment import Environment, State
from rlkit.envs.grading import Check, Ending, Rubric, Verdict
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, ToolCall, Trace


def to_verifiers(environment: Environment, rubric: Rubric, tasks: Sequence[Task], seed: int = 0) -> Any:
    """A verifiers `Taskset` whose tasks have one reward, `rubric`: our rubric on the trace that verifiers made.

    The final state is rebuilt: the trace's calls are played again under `seed`, and must be answered as the trace says.
    Where they are not, where the rubric gives no reward, or where the trace branches, scoring raises, so that verifiers
    records an error and no zero. A truncated trace is graded as truncated; the calls of its last message may lack
    answers, as verifiers refuses the turn that would tell them. Raises `ImportError` without verifiers.
    """
    vf = package("verifiers.v1", "verifiers")
    by_id = {task.id: task for task in tasks}

    class RlkitTask(vf.Task):  # type: ignore[misc, name-defined]
        @vf.reward  # type: ignore[untyped-decorator]
        async def rubric(self, task: Any, trace: Any) -> float:
            ours, played = by_id[task.id], from_verifiers_trace(trace)
            episode = environment.reset(ours, seed)
            cut_off = played.messages[-1].tool_calls if played.messages and trace.is_truncated else []
            for call, result in played.answered:
                seen = episode.step(call)
                if result is None and call in cut_off:
                    continue
                if result is None or seen.content != result.content:
                    raise ValueError(f"{call.name} is answered otherwise than in the trace: {seen.content[:100]}")
            status: Ending = "truncated" if trace.is_truncated or played.final_reply is None else "completed"
            grade = await rubric.grade_async(ours, played, episode.state, status)
            if grade.reward is None:
                raise ValueError(f"no reward: {next(check.error for check in grade.checks if check.error)}")
            return grade.reward

    class RlkitTaskset(vf.Taskset):  # type: ignore[misc, name-defined]
        def load(self) -> Iterable[Any]:
            for task in by_id.values():
                system = next((m.content for m in task.messages if m.role == "system"), None)
                prompt = [_theirs(vf, message) for message in task.messages if message.role != "system"]
                yield RlkitTask(vf.TaskData(id=task.id, name=task.id, prompt=prompt, system_prompt=system))

    return RlkitTaskset(vf.TasksetConfig())


def from_verifiers(taskset: Any) -> tuple[list[Task], Rubric]:
    """A verifiers taskset as (tasks, rubric): its tasks' prompts, and its rewards, computed by it, as one check.

    The check's parts are verifiers' rewards by name, its score their weighted mean. A reward outside [0, 1] is the
    grader's error, and so is one that raises: verifiers then loses the others too. None may need a runtime.
    """
    vf = package("verifiers.v1", "verifiers")
    theirs = {str(task.data.id or task.key): task for task in taskset}
    tasks = [
        Task(id=id, messages=[_ours(message) for message in _prompt(vf, task.data)], state={})
        for id, task in theirs.items()
    ]

    def rewards(task: Task, trace: Trace, state: State) -> Verdict:
        their_task = theirs[task.id]
        their_trace = to_verifiers_trace(their_task, trace)
        run_to_end(their_task.score(their_trace))
        paid = {name: reward for name, reward in their_trace.rewards.items() if reward is not None}
        if not paid:
            raise ValueError("verifiers gave no reward")
        mean = sum(r.score * r.weight for r in paid.values()) / sum(r.weight for r in paid.values())
        return Verdict(mean, {name: reward.score for name, reward in paid.items()})

    return tasks, Rubric(type(taskset).__name__, [Check("rewards", 1.0, rewards)])


def to_verifiers_trace(task: Any, trace: Trace) -> Any:
    """A trace of ours as verifiers' own, one branch, for a verifiers task."""
    vf = package("verifiers.v1", "verifiers")
    info = package("verifiers.v1.trace", "verifiers")
    nodes = [
        vf.MessageNode(parent=n - 1 if n else None, message=_theirs(vf, message), sampled=message.role == "assistant")
        for n, message in enumerate(trace.messages)
    ]
    told = info.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return vf.Trace(task=told, agent=info.AgentInfo(config=vf.AgentConfig()), nodes=nodes)


def from_verifiers_trace(trace: Any) -> Trace:
    """The one branch of a verifiers trace as a trace of ours. Raises `ValueError` where there are more, or none."""
    branches = trace.branches
    if len(branches) != 1:
        raise ValueError(f"the trace has {len(branches)} branches, expected one")
    tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in branches[0].tools]
    return Trace(id=trace.id, messages=[_ours(message) for message in branches[0].messages], tools=tools)


def _prompt(vf: Any, data: Any) -> list[Any]:
    prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return [vf.SystemMessage(content=data.system_prompt), *prompt] if data.system_prompt else prompt


def _theirs(vf: Any, message: Message) -> Any:
    content = message.content or ""
    if message.role == "tool":
        return vf.ToolMessage(tool_call_id=message.tool_call_id or "", content=content, name=message.name)
    if message.role == "assistant":
        calls = [vf.ToolCall(id=call.id, name=call.name, arguments=_text(call)) for call in message.tool_calls]
        return vf.AssistantMessage(
            content=message.content, reasoning_content=message.reasoning, tool_calls=calls or None
        )
    return (vf.SystemMessage if message.role == "system" else vf.UserMessage)(content=content)


def _ours(message: Any) -> Message:
    calls = [ToolCall(c.id, c.name, *_arguments(c.arguments)) for c in getattr(message, "tool_calls", None) or []]
    content = message.content if message.content is None or isinstance(message.content, str) else _flat(message.content)
    return Message(
        role=message.role, content=content, tool_calls=calls, tool_call_id=getattr(message, "tool_call_id", None),
        name=getattr(message, "name", None), reasoning=getattr(message, "reasoning_content", None),
    )  # fmt: skip


def _text(call: ToolCall) -> str:
    return (call.raw_arguments or "") if call.arguments is None else json.dumps(call.arguments)


def _arguments(text: str) -> tuple[dict[str, Any] | None, str | None]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return (value, None) if isinstance(value, dict) else (None, text)


def _flat(parts: Any) -> str:
    return "\n".join(part.text for part in parts if getattr(part, "text", None) is not None)
