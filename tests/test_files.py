"""Whole or absent."""

from __future__ import annotations

import gzip
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlkit import files
from rlkit.files import atomic_write, partial_path, write_lines


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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("block", [1, 100, 1 << 24])
def test_lines_are_written_in_blocks_and_arrive_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int
) -> None:
    monkeypatch.setattr(files, "_BLOCK", block)
    lines = [b"%d\n" % number for number in range(1000)]
    write_lines(tmp_path / "new" / name, lines)
    assert read(tmp_path / "new" / name) == b"".join(lines)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("after", [0, 1, 10, 500])
def test_what_came_before_an_error_is_kept_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    monkeypatch.setattr(files, "_BLOCK", 64)
    (tmp_path / name).write_bytes(b"as it was")

    def lines() -> Iterator[bytes]:
        yield from (b"%d\n" % number for number in range(after))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lines(tmp_path / name, lines())
    assert (tmp_path / name).read_bytes() == b"as it was"
    part = partial_path(tmp_path / name)
    assert (read(part) if after else part.exists()) == (b"".join(b"%d\n" % n for n in range(after)) if after else False)


def test_an_interrupt_at_any_moment_leaves_whole_lines_each_once(tmp_path: Path) -> None:
    script = (
        "import itertools, sys; from rlkit import files; files._BLOCK = 4096\n"
        "try: files.write_lines(sys.argv[1], (b'%d\\n' % n for n in itertools.count()))\n"
        "except KeyboardInterrupt: pass"
    )
    for attempt in range(5):
        path = tmp_path / f"{attempt}.jsonl"
        writer = subprocess.Popen([sys.executable, "-c", script, str(path)])
        while not (partial_path(path).exists() and partial_path(path).stat().st_size > 50_000 * (attempt + 1)):
            time.sleep(0.001)
        writer.send_signal(signal.SIGINT)
        assert writer.wait() == 0
        numbers = partial_path(path).read_bytes().split(b"\n")
        assert numbers.pop() == b""
        assert list(map(int, numbers)) == list(range(len(numbers)))


def test_a_full_disk_keeps_the_lines_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK", 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_500, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as full:
            write_lines(tmp_path / "a.jsonl", (b"%09d\n" % number for number in itertools.count()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert full.value.filename == str(tmp_path / "a.jsonl")
    assert partial_path(tmp_path / "a.jsonl").read_bytes() == b"".join(b"%09d\n" % number for number in range(1000))


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
