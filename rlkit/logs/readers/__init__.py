"""Readers, one small module a format, and `read_traces`, which picks the right one.

A reader is a module with two functions: `matches(record)` says whether a parsed record looks like its format, and
`read(source, report)` yields one `Trace` after another, noting what is odd in the trace or in the report.
To add a format, write the module and name it in `READERS`.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import groupby, islice
from types import ModuleType

from rlkit.logs.readers import (
    anthropic,
    atif,
    claude_code,
    langfuse,
    langsmith,
    openai_chat,
    openhands,
    openinference,
    otel,
    responses,
    swe_agent,
    tau2,
    tau_bench,
)
from rlkit.logs.readers.source import LogFormatError, Paths, Source, find_files
from rlkit.logs.report import ReadReport, diagnostic
from rlkit.logs.trace import Trace

__all__ = ["READERS", "LogFormatError", "read_traces"]

READERS: dict[str, ModuleType] = {
    "atif": atif,
    "tau-bench": tau_bench,
    "tau2": tau2,
    "swe-agent": swe_agent,
    "openhands": openhands,
    "langfuse": langfuse,
    "langsmith": langsmith,
    "openinference": openinference,
    "claude-code": claude_code,
    "responses": responses,
    "anthropic": anthropic,
    "openai": openai_chat,
    "otel": otel,
}
"""By the name that `format=` takes; `auto` asks them in this order, so those that are choosy come first."""

_LOOK_AT = 100  # records of a file before we give up recognising it: some begin with a header or with broken lines


def read_traces(
    path: Paths, format: str = "auto", report: ReadReport | None = None, progress: bool = False
) -> Generator[Trace]:
    """Every session in the logs at `path`, one at a time: memory does not grow with the files.

    `path` is a file, a folder, a glob, an fsspec URL, or a list of them; gzip and zstd are recognised by their first
    bytes. `progress` shows a bar over the files' bytes.
    `format` is a name in `READERS`, or `auto` to recognise each file by its first readable record.
    `report` is filled while you iterate: `report = ReadReport(); traces = list(read_traces(path, report=report))`.

    Broken lines and odd messages are counted in the report and noted in `Trace.diagnostics`; traces whose causal
    order is lost are counted and held back. Raises `LogFormatError`, in one line that names the file, at once where
    the format is unknown or no file is there, and at the end where not one trace could be read.
    """
    if format != "auto" and format not in READERS:
        raise LogFormatError(f"{path}: unknown format {format!r}; use auto, {', '.join(READERS)}")
    return _read(find_files(path), format, ReadReport() if report is None else report, progress)


def _read(files: list[str], format: str, report: ReadReport, progress: bool) -> Generator[Trace]:
    before = {code: tally.count for code, tally in report.diagnostics.items()}
    read = report.traces + report.quarantined
    # Files of one format that follow each other are read as one, so that a session may span rotated files.
    for reader, group in groupby(files, lambda file: _recognise(file) if format == "auto" else READERS[format]):
        source = Source(list(group), progress)
        if reader is None:
            for record in source.records(report):
                report.skip(diagnostic("format_unknown", record.root, record.line), record.file)
            continue
        for trace in reader.read(source, report):
            if report.add(trace):
                yield trace
    if report.traces + report.quarantined == read:
        raise LogFormatError(_why_nothing(files, report, before))


def _recognise(file: str) -> ModuleType | None:
    """The reader for the first record that one recognises."""
    for record in islice(Source([file]).records(), _LOOK_AT):
        for reader in READERS.values():
            if reader.matches(record.value):
                return reader
    return None


def _why_nothing(files: list[str], report: ReadReport, before: dict[str, int]) -> str:
    new = [tally for code, tally in report.diagnostics.items() if tally.count > before.get(code, 0)]
    worst = min(new, key=lambda tally: ("error", "warning", "info").index(tally.severity), default=None)
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    return f"{where}: no trace could be read" + (f" (at {worst.first}: {worst.detail})" if worst else "")
