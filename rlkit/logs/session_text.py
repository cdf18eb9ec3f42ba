"""A session's tree as text, for terminals."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator

from rlkit.logs.sessions import Branch, SessionTree
from rlkit.logs.trace import Message


def draw(tree: SessionTree, width: int) -> str:
    """A line a message, at most `width` characters; forks and sub-agents stand indented where they left."""
    shared = f", {tree.saved:.0%} of what they hold is shared" if tree.saved else ""
    count = f"{len(tree.branches)} path{'s' * (len(tree.branches) > 1)}"
    lines = [f"session {tree.id}: {len(tree)} messages in {count}{shared}"]
    leaving = tree.leaving()
    lines += _block(tree, tree.branches[0], leaving, width)
    for branch in leaving.get(None, []):
        why = "shares no message" if branch.relation == "fork" else "no call seen that started it"
        lines.append(f"{label(branch)} ({why})")
        lines += _block(tree, branch, leaving, width)
    return "\n".join(clip(line, width) for line in lines)


def label(branch: Branch) -> str:
    """`fork 17#1`, `sub-agent 17#2`, and for the main one `session 17`."""
    kinds = {None: "session", "fork": "fork", "subagent": "sub-agent"}
    return f"{kinds[branch.relation]} {branch.head.id}"


def outcome(branch: Branch) -> str:
    """`success 0.80`"""
    found = branch.head.outcome
    return found.status.replace("_", " ") + ("" if found.score is None else f" {found.score:.2f}")


def clip(line: str, width: int) -> str:
    """One line of printable characters, cut with an ellipsis."""
    if len(line) > width:
        line = line[: max(0, width - 1)].rstrip() + "…"
    return line if line.isprintable() else "".join(char if char.isprintable() else "�" for char in line)


def _block(tree: SessionTree, top: Branch, leaving: dict[int | None, list[Branch]], width: int) -> Iterator[str]:
    """A branch and all that leaves it, without recursion."""
    drawn = [(top, iter(top.nodes), iter(list[Branch]()))]  # the branches that are open, each with what is left of it
    while drawn:
        bars = _bars(len(drawn), width)
        branch, nodes, children = drawn[-1]
        if (child := next(children, None)) is not None:
            if child.nodes:
                yield f"{bars[:-2]}├─╮ {label(child)}"
                drawn.append((child, iter(child.nodes), iter(list[Branch]())))
            else:
                yield f"{bars[:-2]}├╴{label(child)} ends here: {outcome(child)}"
        elif (index := next(nodes, None)) is not None:
            yield bars + _describe(tree.nodes[index].message, width)
            drawn[-1] = branch, nodes, iter(leaving.get(index, []))
        else:
            yield f"{bars[:-2]}╰ {outcome(branch)}"
            drawn.pop()


def _bars(depth: int, width: int) -> str:
    """One bar for each branch that is open; of too many the innermost."""
    most = max(2, width // 4)
    return "│ " * depth if depth <= most else "… " + "│ " * (most - 1)


def _describe(message: Message, width: int) -> str:
    """The role, the first words, and the calls."""
    words = [" ".join((message.content or "")[: 4 * width].split())] if message.content else []
    for call in message.tool_calls[:width]:
        written = call.raw_arguments if call.arguments is None else _arguments(call.arguments)
        words.append(f"→ {call.name}({(written or '')[:width]})")
    return f"{message.role:<9} {' '.join(words)}"


def _arguments(arguments: dict[str, object]) -> str:
    return ", ".join(f"{key}={reprlib.repr(value)}" for key, value in arguments.items())
