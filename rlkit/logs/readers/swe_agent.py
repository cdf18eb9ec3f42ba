"""SWE-agent trajectories (`.traj`): `{"history": [...], "trajectory": [...], "info", "environment"}`, one a file.

`history` is the conversation, as it was in the agent's prompt, and is what is read. Where an old observation was elided
there ("Old environment output: (9 lines omitted)"), its text is taken from the step of `trajectory` with the same
action, without the prompt that the template adds, since the agent had seen it when it went on. Actions that the history
does not have any more (the last one, in some versions) follow from the trajectory. Steps there are the model's response
and the observation as a message of the user, since they don't say which tool was called; where there is no history they
are all there is, after what the model was first asked (`query`). Demonstrations are messages like others, with
`is_demo` in `Message.extra`; what every item repeats (the agent `main`, a `thought` that is the content, a
`message_type` that the role says) is left out.

Runs with several attempts (`attempts`) are traces of their own, forks of the one that was chosen. Nothing in the file
says whether the issue was solved, so the outcome is unknown, but where `info.exit_status` says that the budget ended
the run (`truncated`) or that the environment or the API broke (`infra_error`). The id is that of the problem, else the
file's name.

Fields as in github.com/SWE-agent/SWE-agent (sweagent/types.py, docs/usage/trajectories.md); our own writer puts what
has no place there under `rlkit`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rlkit.logs.jsontext import loads
from rlkit.logs.readers.kept import Ids, kept_in, restored
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import object_of, traces_of
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Message, Outcome, Trace

_QUIET = frozenset({"content_parts"})
_TYPES = {"system": "system_prompt", "user": "observation", "assistant": "action", "tool": "observation"}
_ELIDED = re.compile(r"Old environment output: \(\d+ lines omitted\)(?: \(\d+ images omitted\))?\s*")
_CUT = re.compile(r"exit_(cost|context|total_cost|total_execution_time|command_timeout)\b")
_BROKEN = re.compile(r"exit_(environment_error|api)\b")
_STEP = frozenset({"action", "observation", "response", "query"})
_NOT_METADATA = frozenset({"history", "trajectory", "attempts", "rlkit"})


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    if not isinstance(record, dict):
        return False
    history, steps = _first(record.get("history")), _first(record.get("trajectory"))
    if isinstance(history.get("role"), str) and ("message_type" in history or "agent" in history):
        return True
    return {"action", "observation"} <= steps.keys() and ("response" in steps or "thought" in steps)


def _first(items: Any) -> dict[str, Any]:
    return items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a record, and one for each further attempt; a record without any message is counted and skipped."""
    ids = Ids()
    for record in source.records(report):
        yield from traces_of(record, report, partial(_to_traces, ids), _QUIET)


def _to_traces(ids: Ids, record: Record, notes: Notes) -> list[Trace]:
    """The run that was chosen and the other attempts; where there is none the last of `notes` says why."""
    value = object_of(record, notes)
    if value is None:
        return []
    tries = value.get("attempts")
    tries = [one for one in tries if isinstance(one, dict)] if isinstance(tries, list) else []
    main = _conversation(value, notes)
    if not main and tries:  # none was chosen: the last is the one that the run ended with
        value = value | tries[-1]
        main = _conversation(value, notes)
    if not main:
        notes.add("no_messages", "history")
        return []
    kept = kept_in(value)
    fields = {"outcome": _outcome(value), "metadata": _metadata(value)} if kept is None else restored(kept, notes)
    if "id" not in fields:
        fields["id"] = ids.new(_id(record, notes), notes)
    traces = [Trace(messages=main, source=record.place, raw=record.value, diagnostics=notes, **fields)]
    for index, other in enumerate(tries):
        odd = Notes(record.line, f"{record.root}attempts[{index}].", _QUIET)
        messages = _conversation(other, odd)
        if messages and messages != main:
            fork = Trace(id=f"{fields['id']}#{len(traces)}", messages=messages, source=record.place, diagnostics=odd)
            fork.parent_id, fork.relation, fork.raw = traces[0].id, "fork", other
            fork.outcome, fork.metadata = _outcome(other), _metadata(value | other)
            traces.append(fork)
    return traces


def _conversation(value: dict[str, Any], notes: Notes) -> list[Message]:
    history, steps = value.get("history"), value.get("trajectory")
    steps = steps if isinstance(steps, list) else []
    if isinstance(history, list) and history:
        items = [_message(item) for item in history]
        places, end = _align(items, steps)
        for index, place in enumerate(places):
            if _is_elided(items[index]):
                items[index] = _put_back(items[index], place, f"history[{index}]", notes)
        pairs = [(item, f"history[{index}]") for index, item in enumerate(items)]
        rest = [index for index in range(end, len(steps)) if _get(steps[index], "action")]
        if rest:
            notes.add("history_continued", f"trajectory[{rest[0]}]")
    else:
        query = _first(steps).get("query")
        asked = query if isinstance(query, list) and query != [{}] else []
        pairs = [(_message(item), f"trajectory[0].query[{n}]") for n, item in enumerate(asked)]
        rest = list(range(len(steps)))
    for index in rest:
        pairs += _step(steps[index], f"trajectory[{index}]")
    return parse_messages([item for item, _ in pairs], notes, paths=[path for _, path in pairs])


