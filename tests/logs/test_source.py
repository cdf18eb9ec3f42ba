"""Files: compression, folders, documents, damage. One bad line never loses a file, one bad file never the others."""

from __future__ import annotations

import gzip
import json
import os

import pytest
import zstandard

from rlkit.logs import LogFormatError, ReadReport, read_traces, to_atif, to_otlp, write_jsonl
from rlkit.logs.jsontext import _pieces, dumps, loads


def record(name="a", text="hi"):
    return {"id": name, "messages": [{"role": "user", "content": text}]}


GOOD = json.dumps(record("good")).encode()


def read(path, **options):
    report = ReadReport()
    return [trace.id for trace in read_traces(path, report=report, **options)], report


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (GOOD[:20], "json_broken"),
        (b"\xff\xfe\x01", "json_broken"),
        (b"hello", "json_broken"),
        (b"3", "record_not_object"),
        (b"[1, 2]", "record_not_object"),
        (b"null", "record_not_object"),
        (b"{}", "no_messages"),
        (b'{"messages": "hi"}', "no_messages"),
        (b'{"messages": []}', "no_messages"),
        (b'{"messages": [3]}', "no_messages"),
        (b'{"messages": [[' + b"[" * 5000, "json_too_deep"),
        (b'{"x": 1' + b"0" * 5000 + b"}", "json_broken"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_line_is_counted_and_the_others_are_read(tmp_path, line, code, first):
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([line, GOOD] if first else [GOOD, line]) + b"\n\n")
    ids, report = read(file)
    assert ids == ["good"]
    assert (report.records, report.traces, report.skipped) == (2, 1, 1)
    assert report.diagnostics[code].first.startswith(f"{file}:{1 if first else 2}")


def test_too_deep_a_record_is_skipped(tmp_path):
    file = tmp_path / "log.jsonl"
    deep = b'{"messages":[{"role":"user","content":' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}]}"
    file.write_bytes(GOOD + b"\n" + deep)
    ids, report = read(file)
    assert ids == ["good"]
    assert report.skipped == 1


