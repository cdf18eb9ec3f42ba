"""LangSmith: runs as its API and its SDKs return them, one a line, in one JSON array, or in `{"runs": [...]}`.

The bulk export is Parquet: convert it to JSONL first; its columns of JSON text are read as they are. Runs are grouped
by thread (`session_id`, `thread_id` or `conversation_id` in `extra.metadata`; the run's own `session_id` is its
project), else by trace. LLM calls are the runs of type `llm`; `feedback_stats` is the outcome. A run that failed says
so in `metadata`: an error is no verdict.

Source: docs.langchain.com/langsmith/{run-data-format,threads,log-llm-trace}, langsmith 0.15 (`schemas`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlkit.logs.readers.langchain import (
    answered,
    as_object,
    asked,
    holds_messages,
    nanoseconds,
    offered,
    plain_messages,
    stamped,
    tool_answer,
)
from rlkit.logs.readers.openai_chat import parse_links
from rlkit.logs.readers.otlp import text_or_none
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.readers.spans import MISSING, Dialect, Kind, Span, read_span_logs
from rlkit.logs.report import Notes, ReadReport
from rlkit.logs.trace import Trace

_KINDS: dict[str, Kind] = {"llm": "llm", "tool": "tool"}
_THREAD = ("session_id", "thread_id", "conversation_id")
_KEPT = ("tags", "session_name", "status", "error")


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    return any(_is_run(run) for run in runs(record))


def _is_run(run: Any) -> bool:
    if not isinstance(run, dict) or not isinstance(run.get("run_type"), str):
        return False
    return "inputs" in run or "dotted_order" in run or "trace_id" in run


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """One trace a thread (and one a branch); a run outside of any thread is grouped by its trace."""
    return read_span_logs(source, report, DIALECT)


def runs(value: Any) -> Iterator[Any]:
    """Every run of a record, with the runs nested in `child_runs`."""
    waiting = [value]
    while waiting:
        run = waiting.pop()
        children = run.get("child_runs") if isinstance(run, dict) else None
        if isinstance(run, dict) and isinstance(run.get("runs"), list) and "run_type" not in run:
            waiting += reversed(run["runs"])
            continue
        yield run
        if isinstance(children, list):
            waiting += reversed(children)


def ids(run: Any) -> tuple[str | None, str | None]:
    """(trace id, thread id) of a run."""
    if not isinstance(run, dict):
        return None, None
    thread = None
    for holder in (run.get("extra"), run.get("metadata")):
        if isinstance(holder, dict) or (isinstance(holder, str) and any(key in holder for key in _THREAD)):
            found = as_object(holder)
            found = as_object(found.get("metadata", found))
            thread = thread or next((text for key in _THREAD if (text := text_or_none(found.get(key)))), None)
    trace = text_or_none(run.get("trace_id")) or _root_of(run.get("dotted_order"))
    return trace or (None if text_or_none(run.get("parent_run_id")) else text_or_none(run.get("id"))), thread


def _root_of(order: Any) -> str | None:
    """The root's id in a dotted order, `<time>Z<id>.<time>Z<id>`."""
    return text_or_none(order.split(".", 1)[0].partition("Z")[2]) if isinstance(order, str) else None


def _spans(record: Record, notes: Notes) -> list[Span]:
    """The runs of a record as spans, in its order; what is no run is noted and left out."""
    spans = []
    for number, run in enumerate(runs(record.value)):
        if not isinstance(run, dict) or not isinstance(run.get("run_type"), str):
            notes.add("span_unreadable", f"runs[{number}]", "Not a run; left out.")
            continue
        trace_id, thread_id = ids(run)
        span = Span(
            trace_id=trace_id, session_id=thread_id, span_id=text_or_none(run.get("id")) or "",
            parent_id=text_or_none(run.get("parent_run_id")) or "", start=_start(run),
            name=text_or_none(run.get("name")) or "", kind=_KINDS.get(run["run_type"], "other"), record=record, raw=run,
            input=[], output=[], system=[], tools=None, call_id=None, tool_name=None, result=MISSING, outcomes=[],
            metadata={},
        )  # fmt: skip
        _read_run(span, run)
        spans.append(span)
    return spans


