"""A branching session as a picture: where it forked, who was asked, what was called, how each path ended."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from rlkit.logs.session_text import clip, outcome
from rlkit.logs.sessions import Branch, SessionTree
from rlkit.logs.trace import Message
from rlkit.show.plots import BLUE, GREEN, GREY, ORANGE, Picture, style

COLORS = {"system": GREY, "user": "#E69F00", "assistant": BLUE, "tool": "#56B4E9"}
OUTCOMES = {"success": ("✓", GREEN), "failure": ("✗", ORANGE), "unknown": ("?", GREY)}
"""By status; any other is marked `!`."""
INCHES = 0.3
"""A message's share of a new figure's width, as long as the figure stays narrower than `WIDEST`."""
WIDEST = 16.0
OUTCOME = 1.2  # inches for how a path ended
MARGIN = OUTCOME + 2.6  # with the paths' names and the legend
LONGEST_NAME = 22  # characters


def plot_session_tree(tree: SessionTree, ax: Axes | None = None) -> Axes:
    """The session's messages from left to right, a lane a path; made for up to 8 paths of up to 60 messages.

    The main path is the lane on top. Forks leave it with a line, sub-agents with a broken one from the call that
    started them; a path's lane shows only the messages that are its own. Without `ax` in a new figure, `ax.figure`.
    """
    lanes = _lanes(tree)
    turns = _turns(tree, lanes)
    longest = max(turns.values(), default=0) + 1
    if ax is not None:
        width = ax.get_window_extent().width / ax.figure.dpi - OUTCOME
        _draw(ax, tree, lanes, turns, max(width, 1) / longest)
        return ax
    with style():
        unit = min(INCHES, (WIDEST - MARGIN) / longest)
        size = MARGIN + unit * longest, 1.3 + 0.55 * len(lanes)
        ax = Picture(figsize=size, layout="constrained").subplots()
        _draw(ax, tree, lanes, turns, unit)
    return ax


def _lanes(tree: SessionTree) -> list[Branch]:
    """The branches from top to bottom: below each one those that left it, the last first, so that no line crosses."""
    owners = {node: id(branch) for branch in tree.branches for node in branch.nodes}
    below: dict[int | None, list[Branch]] = {}
    for branch in sorted(tree.branches[1:], key=lambda b: -1 if b.origin is None else b.origin):
        below.setdefault(None if branch.origin is None else owners[branch.origin], []).append(branch)
    lanes, waiting = list[Branch](), [*below.get(None, []), tree.branches[0]]
    while waiting:
        lanes.append(waiting.pop())
        waiting += below.get(id(lanes[-1]), [])
    return lanes


def _turns(tree: SessionTree, lanes: list[Branch]) -> dict[int, int]:
    """By node: the messages before it, those before the call that started its agent included."""
    turns: dict[int, int] = {}
    for branch in lanes:
        before = -1 if branch.origin is None else turns[branch.origin]
        turns |= {node: before + number for number, node in enumerate(branch.nodes, 1)}
    return turns


def _draw(ax: Axes, tree: SessionTree, lanes: list[Branch], turns: dict[int, int], unit: float) -> None:
    """`unit` is the width of a turn in inches."""
    height = {node: lane for lane, branch in enumerate(lanes) for node in branch.nodes}
    for lane, branch in enumerate(lanes):
        xs = [turns[node] for node in branch.nodes]
        ax.plot(xs, [lane] * len(xs), color="#BBBBBB", linewidth=1.5, zorder=1)
        if branch.origin is not None:
            _connect(ax, (turns[branch.origin], height[branch.origin]), lane, branch.relation == "subagent")
        end = xs[-1] if xs else 0 if branch.origin is None else turns[branch.origin] + 1
        sign, color = OUTCOMES.get(branch.head.outcome.status, ("!", ORANGE))
        note = f"{sign} {outcome(branch)}" if xs else f"ends there: {sign} {outcome(branch)}"
        ax.annotate(note, (end, lane), (9, 0), textcoords="offset points", va="center", color=color, fontsize=8)
    for kind in _kinds(tree):
        nodes = [node for node in turns if _kind(tree.nodes[node].message) == kind]
        xs, ys = [turns[node] for node in nodes], [height[node] for node in nodes]
        ax.plot(xs, ys, linestyle="", zorder=2, **_look(*kind))
    _name_calls(ax, tree, turns, lanes, unit)
    _label(ax, tree, lanes, max(turns.values(), default=0) + 1, unit)


def _kind(message: Message) -> tuple[str, bool]:
    return message.role, bool(message.tool_calls)


def _kinds(tree: SessionTree) -> list[tuple[str, bool]]:
    """The roles that speak in a session, without calls and with them."""
    used = {_kind(node.message) for node in tree.nodes}
    return [(role, calls) for role in COLORS for calls in (False, True) if (role, calls) in used]


def _look(role: str, calls: bool) -> dict[str, Any]:
    marker = ">" if calls else "s" if role == "tool" else "o"
    return {"marker": marker, "markersize": 8.5 if calls else 7, "color": COLORS[role], "markeredgecolor": "white"}


def _connect(ax: Axes, start: tuple[float, float], lane: int, subagent: bool) -> None:
    """Down from a message and then to the right, one turn on."""
    x, y = start
    corner = [(x, y), (x, lane - 0.35), (x, lane), (x + 0.35, lane), (x + 1, lane)]
    path = Path(corner, [Path.MOVETO, Path.LINETO, Path.CURVE3, Path.CURVE3, Path.LINETO])
    look: dict[str, Any] = {"edgecolor": "#999999", "linestyle": (0, (3, 2))} if subagent else {"edgecolor": "#BBBBBB"}
    ax.add_patch(PathPatch(path, facecolor="none", linewidth=1.5, **look))


def _name_calls(ax: Axes, tree: SessionTree, turns: dict[int, int], lanes: list[Branch], unit: float) -> None:
    """The tools' names below the calls, as long as there is room for them up to the lane's next call."""
    for lane, branch in enumerate(lanes):
        callers = [node for node in branch.nodes if tree.nodes[node].message.tool_calls]
        nexts = [*(turns[node] for node in callers[1:]), math.inf]
        for node, following in zip(callers, nexts, strict=False):
            calls = tree.nodes[node].message.tool_calls
            room = int(min(LONGEST_NAME, (following - turns[node]) * unit * 72 / 3.7))  # at 3.7 points a character
            more = f" +{len(calls) - 1}" if len(calls) > 1 else ""
            if room > 5:
                ax.annotate(
                    clip(calls[0].name, room - len(more)) + more, (turns[node], lane), (-3, -6), va="top", zorder=3,
                    textcoords="offset points", fontsize=6, color="#444444", parse_math=False,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )  # fmt: skip


def _label(ax: Axes, tree: SessionTree, lanes: list[Branch], longest: int, unit: float) -> None:
    kinds = {None: "main", "fork": "fork", "subagent": "sub-agent"}
    names = [f"{kinds[b.relation]} {b.head.id.removeprefix(tree.id) if b.relation else ''}".rstrip() for b in lanes]
    ax.set_yticks(range(len(lanes)), [clip(name, LONGEST_NAME) for name in names], parse_math=False)
    ax.set_ylim(len(lanes) - 0.4, -0.6)
    ax.set_xlim(-0.6, longest - 0.4 + OUTCOME / unit)
    ax.set_xticks([tick for tick in MaxNLocator(10, integer=True).tick_values(0, longest - 1) if 0 <= tick < longest])
    ax.set_xlabel("turn: messages before this one (a sub-agent counts on from its call)", loc="left")
    count = f"{len(lanes)} path{'s' * (len(lanes) > 1)}"
    title = f"Session {clip(tree.id, 40)}: {len(tree)} messages in {count}, {tree.saved:.0%} shared"
    ax.set_title(title, loc="left", parse_math=False)
    ax.grid(False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_bounds(0, longest - 1)
    handles = [
        Line2D([], [], linestyle="", label=kind[0] + ", calls" * kind[1], **_look(*kind)) for kind in _kinds(tree)
    ]
    if handles:
        ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
