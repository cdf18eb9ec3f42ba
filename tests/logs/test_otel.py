"""GenAI spans: grouping, prefix extension, branches, tool spans, evaluations, and damage."""

from __future__ import annotations

import json

import pytest

from rlkit.logs import LogFormatError, Outcome, ReadReport, read_traces

USER = {"role": "user", "parts": [{"type": "text", "content": "cancel O7"}]}
CALLED = {"type": "tool_call", "id": "c1", "name": "get_order", "arguments": {"id": "O7"}}
CALL = {"role": "assistant", "parts": [CALLED]}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"state": "pending"}}]}
DONE = {"role": "assistant", "parts": [{"type": "text", "content": "Done."}], "finish_reason": "stop"}


def value(item):
    """Plain JSON as an OTLP AnyValue."""
    if item is None:
        return {}
    if isinstance(item, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": value(v)} for k, v in item.items()]}}
    if isinstance(item, list):
        return {"arrayValue": {"values": [value(v) for v in item]}}
    if isinstance(item, int):
        return {"intValue": str(item)}
    return {"doubleValue" if isinstance(item, float) else "stringValue": item}


def span(number, operation="chat", start=None, events=(), trace="t1", parent="root", **attributes):
    named = {"gen_ai.operation.name": operation} | {k.replace("__", "."): v for k, v in attributes.items()}
    return {
        "traceId": trace, "spanId": f"b{number}", "parentSpanId": parent,
        "startTimeUnixNano": str(number if start is None else start),
        "attributes": [{"key": k, "value": value(v)} for k, v in named.items()], "events": list(events),
    }  # fmt: skip


def chat(number, inputs, outputs=(), **more):
    said = {"gen_ai__input__messages": json.dumps(list(inputs)), "gen_ai__output__messages": json.dumps(list(outputs))}
    return span(number, **said, **more)


def tool(number, **more):
    return span(number, "execute_tool", **{f"gen_ai__tool__{key}": item for key, item in more.items()})


def line(*spans, resource=None):
    owner = {"attributes": [{"key": k, "value": value(v)} for k, v in (resource or {}).items()]}
    return {"resourceSpans": [{"resource": owner, "scopeSpans": [{"spans": list(spans)}]}]}


def read(tmp_path, *lines):
    file = tmp_path / "spans.jsonl"
    file.write_text("\n".join(json.dumps(item) for item in lines))
    report = ReadReport()
    traces = list(read_traces(file, report=report))
    assert report.records == report.used + report.skipped == len(lines)
    return traces, report


def contents(trace):
    return [(m.role, m.content) for m in trace.messages]


WHOLE = [("user", "cancel O7"), ("assistant", None), ("tool", '{"state":"pending"}'), ("assistant", "Done.")]


def test_spans_that_repeat_their_prefix_are_one_trajectory(tmp_path):
    (trace,), report = read(tmp_path, line(chat(1, [USER], [CALL]), chat(2, [USER, CALL, RESULT], [DONE])))
    assert contents(trace) == WHOLE
    assert trace.tool_calls[0].arguments == {"id": "O7"}
    assert trace.messages[2].tool_call_id == "c1"
    assert (trace.id, trace.diagnostics, report.skipped) == ("t1", [], 0)


@pytest.mark.parametrize("as_text", [True, False])
def test_messages_structured_or_as_text_on_the_span_or_on_an_event(tmp_path, as_text):
    wrap = json.dumps if as_text else lambda item: item
    on_span = span(1, gen_ai__input__messages=wrap([USER]), gen_ai__output__messages=wrap([CALL]))
    details = {"gen_ai.input.messages": wrap([USER, CALL, RESULT]), "gen_ai.output.messages": wrap([DONE])}
    event = {"name": "gen_ai.client.inference.operation.details",
             "attributes": [{"key": k, "value": value(v)} for k, v in details.items()]}  # fmt: skip
    (trace,), _ = read(tmp_path, line(on_span, span(2, events=[event])))
    assert contents(trace) == WHOLE


def test_spans_out_of_order_are_sorted_by_their_time_as_numbers(tmp_path):
    late, early = chat(1, [USER, CALL, RESULT], [DONE], start="1000"), chat(2, [USER], [CALL], start="999")
    (trace,), _ = read(tmp_path, line(late), line(early))
    assert contents(trace) == WHOLE


def test_a_conversation_gathers_its_traces_over_lines_and_files(tmp_path):
    one = chat(1, [USER], [CALL], trace="t1", gen_ai__conversation__id="conv")
    other = chat(1, [USER], [DONE], trace="t3")
    two = chat(2, [USER, CALL, RESULT], [DONE], trace="t2", gen_ai__conversation__id="conv")
    (tmp_path / "1.jsonl").write_text(json.dumps(line(one)) + "\n" + json.dumps(line(other)))
    (tmp_path / "2.jsonl").write_text(json.dumps(line(two)))
    report = ReadReport()
    traces = list(read_traces(tmp_path, report=report))
    assert [(trace.id, len(trace.messages)) for trace in traces] == [("t3", 2), ("conv", 4)]
    assert (report.records, report.traces, report.skipped) == (3, 2, 0)


def test_a_span_without_the_conversation_id_follows_its_trace(tmp_path):
    ran = tool(2, name="get_order", call__id="c1", call__result="x")
    (trace,), _ = read(tmp_path, line(ran), line(chat(1, [USER], [CALL], gen_ai__conversation__id="conv")))
    assert (trace.id, trace.messages[-1].content) == ("conv", "x")


@pytest.mark.parametrize("call_id", ["c1", None])
def test_a_tool_span_gives_the_result_that_no_message_has(tmp_path, call_id):
    ids = {} if call_id is None else {"call__id": call_id}
    ran = tool(2, name="get_order", call__result={"state": "pending"}, **ids)
    (trace,), report = read(tmp_path, line(chat(1, [USER], [CALL]), ran, chat(3, [USER, CALL], [DONE])))
    assert contents(trace) == WHOLE
    assert "span_tool_result" in report.diagnostics


def test_a_tool_span_adds_nothing_where_the_messages_have_the_result(tmp_path):
    ran = tool(2, name="get_order", call__id="c1", call__result="x")
    (trace,), report = read(tmp_path, line(chat(1, [USER], [CALL]), ran, chat(3, [USER, CALL, RESULT], [DONE])))
    assert contents(trace) == WHOLE
    assert report.diagnostics == {}


def test_a_tool_span_nobody_called_is_noted(tmp_path):
    (trace,), _ = read(tmp_path, line(chat(1, [USER], [DONE]), tool(2, call__id="c9", call__result="x")))
    assert [d.code for d in trace.diagnostics] == ["span_tool_unmatched"]


def test_another_answer_to_the_same_prefix_is_a_branch(tmp_path):
    other = {"role": "assistant", "parts": [{"type": "text", "content": "No."}]}
    spans = chat(1, [USER], [DONE]), chat(2, [USER], [other]), chat(3, [USER, other, USER], [DONE])
    (main, branch), _ = read(tmp_path, line(*spans))
    assert [m.content for m in main.messages] == ["cancel O7", "No.", "cancel O7", "Done."]  # what ended last
    assert [m.content for m in branch.messages] == ["cancel O7", "Done."]
    assert (branch.id, branch.parent_id, branch.relation, main.parent_id) == ("t1#1", "t1", "fork", None)
    assert [d.code for d in branch.diagnostics] == ["span_branch"]


def test_a_repeated_span_or_request_adds_nothing(tmp_path):
    first = chat(1, [USER], [DONE])
    (trace,), report = read(tmp_path, line(first, first, chat(2, [USER])))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]
    assert list(report.diagnostics) == ["span_repeated"]


