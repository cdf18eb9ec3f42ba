"""tau2-bench results: `{"info", "tasks", "simulations": [...]}`, many simulations in one document, a trace each.

Also a folder of `results.json` and `simulations/*.json`, one simulation a file. The user's simulator calls tools too:
then a message of role `user` has the calls, and their results say `requestor: user` in `Message.extra`. What every
message repeats as a default (`requestor` where the role says it, `turn_idx` where the order says it, …) is left out.

The outcome is the reward: a success from 1 - 1e-6 on, else a failure, as the benchmark counts; a run cut short
(`max_steps`, `timeout`, `context_window_exceeded`) is `truncated` and keeps its score, one that broke
(`infrastructure_error`, `unexpected_error`, `user_error`) is an `infra_error` without a score. The policy is in
`Trace.metadata`: the agent's system prompt was made of it, but is not in the log. In a full-duplex simulation (`ticks`)
every chunk that says or calls something is a message. Times have no zone and are taken as UTC.

Fields as in github.com/sierra-research/tau2-bench (src/tau2/data_model/{simulation,message}.py); our own writer puts
what has no place there under `rlkit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from rlkit.logs.readers.kept import Ids, kept_in, restored
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.tau_bench import parse_reward
from rlkit.logs.report import Notes, ReadReport, diagnostic
from rlkit.logs.trace import Outcome, Status, Trace

_QUIET = frozenset({"arguments_object", "tool_calls_wrong_role", "timestamp_naive"})
_ENDS: dict[Any, Status] = {
    "max_steps": "truncated", "timeout": "truncated", "context_window_exceeded": "truncated",
    "infrastructure_error": "infra_error", "unexpected_error": "infra_error", "user_error": "infra_error",
    "agent_error": "failure", "too_many_errors": "failure",
}  # fmt: skip
_DEFAULTS = {"is_audio": False, "is_final_chunk": True, "contains_speech": True, "error": False}
_NOT_METADATA = frozenset({"id", "messages", "ticks", "policy", "rlkit"})


@dataclass
class _Run:
    """What a document says of all its simulations."""

    folder: PurePath | None = None
    """Where its simulations lie, if they are in files of their own."""
    unused: Record | None = None
    """Then its record, until one of them was read."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    tasks: dict[Any, Any] = field(default_factory=dict)


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return isinstance(record, dict) and (_is_document(record) or _is_simulation(record))


def _is_document(value: dict[str, Any]) -> bool:
    several = isinstance(value.get("simulations"), list) or isinstance(value.get("simulation_index"), list)
    return several and (isinstance(value.get("info"), dict) or isinstance(value.get("tasks"), list))


def _is_simulation(value: dict[str, Any]) -> bool:
    said = isinstance(value.get("messages"), list) or isinstance(value.get("ticks"), list)
    return said and "task_id" in value and "termination_reason" in value


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """A trace a simulation; a record without any is counted in `report` and skipped."""
    ids, run = Ids(), _Run()
    for record in source.records(report):
        value, odd, made = record.value, Notes(record.line, record.root), False
        if isinstance(value, dict) and _is_document(value) and "simulations" not in value:
            _skip_unused(run, report)
            run = _run(value, odd)
            run.folder, run.unused = PurePath(record.file).parent, record
            made = True
        else:
            for item, root, of in _simulations(record, run, odd):
                notes = Notes(record.line, root, _QUIET)
                trace = _safely(item, of, record, ids, notes)
                if trace is None:
                    odd += notes
                    continue
                made, of.unused = True, None
                yield trace
        if not made:
            report.skip(odd.pop() if odd else diagnostic("no_messages", record.root, record.line), record.file)
        for note in odd:
            report.note(note, record.file)
    _skip_unused(run, report)


def _skip_unused(run: _Run, report: ReadReport) -> None:
    if (record := run.unused) is not None:
        report.skip(diagnostic("no_messages", f"{record.root}simulations", record.line), record.file)


def _simulations(record: Record, run: _Run, notes: Notes) -> Iterator[tuple[Any, str, _Run]]:
    """What a record holds, each with its path and what else is said of it; `run` is of a document above."""
    value = record.value
    if isinstance(value, dict) and isinstance(value.get("simulations"), list):
        run = _run(value, notes)
        for index, item in enumerate(value["simulations"]):
            yield item, f"{record.root}simulations[{index}].", run
    else:
        yield value, record.root, run if run.folder in PurePath(record.file).parents else _Run()


def _run(value: dict[str, Any], notes: Notes) -> _Run:
    info, tasks = value.get("info"), value.get("tasks")
    info = info if isinstance(info, dict) else {}
    world = info.get("environment_info")
    world = world if isinstance(world, dict) else {}
    run = _Run(tools=_tools(world.get("tool_defs"), notes))
    if info:
        run.metadata["info"] = {key: item for key, item in info.items() if key != "environment_info"}
    for key, name in (("domain", "domain_name"), ("policy", "policy")):
        if world.get(name) is not None:
            run.metadata[key] = world[name]
    for task in tasks if isinstance(tasks, list) else []:
        if isinstance(task, dict) and isinstance(task.get("id"), int | str):
            run.tasks[task["id"]] = task
    return run


def _tools(logged: Any, notes: Notes) -> list[dict[str, Any]]:
    """`{name: {"name", "doc", "params", "returns"}}` as function schemas."""
    tools, path = [], "info.environment_info.tool_defs"
    if logged is not None and not isinstance(logged, dict):
        notes.add("tool_definition_unreadable", path)
        return []
    for key, tool in (logged or {}).items():
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            notes.add("tool_definition_unreadable", f"{path}.{key}")
            continue
        known = (("name", tool["name"]), ("description", tool.get("doc")), ("parameters", tool.get("params")))
        tools.append({name: item for name, item in known if item is not None})
    return tools


