"""Files that are either whole or absent: every write that must survive a kill goes through here."""

from __future__ import annotations

import errno
import os
from pathlib import Path


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
