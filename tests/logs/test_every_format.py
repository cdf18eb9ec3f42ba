"""What holds for every format that is written: it is recognised, read back, wherever it lies and whatever broke it."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import rlkit
from rlkit.examples.support.branching import branching_sessions
from rlkit.logs import Message, ReadReport, Trace, read_traces, write_jsonl
from rlkit.logs.jsontext import dump_line, dumps
from rlkit.logs.readers import READERS
from rlkit.logs.readers.source import Source
from rlkit.logs.writers import WRITERS

FORMATS = sorted(WRITERS)
SESSIONS = list(branching_sessions(12, seed=1))
LINKS = "parent_id", "relation", "parent_call_id"


def lines(format: str, sessions: Sequence[Sequence[Trace]]) -> list[bytes]:
    return [dump_line(record) for session in sessions for record in WRITERS[format].session_records(session)]


def whole(trace: Trace) -> dict[str, Any]:
    """All of a trace but where it stood, its raw record and what was odd."""
    return {name: getattr(trace, name) for name in Trace.model_fields if name not in ("source", "raw", "diagnostics")}


def by_id(traces: Sequence[Trace]) -> dict[str, dict[str, Any]]:
    assert len({trace.id for trace in traces}) == len(traces)
    return {trace.id: whole(trace) for trace in traces}


def test_every_reader_has_a_writer_and_the_other_way_round() -> None:
    assert READERS.keys() == WRITERS.keys()


@pytest.mark.parametrize("format", FORMATS)
def test_sessions_that_branch_come_back_as_they_were(format: str, tmp_path: Path) -> None:
    before = copy.deepcopy(SESSIONS)
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines(format, SESSIONS)))
    report = ReadReport()
    back = list(read_traces(tmp_path / "log.jsonl", report=report))
    assert by_id(back) == by_id([trace for session in SESSIONS for trace in session])
    assert before == SESSIONS
    assert (report.skipped, report.quarantined) == (0, 0)
    assert all(trace.raw is not None and trace.source.startswith(str(tmp_path)) for trace in back)


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_recognised_by_its_own_reader(format: str, tmp_path: Path) -> None:
    for number, session in enumerate(SESSIONS):
        records = [json.loads(line) for line in lines(format, [session])]
        claimed = [next((name for name, reader in READERS.items() if reader.matches(r)), None) for r in records]
        assert format in claimed, (number, claimed)
        assert set(claimed) <= {format, None}


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_read_packed_in_a_folder_and_behind_a_url(format: str, tmp_path: Path) -> None:
    files = {"a.jsonl.gz": gzip.compress, "b": bytes, "sub/c.zst": zstandard.ZstdCompressor().compress}
    for (name, pack), session in zip(files.items(), SESSIONS, strict=False):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(pack(b"".join(lines(format, [session]))))
    expected = by_id([trace for session in SESSIONS[:3] for trace in session])
    assert by_id(list(read_traces(tmp_path))) == expected
    memory = fsspec.filesystem("memory")
    for name in files:
        memory.pipe(f"/{tmp_path.name}/{name}", (tmp_path / name).read_bytes())
    assert by_id(list(read_traces(f"memory://{tmp_path.name}"))) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_reading_changes_no_record(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    records = Source.records

    def watched(source: Source, report: ReadReport | None = None) -> Any:
        for record in records(source, report):
            seen.append(record.value)
            yield record

    data = lines(format, SESSIONS)
    (tmp_path / "log.jsonl").write_bytes(b"".join(data))
    monkeypatch.setattr(Source, "records", watched)
    list(read_traces(tmp_path / "log.jsonl", format))
    assert len(seen) >= len(data)
    assert [dump_line(value) for value in seen[-len(data) :]] == data


@pytest.mark.parametrize("format", FORMATS)
def test_the_course_s_logs_are_the_same_in_every_format(format: str) -> None:
    files = [rlkit.data_path(f"logs/support-2026-07.{name}.jsonl.gz") for name in ("openai", format)]
    one, other = (by_id(list(read_traces(file))) for file in files)
    assert one == other
    assert len(one) > 150


# --- damage -----------------------------------------------------------------------------------------------------------

ODD = [{"role": "user"}, {"stringValue": 3}, {"kvlistValue": []}, [{"role": "user"}], {}, [], [None], [[]], {"": {}}]
JUNK = st.sampled_from([None, True, 0, -1, 1.5, 10**25, "", "x", "null", "{", "[]", "\ud83d", *ODD]).map(copy.deepcopy)
GOOD = Trace(id="the good one", messages=[Message("user", "hi"), Message("assistant", "ho")])


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """The path of every node below the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from nodes(item, (*path, key))


