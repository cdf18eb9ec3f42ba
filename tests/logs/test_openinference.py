"""OpenInference spans as rows and in OTLP-JSON, flat and nested."""

from __future__ import annotations

import copy
import json
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, ReadReport, read_traces, write_jsonl
from rlkit.logs.writers.openinference import session_records
from tests.logs.test_otel import CALL as OTEL_CALL
from tests.logs.test_otel import DONE, RESULT, USER, WHOLE, chat, contents, evaluation, line, value
from tests.logs.test_properties import traces as any_traces

# Attributes as in Arize-ai/openinference, spec/semantic_conventions.md; rows as Phoenix's REST API returns them.
CALL = "message.tool_calls.0.tool_call."
FIRST = {
    "llm.model_name": "gpt-4o",
    "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "cancel O7",
    "llm.output_messages.0.message.role": "assistant", f"llm.output_messages.0.{CALL}id": "c1",
    f"llm.output_messages.0.{CALL}function.name": "get_order",
    f"llm.output_messages.0.{CALL}function.arguments": '{"id": "O7"}',
}  # fmt: skip
SECOND = {
    "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "cancel O7",
    "llm.input_messages.1.message.role": "assistant", f"llm.input_messages.1.{CALL}id": "c1",
    f"llm.input_messages.1.{CALL}function.name": "get_order",
    f"llm.input_messages.1.{CALL}function.arguments": '{"id": "O7"}',
    "llm.input_messages.2.message.role": "tool", "llm.input_messages.2.message.content": '{"state":"pending"}',
    "llm.input_messages.2.message.tool_call_id": "c1",
    "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "Done.",
}  # fmt: skip


def row(number, attributes, kind="LLM", parent=None, trace="t1", **more):
    return {
        "name": "step", "span_kind": kind, "parent_id": parent, "status_code": "OK",
        "start_time": f"2026-01-01T10:00:{number:02d}+00:00", "end_time": f"2026-01-01T10:00:{number:02d}.5+00:00",
        "context": {"trace_id": trace, "span_id": f"b{number}"}, "attributes": dict(attributes),
    } | more  # fmt: skip


def nested(attributes):
    """The same attributes as objects within objects, as Phoenix stores them."""
    root = {}
    for key, item in attributes.items():
        *path, last = key.split(".")
        node = root
        for step in path:
            node = node.setdefault(step, {})
        node[last] = item

    def listed(node):
        if not isinstance(node, dict):
            return node
        inner = {key: listed(item) for key, item in node.items()}
        return list(inner.values()) if all(key.isdecimal() for key in inner) else inner

    return listed(root)


def read(tmp_path, *records, format="auto"):
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, records)))
    report = ReadReport()
    found = list(read_traces(tmp_path / "spans.jsonl", format, report))
    assert report.records == report.used + report.skipped
    return found, report


def columns(span):
    """A row of `get_spans_dataframe`."""
    flat = {f"context.{key}": item for key, item in span["context"].items()}
    return {k: v for k, v in span.items() if k not in ("context", "attributes")} | flat | {
        f"attributes.{key}": item for key, item in span["attributes"].items()
    }  # fmt: skip


@pytest.mark.parametrize(
    "shape", [lambda span: span, lambda span: span | {"attributes": nested(span["attributes"])}, columns]
)
def test_rows_flat_nested_or_in_columns_are_one_conversation(tmp_path, shape):
    (trace,), report = read(tmp_path, *(shape(row(number, said)) for number, said in ((2, SECOND), (1, FIRST))))
    assert contents(trace) == WHOLE
    assert trace.tool_calls[0].raw_arguments == '{"id": "O7"}'
    assert trace.messages[2].tool_call_id == "c1"
    assert trace.metadata["llm.model_name"] == "gpt-4o"
    assert report.diagnostics == {}


def test_a_page_of_the_api_is_one_record(tmp_path):
    (trace,), report = read(tmp_path, {"data": [row(1, FIRST), row(2, SECOND)], "next_cursor": None})
    assert contents(trace) == WHOLE
    assert report.records == 1


def otlp(number, attributes, kind="LLM", **more):
    named = {"openinference.span.kind": kind} | attributes
    return {"traceId": "t1", "spanId": f"b{number}", "startTimeUnixNano": str(number),
            "attributes": [{"key": key, "value": value(item)} for key, item in named.items()]} | more  # fmt: skip


@pytest.mark.parametrize("format", ["auto", "openinference", "otel"])
def test_spans_in_otlp_are_read_under_either_name(tmp_path, format):
    (trace,), _ = read(tmp_path, line(otlp(1, FIRST), otlp(2, SECOND)), format=format)
    assert contents(trace) == WHOLE