def test_an_output_and_its_repetition_may_differ_in_spelling(tmp_path):
    repeated = {"role": "assistant", "parts": [{"type": "tool_call", "name": "get_order", "arguments": '{"id": "O7"}'},
                                               {"type": "text", "content": ""}]}  # fmt: skip
    (trace,), _ = read(tmp_path, line(chat(1, [USER], [CALL]), chat(2, [USER, repeated, RESULT], [DONE])))
    assert contents(trace) == WHOLE


@pytest.mark.parametrize("instructions", [[{"type": "text", "content": "Be kind."}], "Be kind."])
def test_system_instructions_come_first_and_once(tmp_path, instructions):
    system = {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]}
    more = {"gen_ai__system_instructions": instructions}
    repeated = chat(1, [system, USER], [DONE], trace="t2", **more)
    traces, _ = read(tmp_path, line(chat(1, [USER], [DONE], **more)), line(repeated))
    expected = [("system", "Be kind."), ("user", "cancel O7"), ("assistant", "Done.")]
    assert [contents(trace) for trace in traces] == [expected, expected]


def test_one_message_with_results_and_text_becomes_results_then_text(tmp_path):
    asked, photo = {"type": "text", "content": "and?"}, {"type": "uri", "modality": "image", "uri": "https://x/y"}
    mixed = {"role": "user", "parts": [*RESULT["parts"], asked, photo]}
    (trace,), _ = read(tmp_path, line(chat(1, [USER, CALL, mixed], [DONE])))
    assert [m.role for m in trace.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert trace.messages[3].extra == {"parts": [photo]}
    (note,) = trace.diagnostics
    assert (note.code, note.path) == ("content_part_skipped", "span b1: gen_ai.input.messages[2].parts[2]")


def test_tools_metadata_and_the_agents_own_span(tmp_path):
    schema = {"name": "get_order", "description": "d", "parameters": {}}
    content = {"gen_ai__input__messages": [USER], "gen_ai__tool__definitions": [{"type": "function", **schema}]}
    root = span(0, "invoke_agent", parent="", gen_ai__agent__name="support", user__id="u1", **content)
    child = chat(1, [USER], [DONE], gen_ai__request__model="m")
    (trace,), _ = read(tmp_path, line(root, child, resource={"service.name": "s"}))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]
    assert trace.tools == [schema]
    expected = {"service.name": "s", "gen_ai.agent.name": "support", "user.id": "u1", "gen_ai.request.model": "m"}
    assert trace.metadata == expected
    (alone,), _ = read(tmp_path, line(root))
    assert contents(alone) == [("user", "cancel O7")]


