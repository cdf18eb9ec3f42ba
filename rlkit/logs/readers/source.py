"""Files into records: plain, gzip or zstd, one JSON value a line or one JSON document a file, streamed."""

from __future__ import annotations

import glob
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from rlkit.logs.jsontext import loads, parse
from rlkit.logs.report import ReadReport, diagnostic

Paths = str | Path | list[str] | list[Path] | list[str | Path]
Line = tuple[int, bytes]


class LogFormatError(ValueError):
    """Nothing could be read: an unknown format, no file, or no trace in any of the files."""


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

    files: list[Path]

    def records(self, report: ReadReport | None = None) -> Iterator[Record]:
        """Every value that parses, in order; what does not is counted in `report`.

        Memory holds one line at a time; only a file that is a single JSON document is read whole.
        """
        report = ReadReport() if report is None else report
        for path in self.files:
            report.files += 1
            try:
                with _open(path) as stream:
                    yield from _records(stream, str(path), report)
            except (EOFError, zlib.error, zstandard.ZstdError) as error:
                report.note(diagnostic("file_cut", detail=f"The compressed file is damaged: {error}"), str(path))
            except OSError as error:
                report.note(diagnostic("file_unreadable", detail=error.strerror or str(error)), str(path))


def find_files(paths: Paths) -> list[Path]:
    """The files that `paths` names: a file, a folder (all its files, hidden ones left out), a glob, or a list.

    Raises `LogFormatError` where one of them names nothing.
    """
    found: list[Path] = []
    for item in paths if isinstance(paths, list) else [paths]:
        path = Path(item)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            files = [p for p in inside if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        elif path.is_file():
            files = [path]
        elif path.exists():  # every reader looks at a file more than once
            raise LogFormatError(f"{item}: is a pipe or a device; write it to a file first")
        else:
            files = sorted(p for p in map(Path, glob.glob(str(item), recursive=True)) if p.is_file())
        if not files:
            raise LogFormatError(f"{item}: {'the folder holds no file' if path.is_dir() else 'no such file'}")
        found += files
    if not found:
        raise LogFormatError("no log file was named")
    return found


@contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    """The file's bytes, decompressed where its first bytes say so (names are not trusted)."""
    with open(path, "rb") as file:
        magic = file.peek(4)[:4]
        if magic[:2] == b"\x1f\x8b":
            yield io.BufferedReader(_Decompressed(file, lambda: zlib.decompressobj(wbits=31)), 1 << 18)
        elif magic == b"\x28\xb5\x2f\xfd":
            yield io.BufferedReader(_Decompressed(file, zstandard.ZstdDecompressor().decompressobj), 1 << 18)
        else:
            yield file


class _Decompressed(io.RawIOBase):
    """A compressed file's content, to the last byte that can be had: then EOFError where the file was cut.

    (gzip's own reader drops up to a buffer of good data before it raises; zstandard's ends silently.)
    """

    def __init__(self, file: BinaryIO, make: Callable[[], Any]) -> None:
        self.file, self.make = file, make
        self.member: Any = None  # a file may hold several, one after the other
        self.rest = self.ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            data = self.rest or self.file.read(1 << 16)
            self.rest = b""
            if self.member is None or self.member.eof:
                data = data.lstrip(b"\0")  # padding between members
                if not data:
                    return 0
                self.member = self.make()
            if not data:
                raise EOFError("it ends early")
            self.ready = self.member.decompress(data)
            self.rest = self.member.unused_data if self.member.eof else b""
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count


def _records(stream: io.BufferedReader, file: str, report: ReadReport) -> Iterator[Record]:
    if b"\0" in stream.peek(8192)[:8192]:  # UTF-8 text holds none; UTF-16 and binary files do
        report.note(diagnostic("file_binary"), file)
        return
    if stream.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark, as Windows writes it
        stream.read(3)
    lines = ((number, line) for number, line in enumerate(stream, 1) if not line.isspace())
    head = [line for line in (next(lines, None), next(lines, None)) if line is not None]
    if not head:
        report.note(diagnostic("file_empty"), file)
    elif _opens_document(head):
        yield from _document(head + list(lines), file, report)
    else:
        yield from _parse(chain(head, lines), file, report)


def _opens_document(head: list[Line]) -> bool:
    """Whether the first lines belong to one JSON document: an array, or pretty-printed over many lines."""
    first = head[0][1].strip()
    if len(head) == 1:
        return first.startswith(b"[")
    return first in (b"[", b"{") or not any(_is_json(line) for _, line in head)


def _is_json(line: bytes) -> bool:
    try:
        loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _document(lines: list[Line], file: str, report: ReadReport) -> Iterator[Record]:
    try:
        value = loads(b"".join(line for _, line in lines))
    except (ValueError, RecursionError):
        yield from _parse(lines, file, report)  # not one document after all: line by line loses least
        return
    if not isinstance(value, list):
        report.records += 1
        yield Record(value, file, lines[0][0])
        return
    for index, element in enumerate(value):
        report.records += 1
        yield Record(element, file, None, f"[{index}].")
    if not value:
        report.note(diagnostic("file_empty"), file)


def _parse(lines: Iterable[Line], file: str, report: ReadReport) -> Iterator[Record]:
    for number, line in lines:
        report.records += 1
        try:
            value, strict = parse(line)
        except ValueError as error:
            report.skip(diagnostic("json_broken", line=number, detail=f"Not valid JSON: {error}"), file)
        except RecursionError:
            report.skip(diagnostic("json_too_deep", line=number), file)
        else:
            yield Record(value, file, number, strict=strict)
