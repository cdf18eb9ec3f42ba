"""What all span formats share: who started whom, what goes on with what, parents missing or in circles."""

from __future__ import annotations

import json

import pytest

from tests.logs.test_otel import CALL, DONE, RESULT, USER, WHOLE, chat, contents, line, read, span, tool

SYSTEM = {"role": "system", "parts": [{"type": "text", "content": "You look orders up."}]}
ASKED = {"role": "user", "parts": [{"type": "text", "content": "O7?"}]}
SEEN = {"role": "assistant", "parts": [{"type": "text", "content": "It is pending."}]}


def say(text):
    return {"role": "assistant", "parts": [{"type": "text", "content": text}]}


def agent(number, parent="root", **more):
    return span(number, "invoke_agent", parent=parent, **more)


def test_a_conversation_below_a_tool_call_is_a_subagent_s(tmp_path):
    ran = tool(2, name="get_order", call__id="c1", call__result={"state": "pending"})
    helper = agent(3, "b2", gen_ai__agent__name="helper", gen_ai__tool__definitions=[{"name": "look"}])
    inner = chat(4, [SYSTEM, ASKED], [SEEN], parent="b3")
    (main, sub), _ = read(
        tmp_path, line(agent(0, ""), chat(1, [USER], [CALL], parent="b0"), ran | {"parentSpanId": "b0"}, helper, inner,
                       chat(5, [USER, CALL, RESULT], [DONE], parent="b0"))
    )  # fmt: skip
    assert contents(main) == WHOLE
    assert contents(sub) == [("system", "You look orders up."), ("user", "O7?"), ("assistant", "It is pending.")]
    assert (sub.parent_id, sub.relation, sub.parent_call_id) == (main.id, "subagent", "c1")
    assert (sub.tools, sub.metadata) == ([{"name": "look"}], {"gen_ai.agent.name": "helper"})
    assert main.tools == []


def test_a_tool_called_twice_starts_two_conversations_even_where_they_begin_alike(tmp_path):
    again = {"role": "assistant", "parts": [CALL["parts"][0] | {"id": "c2"}]}
    spans = [
        chat(1, [USER], [CALL]),
        tool(2, name="get_order", call__id="c1", call__result="x"), chat(3, [ASKED], [SEEN], parent="b2"),
        chat(4, [USER, CALL, RESULT], [again]),
        tool(5, name="get_order", call__id="c2", call__result="y"), chat(6, [ASKED], [say("Gone.")], parent="b5"),
    ]  # fmt: skip
    (_, one, two), _ = read(tmp_path, line(*spans))
    assert [(t.parent_call_id, t.messages[-1].content) for t in (one, two)] == [
        ("c1", "It is pending."),
        ("c2", "Gone."),
    ]


def test_an_agent_below_another_one_is_a_subagent_and_a_workflow_above_both_is_none(tmp_path):
    spans = [
        span(0, "invoke_workflow", parent=""), agent(1, "b0"), chat(2, [USER], [say("Wait.")], parent="b1"),
        agent(3, "b1"), chat(4, [SYSTEM, ASKED], [SEEN], parent="b3"),
        chat(5, [USER, say("Wait."), USER], [DONE], parent="b1"),
    ]  # fmt: skip
    (main, sub), _ = read(tmp_path, line(*spans))
    assert [m.content for m in main.messages] == ["cancel O7", "Wait.", "cancel O7", "Done."]
    assert (sub.relation, sub.parent_call_id) == ("subagent", None)


