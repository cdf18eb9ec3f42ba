from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from rlkit.config import ConfigError
from rlkit.envs.environment import Environment
from rlkit.envs.mining import NotATask
from rlkit.examples import support
from rlkit.examples.support.production import production_sessions
from rlkit.logs.readers import LogFormatError
from rlkit.logs.trace import Message, Trace
from rlkit.logs.writers import to_openai, write_jsonl
from rlkit.models import train_tokenizer
from rlkit.sampling.chat import SPECIAL_TOKENS
from rlkit.workbench import RunConfig, Workbench


def module(monkeypatch: pytest.MonkeyPatch, **names: object) -> str:
    made = ModuleType("someones_environment")
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, "someones_environment", made)
    return "someones_environment"


def test_the_course_s_example_loads() -> None:
    workbench = Workbench.load()
    assert all(getattr(workbench, field.name) is getattr(support, field.name) for field in fields(Workbench))


def test_any_module_with_the_four_names_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Environment("mine", [])
    names = {name: getattr(support, name) for name in ("rubric", "task_from_trace", "final_state")}
    assert Workbench.load(module(monkeypatch, environment=mine, **names)).environment is mine


def test_what_a_module_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(monkeypatch, environment=support.environment, final_state=support.final_state)
    with pytest.raises(ConfigError, match=r"^environment 'someones_environment' lacks rubric, task_from_trace; "):
        Workbench.load(name)


def test_what_is_of_another_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: getattr(support, name) for name in ("rubric", "task_from_trace", "final_state")}
    with pytest.raises(ConfigError, match="environment is no Environment, but of type str"):
        Workbench.load(module(monkeypatch, environment="support", **names))
    names |= {"final_state": {}}
    with pytest.raises(ConfigError, match="final_state is no Callable, but of type dict"):
        Workbench.load(module(monkeypatch, environment=support.environment, **names))


@pytest.mark.parametrize("name", ["no_such_module", "rlkit.no_such_module", ".support"])
def test_a_module_that_cannot_be_imported_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"environment '{name}' cannot be imported: "):
        Workbench.load(name)


def test_mine_counts_what_it_rebuilds_and_what_it_drops(tmp_path: Path) -> None:
    sessions = list(production_sessions(30))
    sessions[3].messages = [message for message in sessions[3].messages if message.role != "user"]
    write_jsonl(map(to_openai, sessions), tmp_path / "logs.jsonl")
    mining, report = Workbench.load().mine(tmp_path / "logs.jsonl", progress=False)
    assert report.traces == 30
    assert mining.dropped["no user message"] == 1
    assert len(mining.tasks) == 30 - mining.dropped.total()


def test_logs_without_a_task_are_an_error_that_says_why(tmp_path: Path) -> None:
    trace = Trace(id="a", messages=[Message(role="user", content="hello"), Message(role="assistant", content="hi")])
    write_jsonl([to_openai(trace)], tmp_path / "logs.jsonl")
    with pytest.raises(NotATask, match=r"none of the 1 sessions .* \(1 × complaint not recognised\)"):
        Workbench.load().mine(tmp_path / "logs.jsonl", progress=False)
    with pytest.raises(LogFormatError, match="nowhere"):
        Workbench.load().mine(tmp_path / "nowhere", progress=False)


def test_harness_needs_a_tokenizer_of_the_chat_format() -> None:
    workbench = Workbench.load()
    harness = workbench.harness(train_tokenizer(["order 1234"], SPECIAL_TOKENS))
    assert (harness.environment, harness.rubric) == (support.environment, support.rubric)
    with pytest.raises(ConfigError, match=r"not a model of the course's chat format: .* <end>"):
        workbench.harness(train_tokenizer(["order 1234"], ["<pad>", "<unk>"]))


def test_run_config_takes_one_log_or_several(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: m\nlogs: a.jsonl\n")
    assert RunConfig.from_yaml(tmp_path / "run.yaml").logs == ["a.jsonl"]
    assert RunConfig(model="m", logs=["a", "b"]).logs == ["a", "b"]
    (tmp_path / "run.yaml").write_text("model: m\nlogs: []\n")
    with pytest.raises(ConfigError, match="logs: List should have at least 1 item"):
        RunConfig.from_yaml(tmp_path / "run.yaml")


def test_the_shipped_config_is_valid() -> None:
    config = RunConfig.from_yaml(Path(__file__).parent.parent / "data" / "configs" / "support.yaml")
    assert (config.environment, config.steps, config.output) == ("rlkit.examples.support", 150, None)