LATER = {"gen_ai.input.messages": [USER, OTEL_CALL, RESULT], "gen_ai.output.messages": [DONE]}


@pytest.mark.parametrize(
    "spans",
    [
        [otlp(0, {}, "CHAIN"), chat(1, [USER], [OTEL_CALL]), chat(2, [USER, OTEL_CALL, RESULT], [DONE])],
        [otlp(1, FIRST), chat(2, [USER, OTEL_CALL, RESULT], [DONE])],
        [otlp(1, FIRST), otlp(2, {key: json.dumps(said) for key, said in LATER.items()})],
        [otlp(1, FIRST), otlp(2, SECOND), chat(3, [USER, OTEL_CALL, RESULT], [DONE])],
    ],
)
@pytest.mark.parametrize("format", ["auto", "openinference", "otel"])
def test_spans_of_both_conventions_are_one_conversation(tmp_path, spans, format):
    (trace,), _ = read(tmp_path, line(*spans), format=format)
    assert contents(trace) == WHOLE


def test_a_session_has_the_same_name_in_both_conventions(tmp_path):
    named = {"gen_ai.conversation.id": "c", "session.id": "s"}
    spans = otlp(1, FIRST | named), chat(2, [USER, OTEL_CALL, RESULT], [DONE], gen_ai__conversation__id="c")
    for format in ("openinference", "otel"):
        (trace,), _ = read(tmp_path, line(spans[0]), line(spans[1] | {"traceId": "t2"}), format=format)
        assert (trace.id, contents(trace)) == ("c", WHOLE)


def test_indices_are_ordered_as_numbers(tmp_path):
    said = {f"llm.input_messages.{n}.message.{key}": text for n in range(12)
            for key, text in (("role", ("user", "assistant")[n % 2]), ("content", f"m{n}"))}  # fmt: skip
    (trace,), _ = read(tmp_path, row(1, dict(sorted(said.items()))))
    assert [m.content for m in trace.messages] == [f"m{n}" for n in range(12)]


def test_contents_in_parts_are_text_and_the_rest_is_kept(tmp_path):
    spot = "llm.input_messages.0.message."
    said = {f"{spot}role": "user", f"{spot}contents.0.message_content.type": "text",
            f"{spot}contents.0.message_content.text": "Look:", f"{spot}contents.1.message_content.type": "image",
            f"{spot}contents.1.message_content.image.image.url": "https://x/y.jpg"}  # fmt: skip
    (trace,), _ = read(tmp_path, row(1, said))
    assert trace.messages[0].content == "Look:"
    assert trace.messages[0].extra["content"][1] == {"type": "image", "image": {"image": {"url": "https://x/y.jpg"}}}


ANSWER = "llm.output_messages.0.message."


def test_reasoning_and_calls_among_the_contents_are_what_they_are(tmp_path):
    # Parts as OpenInference's instrumentations of OpenAI's Responses and of Anthropic write them.
    kinds = {"reasoning": {"message_content.text": "Look it up."}, "text": {"message_content.text": "One moment."},
             "tool_use": {"tool_call.id": "c1", "tool_call.function.name": "get_order",
                          "tool_call.function.arguments": "{}"}}  # fmt: skip
    said = {f"{ANSWER}role": "assistant"}
    for index, (kind, fields) in enumerate(kinds.items()):
        for key, item in {"message_content.type": kind, **fields}.items():
            said[f"{ANSWER}contents.{index}.{key}"] = item
    twice = said | {f"{ANSWER}tool_calls.0.{key}": item for key, item in kinds["tool_use"].items()}
    for attributes in (said, twice):
        (trace,), report = read(tmp_path, row(1, attributes))
        (message,) = trace.messages
        assert (message.reasoning, message.content, message.extra) == ("Look it up.", "One moment.", None)
        assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [("c1", "get_order", {})]
        assert report.diagnostics == {}


def test_reasoning_beside_the_content_is_not_lost(tmp_path):
    said = {f"{ANSWER}role": "assistant", f"{ANSWER}content": "Done.",
            f"{ANSWER}contents.0.message_content.type": "reasoning",
            f"{ANSWER}contents.0.message_content.text": "Hm."}  # fmt: skip
    (trace,), _ = read(tmp_path, row(1, said))
    assert (trace.messages[0].content, trace.messages[0].reasoning) == ("Done.", "Hm.")