def test_lone_surrogates_and_stray_bytes_are_kept(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_bytes(
        b'{"id":"a","messages":[{"role":"user","content":"\\ud83d!"}]}\n'
        b'{"id":"b","messages":[{"role":"user","content":"caf\xe9"}]}\n'
    )
    report = ReadReport()
    one, two = read_traces(file, report=report)
    assert one.messages[0].content == "\ud83d!"
    assert two.messages[0].content.encode("utf-8", "surrogateescape") == b"caf\xe9"
    assert report.diagnostics["json_not_strict"].count == 2
    copy = tmp_path / "copy.jsonl"
    write_jsonl([to_otlp(one), to_otlp(two)], copy)
    assert [t.messages for t in read_traces(copy)] == [one.messages, two.messages]


def test_integers_of_any_size_are_exact():
    numbers = [2**63 - 1, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30, -(10**30)]
    assert loads(dumps(numbers)) == numbers
    assert [type(number) for number in loads(dumps(numbers))] == [int] * 7


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_compression_is_told_by_the_bytes_not_the_name(tmp_path, compress):
    file = tmp_path / "log.txt"
    file.write_bytes(compress(GOOD + b"\n") + compress(GOOD + b"\n"))
    assert read(file)[0] == ["good", "good"]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_cut_compressed_file_gives_what_came_before(tmp_path, compress):
    file = tmp_path / "log.jsonl"
    lines = b"".join(json.dumps(record(str(i), os.urandom(200).hex())).encode() + b"\n" for i in range(3000))
    file.write_bytes(compress(lines)[:-3000])
    ids, report = read(file)
    assert ids == [str(i) for i in range(len(ids))]
    assert len(ids) > 2400
    assert report.diagnostics["file_cut"].count == 1


@pytest.mark.parametrize("text", [b"[%s, %s]" % (GOOD, GOOD), b"[\n%s,\n%s\n]\n" % (GOOD, GOOD)])
def test_a_json_array_holds_records(tmp_path, text):
    file = tmp_path / "log.json"
    file.write_bytes(text)
    ids, report = read(file)
    assert ids == ["good", "good"]
    assert report.records == 2


def test_a_pretty_printed_record_and_a_byte_order_mark(tmp_path):
    file = tmp_path / "log.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(record("a"), indent=2).encode())
    assert read(file)[0] == ["a"]


def test_paths_in_an_array_name_the_element(tmp_path):
    file = tmp_path / "log.json"
    file.write_text(json.dumps([record("a"), {"id": "b", "messages": [{"role": "user", "content": "x"}, 3]}]))
    report = ReadReport()
    traces = list(read_traces(file, report=report))
    assert traces[1].source == f"{file}[1]"
    assert report.diagnostics["message_not_object"].first == f"{file} [1].messages[1]"


def test_a_folder_a_glob_and_a_list_of_mixed_formats(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / ".hidden").write_bytes(GOOD)
    (trace,) = read_traces(tmp_path / "a.jsonl")
    write_jsonl([to_otlp(trace)], tmp_path / "sub" / "b.jsonl.gz")
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    (tmp_path / "d.txt").write_text('{"hello": 1}\n{"hello": 2}\n')
    (tmp_path / "e.jsonl").write_text("\n")
    ids, report = read(tmp_path)
    assert ids == ["good", "good"]
    assert (report.files, report.records, report.skipped) == (5, 4, 2)
    assert {"file_binary", "file_empty", "format_unknown"} == set(report.diagnostics)
    assert read(str(tmp_path / "*.jsonl"))[0] == ["good"]
    assert read([tmp_path / "a.jsonl", str(tmp_path / "sub" / "*")])[0] == ["good", "good"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no record"),
        (b"\x00\x01\x02", "not UTF-8"),
        (b'{"a": 1}', "No reader"),
        (b"{cut", "valid JSON"),
        (b"\x1f\x8bxx", "damaged"),
    ],
)
def test_nothing_readable_is_one_line_that_names_the_file(tmp_path, content, reason):
    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    with pytest.raises(LogFormatError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_format_and_a_missing_file_fail_at_once(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_bytes(GOOD)
    with pytest.raises(LogFormatError, match=r"log\.jsonl: unknown format 'nope'; use auto, atif, "):
        read_traces(file, format="nope")
    with pytest.raises(LogFormatError, match=r"gone\.jsonl: no such file"):
        read_traces(tmp_path / "gone.jsonl")
    with pytest.raises(ValueError, match="no trace could be read"):
        read(file, format="otel")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open every file")
def test_a_file_we_may_not_open_is_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "b.jsonl").write_bytes(GOOD)
    (tmp_path / "b.jsonl").chmod(0)
    ids, report = read(tmp_path)
    assert ids == ["good"]
    assert report.diagnostics["file_unreadable"].count == 1


def test_the_report_prints_as_a_table(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_bytes(GOOD + b"\n{cut\n{cut\n")
    _, report = read(file)
    assert str(report).splitlines() == [
        "files        1",
        "records      3",
        "skipped      2",
        "traces       1",
        "messages     1",
        "quarantined  0",
        "",
        "code         severity   count  first",
        f"json_broken  error          2  {file}:2",
    ]


def test_reading_is_lazy(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_bytes((GOOD + b"\n") * 1000)
    report = ReadReport()
    next(read_traces(file, report=report))
    assert report.records == 1


def test_written_files_are_the_same_bytes_and_whole(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_jsonl([record()], tmp_path / name)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_jsonl((record() for _ in [1 / 0]), tmp_path / "a.jsonl.gz")
    assert read(tmp_path / "a.jsonl.gz")[0] == ["a"]


def remote(name: str, data: bytes) -> str:
    """A file in memory that fsspec finds by the URL returned."""
    import fsspec

    fsspec.filesystem("memory").pipe(f"/{name}", data)
    return f"memory://{name}"


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_urls_work_as_paths_do(tmp_path, compress):
    for number in range(3):
        url = remote(f"logs-{tmp_path.name}/day/{number}.jsonl", compress(GOOD.replace(b"good", b"s%d" % number)))
    folder = url.rpartition("/")[0]
    remote(f"logs-{tmp_path.name}/day/.hidden", b"junk")
    assert read(url)[0] == ["s2"]
    assert read(f"{folder}/[01].jsonl")[0] == ["s0", "s1"]
    assert read(folder)[0] == read(folder.rpartition("/")[0])[0] == ["s0", "s1", "s2"]
    assert next(iter(read_traces([folder]))).source.endswith("/day/0.jsonl:1")


def test_a_url_that_names_nothing_is_one_line():
    for url in ("memory://nowhere/*.jsonl", "nosuchscheme://x/y.jsonl"):
        with pytest.raises(LogFormatError, match=url.split(":")[0]) as error:
            read_traces(url)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_the_bar_counts_the_bytes_of_the_files_as_they_lie_there(tmp_path, compress, capsys):
    file = tmp_path / "log.jsonl"
    file.write_bytes(compress(b"".join(json.dumps(record(os.urandom(99).hex())).encode() + b"\n" for _ in range(2000))))
    assert len(list(read_traces(file, progress=True))) == 2000
    last = capsys.readouterr().err.strip().split("\r")[-1]
    assert last.startswith("reading: 100%")
    size = f"{file.stat().st_size / 1000:.0f}k"
    assert f"{size}/{size}" in last
    list(read_traces(file))
    assert capsys.readouterr().err == ""


def test_what_is_nested_deeper_than_can_be_read_is_counted_and_the_rest_can_be_written(tmp_path):
    def nested(levels):
        return "[" * levels + "]" * levels

    good = json.dumps(record("X") | {"more": "Y"})
    levels = (10, 240, 260, 900, 1500, 50_000)
    lines = [good.replace("X", str(n)).replace('"Y"', nested(n)) for n in levels]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": nested(700)}}
    lines.append(json.dumps({"id": "text", "messages": [{"role": "assistant", "tool_calls": [call]}]}))
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    report = ReadReport()
    traces = list(read_traces(tmp_path / "log.jsonl", report=report))
    assert [trace.id for trace in traces] == ["10", "240", "260", "900", "text"]
    assert report.diagnostics["json_too_deep"].count == report.skipped == 2
    write_jsonl(map(to_atif, traces), tmp_path / "copy.jsonl")
    for trace, back in zip(traces, read_traces(tmp_path / "copy.jsonl"), strict=True):
        assert (dumps(back.metadata), back.messages) == (dumps(trace.metadata), trace.messages)


def test_json_of_any_depth_is_written_as_json_writes_it():
    value = {"a": [1, {"b": []}, {}, "x\ud83d", 10**30, None, float("nan")], "c": {"d": [[], [1.5, True]]}}
    assert "".join(_pieces(value)) == json.dumps(value, separators=(",", ":"))


def test_nan_and_infinity_survive_where_json_has_no_words_for_them():
    for value in (float("inf"), [None, float("-inf")], {"null": None}):
        assert loads(dumps(value)) == value
    assert dumps([float("nan"), None]) == "[NaN,null]"
