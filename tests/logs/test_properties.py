"""Properties over generated traces: what is written is read back exactly, and damage is never an exception."""

from __future__ import annotations

import copy
import json
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, Outcome, ReadReport, ToolCall, Trace, read_traces, to_openai, to_otlp, write_jsonl
from rlkit.logs.jsontext import dumps
from rlkit.logs.trace import Status

TEXT = st.text(max_size=12)
NAME = st.text(min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TOOLS = st.lists(st.fixed_dictionaries({"name": NAME, "description": TEXT, "parameters": OBJECT}), max_size=2)
OUTCOME = st.builds(Outcome, status=st.sampled_from(get_args(Status)), score=st.none() | st.floats(0, 1), source=TEXT)


@st.composite
def arguments(draw) -> tuple[dict | None, str | None]:
    """Parsed and raw arguments as a reader would pair them."""
    kind = draw(st.sampled_from(["object", "spaced", "text", "null"]))
    if kind == "null":
        return None, None
    if kind == "text":
        return None, draw(TEXT.filter(lambda text: not text.strip().startswith(("{", '"'))))
    value = draw(OBJECT)
    return value, f" {dumps(value)}" if kind == "spaced" else None


@st.composite
def traces(draw) -> Trace:
    """A trace with parallel calls, unanswered calls, orphaned and late results, in any order that is causal."""
    messages: list[Message] = []
    answerable: list[ToolCall] = []
    for index in range(draw(st.integers(1, 7))):
        role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
        content, name = draw(st.none() | TEXT), draw(st.none() | NAME)
        if role == "assistant":
            calls = []
            for k in range(draw(st.integers(0, 2))):
                parsed, raw = draw(arguments())
                call_id = f"{draw(TEXT)}-{index}{k}"
                calls.append(ToolCall(id=call_id, name=draw(NAME), arguments=parsed, raw_arguments=raw))
            answerable += calls
            messages.append(Message(role=role, content=content, tool_calls=calls, name=name))
        elif role == "tool":
            ids = [call.id for call in answerable] or [f"nobody-{index}x"]
            messages.append(Message(role=role, content=content, tool_call_id=draw(st.sampled_from(ids)), name=name))
        else:
            messages.append(Message(role=role, content=content, name=name))
    return Trace(id=draw(NAME), messages=messages, tools=draw(TOOLS), outcome=draw(OUTCOME), metadata=draw(OBJECT))


def held(trace):
    return trace.id, trace.messages, trace.tools, trace.outcome, trace.metadata


@pytest.mark.parametrize("write", [to_openai, to_otlp])
@given(trace=traces())
def test_one_trace_survives(write, trace):
    before = trace.model_copy(deep=True)
    with TemporaryDirectory() as folder:
        write_jsonl([write(trace)], f"{folder}/log.jsonl")
        (back,) = read_traces(f"{folder}/log.jsonl")
    assert held(back) == held(trace)
    assert trace == before
    assert back.raw is not None


@pytest.mark.parametrize("write", [to_openai, to_otlp])
@settings(max_examples=20)
@given(several=st.lists(traces(), min_size=2, max_size=4, unique_by=lambda trace: trace.id))
def test_several_survive_in_order(write, several):
    with TemporaryDirectory() as folder:
        write_jsonl(map(write, several), f"{folder}/log.jsonl.gz")
        report = ReadReport()
        back = list(read_traces(folder, report=report))
    assert list(map(held, back)) == list(map(held, several))
    assert report.records == report.traces == len(several)


ODD = [{"role": "user"}, {"stringValue": 3}, {"kvlistValue": []}, [{"role": "user"}], {}, [], [None], [[]]]
JUNK = st.sampled_from([None, True, 0, -1, 1.5, 10**25, "", "x", "null", "{", "[]", "\ud83d", *ODD]).map(copy.deepcopy)
GOOD = Trace(id="the good one", messages=[Message(role="user", content="hi"), Message(role="assistant", content="ho")])


def nodes(value, path=()):
    """The path of every node below the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from nodes(item, (*path, key))


@st.composite
def mutated(draw, write):
    """A record with up to three nodes deleted, replaced, doubled or swapped; then perhaps cut."""
    record = copy.deepcopy(write(draw(traces())))
    for _ in range(draw(st.integers(0, 3))):
        paths = list(nodes(record))
        if not paths:
            break
        *above, key = draw(st.sampled_from(paths))
        parent = record
        for step in above:
            parent = parent[step]
        item = parent[key]
        if isinstance(item, str) and item[:1] in ("[", "{") and draw(st.booleans()):
            parent[key] = mutate_text(draw, item)
            continue
        change = draw(st.sampled_from(["delete", "replace", "double", "wrap"]))
        if change == "delete":
            del parent[key]
        elif change == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(item))
        else:
            parent[key] = {"x": item} if change == "wrap" else draw(JUNK)
    line = dumps(record).encode()
    return line[: draw(st.integers(1, len(line)))] if draw(st.integers(0, 4)) == 0 else line


def mutate_text(draw, text):
    """Change one node of the JSON inside a string."""
    try:
        value = json.loads(text)
    except ValueError:
        return draw(JUNK)
    paths = list(nodes(value))
    if not paths:
        return draw(JUNK)
    *above, key = draw(st.sampled_from(paths))
    parent = value
    for step in above:
        parent = parent[step]
    parent[key] = draw(JUNK)
    return dumps(value)


@pytest.mark.parametrize("write", [to_openai, to_otlp])
@given(data=st.data())
def test_nothing_is_raised_and_every_line_is_accounted_for(write, data):
    lines = data.draw(st.lists(mutated(write), min_size=1, max_size=3))
    at = data.draw(st.integers(0, len(lines)))
    lines.insert(at, dumps(write(GOOD)).encode())
    with TemporaryDirectory() as folder:
        with open(f"{folder}/log.jsonl", "wb") as file:
            file.write(b"\n".join(lines))
        report = ReadReport()
        read = list(read_traces(f"{folder}/log.jsonl", format="otel" if write is to_otlp else "openai", report=report))
    assert GOOD.messages in [trace.messages for trace in read]
    assert report.records == len(lines)
    assert report.traces == len(read)
    assert 0 <= report.used == report.records - report.skipped
    if write is to_openai:
        assert report.records == report.traces + report.quarantined + report.skipped
    else:  # a line may lose or gain a conversation by a changed id, but a used one gave something
        assert (report.used > 0) == (report.traces + report.quarantined > 0)
    assert all(message.role for trace in read for message in trace.messages)
    assert str(report)
    for trace in read:  # what was read can be written and read again, whatever it was
        dumps(write(trace))
