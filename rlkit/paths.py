"""Where the course's own files lie: beside the package in a clone, or where two environment variables say."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def data_dir() -> Path:
    """The folder `data/` of the clone, or `$RLKIT_DATA`; whether it exists is for `data_path` to say."""
    return Path(os.environ.get("RLKIT_DATA") or _ROOT / "data")


def notebooks_dir() -> Path:
    """The folder `notebooks/` of the clone, or `$RLKIT_NOTEBOOKS`."""
    return Path(os.environ.get("RLKIT_NOTEBOOKS") or _ROOT / "notebooks")


def data_path(name: str) -> Path:
    """A file or folder that rlkit ships, as in `data_path("logs")`.

    Raises `FileNotFoundError`, in one line that says what to set, where it is absent: the data come with a clone
    of the repository, not with the installed package.
    """
    path = data_dir() / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such data; set RLKIT_DATA to the folder data/ of a clone of rlkit")
    return path
