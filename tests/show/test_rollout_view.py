"""Conversations are shown whole, escaped, and the same every time."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from rlkit.envs.grading import CheckResult, Grade
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, Outcome, ToolCall, Trace
from rlkit.sampling.rollout import Rollout, RolloutGroup
from rlkit.show import rollout_browser, show_tokens, show_trace, side_by_side, transcript

EVIL = "<script>alert(\"1\")</script> & 'x'"
CHAT = SimpleNamespace(end_id=9, text=lambda ids: [{9: "<end>", 3: " <b>", 4: " hi", 5: "<user>"}[id] for id in ids])


class Balanced(HTMLParser):
    """Collects the tags in order and refuses what is not closed properly."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def make_trace(text="my ramen was cold", status="success", score=1.0):
    call = ToolCall(id="c", name="refund", arguments={"id": "4821", "item": text})
    messages = [
        Message(role="system", content="Be kind."),
        Message(role="user", content=text),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", name="refund", content='{"error":"gateway timeout"}', tool_call_id="c"),
        Message(role="assistant", tool_calls=[ToolCall(id="d", name="deny", arguments=None, raw_arguments='{"id":')]),
        Message(role="assistant", content=f"Sorry. {text}"),
    ]
    return Trace(id=f"t/{text}", messages=messages, outcome=Outcome(status=status, score=score, source="feedback"))


def make_rollout(status="success", score=1.0, text="my ramen was cold"):
    checks = [CheckResult("told", score, 1.0, None if score is not None else f"ValueError: {EVIL}")]
    return Rollout(
        task_id="t",
        seed=0,
        token_ids=np.array([5, 4, 3, 9], np.int32),
        action_mask=np.array([False, False, True, True]),
        logprobs=np.array([0, 0, -0.5, -8], np.float32),
        versions=np.array([-1, -1, 7, 7], np.int32),
        temperature=1.0,
        grade=Grade(status, score, checks, "support@1"),
        trace=make_trace(text, status, score),
        final_state={},
        seconds=0.1,
    )


def visible(html):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)))


def test_trace_shows_every_message_and_marks_errors():
    html = show_trace(make_trace()).data
    Balanced(html)
    text = visible(html)
    for part in ("Be kind.", "my ramen was cold", "refund(id='4821', item='my ramen was cold')", "gateway timeout"):
        assert part in text
    assert 'deny({"id":) ✗ not a JSON object' in text
    assert "success 1.00" in text
    assert "feedback" in text
    assert html.count('class="rlkit-message rlkit-tool rlkit-error"') == 1
    assert html.count('class="rlkit-message rlkit-assistant rlkit-error"') == 1
    assert html.count('class="rlkit-message rlkit-assistant"') == 2


def test_everything_from_outside_is_escaped():
    rollout = make_rollout("grader_error", None, text=EVIL)
    rollout.trace.messages[3].name = EVIL
    rollout.trace.messages[4].tool_calls[0].raw_arguments = EVIL
    rollout.trace.outcome.source = EVIL
    for html in (
        show_trace(rollout.trace, rollout.grade).data,
        show_trace(rollout.trace).data,
        side_by_side(rollout, rollout.trace, labels=(EVIL, EVIL)).data,
        show_tokens(rollout, SimpleNamespace(end_id=9, text=lambda ids: [EVIL for _ in ids])).data,
    ):
        assert "script" not in Balanced(html).tags
        assert EVIL in visible(html)


def test_a_grade_overrides_the_outcome_and_shows_its_checks():
    grade = Grade("grader_error", None, [CheckResult("a", None, 1, "boom"), CheckResult("b", 0.5, 1)], "support@1")
    text = visible(show_trace(make_trace(), grade).data)
    assert "grader error support@1" in text  # no score where nobody can say
    assert "⚠ a: boom ✗ b 0.50" in text
    assert "success" not in text


def test_side_by_side_labels_both():
    html = side_by_side(make_rollout("truncated", 0.0), make_trace(), labels=("warm start", "trained")).data
    Balanced(html)
    text = visible(html)
    assert text.index("warm start") < text.index("truncated 0.00") < text.index("trained") < text.index("success 1.00")


