"""SWE-agent trajectories into traces; made up here, real ones in test_real_logs.py, the way back in test_tau.py.

Fields as in github.com/SWE-agent/SWE-agent (sweagent/types.py, sweagent/agent/agents.py, history_processors.py).
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, Outcome, ToolCall
from rlkit.logs.readers import swe_agent
from tests.logs.test_tau import codes, damaged, look, read, registered, survives

__all__ = ["registered"]


def said(role, content, kind=None, **more):
    kinds = {"system": "system_prompt", "assistant": "action"}
    return {"role": role, "content": content, "agent": "main", "message_type": kind or kinds.get(role, "observation"),
            **more}  # fmt: skip


def acted(id, action, thought="I look."):
    call = {"id": id, "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": action})}}
    return said("assistant", thought, thought=thought, action=action, tool_calls=[call])


def step(action, observation, **more):
    return {
        "action": action, "observation": observation, "response": "I look.", "thought": "I look.",
        "execution_time": 0.5, "state": {"working_dir": "/repo"}, "query": [{}], "extra_info": {}, **more,
    }  # fmt: skip


ELIDED = "Old environment output: (2 lines omitted)"
HISTORY = [
    said("system", "SETTING"),
    said("user", "A demonstration.", "demonstration", is_demo=True),
    said("user", "Solve the issue."),
    acted("c1", "ls"),
    said("tool", ELIDED, tool_call_ids=["c1"]),
    acted("c2", "submit"),
    said("tool", "diff", tool_call_ids=["c2"]),
]
STEPS = [step("oops", "no such command"), step("ls\n", "a.py\nb.py"), step("submit", "diff")]
INFO = {"exit_status": "submitted", "submission": "diff", "model_stats": {"api_calls": 2}}


def trajectory(history=HISTORY, steps=STEPS, info=INFO, **more):
    return {"environment": "main", "trajectory": steps, "history": history, "info": info, **more}


def test_the_history_is_the_conversation(tmp_path):
    (trace,), _ = read(tmp_path, "auto", trajectory())
    assert trace.messages[0] == Message("system", "SETTING")
    assert trace.messages[1].extra == {"is_demo": True, "message_type": "demonstration"}
    assert trace.messages[2] == Message("user", "Solve the issue.")
    call = ToolCall("c2", "bash", {"command": "submit"}, '{"command": "submit"}')
    assert trace.messages[5] == Message("assistant", "I look.", [call], extra={"action": "submit"})
    assert trace.messages[6] == Message("tool", "diff", [], "c2")
    assert trace.outcome == Outcome()
    assert trace.metadata == {"environment": "main", "info": INFO}
    assert trace.raw == trajectory()


def test_an_elided_observation_comes_from_the_step_with_its_action(tmp_path):
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(), name="i.traj")
    assert trace.messages[4] == Message("tool", "a.py\nb.py", [], "c1", extra={"elided": ELIDED})
    assert codes(trace) == ["observation_restored"]
    assert trace.diagnostics[0].path == "history[4]"


@pytest.mark.parametrize("steps", [None, [], STEPS[2:], [None, "x", {"action": "ls"}], [step("ls", None)]])
def test_where_no_step_has_it_the_elision_stays_and_is_noted(tmp_path, steps):
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(steps=steps), name="i.traj")
    assert trace.messages[4].content == ELIDED
    assert codes(trace) == ["observation_elided"]


def test_two_equal_actions_get_each_its_own_observation(tmp_path):
    history = [HISTORY[2], acted("c1", "ls"), said("tool", ELIDED, tool_call_ids=["c1"]), acted("c2", "ls"),
               said("tool", ELIDED, tool_call_ids=["c2"])]  # fmt: skip
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(history, [step("ls", "one"), step("ls", "two")]))
    assert [m.content for m in trace.messages if m.role == "tool"] == ["one", "two"]


def test_a_demonstration_s_actions_are_none_of_the_trajectory_s(tmp_path):
    shown = [acted("d1", "ls") | {"is_demo": True}, said("tool", "x.py", tool_call_ids=["d1"], is_demo=True)]
    (trace,), _ = read(tmp_path, "swe-agent", trajectory([HISTORY[0], *shown, *HISTORY[2:]]), name="i.traj")
    assert [m.content for m in trace.messages if m.role == "tool"] == ["x.py", "a.py\nb.py", "diff"]
    assert codes(trace) == ["observation_restored"]


def test_steps_after_the_history_s_end_follow_it(tmp_path):
    """Some versions leave the last step out of the history; a step without an action did nothing."""
    steps = [*STEPS[:2], step("", "", thought="Exit due to cost limit"), STEPS[2]]
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(HISTORY[:5], steps), name="i.traj")
    assert [(m.role, m.content) for m in trace.messages[5:]] == [("assistant", "I look."), ("user", "diff")]
    assert trace.messages[5].extra["action"] == "submit"
    assert codes(trace) == ["observation_restored", "history_continued"]
    (only_asked,), _ = read(tmp_path, "swe-agent", trajectory(HISTORY[:3], STEPS))
    assert len(only_asked.messages) == 3 + 2 * len(STEPS)
    rewritten = [*HISTORY[:3], acted("c1", "an action of no step")]
    (unsure,), _ = read(tmp_path, "swe-agent", trajectory(rewritten))
    assert len(unsure.messages) == 4


def test_without_a_history_the_steps_are_read(tmp_path):
    steps = [step("ls", "a.py", query=[{"role": "system", "content": "SETTING", "agent": "main"},
                                       {"role": "user", "content": "Solve."}]), step("submit", "")]  # fmt: skip
    record = {"environment": "swe_main", "trajectory": steps, "info": {}}
    (trace,), _ = read(tmp_path, "auto", record)
    assert [(m.role, m.content) for m in trace.messages] == [
        ("system", "SETTING"), ("user", "Solve."), ("assistant", "I look."), ("user", "a.py"), ("assistant", "I look."),
    ]  # fmt: skip
    assert trace.messages[2].extra == {"action": "ls", "execution_time": 0.5, "state": {"working_dir": "/repo"}}


def test_content_in_parts_and_thinking_blocks_are_read_and_kept(tmp_path):
    parts = [{"type": "text", "text": "Solve.", "cache_control": {"type": "ephemeral"}}]
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
    history = [said("user", parts), said("assistant", "Yes.", thinking_blocks=blocks, thought="Yes.")]
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(history), name="i.traj")
    user, assistant = trace.messages
    assert (user.content, user.extra) == ("Solve.", {"content": parts})
    assert (assistant.reasoning, assistant.extra) == ("Hm.", {"thinking_blocks": blocks})
    assert codes(trace) == []


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("submitted", "unknown"), ("submitted (exit_cost)", "truncated"), ("exit_cost", "truncated"),
        ("exit_context", "truncated"), ("exit_total_execution_time", "truncated"), ("exit_format", "unknown"),
        ("exit_error", "unknown"), ("exit_environment_error", "infra_error"), ("exit_api", "infra_error"),
        (None, "unknown"), (3, "unknown"), ({}, "unknown"),
    ],
)  # fmt: skip
def test_only_the_budget_and_the_machinery_are_an_outcome(tmp_path, status, outcome):
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(info={"exit_status": status}))
    assert trace.outcome.status == outcome
    assert trace.outcome.score is None


def test_further_attempts_are_forks_of_the_chosen_one(tmp_path):
    other = {"history": [*HISTORY[:3], acted("d1", "cat a.py")], "trajectory": [], "info": {"exit_status": "exit_cost"}}
    chosen = trajectory()
    (main, fork), report = read(tmp_path, "swe-agent", chosen | {"attempts": [other, chosen, None]})
    assert (fork.id, fork.parent_id, fork.relation) == (f"{main.id}#1", main.id, "fork")
    assert fork.messages[-1].tool_calls[0].id == "d1"
    assert (main.outcome.status, fork.outcome.status) == ("unknown", "truncated")
    assert fork.raw == other
    assert (report.records, report.skipped, report.traces) == (1, 0, 2)
    (alone,), _ = read(tmp_path, "swe-agent", {"attempts": [other], "environment": "main"})
    assert len(alone.messages) == 4


def test_the_id_is_the_problem_s_or_the_file_s(tmp_path):
    config = {"problem_statement": {"id": "repo-i1"}}
    for config_as in (config, json.dumps(config)):
        (trace,), _ = read(tmp_path, "swe-agent", trajectory(replay_config=config_as))
        assert trace.id == "repo-i1"
    (trace,), _ = read(tmp_path, "swe-agent", trajectory(replay_config="{"), name="repo-i2.traj")
    assert trace.id == "repo-i2"
    found, report = read(tmp_path, "swe-agent", *[trajectory(instance_id="x")] * 2, trajectory())
    assert [trace.id for trace in found] == ["x", "x~2", "log.jsonl:3"]
    assert report.diagnostics["id_repeated"].count == 1


def test_a_run_of_many_problems_is_a_folder(tmp_path):
    for name in ("i1/i1.traj", "i2/i2.traj"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(trajectory(), indent=2))
    found, report = look(tmp_path, "auto")
    assert [trace.id for trace in found] == ["i1", "i2"]
    assert (report.files, report.records) == (2, 2)


@settings(max_examples=100)
@given(data=st.data())
def test_damage_is_never_an_exception(data):
    good = trajectory(attempts=[trajectory(HISTORY[:4])])
    survives("swe-agent", damaged(data.draw, [good, {"trajectory": STEPS}]), good)


def test_events_and_other_histories_are_not_claimed():
    assert not swe_agent.matches({"history": [{"action": "run", "args": {}, "source": "agent"}]})
    assert not swe_agent.matches({"history": [{"role": "user", "content": "x"}]})
    assert not swe_agent.matches({"trajectory": [{"action": "run", "source": "agent"}]})
