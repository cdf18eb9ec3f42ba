"""A browser for rollouts: choose a task and a rollout, read the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets

from rlkit.sampling.rollout import RolloutGroup
from rlkit.show.rollout_view import _columns, _html, show_trace

if TYPE_CHECKING:
    from IPython.display import HTML


class RolloutBrowser(ipywidgets.VBox):  # type: ignore[misc] # it has no types
    """A dropdown for the task, a slider for the rollout, and the conversation under them.

    Code hosts show `static()` in its place. An HTML report wants a cell of its own with it: nbconvert prefers the
    widget, which a page without a kernel or the web leaves blank.
    """

    def __init__(self, groups: Sequence[RolloutGroup]) -> None:
        self.groups = list(groups)
        names = [f"{i + 1}. {_label(group)}" for i, group in enumerate(self.groups)]
        layout = ipywidgets.Layout(width="520px")
        self.group = ipywidgets.Dropdown(options=[*zip(names, range(len(names)), strict=True)], description="task")
        self.rollout = ipywidgets.IntSlider(min=1, max=1, description="rollout")
        self.group.layout = self.rollout.layout = layout
        self.view = ipywidgets.HTML()
        self.group.observe(self._choose, "value")
        self.rollout.observe(self._fill, "value")
        super().__init__([self.group, self.rollout, self.view])
        self._choose()

    def static(self) -> HTML:
        """The first rollout that failed (where none did, the first truncated or masked one) and the first success."""
        rollouts = sorted(
            (rollout for group in self.groups for rollout in group.rollouts),
            key=lambda rollout: {"failure": 0, "success": 2}.get(rollout.grade.status, 1),
        )
        won = [rollout for rollout in rollouts if rollout.grade.status == "success"]
        shown = (rollouts if len(won) < len(rollouts) else [])[:1] + won[:1]
        return _html(_columns([(f"first {rollout.grade.status.replace('_', ' ')}", rollout) for rollout in shown]))

    def _choose(self, _change: Any = None) -> None:
        self.rollout.max = len(self.groups[self.group.value].rollouts)
        self.rollout.value = 1
        self._fill()

    def _fill(self, _change: Any = None) -> None:
        rollout = self.groups[self.group.value].rollouts[self.rollout.value - 1]
        self.view.value = show_trace(rollout.trace, rollout.grade).data

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return super()._repr_mimebundle_(**kwargs) | {"text/html": self.static().data}


def rollout_browser(groups: Sequence[RolloutGroup]) -> RolloutBrowser:
    """Look at any rollout of `groups` (`Run.groups`, say). Raises `ValueError` where there are none."""
    if not all(group.rollouts for group in groups) or not groups:
        raise ValueError("no rollouts to look at")
    return RolloutBrowser(groups)


def _label(group: RolloutGroup) -> str:
    won = sum(rollout.grade.status == "success" for rollout in group.rollouts)
    tags = " · ".join(group.task.tags.values())
    return f"{tags or group.task.id}: {won} of {len(group.rollouts)} succeeded"
