"""What production wrote: logs of any format into `Trace`, and back.

Reading and writing are loaded on first use, so that `import rlkit.logs` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlkit.logs.privacy import PrivacyReport, Redactor
    from rlkit.logs.readers import READERS, LogFormatError, read_traces
    from rlkit.logs.report import ReadReport
    from rlkit.logs.sessions import SessionTree, session_trees
    from rlkit.logs.trace import Diagnostic, Message, Outcome, ToolCall, Trace
    from rlkit.logs.writers import to_atif, to_openai, to_otlp, write_jsonl

_HOME = {
    "Diagnostic": "trace", "Message": "trace", "Outcome": "trace", "ToolCall": "trace", "Trace": "trace",
    "PrivacyReport": "privacy", "Redactor": "privacy",
    "LogFormatError": "readers", "READERS": "readers", "read_traces": "readers", "ReadReport": "report",
    "SessionTree": "sessions", "session_trees": "sessions",
    "to_atif": "writers", "to_openai": "writers", "to_otlp": "writers", "write_jsonl": "writers",
}  # fmt: skip

__all__ = [
    "READERS", "Diagnostic", "LogFormatError", "Message", "Outcome", "PrivacyReport", "ReadReport", "Redactor",
    "SessionTree", "ToolCall", "Trace",
    "read_traces", "session_trees", "to_atif", "to_openai", "to_otlp", "write_jsonl",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
