"""GenAI spans as they were written before today's conventions: flat attributes, JSON in one attribute, events."""

from __future__ import annotations

import json

import pytest

from rlkit.logs import LogFormatError
from tests.logs.test_otel import CALL, DONE, RESULT, USER, WHOLE, chat, contents, line, read, span, tool, value

# Attribute names as in openllmetry's opentelemetry-semantic-conventions-ai (SpanAttributes).
ARGUMENTS = '{"id": "O7"}'
ASKED = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "cancel O7"}
CALLED = {
    "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "c1", "gen_ai.completion.0.tool_calls.0.name": "get_order",
    "gen_ai.completion.0.tool_calls.0.arguments": ARGUMENTS,
}  # fmt: skip
THEN = ASKED | {key.replace("completion.0", "prompt.1"): item for key, item in CALLED.items()} | {
    "gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": '{"state":"pending"}',
    "gen_ai.prompt.2.tool_call_id": "c1", "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Done.",
}  # fmt: skip


def old(number, attributes=(), events=(), operation=None, **more):
    """A span with these very attributes."""
    made = span(number, operation, events=events, **more)
    named = dict(attributes) if operation is None else {"gen_ai.operation.name": operation} | dict(attributes)
    return made | {"attributes": [{"key": key, "value": value(item)} for key, item in named.items()]}


def event(name, **attributes):
    return {"name": name, "attributes": [{"key": key, "value": value(item)} for key, item in attributes.items()]}


def test_flat_attributes_are_messages(tmp_path):
    (trace,), report = read(tmp_path, line(old(1, ASKED | CALLED), old(2, THEN)))
    assert contents(trace) == WHOLE
    assert (trace.tool_calls[0].id, trace.tool_calls[0].arguments) == ("c1", {"id": "O7"})
    assert trace.tool_calls[0].raw_arguments == ARGUMENTS
    assert report.diagnostics == {}


def test_flat_attributes_are_in_the_order_of_their_numbers(tmp_path):
    said = {f"gen_ai.prompt.{n}.{key}": text for n in range(11)
            for key, text in (("role", ("user", "assistant")[n % 2]), ("content", f"m{n}"))}  # fmt: skip
    (trace,), _ = read(tmp_path, line(old(1, dict(sorted(said.items())))))
    assert [m.content for m in trace.messages] == [f"m{n}" for n in range(11)]


def test_a_number_too_long_for_a_list_costs_only_itself(tmp_path):
    huge = {f"gen_ai.prompt.{'9' * 5000}.role": "user"}
    traces, report = read(tmp_path, line(chat(1, [USER], [DONE])), line(old(2, ASKED | huge, trace="t2")))
    assert (len(traces), report.records) == (1, report.used + report.skipped)


def test_functions_and_the_model_are_found(tmp_path):
    offered = {"llm.request.functions.0.name": "get_order", "llm.request.functions.0.description": "d",
               "llm.request.functions.0.parameters": '{"type": "object"}', "gen_ai.request.model": "m"}  # fmt: skip
    (trace,), _ = read(tmp_path, line(old(1, ASKED | CALLED | offered, parent="")))
    assert trace.tools == [{"name": "get_order", "description": "d", "parameters": {"type": "object"}}]
    assert trace.metadata == {"gen_ai.request.model": "m"}


def test_several_choices_are_answers_to_the_same_question(tmp_path):
    more = {"gen_ai.completion.0.content": "Yes.", "gen_ai.completion.1.role": "assistant",
            "gen_ai.completion.1.content": "No."}  # fmt: skip
    (main, fork), _ = read(tmp_path, line(old(1, ASKED | more)))
    assert contents(main) == [("user", "cancel O7"), ("assistant", "Yes.")]
    assert contents(fork) == [("user", "cancel O7"), ("assistant", "No.")]
    assert (fork.parent_id, fork.relation) == (main.id, "fork")


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [
        ([{"role": "user", "content": "cancel O7"}], [{"role": "assistant", "content": "Done."}]),
        ({"messages": [{"role": "user", "content": "cancel O7"}]}, {"choices": [{"message": {"content": "Done."}}]}),
        ("cancel O7", "Done."),
    ],
)
@pytest.mark.parametrize("on_events", [False, True])
def test_a_prompt_and_an_answer_in_one_attribute_each(tmp_path, prompt, completion, on_events):
    prompt, completion = (item if isinstance(item, str) else json.dumps(item) for item in (prompt, completion))
    if on_events:
        events = [event("gen_ai.content.prompt", **{"gen_ai.prompt": prompt}),
                  event("gen_ai.content.completion", **{"gen_ai.completion": completion})]  # fmt: skip
        spans = old(1, events=events)
    else:
        spans = old(1, {"gen_ai.prompt": prompt, "gen_ai.completion": completion})
    (trace,), _ = read(tmp_path, line(spans))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]


