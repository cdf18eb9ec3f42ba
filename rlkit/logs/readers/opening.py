"""Log files wherever they lie: on this disk or behind an fsspec URL, plain, gzip or zstd."""

from __future__ import annotations

import glob
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

Paths = str | Path | list[str] | list[Path] | list[str | Path]
_BUFFER = 1 << 18


class LogFormatError(ValueError):
    """Nothing could be read: an unknown format, no file, or no trace in any of the files."""


def find_files(paths: Paths) -> list[str]:
    """The files that `paths` names: a file, a folder (all its files, hidden ones left out), a glob, or a list.

    A URL (`s3://bucket/logs/*.jsonl.gz`) is looked up by fsspec, whose package for it must be installed.
    Raises `LogFormatError` where one of them names nothing.
    """
    found: list[str] = []
    for item in paths if isinstance(paths, list) else [paths]:
        found += _find_remote(item) if isinstance(item, str) and "://" in item else _find_local(item)
    if not found:
        raise LogFormatError("no log file was named")
    return found


def _find_local(item: str | Path) -> list[str]:
    path = Path(item)
    if path.is_dir():
        files = [str(p) for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path).parts)]
    elif path.is_file():
        files = [str(item)]
    elif path.exists():  # every reader looks at a file more than once
        raise LogFormatError(f"{item}: is a pipe or a device; write it to a file first")
    else:
        files = sorted(name for name in glob.glob(str(item), recursive=True) if Path(name).is_file())
    if not files:
        raise LogFormatError(f"{item}: {'the folder holds no file' if path.is_dir() else 'no such file'}")
    return files


def _find_remote(url: str) -> list[str]:
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        if system.isdir(path):
            names = [name for name in system.find(path) if not _hidden(name[len(path) :].split("/"))]
        else:
            names = [name for name in system.glob(path) if not system.isdir(name)]
    except (ImportError, ValueError, OSError) as error:
        raise LogFormatError(f"{url}: {error}") from None
    if not names:
        raise LogFormatError(f"{url}: no such file")
    return [system.unstrip_protocol(name) for name in sorted(names)]


def _hidden(parts: Any) -> bool:
    return any(part.startswith(".") for part in parts)


def size_in_bytes(name: str) -> int:
    """As it lies there, compressed or not; 0 where that can't be told."""
    try:
        if "://" not in name:
            return Path(name).stat().st_size
        import fsspec

        system, path = fsspec.core.url_to_fs(name)
        return system.size(path) or 0
    except OSError:
        return 0


@contextmanager
def open_log(name: str, on_read: Callable[[int], object] | None = None) -> Iterator[io.BufferedReader]:
    """The file's bytes, decompressed where its first bytes say so (names are not trusted).

    `on_read` is told how many bytes of the file were read, each time. Raises `OSError` where it can't be opened; a
    damaged compressed file raises while it is read.
    """
    with _buffered(_Watched(_open(name), on_read)) as file:
        magic = file.peek(4)[:4]
        if magic[:2] == b"\x1f\x8b":
            yield _buffered(_Decompressed(file, lambda: zlib.decompressobj(wbits=31)))
        elif magic == b"\x28\xb5\x2f\xfd":
            yield _buffered(_Decompressed(file, zstandard.ZstdDecompressor().decompressobj))
        else:
            yield file


def _buffered(file: io.RawIOBase) -> io.BufferedReader:
    return cast(io.BufferedReader, io.BufferedReader(file, _BUFFER))  # typeshed wants to know of what


def _open(name: str) -> io.RawIOBase:
    if "://" not in name:
        return io.FileIO(name)
    import fsspec

    return cast(io.RawIOBase, fsspec.open(name, "rb").open())


class _Watched(io.RawIOBase):
    """A file that says how much of it was read."""

    def __init__(self, file: io.RawIOBase, on_read: Callable[[int], object] | None) -> None:
        self.file, self.on_read = file, on_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self.file.readinto(buffer)
        if self.on_read is not None and count:
            self.on_read(count)
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


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
