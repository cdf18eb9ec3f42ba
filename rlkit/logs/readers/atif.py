"""ATIF trajectories (Agent Trajectory Interchange Format, v1.0 to v1.8): one a record, with its sub-agents inside.

What `writers/atif.py` wrote comes back equal. Of anyone else's, a step is a message and each result in its
observation is one of role `tool`. A result that names no call is, by the format, not a tool's: it answers a call of
its own step that is still open; without one it is what the environment said (role `user`, and `system` in a system
step). A result that only refers to a sub-agent is no message. Each of `subagent_trajectories` is a trace of its own,
linked to the call whose result refers to it; trajectories in other files stay references.

Metrics, token ids, `is_copied_context` and the rest of a step are in `Message.extra` under their names; the rest of
the trajectory is in the metadata. ATIF knows no outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlkit.logs.readers.atif_exact import OURS, SOURCES, exact_trace
from rlkit.logs.readers.messages import parse_messages
from rlkit.logs.readers.openai_chat import object_of, parse_links, parse_tools, traces_of
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Diagnostic, Message, Relation, Trace

_QUIET = frozenset({"arguments_object", "content_parts"})
_PLAIN = frozenset({"step_id", "source", "message"})
_TAKEN = _PLAIN | {"observation"}
_CALL = frozenset({"tool_call_id", "function_name", "arguments"})
_RESULT = frozenset({"source_call_id", "content"})
_Links = tuple[str | None, Relation | None, str | None]


def matches(record: Any) -> bool:
    """Whether a record is a trajectory that says so."""
    version = record.get("schema_version") if isinstance(record, dict) else None
    return isinstance(version, str) and version.startswith("ATIF-") and isinstance(record.get("steps"), list)


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """The traces of a record: the trajectory, then its sub-agents; a record without any message is skipped."""
    for record in source.records(report):
        if (exact := exact_trace(record)) is not None:
            yield exact
        else:
            yield from traces_of(record, report, _traces, _QUIET)


def _traces(record: Record, notes: Notes) -> list[Trace]:
    """The record's trajectory and all within it; where that is nothing, the last of `notes` says why."""
    value = object_of(record, notes)
    if value is None:
        return []
    names = (value.get("trajectory_id"), value.get("session_id"))
    name = next((name for name in names if isinstance(name, str) and name), "")
    if not name:
        notes.add("id_missing", "trajectory_id")
    document = _Document(record, name or Path(record.place).name)
    document.add(value, notes)
    if document.traces:
        document.traces[0].diagnostics += document.loose
    else:
        notes[:] = document.loose
        notes.add("no_messages", "steps")
    return document.traces


class _Document:
    """The trajectories of one record: the ids of those inside are only unique there, so they get a number on its id."""

    def __init__(self, record: Record, name: str) -> None:
        self.record, self.name = record, name
        self.traces: list[Trace] = []
        self.loose: list[Diagnostic] = []
        """What was odd about trajectories that say nothing."""
        self.inner = 0

    def add(self, value: dict[str, Any], notes: Notes, path: str = "", links: _Links = (None, None, None)) -> None:
        """The trajectory at `path`, and those inside."""
        name = f"{self.name}#{self.inner}" if path else self.name
        steps = _Steps(value.get("steps"), notes)
        messages = parse_messages(steps.items, notes, paths=steps.paths)
        logged = value.get("subagent_trajectories")
        inner = list(enumerate(logged)) if isinstance(logged, list) else []
        for index, item in inner:
            if not isinstance(item, dict):
                detail = f"Expected an object, found {type(item).__name__}."
                notes.add("record_not_object", f"subagent_trajectories[{index}]", detail)
        if messages:
            self.traces.append(self._trace(value, notes, name, messages, links if path else None))
        else:
            self.loose += notes
        for index, item in inner:
            self.inner += 1
            if isinstance(item, dict):
                place, own_id = f"{path}subagent_trajectories[{index}].", item.get("trajectory_id")
                caller = steps.callers.get(own_id) if isinstance(own_id, str) else None
                own = Notes(self.record.line, f"{self.record.root}{place}", _QUIET)
                self.add(item, own, place, (name, "subagent", caller))

    def _trace(
        self, value: dict[str, Any], notes: Notes, name: str, messages: list[Message], links: _Links | None
    ) -> Trace:
        ours, agent = _changed(value, notes), value.get("agent")
        parent, relation, call = links or parse_links(ours)
        tools = agent.get("tool_definitions") if isinstance(agent, dict) else None
        return Trace(
            id=name,
            messages=messages,
            tools=parse_tools(tools, notes, "agent.tool_definitions"),
            outcome=parse_outcome(ours.get("outcome"), "", notes, f"extra.{OURS}.outcome"),
            parent_id=parent,
            relation=relation,
            parent_call_id=call,
            metadata=_metadata(value, name, ours),
            source=self.record.place,
            raw=value,
            diagnostics=notes,
        )


