"""Production sessions that branch: replies asked for again, complaints edited, a specialist asked.

The same desk, the same flawed agent and the same customers as in `production.py`; every line of a session is played
in an episode that was forked from the others at the very point where they part.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rlkit.envs.environment import Environment, Episode, Tool
from rlkit.envs.task import Task
from rlkit.examples.support.agents import MAX_TURNS, oracle, production_agent
from rlkit.examples.support.environment import environment
from rlkit.examples.support.policy import ALL_ITEMS, Decision, decide
from rlkit.examples.support.world import COMPLAINTS, SYSTEM_PROMPT, Pool, order_ids, read_complaint, sample_task
from rlkit.logs.trace import Message, ToolCall, Trace

KINDS: dict[tuple[str, ...], int] = {
    (): 12,
    ("retry",): 6,
    ("edit",): 5,
    ("ask",): 5,
    ("ask", "retry"): 4,
    ("ask", "edit"): 2,
    ("edit", "retry"): 2,
}
"""What happens in a session, one after the other, and how often (in 36)."""
LISTENS = 0.7
"""How often the agent does what the specialist said."""

ASK = "ask_specialist"
ASK_SCHEMA: dict[str, Any] = {
    "name": ASK,
    "description": "Ask a specialist what the policy says about an order.",
    "parameters": {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[0-9]{4}$"}, "question": {"type": "string"}},
        "required": ["id", "question"],
        "additionalProperties": False,
    },
}
SPECIALIST_PROMPT = """You are the policy specialist of a food delivery service. A support agent asks about an order.
Look the order up, read the rule, and say in one sentence what the agent should do, and why."""


def read_policy(episode: Episode, complaint: str) -> dict[str, str]:
    """The line of the policy that is about a complaint."""
    sign = complaint.split("_")[0]
    lines = [line.removeprefix("- ") for line in SYSTEM_PROMPT.splitlines() if line.startswith("- ")]
    return {"rule": next(line for line in lines if sign in line.split(":")[0])}


_COMPLAINT = {"type": "string", "enum": list(COMPLAINTS)}
specialist_desk = Environment(
    "specialist",
    [
        environment.by_name["get_order"],
        Tool(
            "read_policy",
            "Read the rule about a complaint.",
            {"type": "object", "properties": {"complaint": _COMPLAINT}, "required": ["complaint"]},
            read_policy,
        ),
    ],
)


def branching_sessions(
    count: int, seed: int = 0, pool: Pool = "train", start: str = "2026-07-01"
) -> Iterator[list[Trace]]:
    """`count` sessions, reproducible from `seed`, each as its traces: the main one first, then forks, then sub-agents.

    A third are linear. In the others a reply was asked for again (`retry`), the customer edited her complaint
    (`edit`), or the agent asked a specialist (`ask`), see `KINDS`; the main trace is the line that ends last, a fork
    is one that was given up, and a sub-agent is a specialist's conversation, whose last reply is the result of the
    call that started it. All have the session as their parent. Agents that act without looking the order up are drawn
    again, so that every line can be graded.
    """
    rng = random.Random(f"branching:{pool}:{seed}")
    clock = datetime.fromisoformat(start).replace(tzinfo=UTC)
    ids: list[str] = []
    for number in range(count):
        if not ids:
            ids = rng.sample(order_ids(pool), len(order_ids(pool)))
        task = sample_task(rng, pool, ids.pop())
        clock += timedelta(seconds=rng.randrange(20, 1800))
        (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
        yield _Session(f"{start[:7]}-{number:05d}", rng, task, pool, clock).traces(kind)


@dataclass(frozen=True)
class _Line:
    """A conversation to its end, and the episode as it was before each of the agent's turns, by position."""

    messages: list[Message]
    before: dict[int, Episode]


@dataclass(frozen=True)
class _Asked:
    """A specialist's conversation and the call that started it."""

    call_id: str
    messages: list[Message]


