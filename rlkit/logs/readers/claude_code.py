"""Claude Code transcripts: `~/.claude/projects/<project>/<session>.jsonl`, and the sub-agents' files below it.

Lines are grouped by `sessionId`, wherever in the files they stand, and joined by `parentUuid`: see `claude_code_tree`.
Every way from a beginning to an end is a trace: the one that ends last is the session, the others are forks (dead ends,
and what was before a compaction), conversations of sub-agents apart. Lines without a message (summaries, titles,
snapshots, progress, `system`) are in `Trace.raw`, titles and compactions in `Trace.metadata` too; the system prompt and
the tools offered are not in such files.

The format is not documented by its maker. Sources: docs/formats/claude-code.md of skillsynchq/txcript,
docs/claude-code-sessions.md of elidickinson/cc-session-io, and the issues anthropics/claude-code#40363, #48936, #22526,
cfal/garcon#441, daaain/claude-code-log#259.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from rlkit.logs.jsontext import dumps, loads
from rlkit.logs.readers.claude_code_session import build_traces
from rlkit.logs.readers.opening import open_log
from rlkit.logs.readers.source import Record, Source
from rlkit.logs.report import CODES, ReadReport, diagnostic
from rlkit.logs.trace import Trace

_SIGNS = frozenset({"operation", "customTitle", "aiTitle", "lastPrompt", "permissionMode", "mode", "agentName"})
_KEY = b'"sessionId"'
_NAME = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)+")')
_META_FILE = re.compile(r"agent-(.+)\.meta\.json(\.gz|\.zst)?")
_META_ENDS = (".meta.json", ".meta.json.gz", ".meta.json.zst")


def matches(record: Any) -> bool:
    """Whether a record looks like one of this format."""
    if not isinstance(record, dict) or "messages" in record:
        return False
    kind = record.get("type")
    if not isinstance(kind, str):
        return kind is None and isinstance(record.get("agentType"), str) and isinstance(record.get("toolUseId"), str)
    if isinstance(record.get("sessionId"), str):
        return "uuid" in record or "leafUuid" in record or not record.keys().isdisjoint(_SIGNS)
    return "leafUuid" in record if kind == "summary" else kind == "file-history-snapshot" and "snapshot" in record


def read(source: Source, report: ReadReport) -> Iterator[Trace]:
    """The traces of a session, the main one first, as soon as the last line that names it was read.

    Reads the files twice: first, without parsing them, for where each session is named last, so that only open ones
    are in memory (and, in a file that is a JSON array or names none, those of the file).
    """
    last = _last_named(source)
    numbers = {file: number for number, file in enumerate(source.files)}
    sessions: dict[str, list[Record]] = {}
    waiting: list[Record] = []  # lines of the file that come before the first that names a session
    file, current = "", ""
    for record in source.records(report):
        if not isinstance(record.value, dict):
            report.skip(diagnostic("record_not_object", record.root, record.line), record.file)
            continue
        here = (numbers.get(record.file, 0), record.line or 0)
        if record.file != file:
            if waiting:
                sessions.setdefault(_name(file), []).extend(waiting)
                waiting = []
            for key in [key for key in sessions if last.get(key, here) < (here[0], 0)]:
                yield from _close(key, sessions.pop(key), report)
            file, current = record.file, ""
        current = _session_id(record) or current
        if current not in sessions and _session_id(record) is None:
            waiting.append(record)
            continue
        sessions.setdefault(current, []).extend([*waiting, record])
        waiting = []
        if last.get(current) == here:
            yield from _close(current, sessions.pop(current), report)
    if waiting:
        sessions.setdefault(_name(file), []).extend(waiting)
    for key, records in sessions.items():
        yield from _close(key, records, report)


def _last_named(source: Source) -> dict[str, tuple[int, int]]:
    """By session: the number of the file and the line where it is named last, by whatever line."""
    places: dict[bytes, tuple[int, int]] = {}
    for number, file in enumerate(source.files):
        named = [dumps(folder).encode()] if (folder := _folder(file)) else list[bytes]()
        try:
            with open_log(file) as stream:
                for line, text in enumerate(stream, 1):
                    named = _names(text) or named  # a line that names none goes with the one before it
                    for name in named:
                        places[name] = number, line
        except (OSError, EOFError, zlib.error, zstandard.ZstdError):
            continue  # counted when the file is read
    last: dict[str, tuple[int, int]] = {}
    for name, place in places.items():
        with suppress(ValueError):  # broken JSON, and so is the line
            written = loads(name)
            last[written] = max(place, last.get(written, place))
    return last


def _names(line: bytes) -> list[bytes]:
    """The sessions that a line names, at any depth, as JSON."""
    names = []
    at = line.find(_KEY)
    while at >= 0:
        at += len(_KEY)
        if found := _NAME.match(line, at):
            names.append(found[1])
        at = line.find(_KEY, at)
    return names


def _session_id(record: Record) -> str | None:
    """The session that a line names, or the folder of a file that names none."""
    named = record.value.get("sessionId")
    return named if isinstance(named, str) and named else _folder(record.file)


def _folder(file: str) -> str | None:
    """The session in whose folder a sub-agent's `.meta.json` lies."""
    if not file.endswith(_META_ENDS):
        return None
    path = Path(file)
    return path.parent.parent.name if path.parent.name == "subagents" and _META_FILE.fullmatch(path.name) else None


def _name(file: str) -> str:
    return Path(file).name.partition(".")[0] or file


def _close(key: str, records: list[Record], report: ReadReport) -> Iterator[Trace]:
    """Build a session's traces; where there are none, count its lines as skipped."""
    first = records[0]
    try:
        traces = build_traces(key, records, {agent: call for record in records for agent, call in _started(record)})
    except RecursionError:
        report.note(diagnostic("json_too_deep", first.root, first.line), first.file)
        traces = []
    if not traces:
        for record in records:
            why = diagnostic("no_messages", record.root, record.line, CODES["no_messages"][1])
            report.skip(why, record.file)
    yield from traces


def _started(record: Record) -> Iterator[tuple[str, str]]:
    """From a sub-agent's `.meta.json`: its id and the tool call that started it."""
    call = record.value.get("toolUseId")
    if isinstance(call, str) and (found := _META_FILE.fullmatch(Path(record.file).name)):
        yield found[1], call
