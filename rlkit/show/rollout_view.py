"""Conversations as a person reads them: as cards, side by side, token by token, or as plain text.

The HTML is static and the same every time (no scripts, no ids), everything from outside is escaped, and colours come
from Jupyter's variables or are translucent, so that it reads in light and dark and in an exported page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rlkit.envs.grading import CheckResult, Grade
from rlkit.logs.trace import Message, ToolCall, Trace
from rlkit.sampling.rollout import Rollout

if TYPE_CHECKING:
    from IPython.display import HTML

    from rlkit.sampling.chat import ChatFormat

CSS = """<style>
.rlkit {font: 13px/1.45 var(--jp-content-font-family, system-ui, sans-serif); max-width: 1100px; margin: 4px 0;
  color: var(--jp-content-font-color1, #222)}
.rlkit-columns {display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 14px;
  align-items: start}
.rlkit-card {border: 1px solid rgba(128,128,128,.35); border-radius: 6px; padding: 8px 10px; min-width: 0}
.rlkit-head {display: flex; flex-wrap: wrap; gap: 8px; align-items: baseline; margin-bottom: 6px}
.rlkit-head b {font-size: 14px}
.rlkit-dim {opacity: .65; font-size: 12px; overflow-wrap: anywhere}
.rlkit-badge {border-radius: 9px; padding: 0 8px; font-size: 12px; background: rgba(128,128,128,.22)}
.rlkit-success {background: rgba(0,158,115,.28)}
.rlkit-failure, .rlkit-truncated {background: rgba(213,94,0,.3)}
.rlkit-message {display: grid; grid-template-columns: 104px 1fr; gap: 8px; padding: 3px 6px; margin: 2px 0;
  border-left: 3px solid rgba(128,128,128,.4)}
.rlkit-user {border-color: #E69F00}
.rlkit-assistant {border-color: #0072B2; background: rgba(0,114,178,.09)}
.rlkit-error {border-color: #D55E00; background: rgba(213,94,0,.14)}
.rlkit-role {opacity: .65; font-size: 12px}
.rlkit-text {white-space: pre-wrap; overflow-wrap: anywhere; min-width: 0}
.rlkit .rlkit-message .rlkit-text code {font: 12px/1.5 var(--jp-code-font-family, ui-monospace, monospace);
  background: none; color: inherit; padding: 0}
.rlkit summary {cursor: pointer}
.rlkit-checks {margin-top: 6px; font-size: 12px; display: flex; flex-wrap: wrap; gap: 4px 14px}
.rlkit-tokens {font: 12px/1.9 var(--jp-code-font-family, ui-monospace, monospace); white-space: pre-wrap;
  overflow-wrap: anywhere}
.rlkit-heard {opacity: .5}
.rlkit-spoken {border-bottom: 1.5px solid #0072B2; padding: 1px 0}
</style>"""

LEAST_LIKELY = -4.0
"""The logprob (2 %) at which a token gets the full colour."""


def show_trace(trace: Trace, grade: Grade | None = None) -> HTML:
    """One conversation as a card: every message, calls with their arguments, errors marked, outcome and checks."""
    return _html(_card(trace, grade))


def side_by_side(
    before: Rollout | Trace, after: Rollout | Trace, labels: tuple[str, str] = ("before", "after")
) -> HTML:
    """Two conversations in two columns (one below the other where the page is narrow)."""
    return _html(_columns([(labels[0], before), (labels[1], after)]))


def show_tokens(rollout: Rollout, chat: ChatFormat) -> HTML:
    """Every token of a rollout; the model's are underlined, and the less likely they were, the stronger the colour.

    Hovering over a token shows its id, and for spoken ones logprob, probability and policy version.
    """
    columns = rollout.token_ids, rollout.action_mask, rollout.logprobs, rollout.versions
    spans = []
    for text, id, spoken, logprob, version in zip(chat.text(rollout.token_ids.tolist()), *columns, strict=True):
        tip = f"id {id}"
        if spoken:
            tip += f" · logprob {logprob:.3f} ({math.exp(logprob):.1%}) · version {version}"
        spans.append(_token(text, tip, float(logprob) if spoken else None) + ("\n" if id == chat.end_id else ""))
    scale = " ".join(_token(f" {math.exp(p):.0%} ", f"logprob {p:g}", p) for p in (0, -0.5, -1, -2, LEAST_LIKELY))
    legend = f"{_token('heard', 'not the model', None)} · spoken by the model, at a probability of {scale}"
    return _html(f'<div class="rlkit-tokens">{legend}</div><div class="rlkit-tokens">{"".join(spans).rstrip()}</div>')


def transcript(trace: Trace) -> str:
    """The conversation as plain text for a terminal, without the system prompt; the outcome is its last line."""
    lines = []
    for message in trace.messages:
        if message.content and message.role != "system":
            lines.append(f"{message.role:<9} {message.content}".replace("\n", "\n" + " " * 10))
        lines += [f"{message.role:<9} → {_call(call)}" for call in message.tool_calls]
    return "\n".join([*lines, f"[{_outcome(trace.outcome.status, trace.outcome.score)}]"])


def _html(body: str) -> HTML:
    from IPython.display import HTML

    return HTML(f'{CSS}<div class="rlkit">{body}</div>')  # type: ignore[no-untyped-call]


def _columns(labelled: Sequence[tuple[str, Rollout | Trace]]) -> str:
    cards = [
        _card(shown.trace, shown.grade, label) if isinstance(shown, Rollout) else _card(shown, None, label)
        for label, shown in labelled
    ]
    return f'<div class="rlkit-columns">{"".join(cards)}</div>'


def _card(trace: Trace, grade: Grade | None, label: str = "") -> str:
    outcome = trace.outcome
    status, score = (grade.status, grade.score) if grade else (outcome.status, outcome.score)
    head = (f"<b>{escape(label)}</b>" if label else "") + f'<span class="rlkit-dim">{escape(trace.id)}</span>'
    head += f'<span class="rlkit-badge rlkit-{status}">{escape(_outcome(status, score))}</span>'
    if source := grade.rubric if grade else outcome.source:
        head += f'<span class="rlkit-dim">{escape(source)}</span>'
    messages = "".join(_message(message) for message in trace.messages)
    checks = "".join(f"<span>{escape(_check(result))}</span>" for result in (grade.checks if grade else []))
    checks = f'<div class="rlkit-checks">{checks}</div>' if checks else ""
    return f'<div class="rlkit-card"><div class="rlkit-head">{head}</div>{messages}{checks}</div>'


def _message(message: Message) -> str:
    content = escape(message.content or "")
    error = message.role == "tool" and _is_error(message.content)
    if message.role == "system":
        content = f"<details><summary>instructions to the agent</summary>{content}</details>"
    elif message.role == "tool":
        content = f"<code>{content}</code>"
    parts = [content] if content else []
    if message.reasoning:
        parts.insert(0, f"<details><summary>what it thought</summary>{escape(message.reasoning)}</details>")
    for call in message.tool_calls:
        error |= call.arguments is None
        parts.append(f"<code>→ {escape(_call(call))}</code>")
    if message.extra:
        parts.append(f'<span class="rlkit-dim">also logged: {escape(", ".join(message.extra))}</span>')
    kind = f"rlkit-{message.role}" + " rlkit-error" * error
    role = message.role + (f" {escape(message.name)}" if message.name else "")
    text = f'<div class="rlkit-text">{"<br>".join(parts)}</div>'
    return f'<div class="rlkit-message {kind}"><div class="rlkit-role">{role}</div>{text}</div>'


def _call(call: ToolCall) -> str:
    """`refund(id='4821', item='ramen')`; what is not a JSON object as the agent wrote it."""
    if call.arguments is None:
        return f"{call.name}({call.raw_arguments or ''})  ✗ not a JSON object"
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _is_error(content: str | None) -> bool:
    try:
        result = json.loads(content or "")
    except ValueError:
        return False
    return isinstance(result, dict) and "error" in result


def _outcome(status: str, score: float | None) -> str:
    return status.replace("_", " ") + ("" if score is None else f" {score:.2f}")


def _check(result: CheckResult) -> str:
    if result.score is None:
        return f"⚠ {result.name}: {result.error}"
    return f"{'✓' if result.score > 1 - 1e-6 else '✗'} {result.name} {result.score:.2f}"


def _token(text: str, tip: str, logprob: float | None) -> str:
    """A token as a span; `logprob` is None where the model did not speak."""
    if logprob is None:
        return f'<span class="rlkit-heard" title="{escape(tip)}">{escape(text)}</span>'
    strength = 0.75 * min(1.0, logprob / LEAST_LIKELY)
    color = f"background: rgba(213,94,0,{strength:.2f})"
    return f'<span class="rlkit-spoken" style="{color}" title="{escape(tip)}">{escape(text)}</span>'
