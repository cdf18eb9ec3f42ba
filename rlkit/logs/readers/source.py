"""Files into records, streamed: one JSON value a line, one JSON array a file, or one pretty-printed object."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import zstandard
from tqdm.auto import tqdm

from rlkit.logs.jsontext import loads, parse
from rlkit.logs.readers.arrays import elements
from rlkit.logs.readers.opening import LogFormatError, Paths, find_files, open_log, size_in_bytes
from rlkit.logs.report import ReadReport, diagnostic

__all__ = ["LogFormatError", "Paths", "Record", "Source", "find_files"]

Line = tuple[int, bytes]
_LOOK_AT = 1 << 16


@dataclass(frozen=True, slots=True)
class Record:
    """One parsed JSON value and where it stood."""

    value: Any
    file: str
    line: int | None
    """1-based; None for an element of a JSON array."""
    root: str = ""
    """The element's path, as in `[3].`, or empty."""
    strict: bool = True
    """False where it was no strict JSON but could be read all the same."""

    @property
    def place(self) -> str:
        """`file:line`, or `file[3]`."""
        return f"{self.file}{self.root.rstrip('.')}" if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Source:
    """Files of one format, readable more than once."""

    files: list[str]
    progress: bool = False
    """Whether to show a bar while they are read."""

    def records(self, report: ReadReport | None = None) -> Iterator[Record]:
        """Every value that parses, in order; what does not is counted in `report`.

        Memory holds one line, or one element of an array, at a time; only a file that is one pretty-printed object is
        read whole. Without a `report` it is a look ahead: integers beyond 64 bits may come as floats.
        """
        exact = report is not None
        with _bar(self.files, "looking through" if report is None else "reading", self.progress) as bar:
            report = ReadReport() if report is None else report
            for name in self.files:
                report.files += 1
                try:
                    with open_log(name, bar.update) as stream:
                        yield from _records(stream, name, report, exact)
                except (EOFError, zlib.error, zstandard.ZstdError) as error:
                    report.note(diagnostic("file_cut", detail=f"The compressed file is damaged: {error}"), name)
                except OSError as error:
                    report.note(diagnostic("file_unreadable", detail=error.strerror or str(error)), name)


def _bar(files: list[str], doing: str, shown: bool) -> Any:
    total = sum(map(size_in_bytes, files)) if shown else 0
    return tqdm(desc=doing, total=total or None, unit="B", unit_scale=True, disable=not shown, leave=doing == "reading")


def _records(stream: io.BufferedReader, file: str, report: ReadReport, exact: bool) -> Iterator[Record]:
    head = stream.peek(_LOOK_AT)[:_LOOK_AT]
    if b"\0" in head[:8192]:  # UTF-8 text holds none; UTF-16 and binary files do
        report.note(diagnostic("file_binary"), file)
        return
    if head.startswith(b"\xef\xbb\xbf"):  # a byte order mark, as Windows writes it
        stream.read(3)
        head = head[3:]
    if _opens_array(head):
        yield from _array(stream, file, report)
        return
    lines = ((number, line) for number, line in enumerate(stream, 1) if not line.isspace())
    first = [line for line in (next(lines, None), next(lines, None)) if line is not None]
    if not first:
        report.note(diagnostic("file_empty"), file)
    elif _opens_object(first):
        yield from _object(first + list(lines), file, report)
    else:
        yield from _lines(chain(first, lines), file, report, exact)


def _opens_array(head: bytes) -> bool:
    """Whether the file is one JSON array of objects, rather than a line after the other that may be arrays."""
    if not re.match(rb"\s*\[\s*([{\]]|$)", head):
        return False
    first, newline, rest = head.strip().partition(b"\n")
    return not (newline and rest and _is_json(first))


def _opens_object(head: list[Line]) -> bool:
    """Whether the first lines belong to one JSON object that is pretty-printed over many."""
    return len(head) > 1 and (head[0][1].strip() == b"{" or not any(_is_json(line) for _, line in head))


def _is_json(line: bytes) -> bool:
    try:
        loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _array(stream: io.BufferedReader, file: str, report: ReadReport) -> Iterator[Record]:
    index = -1
    for index, (line, parsed) in enumerate(elements(stream)):
        report.records += 1
        root = f"[{index}]."
        if isinstance(parsed, tuple):
            yield Record(parsed[0], file, None, root, parsed[1])
        elif isinstance(parsed, RecursionError):
            report.skip(diagnostic("json_too_deep", root, line), file)
        else:
            report.skip(diagnostic("json_broken", root, line, f"Not valid JSON: {parsed}"), file)
    if index < 0:
        report.note(diagnostic("file_empty"), file)


def _object(lines: list[Line], file: str, report: ReadReport) -> Iterator[Record]:
    try:
        value = loads(b"".join(line for _, line in lines))
    except (ValueError, RecursionError):
        yield from _lines(lines, file, report)  # not one document after all: line by line loses least
        return
    report.records += 1
    yield Record(value, file, lines[0][0])


def _lines(lines: Iterable[Line], file: str, report: ReadReport, exact: bool = True) -> Iterator[Record]:
    for number, line in lines:
        report.records += 1
        try:
            value, strict = parse(line, exact)
        except ValueError as error:
            report.skip(diagnostic("json_broken", line=number, detail=f"Not valid JSON: {error}"), file)
        except RecursionError:
            report.skip(diagnostic("json_too_deep", line=number), file)
        else:
            yield Record(value, file, number, strict=strict)