def test_a_function_call_of_before_is_a_call(tmp_path):
    said = {f"{ANSWER}role": "assistant", f"{ANSWER}function_call_name": "get_order",
            f"{ANSWER}function_call_arguments_json": '{"id":"O7"}'}  # fmt: skip
    (trace,), _ = read(tmp_path, row(1, said))
    assert [(call.name, call.arguments) for call in trace.tool_calls] == [("get_order", {"id": "O7"})]


@pytest.mark.parametrize(
    "tool",
    [
        {"json_schema": '{"name": "f", "parameters": {"type": "object"}}'},
        {
            "json_schema": '{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}',
            "name": "g",
        },
        {"name": "f", "json_schema": '{"type": "object"}'},
    ],
)
def test_a_tool_s_schema_is_its_definition_or_its_parameters(tmp_path, tool):
    offered = {f"llm.tools.0.tool.{key}": item for key, item in tool.items()}
    (trace,), _ = read(tmp_path, row(1, FIRST | offered))
    assert trace.tools == [{"name": "f", "parameters": {"type": "object"}}]


def test_tools_session_and_metadata_are_found(tmp_path):
    schema = {"type": "function", "function": {"name": "get_order", "parameters": {}}}
    root = {"session.id": "chat-9", "user.id": "u1", "metadata": '{"tier": "pro"}', "tag.tags": ["a"]}
    offered = FIRST | {"llm.tools.0.tool.json_schema": json.dumps(schema)}
    (trace,), _ = read(tmp_path, row(0, root, "AGENT"), row(1, offered, parent="b0"))
    assert trace.id == "chat-9"
    assert trace.tools == [{"name": "get_order", "parameters": {}}]
    assert trace.metadata == {"llm.model_name": "gpt-4o", "user.id": "u1", "tag.tags": ["a"], "tier": "pro"}


@pytest.mark.parametrize("asked", ["cancel O7", '{"messages": [{"role": "user", "content": "cancel O7"}]}'])
def test_values_are_read_where_no_messages_were_logged(tmp_path, asked):
    (trace,), _ = read(tmp_path, row(1, {"input.value": asked, "output.value": "Done."}))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]


def test_a_tool_s_span_gives_the_result_that_no_message_has(tmp_path):
    ran = row(2, {"tool.name": "get_order", "tool_call.id": "c1", "output.value": "pending"}, "TOOL")
    (trace,), report = read(tmp_path, row(1, FIRST), ran)
    assert contents(trace)[-1] == ("tool", "pending")
    assert list(report.diagnostics) == ["span_tool_result"]


@pytest.mark.parametrize(
    ("annotation", "outcome"),
    [
        ({"name": "correct", "result": {"label": "correct", "score": 1}}, ("success", 1.0, "annotation:correct")),
        ({"name": "correct", "result": {"label": None, "score": 0.0}}, ("failure", 0.0, "annotation:correct")),
        ({"name": "tone", "result": {"label": "curt", "score": None}}, ("unknown", None, "")),
    ],
)  # fmt: skip
def test_annotations_are_the_outcome(tmp_path, annotation, outcome):
    (trace,), _ = read(tmp_path, row(1, FIRST, annotations=[annotation]))
    assert (trace.outcome.status, trace.outcome.score, trace.outcome.source) == outcome


def feedback(what, scope="", **said):
    return {f"{scope}{what}s.0.{what}.{key}": item for key, item in {"name": "ok", **said}.items()}


@pytest.mark.parametrize(
    ("root", "call", "outcome"),
    [
        ({}, feedback("annotation", label="correct"), ("success", 1.0, "annotation:ok")),
        ({}, feedback("evaluation", score=0), ("failure", 0.0, "evaluation:ok")),
        ({}, feedback("evaluation", score=1, label="hallucinated"), ("unknown", 1.0, "evaluation:ok")),
        ({}, feedback("evaluation", explanation="fine"), ("unknown", None, "")),
        (
            feedback("annotation", "session.", score=1),
            feedback("annotation", score=0),
            ("success", 1.0, "annotation:ok"),
        ),
        (
            feedback("evaluation", "trace.", label="bad"),
            feedback("annotation", score=1),
            ("failure", 0.0, "evaluation:ok"),
        ),
    ],
)
@pytest.mark.parametrize("nesting", [lambda attributes: attributes, nested])
def test_feedback_in_a_span_is_the_outcome(tmp_path, root, call, outcome, nesting):
    (trace,), _ = read(tmp_path, row(0, nesting(root), "CHAIN"), row(1, nesting(FIRST | call), parent="b0"))
    assert (trace.outcome.status, trace.outcome.score, trace.outcome.source) == outcome
    assert trace.metadata == {"llm.model_name": "gpt-4o"}


