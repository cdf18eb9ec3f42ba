"""Every reader opens a file more than once, so what can be read only once is refused, not half read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlkit.logs.readers import LogFormatError, read_traces


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogFormatError, match="is a pipe or a device"):
        list(read_traces(tmp_path / "pipe"))
