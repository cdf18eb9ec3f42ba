"""What production wrote, in one shape: `Trace` and the types it is made of.

Every reader ends here and every later station starts here. The types are forgiving on purpose (a log is a
fact, not a request): what could not be understood is kept raw and named in `Trace.diagnostics`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

Role = Literal["system", "user", "assistant", "tool"]
Status = Literal["success", "failure", "truncated", "infra_error", "grader_error", "unknown"]
Severity = Literal["info", "warning", "error"]
Relation = Literal["fork", "subagent"]
ROLES = frozenset(get_args(Role))


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Something odd in a log: what (`code`), how bad, and where."""

    code: str
    """A stable, short name such as `arguments_not_json`; counted in `ReadReport`."""
    severity: Severity
    path: str = ""
    """Where inside the record, as in `messages[3].tool_calls[0].function.arguments`."""
    line: int | None = None
    """The 1-based line of the file, where the format has lines."""
    detail: str = ""
    """One sentence for a person."""


@dataclass(slots=True)
class ToolCall:
    """One call the agent made."""

    id: str
    """Pairs the call with its result; never empty (a missing one is made up and diagnosed)."""
    name: str
    arguments: dict[str, Any] | None
    """The parsed arguments, or None where the agent did not write a JSON object."""
    raw_arguments: str | None = None
    """The text as the agent wrote it, kept where `arguments` does not say it all."""
    extra: dict[str, Any] | None = None
    """What else the log says of the call, as logged."""


@dataclass(slots=True)
class Message:
    """One message of a conversation; a tool's result is a message of role `tool`.

    A plain dataclass, since a log holds millions: made five times as fast as a pydantic model. Raises `ValueError`
    for an unknown role; inside a pydantic model (`Task`, `Trace`) every field is validated.
    """

    role: Role
    content: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    """For role `tool`: the call this answers."""
    name: str | None = None
    """For role `tool`: the tool's name, where the log has it."""
    reasoning: str | None = None
    """What the model thought before it spoke, where the log has it."""
    timestamp: str | None = None
    """ISO 8601 in UTC, with the digits the log has."""
    extra: dict[str, Any] | None = None
    """What else the log says of the message, as logged: content that is not text, a refusal, `is_error`, …"""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"role {self.role!r} is none of {', '.join(sorted(ROLES))}")


class Outcome(BaseModel):
    """How a session ended, and who says so. Unknown stays unknown."""

    status: Status = "unknown"
    score: float | None = None
    """In [0, 1], or None where nobody scored it."""
    source: str = ""
    """Who says so: `feedback`, `rubric:support`, `evaluation:helpfulness`, …"""


class Trace(BaseModel):
    """One session of an agent: a production log or a rollout, for everything downstream the same."""

    id: str
    messages: list[Message]
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """The tools offered, as OpenAI function schemas `{"name", "description", "parameters"}`."""
    outcome: Outcome = Field(default_factory=Outcome)
    parent_id: str | None = None
    """The trace this one came from, where the log says so."""
    relation: Relation | None = None
    """How: a `fork` shares its beginning (a retry, an edit, a rewritten history); a `subagent` was started by it."""
    parent_call_id: str | None = None
    """For a `subagent`: the parent's tool call that started it, where the log says so."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    source: str = ""
    """`file:line` of the record."""
    raw: Any = Field(default=None, repr=False, exclude=True)
    """The record as parsed from the file, untouched; not written out."""
    diagnostics: list[Diagnostic] = Field(default_factory=list)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Every call of the session, in order."""
        return [call for message in self.messages for call in message.tool_calls]

    @property
    def answered(self) -> list[tuple[ToolCall, Message | None]]:
        """Every call with its result, in order; None where the log has none. Of calls that share an id the n-th gets
        the n-th result."""
        results: dict[str | None, list[Message]] = {}
        for message in self.messages:
            if message.role == "tool":
                results.setdefault(message.tool_call_id, []).append(message)
        return [(call, queue.pop(0) if (queue := results.get(call.id)) else None) for call in self.tool_calls]

    @property
    def final_reply(self) -> str | None:
        """The text of the last message if the agent wrote it and it calls no tool; else None."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or last.tool_calls:
            return None
        return last.content