def test_an_edited_first_message_is_a_fork_and_a_side_call_is_neither(tmp_path):
    def told(text):
        return [{"role": "system", "parts": [{"type": "text", "content": text}]}, USER]

    edited = [SYSTEM, {"role": "user", "parts": [{"type": "text", "content": "cancel O8"}]}]
    title = {"role": "system", "parts": [{"type": "text", "content": "Name this chat."}]}
    spans = chat(1, [SYSTEM, USER], [DONE]), chat(2, [title, ASKED], [say("Orders")]), chat(3, edited, [DONE])
    (main, fork, side), _ = read(tmp_path, line(*spans))
    assert main.messages[1].content == "cancel O8"
    assert (fork.messages[1].content, fork.relation) == ("cancel O7", "fork")
    assert (side.messages[-1].content, side.relation, side.parent_id) == ("Orders", None, main.id)


def test_several_answers_in_one_span_are_forks_and_the_one_gone_on_with_is_the_main_one(tmp_path):
    spans = chat(1, [USER], [say("Yes."), say("No."), say("Why?")]), chat(2, [USER, say("No."), USER], [DONE])
    traces, _ = read(tmp_path, line(*spans))
    assert [[m.content for m in trace.messages] for trace in traces] == [
        ["cancel O7", "No.", "cancel O7", "Done."],
        ["cancel O7", "Yes."],
        ["cancel O7", "Why?"],
    ]
    assert {trace.relation for trace in traces[1:]} == {"fork"}


def test_the_same_words_under_other_ids_are_another_line(tmp_path):
    other = {"role": "assistant", "parts": [CALL["parts"][0] | {"id": "c9"}]}
    answer = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c9", "response": "gone"}]}
    (main, fork), _ = read(tmp_path, line(chat(1, [USER], [CALL]), chat(2, [USER, other, answer], [DONE])))
    assert [m.content for m in main.messages] == ["cancel O7", None, "gone", "Done."]
    assert main.diagnostics == []
    assert [call.id for call in fork.tool_calls] == ["c1"]


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_a_prefix_is_told_by_its_text_only_where_it_ends_with_a_message(tmp_path, separators):
    def asking(number, messages, answer):
        text, said = json.dumps(messages, separators=separators), json.dumps([answer])
        return span(number, gen_ai__input__messages=text, gen_ai__output__messages=said)

    spans = [
        asking(1, [USER], CALL), asking(2, [USER, CALL, RESULT], DONE),
        asking(3, [USER, CALL, RESULT, DONE, ASKED], SEEN), asking(4, [ASKED], SEEN), asking(5, [], SEEN),
        asking(6, [USER, CALL, RESULT, DONE, ASKED, SEEN, USER], DONE),
    ]  # fmt: skip
    traces, _ = read(tmp_path, line(*spans))
    assert [len(trace.messages) for trace in traces] == [8, 2, 1]
    assert contents(traces[0])[:4] == WHOLE
    assert traces[0].diagnostics == []


def test_parents_that_are_missing_or_run_in_circles_stop_nothing(tmp_path):
    spans = [
        chat(1, [USER], [CALL], parent="gone"), tool(2, name="get_order", call__id="c1", call__result="x"),
        agent(3, "b4"), agent(4, "b3"), chat(5, [USER, CALL, RESULT], [DONE], parent="b3"),
        chat(6, [ASKED], [SEEN], parent="b6"),
    ]  # fmt: skip
    (main, side), report = read(tmp_path, line(*spans))
    assert {len(main.messages), len(side.messages)} == {4, 2}
    assert report.skipped == 0


def test_equal_clocks_are_ordered_by_how_much_was_asked(tmp_path):
    spans = [chat(1, [USER, CALL, RESULT], [DONE], start=7), chat(2, [USER], [CALL], start=7)]
    (trace,), _ = read(tmp_path, line(*spans))
    assert contents(trace) == WHOLE


def test_a_session_of_tools_alone_is_said_to_hold_no_messages(tmp_path):
    lost = tool(1, name="get_order", call__id="c1", call__result="x", trace="t2")
    traces, report = read(tmp_path, line(chat(1, [USER], [DONE])), line(lost | {"traceId": "t2"}))
    assert len(traces) == 1
    assert (report.skipped, report.diagnostics["spans_without_messages"].count) == (1, 1)