def _changed(value: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """What we once wrote beside a trajectory."""
    extra = value.get("extra")
    ours = extra.get(OURS) if isinstance(extra, dict) else None
    if ours is None:
        return {}
    notes.add("atif_changed", f"extra.{OURS}")
    return ours if isinstance(ours, dict) else {}


def _metadata(value: dict[str, Any], name: str, ours: dict[str, Any]) -> dict[str, Any]:
    """What a trajectory says beside its steps and tools."""
    others = {
        key: item
        for key, item in value.items()
        if key not in ("steps", "subagent_trajectories") and item is not None
        if not (key in ("trajectory_id", "session_id") and item == name)
    }
    if isinstance(agent := others.get("agent"), dict):
        others["agent"] = {key: item for key, item in agent.items() if key != "tool_definitions"}
    if not ours:
        return others
    others["extra"] = {key: item for key, item in value["extra"].items() if key != OURS}
    metadata = ours.get("metadata")
    return others | metadata if isinstance(metadata, dict) else others


class _Steps:
    """Steps as OpenAI-style messages."""

    def __init__(self, steps: Any, notes: Notes) -> None:
        self.notes = notes
        self.items: list[Any] = []
        self.paths: list[str] = []
        """Where each item stands."""
        self.callers: dict[str, str | None] = {}
        """By the id of a sub-agent's trajectory: the call that started it."""
        for index, step in enumerate(steps if isinstance(steps, list) else []):
            where = f"steps[{index}]"
            if not isinstance(step, dict):
                self._add(step, where)
                continue
            item = _message(step, index)
            self._add(item, where)
            if step.get("observation") is not None:
                self._observe(step, item, f"{where}.observation")

    def _add(self, item: Any, where: str) -> None:
        self.items.append(item)
        self.paths.append(where)

    def _observe(self, step: dict[str, Any], item: dict[str, Any], where: str) -> None:
        """The results of a step; what is no message stays with the step's own."""
        observation = step["observation"]
        results = observation.get("results") if isinstance(observation, dict) else None
        if not isinstance(results, list):
            self.notes.add("item_kept_aside", where)
            item["observation"] = observation
            return
        calls = item["tool_calls"] if isinstance(item.get("tool_calls"), list) else []
        named = [result["source_call_id"] for result in results if _names_call(result)]
        waiting = [call["id"] for call in calls if isinstance(call, dict) and call["id"] not in named]
        for index, result in enumerate(results):
            place = f"{where}.results[{index}]"
            if not isinstance(result, dict):
                self._add(result, place)
                continue
            call_id, content, known = result.get("source_call_id"), result.get("content"), _names_call(result)
            kept = {key: value for key, value in result.items() if key not in _RESULT}
            if step.get("is_copied_context") is not None:
                kept["is_copied_context"] = step["is_copied_context"]
            if known or waiting:
                if not known and isinstance(call_id := waiting.pop(0), str):  # else the pairing looks for one
                    self.notes.add("tool_result_id_missing", f"{place}.source_call_id")
                self._add(kept | {"role": "tool", "tool_call_id": call_id, "content": content}, place)
            elif content is None:
                item.setdefault("observation", {"results": []})["results"].append(result)
            else:
                role = "system" if step.get("source") == "system" else "user"
                self._add(kept | {"role": role, "is_observation": True, "content": content}, place)
            if refs := result.get("subagent_trajectory_ref"):
                self._refer(refs, call_id)

    def _refer(self, refs: Any, call_id: Any) -> None:
        for ref in refs if isinstance(refs, list) else []:
            if isinstance(ref, dict) and isinstance(logged := ref.get("trajectory_id"), str):
                self.callers[logged] = call_id if isinstance(call_id, str) and call_id else None


def _names_call(result: Any) -> bool:
    call_id = result.get("source_call_id") if isinstance(result, dict) else None
    return isinstance(call_id, str) and call_id != ""


def _message(step: dict[str, Any], index: int) -> dict[str, Any]:
    """A step without its observation; all it says beside the message goes on to `Message.extra`."""
    source, number = step.get("source"), step.get("step_id")
    item = {"role": SOURCES.get(source, source) if isinstance(source, str) else source, "content": step.get("message")}
    if step.keys() != _PLAIN:
        item = {key: value for key, value in step.items() if key not in _TAKEN} | item
    if number != index + 1:
        item["step_id"] = number
    if isinstance(calls := step.get("tool_calls"), list):
        item["tool_calls"] = [_call(call) for call in calls]
    return item


def _call(logged: Any) -> Any:
    if not isinstance(logged, dict):
        return logged
    call = {key: value for key, value in logged.items() if key not in _CALL}
    call |= {
        "id": logged.get("tool_call_id"),
        "name": logged.get("function_name"),
        "arguments": logged.get("arguments"),
    }
    return call
