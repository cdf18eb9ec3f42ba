"""Anthropic Messages: one session a record, `{"messages": [...], "system", "tools", ...}` as the API takes it.

The reply may stand beside it: as `response` (with the request at the top or under `request`), or as the reply's own
`role` and `content` at the top. Outcome, links and other keys are as in the format `openai`. A record without a sign of
Anthropic (content blocks, `system`, `input_schema`) is the same in OpenAI's format and is left to that reader.

Source: platform.claude.com/docs/en/api/messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlkit.logs.readers.anthropic_blocks import EXACT, QUIET, parse_blocks, unfold
from rlkit.logs.readers.openai_chat import object_of, parse_links, parse_tools, read_each
from rlkit.logs.readers.outcomes import parse_outcome
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace

_OUTCOMES = ("outcome", "feedback", "reward", "score")
_OWN = frozenset({"id", "messages", "system", "tools", "metadata", "parent_id", "relation", "parent_call_id"})
_OPENAI = ("tool_calls", "function_call", "tool_call_id")
_BLOCK_KINDS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use")


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    if not isinstance(record, dict):
        return False
    request = _request(record)
    messages = request.get("messages")
    if not isinstance(messages, list):
        return False
    for message in messages:
        if isinstance(message, dict) and (
            message.get("role") not in ("user", "assistant", "system") or any(key in message for key in _OPENAI)
        ):
            return False
    tools, system = request.get("tools"), request.get("system")
    return (
        isinstance(system, str | list)
        or (isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools))
        or _response(record) is not None
        or any(map(_has_blocks, messages))
    )


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a record; a record without any message is counted in `report` and skipped."""
    return read_each(source, report, to_trace, QUIET)


def to_trace(record: Record, notes: Notes) -> Trace | None:
    """One record as a trace, or None where it holds no message; the last of `notes` then says why."""
    value = object_of(record, notes)
    if value is None:
        return None
    request, response = _request(value), _response(value)
    root = "" if request is value else "request."
    items, paths = list[Any](), list[str]()
    if (system := request.get("system")) is not None:
        items.append({"role": "system", "content": system})
        paths.append(f"{root}system")
    logged = request.get("messages")
    for index, message in enumerate(logged if isinstance(logged, list) else ()):
        unfold(message, f"{root}messages[{index}]", notes, items, paths)
    if response is not None:
        unfold(response, "response" if response is value.get("response") else "content", notes, items, paths)
    messages = parse_blocks(items, paths, notes)
    if not messages:
        notes.add("no_messages", f"{root}messages")
        return None
    key = next((key for key in _OUTCOMES if value.get(key) is not None), "")
    parent, relation, parent_call = parse_links(value)
    return Trace(
        id=_id(record, response, notes),
        messages=messages,
        tools=_tools(request.get("tools"), notes, f"{root}tools"),
        outcome=parse_outcome(value.get(key), key, notes, key),
        parent_id=parent,
        relation=relation,
        parent_call_id=parent_call,
        metadata=_metadata(value, request, response, key, notes),
        source=record.place,
        raw=value,
        diagnostics=notes,
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    request = value.get("request")
    return request if isinstance(request, dict) and isinstance(request.get("messages"), list) else value


def _response(value: dict[str, Any]) -> dict[str, Any] | None:
    """The reply, where the record has one beside the request."""
    response = value.get("response")
    if isinstance(response, dict) and isinstance(response.get("content"), list) and response.get("role") == "assistant":
        return response
    if value.get("role") == "assistant" and isinstance(value.get("content"), list):
        return {"role": "assistant", "content": value["content"]}
    return None


def _has_blocks(message: Any) -> bool:
    if not isinstance(message, dict) or EXACT in message:
        return isinstance(message, dict)
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_block, content))


def _is_block(part: Any) -> bool:
    """Whether only this format has such a part."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind in _BLOCK_KINDS or (kind in ("image", "document") and "source" in part)


def _id(record: Record, response: dict[str, Any] | None, notes: Notes) -> str:
    """The record's own id, else the reply's, else `file.jsonl:7`."""
    for logged in (record.value.get("id"), (response or {}).get("id")):
        if isinstance(logged, str | int) and not isinstance(logged, bool) and logged != "":
            return str(logged)
    notes.add("id_missing", "id")
    return Path(record.place).name


def _tools(logged: Any, notes: Notes, path: str) -> list[dict[str, Any]]:
    """Tools as bare function schemas: `input_schema` is `parameters`; a server-run tool keeps its `type`."""
    if not isinstance(logged, list):
        return parse_tools(logged, notes, path)
    tools = []
    for index, tool in enumerate(logged):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            tools += parse_tools([tool], notes, f"{path}[{index}]")
            continue
        schema = {key: item for key, item in tool.items() if key != "type" or item not in ("custom", "function")}
        if "input_schema" in schema:
            schema = {"parameters" if key == "input_schema" else key: item for key, item in schema.items()}
        tools.append(schema)
    return tools


def _metadata(
    value: dict[str, Any], request: dict[str, Any], response: dict[str, Any] | None, outcome: str, notes: Notes
) -> dict[str, Any]:
    """`metadata`, and every key of the record and the request that we have no place for."""
    logged = value.get("metadata")
    if logged is not None and not isinstance(logged, dict):
        notes.add("metadata_wrong_type", "metadata")
        logged = None
    own = _OWN | {outcome}
    if response is not None:
        own |= {"response"} if response is value.get("response") else {"role", "content", "type"}
    asked = {}
    if request is not value:
        own |= {"request"}
        asked = {key: item for key, item in request.items() if key not in ("messages", "system", "tools")}
    return asked | {key: item for key, item in value.items() if key not in own} | (logged or {})