def test_an_evaluation_event_is_the_outcome_too(tmp_path):
    event = evaluation(name="help", score__value=1)
    flat = {item["key"]: 1 if "intValue" in item["value"] else "help" for item in event["attributes"]}
    in_otlp = line(otlp(1, FIRST, events=[event]))
    for record in (in_otlp, row(1, FIRST, events=[{"name": event["name"], "attributes": flat}])):
        (trace,), _ = read(tmp_path, record)
        assert (trace.outcome.status, trace.outcome.source) == ("success", "evaluation:help")


@pytest.mark.parametrize("odd", [3, None, {}, {"context": 3}, {"context": {"trace_id": "t", "span_id": 1}}])
def test_what_is_no_span_is_counted_and_costs_nothing_else(tmp_path, odd):
    (trace,), report = read(tmp_path, row(1, FIRST), odd, format="openinference")
    assert contents(trace) == WHOLE[:2]
    assert report.skipped == 1


def test_other_formats_are_left_to_their_readers():
    from rlkit.logs.readers import openinference

    for record in ({"messages": []}, {"data": [1]}, {"resourceSpans": []}, line({"attributes": []}), [], None):
        assert not openinference.matches(record)


@settings(max_examples=60)
@given(trace=any_traces())
def test_what_is_written_is_read_back(trace):
    with TemporaryDirectory() as folder:
        write_jsonl(session_records([trace]), f"{folder}/log.jsonl")
        (back,) = read_traces(f"{folder}/log.jsonl")
    assert (back.id, back.messages, back.outcome, back.metadata) == (
        trace.id, trace.messages, trace.outcome, trace.metadata,
    )  # fmt: skip
    assert isinstance(back.messages[0], Message)


ODD = [None, 3, True, 1.5, "x", "", "{bad", [], {}, [[]], [{}], {"a": [1]}, {"stringValue": None}]
KEYS = [
    f"{prefix}{key}"
    for prefix in ("llm.input_messages.", "llm.output_messages.")
    for key in ("", "0", "x.message.role", "0.message.", "0.message.0.x", "0.message..", "0.message.role.x",
                "0.message.tool_calls", "0.message.tool_calls.0", "0.message.tool_calls.x.tool_call.id",
                "0.message.tool_calls.0.tool_call.function", f"{'9' * 5000}.message.role",
                f"0.message.tool_calls.{'9' * 5000}.tool_call.id", "0.message.contents.0.message_content.type")
] + ["llm.tools", "llm.tools.0.tool", "llm.tools.0.tool.name", "metadata", "metadata.x", "session.id",
     "annotations.0.annotation", "session.evaluations.0.evaluation.score", "openinference.span.kind", "input.value",
     "gen_ai.input.messages", "gen_ai.evaluation.score.value", "rlkit.outcome", "rlkit.metadata"]  # fmt: skip


@st.composite
def damaged(draw):
    """Rows and OTLP-JSON with a few odd attributes, and a few nodes replaced."""
    call = FIRST | feedback("annotation", score=1)
    records = [row(1, call), row(2, nested(SECOND)), columns(row(3, SECOND)), line(otlp(4, call), otlp(5, SECOND))]
    records = copy.deepcopy(records)
    for _ in range(draw(st.integers(1, 4))):
        key, odd = draw(st.sampled_from(KEYS)), copy.deepcopy(draw(st.sampled_from(ODD)))
        number = draw(st.integers(0, 3))
        if number == 2:
            records[2][f"attributes.{key}"] = odd
        elif number < 2:
            records[number]["attributes"][key] = odd
        else:
            spans = records[3]["resourceSpans"][0]["scopeSpans"][0]["spans"]
            spans[draw(st.integers(0, 1))]["attributes"].append({"key": key, "value": value(odd)})
    number = draw(st.integers(0, 2))
    records[number][draw(st.sampled_from(sorted(records[number])))] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return records


@settings(max_examples=100)
@given(records=damaged())
def test_damage_is_never_an_exception_and_every_record_is_accounted_for(records):
    good = row(9, {"input.value": "hi", "output.value": "ho"}, trace="the good one")
    with TemporaryDirectory() as folder:
        write_jsonl([*records, good], f"{folder}/log.jsonl")
        report = ReadReport()
        back = list(read_traces(f"{folder}/log.jsonl", "openinference", report))
    assert "the good one" in [trace.id for trace in back]
    assert report.records == len(records) + 1 == report.used + report.skipped