def _read_run(span: Span, run: dict[str, Any]) -> None:
    given, said, extra = as_object(run.get("inputs")), as_object(run.get("outputs")), as_object(run.get("extra"))
    span.metadata = _metadata(run, extra)
    own = as_object(as_object(extra.get("metadata")).get("rlkit"))
    span.outcomes = _outcomes(run, own)
    if not span.parent_id:
        span.links = parse_links(own)
    if span.kind == "llm":
        span.input, span.output = asked(given), stamped(answered(said), run.get("end_time"))
        span.tools = offered(extra.get("invocation_params"), given)
    elif span.kind == "tool":
        _read_tool(span, run, given, said, extra)
    elif own:  # our writer's agents
        span.kind = "agent"
    elif not span.parent_id and holds_messages(given) and holds_messages(said):
        # A graph's state sums up its LLM calls, and its outputs begin with its inputs.
        span.kind, span.input, span.output = "agent", asked(given), answered(said)
        if span.output[: len(span.input)] == span.input:
            span.output = span.output[len(span.input) :]


def _read_tool(
    span: Span, run: dict[str, Any], given: dict[str, Any], said: dict[str, Any], extra: dict[str, Any]
) -> None:
    result, call_id = tool_answer(said) if said else (None, None)
    error = text_or_none(run.get("error"))
    if result is None and error is not None:
        result = error
    span.tool_name, span.result = span.name, MISSING if result is None else result
    places = (extra, as_object(extra.get("metadata")), given)
    span.call_id = call_id or next(
        (text for place in places if (text := text_or_none(place.get("tool_call_id")))), None
    )


def _outcomes(run: dict[str, Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """Feedback as outcomes: the mean of what was scored, else the one value that was given; what our writer kept."""
    if kept := as_object(own.get("outcome")):
        return [{"label": kept.get("status"), "score": kept.get("score"), "source": kept.get("source")}]
    outcomes: list[dict[str, Any]] = []
    for key, stats in as_object(run.get("feedback_stats")).items():
        if not isinstance(stats, dict) or stats.get("n") == 0:
            continue
        mean, values = stats.get("avg"), stats.get("values")
        if mean is not None:
            outcomes.append({"score": mean, "source": f"feedback:{key}"})
        elif isinstance(values, dict) and len(values) == 1:
            outcomes.append({"label": next(iter(values)), "source": f"feedback:{key}"})
    return outcomes


def _metadata(run: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """What a run says of its session: name, tags, status and error, and what the user attached."""
    kept = {key: value for key in _KEPT if (value := run.get(key)) not in (None, "", [])}
    own = as_object(extra.get("metadata")) or as_object(run.get("metadata"))
    if isinstance(own.get("rlkit"), dict):
        return as_object(own["rlkit"].get("metadata"))
    return ({"name": run["name"]} if text_or_none(run.get("name")) else {}) | kept | own


def _start(run: dict[str, Any]) -> int | None:
    """From the dotted order, which has the most digits, else from the start time."""
    order = run.get("dotted_order")
    if isinstance(order, str):
        time = order.rpartition(".")[2].partition("Z")[0]
        if (start := nanoseconds(f"{time[:15]}.{time[15:] or 0}")) is not None:
            return start
    started = run.get("start_time")
    if isinstance(started, int | float) and not isinstance(started, bool) and 0 < started < 10**13:
        return int(started * 1_000_000)  # JavaScript's milliseconds
    return nanoseconds(started)


def _plain(message: Any, where: str, notes: Notes) -> list[Any]:
    return plain_messages(message)


DIALECT = Dialect(
    raw_spans=runs,
    ids=ids,
    read=_spans,
    plain=_plain,
    quiet=frozenset({"arguments_object", "content_parts", "timestamp_naive"}),
)