def test_an_empty_prompt_is_said_to_hold_no_messages(tmp_path):
    # A span of structured output whose prompt was logged as "[]": nothing to learn from, and no reward of 0 either.
    with pytest.raises(LogFormatError, match="no messages"):
        read(tmp_path, line(old(1, {"gen_ai.prompt": "[]"}, operation="chat")))


def test_a_message_without_a_role_costs_only_itself(tmp_path):
    broken = {key: item for key, item in THEN.items() if key != "gen_ai.prompt.0.role"}
    (trace,), report = read(tmp_path, line(old(1, broken)))
    assert contents(trace) == WHOLE[1:]
    assert "role_unknown" in report.diagnostics


# Events as in semantic conventions 1.28, docs/gen-ai/gen-ai-events.md.
CALLS = json.dumps([{"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": ARGUMENTS}}])


@pytest.mark.parametrize("whole", [False, True])
def test_events_are_messages(tmp_path, whole):
    said = [
        ("gen_ai.user.message", {"content": "cancel O7"}),
        ("gen_ai.assistant.message", {"role": "assistant", "tool_calls": CALLS}),
        ("gen_ai.tool.message", {"id": "c1", "content": '{"state":"pending"}'}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}),
    ]
    events = [event(name, **({"gen_ai.event.content": json.dumps(body)} if whole else body)) for name, body in said]
    (trace,), report = read(tmp_path, line(old(1, events=events)))
    assert contents(trace) == WHOLE
    assert trace.messages[2].tool_call_id == trace.tool_calls[0].id == "c1"
    assert report.diagnostics == {}


def test_events_of_strands_hold_bedrock_s_blocks(tmp_path):
    use = {"toolUse": {"toolUseId": "c1", "name": "get_order", "input": {"id": "O7"}}}
    result = {"toolResult": {"toolUseId": "c1", "status": "success", "content": [{"text": "pending"}]}}
    events = [
        event("gen_ai.user.message", content=json.dumps([{"text": "cancel O7"}])),
        event("gen_ai.assistant.message", content=json.dumps([{"text": "Let me see."}, use])),
        event("gen_ai.tool.message", content=json.dumps([result]), role="tool"),
        event("gen_ai.choice", message=json.dumps([{"text": "Done."}]), finish_reason="end_turn"),
    ]
    (trace,), _ = read(tmp_path, line(old(1, events=events, operation="chat")))
    said = [("user", "cancel O7"), ("assistant", "Let me see."), ("tool", "pending"), ("assistant", "Done.")]
    assert contents(trace) == said
    assert trace.tool_calls[0].arguments == {"id": "O7"}


@pytest.mark.parametrize(
    "ran",
    [
        old(2, {"traceloop.span.kind": "tool", "traceloop.entity.name": "get_order",
                "traceloop.entity.output": json.dumps({"output": "pending", "kwargs": {}})}),
        old(2, {"gen_ai.tool.name": "get_order", "gen_ai.tool.call.id": "c1"}, operation="execute_tool",
            events=[event("gen_ai.tool.message", role="tool", content='[{"role": "tool", "content": "{}"}]'),
                    event("gen_ai.choice", message='[{"text": "pending"}]')]),
    ],
)  # fmt: skip
def test_a_tool_s_result_is_found_where_older_spans_keep_it(tmp_path, ran):
    (trace,), _ = read(tmp_path, line(old(1, ASKED | CALLED), ran))
    assert contents(trace)[-1] == ("tool", "pending")


def test_today_s_attributes_win_over_older_ones(tmp_path):
    stale = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "something older"}
    new = {"gen_ai.input.messages": json.dumps([USER]), "gen_ai.output.messages": json.dumps([DONE])}
    (trace,), _ = read(tmp_path, line(old(1, stale | new)))
    assert contents(trace) == [("user", "cancel O7"), ("assistant", "Done.")]


def test_one_call_exported_by_two_instrumentations_is_read_once(tmp_path):
    later = [USER, CALL, RESULT]
    doubled = [chat(1, [USER], [CALL]), old(2, ASKED | CALLED), chat(3, later, [DONE]), old(4, THEN)]
    ran = [tool(5, name="get_order", call__id="c1", call__result="x") | {"spanId": spot} for spot in ("e", "f")]
    (trace,), report = read(tmp_path, line(*doubled, *ran))
    assert contents(trace) == WHOLE
    assert report.diagnostics == {}
