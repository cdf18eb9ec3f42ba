"""What people said of sessions: labels from a file, by trace id."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WORDS = dict.fromkeys(("true", "1", "pass", "success"), True) | dict.fromkeys(("false", "0", "fail", "failure"), False)


def read_labels(path: str | Path) -> dict[str, bool]:
    """What people said of sessions, trace id → success: CSV with a header that has `trace_id` and `label`, or JSONL.

    Labels are true/false, 1/0, pass/fail or success/failure in any case; other columns are left alone. The same label
    twice is fine. Raises `ValueError` naming file, line and field for anything else, contradictions included.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    labels: dict[str, bool] = {}
    rows = _json_rows(text, path) if text.lstrip()[:1] == "{" else _csv_rows(text, path)
    for line, row in rows:
        trace_id, said = row.get("trace_id"), row.get("label")
        if not isinstance(trace_id, str) or not trace_id:
            raise ValueError(f"{path}:{line}: trace_id: expected a text that is not empty, found {trace_id!r}")
        label = _WORDS.get(str(said).strip().casefold()) if isinstance(said, str | bool | int) else None
        if label is None:
            raise ValueError(f"{path}:{line}: label: expected one of {', '.join(_WORDS)}, found {said!r}")
        if labels.setdefault(trace_id, label) != label:
            raise ValueError(f"{path}:{line}: label: {trace_id!r} was labelled {labels[trace_id]} before")
    return labels


def _json_rows(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}:{number}: expected an object with trace_id and label")
            yield number, row


def _csv_rows(text: str, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        if missing := {"trace_id", "label"}.difference(reader.fieldnames or ()):
            raise ValueError(f"{path}:1: no column {', '.join(sorted(missing))} in the header")
        for row in reader:
            yield reader.reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.reader.line_num}: not CSV: {error}") from None
