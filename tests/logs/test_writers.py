"""What the two writers put on disk."""

from __future__ import annotations

import json

from rlkit.logs import Message, ToolCall, Trace, to_openai, to_otlp


def test_the_openai_record_is_what_the_api_takes():
    call = ToolCall(id="c1", name="f", arguments={"id": "O7"})
    trace = Trace(id="s1", messages=[Message(role="assistant", tool_calls=[call])], tools=[{"name": "f"}])
    assert to_openai(trace) == {
        "id": "s1",
        "messages": [{
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"id":"O7"}'}}],
        }],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }  # fmt: skip


def test_the_spans_repeat_the_prefix_and_are_the_same_every_time():
    call = ToolCall(id="c1", name="get_order", arguments={"id": "O7"})
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="user", content="cancel O7"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="pending", tool_call_id="c1"),
        Message(role="assistant", content="Done."),
    ]
    record = to_otlp(Trace(id="s1", messages=messages))
    assert record == to_otlp(Trace(id="s1", messages=messages))
    spans = record["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["invoke_agent", "chat", "execute_tool get_order", "chat"]
    assert [span.get("parentSpanId") for span in spans] == [None] + [spans[0]["spanId"]] * 3
    assert len({span["spanId"] for span in spans}) == 4
    assert {len(span["traceId"]) for span in spans} == {32}
    last = {item["key"]: item["value"]["stringValue"] for item in spans[-1]["attributes"]}
    assert json.loads(last["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be kind."}]
    assert [m["role"] for m in json.loads(last["gen_ai.input.messages"])] == ["user", "assistant", "tool"]
    assert json.loads(last["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Done."}], "finish_reason": "stop"}
    ]