def change(draw: Any, value: Any) -> None:
    """Delete, replace, double, wrap or swap one node; now and then inside the JSON that a text holds."""
    paths = list(nodes(value))
    if not paths:
        return
    *above, key = draw(st.sampled_from(paths))
    parent = value
    for step in above:
        parent = parent[step]
    item = parent[key]
    if isinstance(item, str) and item[:1] in ("[", "{") and draw(st.booleans()):
        try:
            inner = json.loads(item)
        except ValueError:
            inner = [item]
        change(draw, inner)
        parent[key] = dumps(inner)
        return
    how = draw(st.sampled_from(["delete", "replace", "double", "wrap", "swap"]))
    if how == "delete":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(item))
    elif how == "swap":
        other = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
        parent[key], parent[other] = parent[other], item
    else:
        parent[key] = {"x": item} if how == "wrap" else draw(JUNK)


@st.composite
def damaged(draw: Any, format: str) -> list[bytes]:
    """The lines of a session with up to four nodes changed; lines lost, repeated, out of order, and perhaps one cut."""
    records = copy.deepcopy([json.loads(line) for line in lines(format, [draw(st.sampled_from(SESSIONS))])])
    for _ in range(draw(st.integers(0, 4))):
        change(draw, draw(st.sampled_from(records)))
    written = [dump_line(record) for record in records]
    how = draw(st.sampled_from(["as it was", "lost", "repeated", "shuffled", "cut"]))
    if how == "lost" and len(written) > 1:
        del written[draw(st.integers(0, len(written) - 1))]
    elif how == "repeated":
        written.append(draw(st.sampled_from(written)))
    elif how == "shuffled":
        written = draw(st.permutations(written))
    elif how == "cut":
        written[-1] = written[-1][: draw(st.integers(1, len(written[-1]) - 1))].rstrip(b"\n") + b"\n"
    return written


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_nothing_is_raised_and_every_line_is_accounted_for(format: str, data: st.DataObject) -> None:
    written = data.draw(damaged(format))
    good = lines(format, [[GOOD]])
    written = good + written if data.draw(st.booleans()) else written + good
    with TemporaryDirectory() as folder:
        Path(folder, "log.jsonl").write_bytes(b"".join(written))
        report = ReadReport()
        read = list(read_traces(Path(folder, "log.jsonl"), format, report))
        auto = ReadReport()
        list(read_traces(Path(folder, "log.jsonl"), report=auto))
    assert report.records == auto.records == len(written)
    assert 0 <= report.skipped <= report.records - len(good)
    assert GOOD.messages in [trace.messages for trace in read]
    assert report.traces == len(read)
    assert str(report)
    for trace in read:  # what was read can be written and read again, whatever it was
        with TemporaryDirectory() as folder:
            write_jsonl(WRITERS["atif"].session_records([trace]), f"{folder}/copy.jsonl")
            (back,) = read_traces(f"{folder}/copy.jsonl", "atif")
        assert whole(back) == whole(trace)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=20)
@given(junk=st.recursive(JUNK, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)))
def test_nothing_is_raised_over_what_is_no_log(format: str, junk: Any) -> None:
    assert READERS[format].matches(junk) in (False, True)
