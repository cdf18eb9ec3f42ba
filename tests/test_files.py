"""Whole or absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlkit.files import atomic_write


def test_it_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    for text in ("one", "two"):
        atomic_write(tmp_path / "new" / "a.txt", text)
    assert (tmp_path / "new" / "a.txt").read_text() == "two"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as refused:
        atomic_write(tmp_path, "x")
    assert refused.value.filename == str(tmp_path)
    with pytest.raises(OSError, match="No space left") as full:
        atomic_write(full_disk(tmp_path), b"x" * 4096)
    assert full.value.filename == str(tmp_path / "full")


def full_disk(folder: Path) -> str:
    """A path whose writes fail: its partial file is a link to /dev/full."""
    (folder / f".full.{os.getpid()}.partial").symlink_to("/dev/full")
    return str(folder / "full")
