"""A session as rows of Langfuse's blob-storage export, `observations_v2/` and `scores/` in one stream.

One AGENT observation for the session and one for each sub-agent, a GENERATION for each reply, whose input repeats the
conversation so far, and a TOOL for each result. Payloads are JSON text, as the export has them; the session's id is
`session_id`. What Langfuse has no name for is under the key `rlkit` of `metadata`. A fork has no metadata
and no outcome of its own.

Source: langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Outcome, Trace
from rlkit.logs.writers.openai import links, to_openai, written_arguments
from rlkit.logs.writers.steps import Step, hashed, session_steps

_TYPES = {"agent": "AGENT", "llm": "GENERATION", "tool": "TOOL"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """One record an observation, in their order in time, and one for the outcome."""
    main = traces[0]
    said = {trace.id: to_openai(trace) for trace in traces}
    steps = session_steps(traces)
    for step in steps:
        yield _observation(step, main, said[step.trace.id])
    if main.outcome != Outcome():
        yield _score(main, steps[-1].start)


def _observation(step: Step, main: Trace, said: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": step.id, "trace_id": hashed("trace", main.id), "session_id": main.id,
        "parent_observation_id": step.parent, "type": _TYPES[step.kind],
        "name": step.kind, "start_time": _time(step.start), "end_time": _end(step), "level": "DEFAULT",
        "input": "", "output": "", "metadata": {},
    }  # fmt: skip
    if step.kind == "agent":
        kept: dict[str, Any] = {"metadata": step.trace.metadata}
        if not step.parent:
            kept |= links(main)
        row["metadata"] = {"rlkit": {key: value for key, value in kept.items() if value is not None}}
    elif step.kind == "llm":
        given = {"messages": said["messages"][: len(step.input)]}
        row["input"] = dumps(given | {"tools": said["tools"]} if "tools" in said else given)
        if step.output is not None:
            row["output"] = dumps(said["messages"][len(step.input)])
    elif step.call is not None and step.output is not None:
        row["name"], row["metadata"] = step.call.name, {"tool_call_id": step.call.id}
        row["input"], row["output"] = written_arguments(step.call) or "", step.output.content or ""
    return row


def _score(main: Trace, start: datetime) -> dict[str, Any]:
    """The outcome as a categorical score; its number has no place in one."""
    return {
        "id": hashed("score", main.id), "timestamp": _time(start), "trace_id": hashed("trace", main.id),
        "session_id": main.id, "observation_id": None, "name": main.outcome.source or "outcome", "value": 0,
        "source": "API", "data_type": "CATEGORICAL", "string_value": main.outcome.status,
        "metadata": {"rlkit": main.outcome.model_dump()},
    }  # fmt: skip


def _end(step: Step) -> str | None:
    """Of the message itself, so that a reader does not take the made-up clock for its time."""
    return None if step.end is None else step.end.replace("T", " ").removesuffix("Z")


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