def _safely(item: Any, run: _Run, record: Record, ids: Ids, notes: Notes) -> Trace | None:
    try:
        return _to_trace(item, run, record, ids, notes)
    except RecursionError:
        notes.add("json_too_deep")
        return None


def _to_trace(value: Any, run: _Run, record: Record, ids: Ids, notes: Notes) -> Trace | None:
    """One simulation, or None where it holds no message; the last of `notes` then says why."""
    if not isinstance(value, dict):
        notes.add("record_not_object", detail=f"Expected an object, found {type(value).__name__}.")
        return None
    if not record.strict:
        notes.add("json_not_strict")
    logged, paths = _said(value)
    messages = parse_messages([_message(item, index) for index, item in enumerate(logged)], notes, paths=paths)
    if not messages:
        notes.add("no_messages", "messages")
        return None
    kept = kept_in(value)
    if kept is not None:
        fields = restored(kept, notes)
        if "tools" not in kept:
            fields["tools"] = run.tools
    else:
        fields = {"tools": run.tools, "outcome": _outcome(value, notes), "metadata": _metadata(value, run)}
    if "id" not in fields:
        fields["id"] = ids.new(_id(value, record, notes), notes)
    return Trace(messages=messages, source=record.place, raw=value, diagnostics=notes, **fields)


def _id(value: dict[str, Any], record: Record, notes: Notes) -> str:
    """Its own, else `task_id/trial`, else `results.json:1`."""
    own, task, trial = (value.get(key) for key in ("id", "task_id", "trial"))
    if isinstance(own, str) and own:
        return own
    notes.add("id_missing", "id")
    if isinstance(task, int | str):
        return f"{task}/{trial}" if isinstance(trial, int | str) else str(task)
    return Path(record.place).name


def _metadata(value: dict[str, Any], run: _Run) -> dict[str, Any]:
    own = {key: item for key, item in value.items() if key not in _NOT_METADATA and item is not None}
    task_id = value.get("task_id")
    task = run.tasks.get(task_id) if isinstance(task_id, int | str) else None
    policy = value.get("policy")  # a simulation may have one of its own
    return run.metadata | own | ({"task": task} if task else {}) | ({"policy": policy} if policy else {})


def _outcome(value: dict[str, Any], notes: Notes) -> Outcome:
    info, reason = value.get("reward_info"), value.get("termination_reason")
    end = _ENDS.get(reason) if isinstance(reason, str) else None
    if end == "infra_error":
        return Outcome(status=end, source="tau2")
    reward = info.get("reward") if isinstance(info, dict) else None
    outcome = parse_reward(reward, "tau2", notes, "reward_info.reward")
    if end is not None and outcome.status != "success":
        outcome = Outcome(status=end, score=outcome.score, source="tau2")
    return outcome


def _said(value: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """The messages in order, several results in one message taken apart, each with its path."""
    logged, found = value.get("messages"), []
    if isinstance(logged, list):
        for index, item in enumerate(logged):
            several = item.get("tool_messages") if isinstance(item, dict) else None
            if isinstance(several, list):
                found += [(one, f"messages[{index}].tool_messages[{n}]") for n, one in enumerate(several)]
            else:
                found.append((item, f"messages[{index}]"))
    elif isinstance(value.get("ticks"), list):
        for index, tick in enumerate(value["ticks"]):
            found += _tick(tick, f"ticks[{index}]")
    return [item for item, _ in found], [path for _, path in found]


def _tick(tick: Any, path: str) -> Iterator[tuple[Any, str]]:
    """What is said and done in a tick, in tau2's own order: the agent, its results, the user, its results."""
    if not isinstance(tick, dict):
        yield tick, path
        return
    for role, who in (("assistant", "agent"), ("user", "user")):
        chunk, calls, results = (tick.get(f"{who}_{what}") for what in ("chunk", "tool_calls", "tool_results"))
        said = chunk if isinstance(chunk, dict) else {}
        if calls or said.get("content"):
            spoken = {"timestamp": tick.get("timestamp")} | said | {"role": role, "tool_calls": calls or None}
            yield spoken, f"{path}.{who}_chunk"
        for index, result in enumerate(results if isinstance(results, list) else []):
            yield result, f"{path}.{who}_tool_results[{index}]"


def _message(item: Any, index: int) -> Any:
    """A message in OpenAI's words, without what tau2 writes into each by default."""
    if not isinstance(item, dict):
        return item
    role = item.get("role")
    said = {key: value for key, value in item.items() if value is not None and _DEFAULTS.get(key) is not value}
    if said.get("turn_idx") == index:
        del said["turn_idx"]
    if role == "tool":
        said["tool_call_id"] = said.pop("id", None)
        if said.get("requestor") == "assistant":
            del said["requestor"]
    if isinstance(said.get("tool_calls"), list):
        said["tool_calls"] = [_call(call, role) for call in said["tool_calls"]]
    if isinstance(said.get("rlkit"), dict):
        said |= said.pop("rlkit")
    return said


def _call(call: Any, role: Any) -> Any:
    if not isinstance(call, dict):
        return call
    said = {key: value for key, value in call.items() if key != "rlkit" and (key != "requestor" or value != role)}
    kept = kept_in(call)
    return said | {"arguments": kept["arguments"]} if kept is not None and "arguments" in kept else said