def evaluation(**attributes):
    named = {f"gen_ai.evaluation.{k.replace('__', '.')}": v for k, v in attributes.items()}
    return {"name": "gen_ai.evaluation.result", "attributes": [{"key": k, "value": value(v)} for k, v in named.items()]}


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([], Outcome()),
        ([evaluation(name="help", score__value=1.0)], Outcome(status="success", score=1.0, source="evaluation:help")),
        ([evaluation(name="help", score__value=0)], Outcome(status="failure", score=0.0, source="evaluation:help")),
        ([evaluation(name="h", score__label="fail")], Outcome(status="failure", score=0.0, source="evaluation:h")),
        ([evaluation(name="help", score__value=0.4, score__label="meh")], Outcome(score=0.4, source="evaluation:help")),
        ([evaluation(name="h", score__value=1, score__label="odd")], Outcome(score=1.0, source="evaluation:h")),
        ([evaluation(name="a", score__value=0), evaluation(name="b", score__value=1)],
         Outcome(status="success", score=1.0, source="evaluation:b")),
    ],
)  # fmt: skip
def test_evaluations(tmp_path, events, outcome):
    (trace,), _ = read(tmp_path, line(chat(1, [USER], [DONE], events=events)))
    assert trace.outcome == outcome


def test_unreadable_times_fall_back_on_length_and_quarantine_where_that_does_not_do(tmp_path):
    two, one = chat(1, [USER, CALL, RESULT], [DONE], start="soon"), chat(2, [USER], [CALL], start="")
    (trace,), _ = read(tmp_path, line(two, one))
    assert contents(trace) == WHOLE
    other = {"role": "assistant", "parts": [{"type": "text", "content": "No."}]}
    lost = [chat(1, [USER], [DONE], start="soon", trace="t2"), chat(2, [USER], [other], trace="t2")]
    traces, report = read(tmp_path, line(one), line(*lost))
    assert [trace.id for trace in traces] == ["t1", "t2#1"]
    assert report.quarantined == 1


def test_spans_without_content_are_said_to_be_so(tmp_path):
    with pytest.raises(LogFormatError, match="off by default"):
        read(tmp_path, line(span(1), span(2, "execute_tool")))
    traces, report = read(tmp_path, line(span(1)), line(chat(1, [USER], [DONE], trace="t2")))
    assert [trace.id for trace in traces] == ["t2"]
    assert (report.skipped, report.diagnostics["spans_without_messages"].count) == (1, 1)


@pytest.mark.parametrize("broken", [3, None, {"attributes": 3}, {"traceId": 4, "attributes": [3, {"key": 1}, {}]}])
def test_a_broken_span_does_not_lose_the_others(tmp_path, broken):
    (trace,), _ = read(tmp_path, line(broken, chat(1, [USER], [DONE])))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]


@pytest.mark.parametrize("messages", ["{cut", 7, "3"])
def test_an_attribute_that_holds_no_messages_is_noted(tmp_path, messages):
    (trace,), report = read(tmp_path, line(chat(1, [USER], [DONE]), span(2, gen_ai__input__messages=messages)))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]
    assert report.diagnostics["span_attribute_unreadable"].count >= 1


def test_the_whole_file_as_one_pretty_printed_object(tmp_path):
    file = tmp_path / "spans.json"
    file.write_text(json.dumps(line(chat(1, [USER], [CALL]), chat(2, [USER, CALL, RESULT], [DONE])), indent=2))
    (trace,) = read_traces(file)
    assert contents(trace) == WHOLE


def test_only_open_conversations_are_in_memory(tmp_path):
    file = tmp_path / "spans.jsonl"
    file.write_text("\n".join(json.dumps(line(chat(1, [USER], [DONE], trace=f"t{i}"))) for i in range(100)))
    report = ReadReport()
    stream = read_traces(file, report=report)
    assert next(stream).id == "t0"
    assert report.records == 1