def _step(step: Any, path: str) -> Iterator[tuple[Any, str]]:
    """What the agent wrote and what came of it."""
    if not isinstance(step, dict):
        yield step, path
        return
    response = step.get("response") or step.get("thought")
    said = {key: item for key, item in step.items() if key not in _STEP and item not in (None, {}, response)}
    yield {"role": "assistant", "content": response, "action": step.get("action") or None} | said, f"{path}.response"
    if step.get("observation"):
        yield {"role": "user", "content": step["observation"]}, f"{path}.observation"


def _message(item: Any) -> Any:
    """An item of the history in OpenAI's words, without what SWE-agent writes into each."""
    if not isinstance(item, dict):
        return item
    said = {key: value for key, value in item.items() if value is not None}
    role = said.get("role")
    if said.get("agent") == "main":
        del said["agent"]
    if isinstance(role, str) and said.get("message_type") == _TYPES.get(role):
        said.pop("message_type", None)
    if "thought" in said and said["thought"] == said.get("content"):
        del said["thought"]
    answered = said.get("tool_call_ids")
    if role == "tool" and isinstance(answered, list) and answered and isinstance(answered[0], str):
        said["tool_call_id"] = answered[0]
        if len(answered) == 1:
            del said["tool_call_ids"]
    blocks = said.get("thinking_blocks")
    if isinstance(blocks, list):  # they stay, for their signatures
        thoughts = [block.get("thinking") for block in blocks if isinstance(block, dict)]
        said["reasoning_content"] = "\n".join(text for text in thoughts if isinstance(text, str)) or None
    if isinstance(said.get("rlkit"), dict):
        said |= said.pop("rlkit")
    return said


def _is_elided(item: Any) -> bool:
    content = _get(item, "content")
    return isinstance(content, str) and _ELIDED.fullmatch(content) is not None


def _put_back(item: dict[str, Any], step: Any, path: str, notes: Notes) -> dict[str, Any]:
    """An elided observation with its text, where its step has it."""
    observation = _get(step, "observation")
    if not isinstance(observation, str):
        notes.add("observation_elided", path)
        return item
    notes.add("observation_restored", path)
    return item | {"content": observation, "elided": item["content"]}


def _align(items: list[Any], steps: list[Any]) -> tuple[list[Any], int]:
    """For each item its step, the next with the action that the agent took last; and where what follows begins.

    Nothing follows where the last action is in no step.
    """
    places: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        if isinstance(action := _get(step, "action"), str):
            places.setdefault(action.strip(), []).append(index)
    found: list[Any] = []
    at, now = 0, None
    known = True
    for item in items:
        if _get(item, "is_demo"):
            found.append(None)
            continue
        if _get(item, "role") == "assistant":
            action = item.get("action")
            there = places.get(action.strip(), []) if isinstance(action, str) else []
            following = bisect_left(there, at)
            known = following < len(there)
            now = there[following] if known else None
            at = at if now is None else now + 1
        found.append(None if now is None else steps[now])
    return found, at if known else len(steps)


def _get(step: Any, key: str) -> Any:
    return step.get(key) if isinstance(step, dict) else None


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    """All but the conversation: `info` with the submission, the exit status and the costs, the environment, …"""
    return {key: item for key, item in value.items() if key not in _NOT_METADATA and item is not None}


def _outcome(value: dict[str, Any]) -> Outcome:
    info = value.get("info")
    status = info.get("exit_status") if isinstance(info, dict) else None
    if not isinstance(status, str):
        return Outcome()
    if _CUT.search(status):  # `submitted (exit_cost)` too: what was there was handed in
        return Outcome(status="truncated", source="swe-agent")
    return Outcome(status="infra_error", source="swe-agent") if _BROKEN.search(status) else Outcome()


def _id(record: Record, notes: Notes) -> str:
    """The id of the problem, or the name of its `.traj`, or `log.jsonl:7`."""
    value = record.value
    config = value.get("replay_config")
    if isinstance(config, str):
        try:
            config = loads(config)
        except (ValueError, RecursionError):
            config = None
    for id in (value.get("instance_id"), _get(_get(config, "problem_statement"), "id")):
        if isinstance(id, str) and id:
            return id
    name = Path(record.file).name
    if ".traj" in name:
        return name.partition(".traj")[0]
    notes.add("id_missing", "instance_id")
    return Path(record.place).name
