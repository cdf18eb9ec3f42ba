"""What came in and what was odd: the codes a reader may raise, and `ReadReport`, which counts them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rlkit.logs.trace import Diagnostic, Severity, Trace

CODES: dict[str, tuple[Severity, str]] = {
    # files and lines
    "file_unreadable": ("error", "The file can't be opened."),
    "file_binary": ("error", "The file is not UTF-8 text."),
    "file_empty": ("warning", "The file holds no record."),
    "file_cut": ("error", "The compressed file ends early or is damaged; what came before was read."),
    "format_unknown": ("error", "No reader recognises this record."),
    "json_broken": ("error", "The line is not valid JSON."),
    "json_too_deep": ("error", "The record is nested too deep to be a log."),
    "record_not_object": ("error", "The record is not a JSON object."),
    "no_messages": ("error", "The record holds no message that could be read."),
    "id_missing": ("info", "The record has no id; one was made of its file and line."),
    "json_not_strict": ("warning", "Half a character, a byte that is not UTF-8, or NaN; kept as it is."),
    "metadata_wrong_type": ("warning", "`metadata` is not an object; left in the raw record."),
    "tool_definition_unreadable": ("warning", "A tool offered is not a function schema; left in the raw record."),
    "outcome_unreadable": ("warning", "The outcome is not one we understand, so it stays unknown."),
    "evaluations_several": ("info", "Several evaluations; the last one was taken as the outcome."),
    # messages
    "message_not_object": ("error", "The message is not a JSON object; left out."),
    "role_unknown": ("error", "The message's role is not one we know; left out."),
    "role_developer": ("info", "Role `developer` was read as `system`."),
    "role_function": ("info", "Legacy role `function` was read as `tool`."),
    "content_null": ("warning", "The message has neither text nor a tool call."),
    "content_parts": ("info", "The content came in parts; their text was joined."),
    "content_part_skipped": ("warning", "A part that is not text was kept in `Message.extra`."),
    "content_wrong_type": ("warning", "The content is not text; kept as JSON."),
    "refusal": ("info", "The model refused; the refusal is the message's text."),
    "name_wrong_type": ("warning", "The message's name is not text; left out."),
    "timestamp_naive": ("info", "The time has no zone; taken as UTC."),
    "timestamp_unreadable": ("warning", "The time can't be read; left in the raw record."),
    # tool calls and results
    "function_call_legacy": ("info", "Legacy `function_call` was read as a tool call."),
    "tool_calls_wrong_type": ("error", "`tool_calls` is not a list of objects; left out."),
    "tool_calls_wrong_role": ("warning", "A message that is not the assistant's calls a tool; kept."),
    "tool_name_missing": ("error", "The call names no tool; kept with an empty name."),
    "tool_call_id_missing": ("warning", "The call has no id; one was made of its position."),
    "tool_call_id_duplicate": ("warning", "The call repeats an earlier id; it got one of its own."),
    "tool_result_id_missing": ("warning", "The result does not say which call it answers; it got the first open one."),
    "tool_result_repeated": ("warning", "The call was answered before."),
    "tool_result_orphan": ("warning", "The result answers no call we have seen."),
    "result_before_call": ("error", "The result stands before its call, so the causal order is lost."),
    "arguments_object": ("info", "The arguments came as an object instead of text."),
    "arguments_double_encoded": ("warning", "The arguments were encoded as JSON twice."),
    "arguments_not_json": ("warning", "The arguments are not valid JSON; kept as text."),
    "arguments_not_object": ("warning", "The arguments are JSON but no object; kept as text."),
    "arguments_null": ("warning", "The call has no arguments."),
    # spans
    "span_unreadable": ("error", "The span is not an object, or its attributes are no list; left out."),
    "span_attribute_unreadable": ("warning", "An attribute is not what its name promises; left in the raw span."),
    "spans_without_messages": (
        "warning",
        "A conversation's spans hold no messages (capturing content is off by default in OpenTelemetry).",
    ),
    "span_trace_missing": ("warning", "The span belongs to no trace; grouped with its record."),
    "span_repeated": ("info", "The span was exported twice; read once."),
    "span_time_unreadable": ("warning", "The span's start time is unreadable; ordered by length instead."),
    "span_branch": ("info", "The span continues no earlier one; it became a trace of its own."),
    "span_tool_result": ("info", "The result was in no message; taken from the tool's own span."),
    "span_tool_unmatched": ("warning", "A tool's span answers no call we have seen."),
    "order_unknown": ("error", "The spans' order can't be rebuilt."),
    # Langfuse
    "span_content_missing": ("warning", "The log left out what an LLM call was asked or what it answered."),
    # Claude Code
    "line_repeated": ("info", "The line was written twice; read once."),
    "parent_missing": ("warning", "The line before this one is not in the log; a conversation begins here."),
    "parent_cycle": ("warning", "The line stands before itself; a conversation begins here."),
    "history_compacted": ("info", "The product replaced what came before by a summary."),
    # ATIF
    "atif_changed": ("warning", "The record is ours, but changed since or of another version; read like anyone's."),
    # tau-bench, tau2, SWE-agent, OpenHands
    "id_repeated": ("info", "The id was used before; the session got one of its own."),
    "observation_restored": ("info", "The history left out an old observation; taken from the trajectory."),
    "history_continued": ("info", "The history ends before the trajectory; its last steps were read from there."),
    "observation_elided": ("warning", "The history left out an old observation, and the trajectory does not have it."),
    "event_unknown": ("warning", "An event that is neither an action nor an observation; left in the raw record."),
    # OpenAI Responses
    "item_kept_aside": ("warning", "An item that is no message, call or result was kept in `Message.extra`."),
    "beginning_missing": ("warning", "The response before this one is not in the log; the beginning is cut."),
}
"""Every code a reader may use: how bad it is, and what it means."""

QUARANTINE = frozenset({"result_before_call", "order_unknown"})
"""A trace with one of these is counted and held back: what caused what can't be told any more."""


