"""A session as OpenInference spans, a Phoenix row each: an AGENT, an LLM span a reply and a TOOL span a result.

Every LLM span repeats the conversation so far. What OpenInference has no name for is under `rlkit.*`; a fork has no
metadata and no outcome of its own.

Source: Arize-ai/openinference, spec/semantic_conventions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import Any

from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Message, Outcome, Trace
from rlkit.logs.writers.openai import links, written_arguments
from rlkit.logs.writers.steps import Step, hashed, session_steps

_KINDS = {"agent": "AGENT", "llm": "LLM", "tool": "TOOL"}


def session_records(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """One record a span, in their order in time."""
    return (_row(step, traces[0]) for step in session_steps(traces))


def _row(step: Step, main: Trace) -> dict[str, Any]:
    kind = _KINDS[step.kind]
    attributes: dict[str, Any] = {"openinference.span.kind": kind, "session.id": main.id}
    name: str = step.kind
    if step.kind == "agent":
        attributes |= _agent_attributes(step, main)
    elif step.kind == "llm":
        for index, message in enumerate(step.input):
            attributes |= _message(message, f"llm.input_messages.{index}.message.")
        if step.output is not None:
            attributes |= _message(step.output, "llm.output_messages.0.message.")
        for index, tool in enumerate(step.trace.tools):
            schema = dumps({"type": "function", "function": tool})
            attributes[f"llm.tools.{index}.tool.json_schema"] = schema
    elif step.call is not None and step.output is not None:
        name = step.call.name
        attributes |= {"tool.name": step.call.name, "tool_call.id": step.call.id}
        if (written := written_arguments(step.call)) is not None:
            attributes["input.value"] = written
        if step.output.content is not None:
            attributes["output.value"] = step.output.content
    time = f"{step.start.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
    return {
        "name": name, "span_kind": kind, "parent_id": step.parent[:16] or None, "start_time": time, "end_time": time,
        "status_code": "OK", "context": {"trace_id": hashed("trace", main.id), "span_id": step.id[:16]},
        "attributes": attributes,
    }  # fmt: skip


def _agent_attributes(step: Step, main: Trace) -> dict[str, Any]:
    attributes: dict[str, Any] = {"rlkit.metadata": dumps(step.trace.metadata)}
    if not step.parent:
        attributes |= {f"rlkit.{key}": link for key, link in links(main).items()}
        if main.outcome != Outcome():
            attributes["rlkit.outcome"] = dumps(main.outcome.model_dump())
    return attributes


def _message(message: Message, prefix: str) -> dict[str, Any]:
    fields = {
        "role": message.role, "content": message.content, "tool_call_id": message.tool_call_id, "name": message.name,
        "reasoning_content": message.reasoning, "timestamp": message.timestamp,
    }  # fmt: skip
    attributes = {prefix + key: value for key, value in fields.items() if value is not None}
    if message.extra:
        attributes[f"{prefix}rlkit.extra"] = dumps(message.extra)
    for index, call in enumerate(message.tool_calls):
        spot = f"{prefix}tool_calls.{index}.tool_call."
        attributes |= {f"{spot}id": call.id, f"{spot}function.name": call.name}
        if (written := written_arguments(call)) is not None:
            attributes[f"{spot}function.arguments"] = written
        if call.extra:
            attributes[f"{spot}rlkit.extra"] = dumps(call.extra)
    return attributes