def test_tokens_carry_what_was_recorded():
    html = show_tokens(make_rollout(), CHAT).data
    Balanced(html)
    _, body = html.rsplit('<div class="rlkit-tokens">', 1)
    spans = re.findall(r'<span class="rlkit-(\w+)"(?: style="([^"]*)")? title="([^"]*)">([^<]*)</span>', body)
    assert spans == [
        ("heard", "", "id 5", "&lt;user&gt;"),
        ("heard", "", "id 4", " hi"),
        ("spoken", "background: rgba(213,94,0,0.09)", "id 3 · logprob -0.500 (60.7%) · version 7", " &lt;b&gt;"),
        ("spoken", "background: rgba(213,94,0,0.75)", "id 9 · logprob -8.000 (0.0%) · version 7", "&lt;end&gt;"),
    ]


def test_a_line_ends_where_a_message_ends():
    rollout = make_rollout()
    rollout.token_ids[1] = 9
    assert re.search(r"&lt;end&gt;</span>\n<span", show_tokens(rollout, CHAT).data)


def test_html_is_the_same_every_time_and_needs_nothing_from_outside():
    for make in (lambda r: show_trace(r.trace, r.grade), lambda r: side_by_side(r, r), lambda r: show_tokens(r, CHAT)):
        html = make(make_rollout()).data
        assert html == make(make_rollout()).data
        assert not re.search(r"\bid=\"|https?:|url\(|0x[0-9a-f]{6}", html)


def test_transcript_is_plain_text():
    trace = make_trace("two\nlines", "infra_error", None)
    assert transcript(trace).splitlines() == [
        "user      two",
        "          lines",
        "assistant → refund(id='4821', item='two\\nlines')",
        'tool      {"error":"gateway timeout"}',
        'assistant → deny({"id":)  ✗ not a JSON object',
        "assistant Sorry. two",
        "          lines",
        "[infra error]",
    ]
    assert transcript(Trace(id="empty", messages=[])) == "[unknown]"


def test_empty_trace_is_shown():
    assert "unknown" in visible(show_trace(Trace(id="empty", messages=[])).data)


def groups():
    task = Task(id="t1", messages=[], state={}, tags={"complaint": "cold", "outcome": "voucher"})
    other = Task(id="t2", messages=[], state={})
    masked = make_rollout("infra_error", None, text="masked")
    return [
        RolloutGroup(task, [masked, make_rollout(text="won")]),
        RolloutGroup(
            other, [make_rollout("truncated", 0.0, "cut"), make_rollout("failure", 0.5, "lost"), make_rollout()]
        ),
    ]


def test_browser_follows_its_controls():
    browser = rollout_browser(groups())
    assert [label for label, _ in browser.group.options] == [
        "1. cold · voucher: 1 of 2 succeeded",
        "2. t2: 1 of 3 succeeded",
    ]
    assert "t/masked" in browser.view.value
    browser.rollout.value = 2
    assert "t/won" in browser.view.value
    browser.group.value = 1
    assert (browser.rollout.value, browser.rollout.max) == (1, 3)
    assert "t/cut" in browser.view.value
    browser.rollout.value = 3
    browser.group.value = 0
    assert (browser.rollout.value, browser.rollout.max) == (1, 2)
    assert "t/masked" in browser.view.value


def test_browser_without_a_kernel_shows_a_failure_and_a_success():
    browser = rollout_browser(groups())
    text = visible(browser.static().data)
    assert text.index("first failure t/lost") < text.index("first success t/won")
    assert "text/html" in browser._repr_mimebundle_()
    only_masked = rollout_browser([RolloutGroup(groups()[0].task, groups()[0].rollouts[:1])])
    text = visible(only_masked.static().data)
    assert "first infra error t/masked" in text
    assert "first success" not in text


@pytest.mark.parametrize("nothing", [[], [RolloutGroup(Task(id="t", messages=[], state={}), [])]])
def test_browser_of_nothing_says_so(nothing):
    with pytest.raises(ValueError, match="no rollouts"):
        rollout_browser(nothing)


def test_thoughts_and_what_else_was_logged_are_shown():
    thought = Message(role="assistant", content="Yes.", reasoning="Is <it>?", extra={"refusal": EVIL, "content": []})
    html = show_trace(Trace(id="t", messages=[thought])).data
    Balanced(html)
    assert "Is &lt;it&gt;?" in html
    assert "also logged: refusal, content" in html
    assert EVIL not in html
