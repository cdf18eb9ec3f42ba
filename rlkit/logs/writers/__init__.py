"""Traces as records of a format, one small module each, and records as a file; readers read them back.

A writer is a module with `session_records(traces)`: all traces of one session, the main one first, as that format's
records.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlkit.files import write_lines
from rlkit.logs.jsontext import dump_line
from rlkit.logs.writers import (
    anthropic,
    atif,
    claude_code,
    langfuse,
    langsmith,
    openai,
    openhands,
    openinference,
    otlp,
    responses,
    swe_agent,
    tau2,
    tau_bench,
)
from rlkit.logs.writers.atif import to_atif
from rlkit.logs.writers.openai import to_openai
from rlkit.logs.writers.otlp import to_otlp

__all__ = ["WRITERS", "to_atif", "to_openai", "to_otlp", "write_jsonl"]

WRITERS: dict[str, ModuleType] = {
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
    "openai": openai,
    "otel": otlp,
}
"""By the name of the format, as in `rlkit.logs.readers.READERS`."""


def write_jsonl(records: Iterable[dict[str, Any]], path: str | Path) -> None:
    """Write one record a line, as they come; gzipped where the name ends in `.gz`.

    Where it is stopped, `path` stays what it was and the lines so far are in `path.part`: see `files.write_lines`.
    """
    write_lines(path, map(dump_line, records))