class _Session:
    """One session as it happens: the clock and the numbers of the calls go on over all its lines."""

    def __init__(self, id: str, rng: random.Random, task: Task, pool: Pool, clock: datetime) -> None:
        self.id, self.rng, self.task, self.pool = id, rng, task, pool
        self.started = self.now = clock
        self.start = environment.reset(task)
        self.calls = 0
        self.asked: list[_Asked] = []

    def traces(self, kind: Sequence[str]) -> list[Trace]:
        """Play the session and all that happens in it."""
        opening = [self._stamp(replace(message), 0.1) for message in self.task.messages]
        line = self._answer([(opening, self.start)], ask="ask" in kind)
        given_up = []
        for change in kind:
            if change != "ask":
                given_up.append(line)
                line = self._retry(line, "ask" in kind) if change == "retry" else self._edit(line, "ask" in kind)
        user = next(key.removeprefix("user:") for key in self.task.keys if key.startswith("user:"))
        shared: dict[str, Any] = {
            "tools": [*environment.schemas, ASK_SCHEMA],
            "metadata": {"user": user, "started_at": self.started.isoformat(), "agent": "support-agent-v2"},
        }
        others: dict[str, Any] = {"parent_id": self.id, "relation": "fork"}
        traces = [Trace(id=self.id, messages=line.messages, **shared)]
        traces += [
            Trace(id=f"{self.id}#{n}", messages=gone.messages, **others, **shared) for n, gone in enumerate(given_up, 1)
        ]
        shared = {
            "tools": specialist_desk.schemas,
            "metadata": shared["metadata"] | {"agent": "policy-specialist-v1"},
        }
        for asked in self.asked:
            others = {"parent_id": self.id, "relation": "subagent", "parent_call_id": asked.call_id}
            traces.append(Trace(id=f"{self.id}#{len(traces)}", messages=asked.messages, **others, **shared))
        return traces

    def _retry(self, line: _Line, ask: bool) -> _Line:
        """The agent is asked again from an earlier turn, and this time it says or does something else."""
        self._wait(2, 30)
        starts = [(line.messages[:at], episode) for at, episode in line.before.items()]
        return self._answer(starts, ask and self.rng.random() < 0.5, unlike=_words(line))

    def _edit(self, line: _Line, ask: bool) -> _Line:
        """The customer says it in other words, or it is something else about the same order after all."""
        self._wait(10, 90)
        order = self.task.state["order"]
        text = old = line.messages[1].content or ""
        while text == old:
            text = sample_task(self.rng, self.pool, order["id"]).messages[1].content or ""
            if (item := read_complaint(text)[1]) is not None:
                text = re.sub(rf"\b{item}\b", self.rng.choice(sorted(order["items"])), text)
        opening = [line.messages[0], self._stamp(Message(role="user", content=text), 0.1)]
        return self._answer([(opening, self.start)], ask and self.rng.random() < 0.5)

    def _answer(
        self, starts: Sequence[tuple[list[Message], Episode]], ask: bool, unlike: list[Any] | None = None
    ) -> _Line:
        """The first line drawn that looks the order up and is unlike another one; what else was drawn never was."""
        while True:
            now, calls, asked = self.now, self.calls, len(self.asked)
            messages, episode = self.rng.choice(starts)
            line = self._play(messages, episode.fork(self.rng.getrandbits(48)), ask)
            if any(message.name == "get_order" for message in line.messages) and _words(line) != unlike:
                return line
            self.now, self.calls = now, calls
            del self.asked[asked:]

    def _play(self, messages: list[Message], episode: Episode, ask: bool) -> _Line:
        """Let a production agent go on from `messages` to its last word; with `ask` it asks once it knows the order."""
        agent, said, before = production_agent(self.rng), list(messages), dict[int, Episode]()
        for _ in range(MAX_TURNS):
            before[len(said)] = episode.fork()
            if ask and said[-1].name == "get_order":
                said += self._ask(episode, said[1].content or "")
                agent = oracle if self.rng.random() < LISTENS else agent
                continue
            message = self._say(agent([m for m in said if not _is_asking(m)]))
            said.append(message)
            if not message.tool_calls:
                break
            said += self._use(episode, message)
        return _Line(said, before)

    def _ask(self, episode: Episode, complaint_text: str) -> list[Message]:
        """The agent's question, the specialist's conversation about it, and its last reply as the result."""
        order = episode.state["order"]
        complaint, item = read_complaint(complaint_text)
        question = f"The customer writes: {complaint_text!r}. What should I do?"
        call = ToolCall(id="", name=ASK, arguments={"id": order["id"], "question": question})
        asking = self._say(Message(role="assistant", tool_calls=[call]))
        call = asking.tool_calls[0]
        looking = [
            ToolCall(id="", name="get_order", arguments={"id": order["id"]}),
            ToolCall(id="", name="read_policy", arguments={"complaint": complaint}),
        ]
        said = [
            self._stamp(Message(role="system", content=SPECIALIST_PROMPT), 0.05),
            self._stamp(Message(role="user", content=f"Order {order['id']}. {question}"), 0.05),
            self._say(Message(role="assistant", tool_calls=looking)),
        ]
        said += self._use(specialist_desk.reset(Task(id=self.id, messages=[], state={"order": order})), said[-1])
        rule = json.loads(said[-1].content or "")["rule"]
        advice = _advice(decide(complaint or "", item, order))
        said.append(self._say(Message(role="assistant", content=f"{advice} The rule: {rule}")))
        self.asked.append(_Asked(call.id, said))
        result = Message(role="tool", content=said[-1].content, tool_call_id=call.id, name=call.name)
        return [asking, self._stamp(result, 0.05)]

    def _say(self, message: Message) -> Message:
        """What an agent says, a few seconds later; its calls get the session's next numbers."""
        calls = []
        for call in message.tool_calls:
            self.calls += 1
            calls.append(replace(call, id=f"call_{self.calls}"))
        return self._stamp(replace(message, tool_calls=calls), 4)

    def _use(self, episode: Episode, message: Message) -> list[Message]:
        """The results of a message's calls."""
        return [
            self._stamp(Message(role="tool", content=episode.step(c).content, tool_call_id=c.id, name=c.name), 0.5)
            for c in message.tool_calls
        ]

    def _stamp(self, message: Message, seconds: float) -> Message:
        """Said now, after about that long."""
        self._wait(0.5 * seconds, 1.5 * seconds)
        # The third digit is never 0: the time looks the same where a format counts instead of writing digits.
        milliseconds = self.now.microsecond // 10_000 * 10 + self.rng.randrange(1, 10)
        message.timestamp = f"{self.now:%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
        return message

    def _wait(self, least: float, most: float) -> None:
        """At least the hundredth of a second that keeps two times apart."""
        self.now += timedelta(milliseconds=round(1000 * max(0.01, self.rng.uniform(least, most))))


def _words(line: _Line) -> list[Any]:
    """What was said and done in a line, without ids and times."""
    return [(m.role, m.content, [(c.name, c.arguments) for c in m.tool_calls]) for m in line.messages]


def _is_asking(message: Message) -> bool:
    """Whether a message asks the specialist or is the answer, of which a scripted agent knows nothing."""
    return message.name == ASK or any(call.name == ASK for call in message.tool_calls)


def _advice(decision: Decision) -> str:
    if decision.action == "refund":
        return "Refund all of the order." if decision.item == ALL_ITEMS else f"Refund the {decision.item}."
    return {"voucher": "Give a voucher.", "escalate": "Escalate the case.", "deny": "Deny it."}[decision.action]
