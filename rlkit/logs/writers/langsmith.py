"""A session as LangSmith runs: what its API returns, one run a record.

One chain run for the session and one for each sub-agent, an llm run for each reply, whose inputs repeat the
conversation so far (in OpenAI's words, as `wrap_openai` logs them), and a tool run for each result. The session's id is
`thread_id` in `extra.metadata`; what LangSmith has no name for is under the key `rlkit` there. A fork has no
metadata and no outcome of its own.

Source: docs.langchain.com/langsmith/{run-data-format,threads,log-llm-trace}.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rlkit.logs.trace import Outcome, Trace
from rlkit.logs.writers.openai import links, to_openai, written_arguments
from rlkit.logs.writers.steps import Step, session_steps


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """One record a run, in their order in time."""
    main = traces[0]
    said = {trace.id: to_openai(trace) for trace in traces}
    orders: dict[str, str] = {}
    for step in session_steps(traces):
        above = orders.get(step.parent)
        own = f"{step.start.astimezone(UTC):%Y%m%dT%H%M%S%f}Z{_uuid(step.id)}"
        orders[step.id] = own if above is None else f"{above}.{own}"
        yield _run(step, main, said[step.trace.id], orders[step.id])


def _run(step: Step, main: Trace, said: dict[str, Any], order: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"thread_id": main.id}
    run: dict[str, Any] = {
        "id": _uuid(step.id), "trace_id": order.split(".")[0].partition("Z")[2],
        "parent_run_id": _uuid(step.parent) if step.parent else None, "dotted_order": order, "name": step.kind,
        "run_type": {"agent": "chain"}.get(step.kind, step.kind), "start_time": _time(step.start), "end_time": step.end,
        "inputs": {}, "outputs": None, "error": None, "status": "success", "extra": {"metadata": metadata},
    }  # fmt: skip
    if step.kind == "agent":
        kept: dict[str, Any] = {"metadata": step.trace.metadata}
        if not step.parent:
            kept |= links(main)
        metadata["rlkit"] = {key: value for key, value in kept.items() if value is not None}
        if not step.parent and main.outcome != Outcome():
            metadata["rlkit"]["outcome"] = main.outcome.model_dump()
            stats = {"n": 1, "avg": main.outcome.score, "values": {main.outcome.status: 1}}
            run["feedback_stats"] = {main.outcome.source or "outcome": stats}
    elif step.kind == "llm":
        run["inputs"] = {"messages": said["messages"][: len(step.input)]}
        if "tools" in said:
            run["extra"]["invocation_params"] = {"tools": said["tools"]}
        if step.output is None:
            run["status"] = "pending"
        else:
            run["outputs"] = {"choices": [{"index": 0, "message": said["messages"][len(step.input)]}]}
    elif step.call is not None and step.output is not None:
        run["name"], metadata["tool_call_id"] = step.call.name, step.call.id
        run["inputs"], run["outputs"] = {"input": written_arguments(step.call)}, {"output": step.output.content}
    return run


def _uuid(hexadecimal: str) -> str:
    return str(uuid.UUID(hexadecimal))


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"