class Notes(list[Diagnostic]):
    """The diagnostics of one record, each stamped with the record's line; `quiet` codes are normal in its format."""

    def __init__(self, line: int | None = None, root: str = "", quiet: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.line, self.root, self.quiet = line, root, quiet

    def add(self, code: str, path: str = "", detail: str = "", line: int | None = None) -> None:
        """Note `code` (one of `CODES`) at `path` inside the record."""
        if code not in self.quiet:
            self.append(diagnostic(code, self.root + path, line or self.line, detail))


def diagnostic(code: str, path: str = "", line: int | None = None, detail: str = "") -> Diagnostic:
    """A `Diagnostic` with the severity of `code`, and its sentence where there is nothing better to say."""
    severity, sentence = CODES[code]
    return Diagnostic(code=code, severity=severity, path=path, line=line, detail=detail or sentence)


@dataclass
class Tally:
    """How often a code was noted, and where first."""

    severity: Severity
    count: int
    first: str
    detail: str


@dataclass
class ReadReport:
    """Counts what `read_traces` saw. `print(report)` shows a table.

    A record is a line (or an element of a JSON array). `records == used + skipped` always; with one session a
    record (OpenAI chat) `used == traces + quarantined` too.
    """

    files: int = 0
    records: int = 0
    skipped: int = 0
    """Records of which nothing was kept."""
    traces: int = 0
    messages: int = 0
    quarantined: int = 0
    """Traces held back because their causal order can't be rebuilt."""
    diagnostics: dict[str, Tally] = field(default_factory=dict)
    """By code."""

    @property
    def used(self) -> int:
        """Records of which something was kept."""
        return self.records - self.skipped

    def note(self, item: Diagnostic, file: str) -> None:
        """Count one diagnostic of `file`."""
        tally = self.diagnostics.get(item.code)
        if tally is not None:
            tally.count += 1
            return
        place = file if item.line is None else f"{file}:{item.line}"
        self.diagnostics[item.code] = Tally(item.severity, 1, f"{place} {item.path}".rstrip(), item.detail)

    def skip(self, item: Diagnostic, file: str) -> None:
        """Count a record of which nothing was kept, and why."""
        self.skipped += 1
        self.note(item, file)

    def add(self, trace: Trace) -> bool:
        """Count one trace; False where it must be held back."""
        if trace.diagnostics:
            file = re.sub(r":\d+$|\[\d+\]$", "", trace.source)
            for item in trace.diagnostics:
                self.note(item, file)
            if any(item.code in QUARANTINE for item in trace.diagnostics):
                self.quarantined += 1
                return False
        self.traces += 1
        self.messages += len(trace.messages)
        return True

    def worst_first(self) -> list[tuple[str, Tally]]:
        """The codes noted: errors before warnings before the rest, and the frequent before the rare."""
        order = {"error": 0, "warning": 1, "info": 2}
        return sorted(self.diagnostics.items(), key=lambda row: (order[row[1].severity], -row[1].count, row[0]))

    def __str__(self) -> str:
        counts = [
            (name, str(getattr(self, name)))
            for name in ("files", "records", "skipped", "traces", "messages", "quarantined")
        ]
        width = max(len(value) for _, value in counts)
        lines = [f"{name:<12} {value:>{width}}" for name, value in counts]
        if not self.diagnostics:
            return "\n".join(lines)
        rows = self.worst_first()
        code_width = max(len("code"), *(len(code) for code, _ in rows))
        lines += ["", f"{'code':<{code_width}}  severity   count  first"]
        lines += [f"{code:<{code_width}}  {t.severity:<8} {t.count:>7}  {t.first}" for code, t in rows]
        return "\n".join(lines)
