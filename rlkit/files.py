"""Files that are either whole or absent: every write that must survive a kill goes through here."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path

_BLOCK = 1 << 24  # bytes of lines that are written, and compressed, at a time


def flush(path: str | Path) -> None:
    """Make the disk hold what a file or a folder holds now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: str | Path, data: str | bytes) -> None:
    """Write `data` beside `path`, flush it to disk, then rename over `path`.

    Raises `OSError` naming `path` (a full disk, say) with the old file untouched and the partial one removed.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def partial_path(path: str | Path) -> Path:
    """Where `write_lines` keeps what it has so far."""
    return Path(f"{path}.part")


def write_lines(path: str | Path, lines: Iterable[bytes]) -> None:
    """Write `lines`, which bring their newlines, as they come; gzipped where the name ends in `.gz`.

    `path` is replaced when all of them are on disk. Whatever stops it before (Ctrl-C, a full disk, an error of the
    iterable), the lines so far, each of them whole, stay in `partial_path(path)`; no file where there were none. The
    same lines give the same bytes. Raises `OSError` naming `path`.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, zipped = partial_path(path), path.suffix == ".gz"
    block, size, whole = list[bytes](), 0, 0
    with open(partial, "wb", buffering=0) as file:
        try:
            try:
                for line in lines:
                    block.append(line)
                    size += len(line)
                    if size >= _BLOCK:
                        # Nothing comes between the two: an interrupt finds the block in the file or in memory.
                        whole, size, block = whole + _write(file, block, zipped), 0, []
            finally:
                file.seek(file.truncate(whole))
                whole += _write(file, block, zipped)
                os.fsync(file.fileno())
        except BaseException as error:
            file.truncate(whole)
            if not whole:
                partial.unlink()
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
    os.replace(partial, path)


def _write(file: RawIOBase, lines: list[bytes], zipped: bool) -> int:
    """The number of bytes written: all of them, as a gzip member of their own where `zipped`."""
    data = b"".join(lines)
    rest = memoryview(gzip.compress(data, mtime=0) if zipped and data else data)
    count = len(rest)
    while rest:
        rest = rest[file.write(rest) :]
    return count
