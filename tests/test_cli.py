from __future__ import annotations

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlkit.cli import FORMATS, main
from rlkit.envs.task import read_tasks
from rlkit.examples.support.production import production_sessions
from rlkit.logs.readers import read_traces
from rlkit.logs.report import ReadReport
from rlkit.logs.trace import Trace
from rlkit.logs.writers import to_openai, to_otlp, write_jsonl
from rlkit.models import save_model, tiny_llama, train_tokenizer
from rlkit.sampling.chat import SPECIAL_TOKENS, render_texts

RLKIT = Path(sys.executable).with_name("rlkit")
VERBS = ["doctor", "env", "eval", "ingest", "mine", "report", "train"]
RUN = """\
model: model
logs: logs.jsonl
steps: 2
prompts_per_step: 2
rollouts_per_prompt: 2
max_tokens: 4
capacity: 128
checkpoint_every: 1
"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rlkit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`rlkit …` in this process: (exit status, stdout, stderr)."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("RLKIT_DEBUG", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def sessions() -> list[Trace]:
    return list(production_sessions(40))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sessions: list[Trace]) -> Path:
    """The current directory: logs of 40 sessions, an untrained model of 40,000 parameters, `run.yaml`."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(map(to_openai, sessions), "logs.jsonl")
    tokenizer = train_tokenizer((text for s in sessions for text in render_texts(s.messages)), SPECIAL_TOKENS, 300)
    save_model(tiny_llama(len(tokenizer), hidden_size=32, layers=2), tokenizer, "model")
    Path("run.yaml").write_text(RUN)
    return tmp_path


def complaints(err: str) -> list[str]:
    """The lines of stderr that are not a progress bar."""
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("rlkit: ")]


# --- the command line itself ----------------------------------------------------------------------------------------


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = {"torch", "transformers", "pandas", "numpy", "pydantic", "matplotlib", "papermill", "yaml", "tqdm"}
    code = f"""
import sys
from rlkit.cli import FORMATS, main
try:
    main(["--help"])
except SystemExit as ended:
    print(ended.code, sorted({heavy!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *text, last = done.stdout.splitlines()
    assert last == "0 []"
    assert [line.split()[0] for line in text if re.match(r"  [a-z]+  ", line)] == [
        "report",
        "ingest",
        "mine",
        "train",
        "eval",
        "doctor",
        "env",
    ]
    assert "..." not in done.stdout.split("Commands:")[1]  # every summary fits its line


def test_the_formats_that_help_names_are_those_there_are() -> None:
    from rlkit.logs import READERS

    assert sorted(re.split(r",\s*", FORMATS)) == sorted(["auto", *READERS])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_s_help_has_an_example(rlkit: Command, verb: str) -> None:
    status, out, _ = rlkit(verb, "--help")
    assert status == 0
    assert f"Example: rlkit {verb}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["train"],
        ["eval", "model"],
        ["eval", "m", "--logs", "l", "--temperature", "-1"],
        ["report", "--q"],
    ],
)
def test_a_wrong_command_line_is_2(rlkit: Command, arguments: list[str]) -> None:
    status, _, err = rlkit(*arguments)
    assert status == 2
    assert "Error" in err


def test_doctor(rlkit: Command) -> None:
    status, out, _ = rlkit("doctor")
    assert status == 0
    assert re.search(r"^ok torch +2\.", out, re.MULTILINE)


# --- what goes wrong is one line ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("learning_rat: 1", "run.yaml: unknown field 'learning_rat'; did you mean 'learning_rate'?"),
        ("temperature: 0", "run.yaml: temperature: Input should be greater than or equal to 0.0001 (got 0)"),
        ("clip_low: 1.5", "run.yaml: clip_low: Input should be less than 1 (got 1.5)"),
        (
            "steps: many",
            "run.yaml: steps: Input should be a valid integer, unable to parse string as an integer (got 'many')",
        ),
        ("model: [", "run.yaml: not YAML: "),
        ("model: nowhere", "nowhere: no such checkpoint folder"),
        ("model: .", ".: not a checkpoint, it lacks config.json, model.safetensors, tokenizer.json"),
        ("logs: nowhere.jsonl", "nowhere.jsonl"),
        (
            "environment: rlkit.stats",
            "environment 'rlkit.stats' lacks environment, rubric, task_from_trace, final_state; ",
        ),
    ],
)
def test_a_run_that_cannot_start(rlkit: Command, folder: Path, line: str, complaint: str) -> None:
    Path("run.yaml").write_text(f"{RUN}\n{line}\n")  # YAML takes the last of two
    status, _, err = rlkit("train", "run.yaml")
    assert status == 1
    (only,) = complaints(err)
    assert only.startswith("rlkit: ")
    assert complaint in only
    assert not Path("runs").exists()


def test_every_wrong_field_has_its_line(rlkit: Command, folder: Path) -> None:
    Path("run.yaml").write_text(f"{RUN}\nseed: x\nbeta2: 2\n")
    assert len(complaints(rlkit("train", "run.yaml")[2])) == 2


def test_steps_of_the_command_line_are_checked_like_the_config_s(rlkit: Command, folder: Path) -> None:
    status, _, err = rlkit("train", "run.yaml", "--steps", 0)
    assert (status, complaints(err)) == (
        1, ["rlkit: run.yaml: steps: Input should be greater than or equal to 1 (got 0)"],
    )  # fmt: skip


def test_missing_files(rlkit: Command, folder: Path) -> None:
    assert complaints(rlkit("train", "no.yaml")[2]) == ["rlkit: no.yaml: no such file"]
    assert complaints(rlkit("eval", "no-model", "--logs", "logs.jsonl")[2]) == [
        "rlkit: no-model: no such checkpoint folder"
    ]
    (line,) = complaints(rlkit("report", "no-notebook")[2])
    assert line.startswith("rlkit: no-notebook: no such notebook")
    assert complaints(rlkit("report", "run.yaml", "-p", "no.yaml")[2]) == ["rlkit: no.yaml: no such file"]


def test_a_programming_error_keeps_its_traceback(rlkit: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("flawed.py").write_text(
        "from rlkit.examples.support import *\ndef final_state(trace, task): return task['state']\n"
    )
    Path("run.yaml").write_text(RUN + "environment: flawed\n")
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    with pytest.raises(TypeError, match="not subscriptable"):
        main(["train", "run.yaml"])


@pytest.mark.parametrize("how", ["--debug", "RLKIT_DEBUG"])
def test_debug_shows_every_traceback(folder: Path, how: str) -> None:
    command = [RLKIT, *(["--debug"] if how == "--debug" else []), "report", "run.yaml"]
    environ = os.environ | ({} if how == "--debug" else {how: "1"})
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "run.yaml: not a notebook" in done.stderr


# --- ingest ---------------------------------------------------------------------------------------------------------


def test_ingest_writes_what_it_read(rlkit: Command, folder: Path, sessions: list[Trace]) -> None:
    write_jsonl(map(to_otlp, sessions), "spans.jsonl.gz")
    status, out, err = rlkit("ingest", "spans.jsonl.gz", "--out", "out.jsonl.gz")
    assert status == 0
    assert "40 traces written to out.jsonl.gz" in out
    assert "reading: 100%" in err
    back = list(read_traces("out.jsonl.gz", "atif"))
    assert [(t.id, t.messages, t.tools, t.outcome) for t in back] == [
        (t.id, t.messages, t.tools, t.outcome) for t in sessions
    ]
    assert sorted(path.name for path in folder.glob("out*")) == ["out.jsonl.gz"]


def test_ingest_of_what_it_wrote_changes_nothing(rlkit: Command, folder: Path) -> None:
    for source, out in (("logs.jsonl", "one.jsonl"), ("one.jsonl", "two.jsonl")):
        assert rlkit("ingest", source, "--out", out)[0] == 0
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()


def test_ingest_replaces_personal_data_unless_told_not_to(rlkit: Command, folder: Path) -> None:
    said = {"role": "user", "content": "I am Ada Okafor, mail ada.okafor@corp.example or call +1 (415) 555-0132."}
    Path("log.jsonl").write_text(json.dumps({"id": "s", "messages": [said]}))
    Path("names.txt").write_text("Ada Okafor\n\n")
    status, out, _ = rlkit("ingest", "log.jsonl", "--names", "names.txt")
    assert status == 0
    written = Path("traces.jsonl").read_text()
    for secret in ("Ada", "Okafor", "corp.example", "0132"):
        assert secret not in written
        assert secret not in out
    assert "email" in out
    status, out, _ = rlkit("ingest", "log.jsonl", "--keep-personal-data")
    assert status == 0
    assert said["content"] in Path("traces.jsonl").read_text()
    assert "kept, as you asked" in out


def test_ingest_names_the_list_of_names_that_is_missing(rlkit: Command, folder: Path) -> None:
    status, _, err = rlkit("ingest", "logs.jsonl", "--names", "nobody.txt")
    assert (status, complaints(err)) == (1, ["rlkit: nobody.txt: No such file or directory"])


def test_ctrl_c_during_ingest_leaves_whole_traces_beside(folder: Path, sessions: list[Trace]) -> None:
    write_jsonl((to_openai(t) | {"id": f"{t.id}.{n}"} for n in range(2000) for t in sessions), "big.jsonl")
    Path("traces.jsonl").write_text("an older one")
    ingest = subprocess.Popen([RLKIT, "ingest", "big.jsonl"], stderr=subprocess.PIPE, text=True)
    while not (Path("traces.jsonl.part").exists() and Path("traces.jsonl.part").stat().st_size):
        assert ingest.poll() is None
        time.sleep(0.01)
    ingest.send_signal(signal.SIGINT)
    assert ingest.stderr is not None
    assert complaints(ingest.stderr.read()) == ["rlkit: interrupted; the traces so far are in traces.jsonl.part"]
    assert ingest.wait() == 130
    assert Path("traces.jsonl").read_text() == "an older one"
    report = ReadReport()
    ids = [trace.id for trace in read_traces("traces.jsonl.part", report=report)]
    assert report.diagnostics == {}
    assert ids == [f"{sessions[n % 40].id}.{n // 40}" for n in range(len(ids))]
    assert len(ids) > 1000


@pytest.mark.slow
def test_ingest_needs_no_more_memory_for_a_larger_log(folder: Path, sessions: list[Trace]) -> None:
    def peak_mb(copies: int) -> float:
        write_jsonl((to_openai(t) | {"id": f"{t.id}.{n}"} for n in range(copies) for t in sessions), "big.jsonl")
        code = (
            "from rlkit.cli import main\n"
            "try: main(['ingest', 'big.jsonl'])\n"
            "finally: print(open('/proc/self/status').read())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peak = re.search(r"VmHWM:\s*(\d+) kB", done.stdout)  # what wait4 tells includes the parent that forked it
        assert peak is not None
        return int(peak[1]) / 1000

    small, large = peak_mb(500), peak_mb(3000)
    assert large < min(300, small + 30)


def test_ingest_reads_around_what_is_broken(rlkit: Command, folder: Path) -> None:
    lines = Path("logs.jsonl").read_text().splitlines()
    Path("mixed.jsonl").write_text("\n".join([*lines[:3], lines[3][:50], "[1, 2]", '{"messages": 7}']))
    status, out, _ = rlkit("ingest", "mixed.jsonl")
    assert status == 0
    assert re.search(r"^json_broken +error +1 +mixed\.jsonl:4", out, re.MULTILINE)
    assert [trace.id for trace in read_traces("traces.jsonl")] == [json.loads(line)["id"] for line in lines[:3]]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\x7fELF\0\0\1", b"not json\n", b"[1, 2]\n", b"\x1f\x8b\x08broken"])
def test_ingest_of_nothing_readable_is_one_line(rlkit: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.log").write_bytes(content)
    (tmp_path / "out.jsonl").write_text("what was there before")
    status, out, err = rlkit("ingest", tmp_path / "bad.log", "--out", tmp_path / "out.jsonl")
    assert (status, out) == (1, "")
    (line,) = complaints(err)
    assert "bad.log: no trace could be read" in line
    assert (tmp_path / "out.jsonl").read_text() == "what was there before"


def test_ingest_never_writes_over_its_input(rlkit: Command, folder: Path) -> None:
    before = Path("logs.jsonl").read_bytes()
    status, _, err = rlkit("ingest", "*.jsonl", "--out", "../" + folder.name + "/logs.jsonl")
    assert status == 1
    assert "is one of the logs to read" in complaints(err)[0]
    assert Path("logs.jsonl").read_bytes() == before


# --- train and eval -------------------------------------------------------------------------------------------------


def test_train_then_resume_then_eval(rlkit: Command, folder: Path) -> None:
    status, out, err = rlkit("train", "run.yaml")
    assert status == 0, err
    assert re.search(r"^logs +40 sessions\ntasks +\d+ rebuilt.*\nproduction +succeeded in 0\.\d\d \[", out)
    assert re.search(r"^training +2 steps, in runs/run$", out, re.MULTILINE)
    assert re.search(r"^ +step 1 +step 2$", out, re.MULTILINE)
    assert re.search(r"^checkpoint +runs/run/checkpoints/step-000002$", out, re.MULTILINE)
    assert re.search(r"^rollout/reward +\d\.\d{3} +\d\.\d{3}$", out, re.MULTILINE)

    status, out, _ = rlkit("train", "run.yaml", "--steps", 3)
    assert status == 0
    assert re.search(r"^resuming +runs/run/checkpoints/step-000002$", out, re.MULTILINE)
    assert len(Path("runs/run/metrics.jsonl").read_text().splitlines()) == 3

    Path("run.yaml").write_text(RUN.replace("model: model", "model: ./model"))
    status, _, err = rlkit("train", "run.yaml")
    assert status == 1
    assert complaints(err) == ["rlkit: runs/run: holds a run with other settings (model)"]

    checkpoint = "runs/run/checkpoints/step-000003"
    options = ["--trials", 2, "--limit", 5, "--max-tokens", 4, "--capacity", 128, "--out", "results.csv"]
    status, out, _ = rlkit("eval", checkpoint, "--logs", "logs.jsonl", *options)
    assert status == 0
    assert all(word in out for word in ("production", "T=1", "greedy", "complaint", "outcome"))
    with open("results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    policies = [row["policy"] for row in rows]
    assert {name: policies.count(name) for name in policies} == {"production": 5, "T=1": 10, "greedy": 10}
    assert len({row["task"] for row in rows}) == 5
    won = sum(row["success"] == "True" for row in rows if row["policy"] == "production")
    assert re.search(rf"production +│ {won / 5:.2f} \[", out)


def test_a_users_own_environment_is_found_in_the_current_directory(
    rlkit: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tags there is no table per cell."""
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    Path("their_desk.py").write_text(
        "from rlkit.examples import support\n"
        "from rlkit.examples.support import environment, final_state, rubric\n"
        "def task_from_trace(trace):\n"
        "    return support.task_from_trace(trace).model_copy(update={'tags': {}})\n"
    )
    options = ["--environment", "their_desk", "--temperature", 0, "--limit", 2, "--max-tokens", 4, "--capacity", 128]
    status, out, err = rlkit("eval", "model", "--logs", "logs.jsonl", *options)
    assert status == 0, err
    assert "greedy" in out
    assert "T=" not in out
    assert "per cell" not in out


def test_one_tag_makes_a_table_too(rlkit: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    Path("one_tag.py").write_text(
        "from rlkit.examples import support\n"
        "from rlkit.examples.support import environment, final_state, rubric\n"
        "def task_from_trace(trace):\n"
        "    return support.task_from_trace(trace).model_copy(update={'tags': {'desk': 'north'}})\n"
    )
    options = ["--environment", "one_tag", "--temperature", 0, "--limit", 2, "--max-tokens", 4, "--capacity", 128]
    _, out, _ = rlkit("eval", "model", "--logs", "logs.jsonl", *options)
    assert re.search(r"north +│ 2 +│ \d\.\d\d +│ 0\.00", out)


# --- full disks and Ctrl-C ------------------------------------------------------------------------------------------


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """A disk of its own with room for one checkpoint of this model, not two."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


@contextmanager
def small_files() -> Iterator[None]:
    """Writing more than 20 kB into one file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_intact(rlkit: Command, err: str, run: Path) -> None:
    (line,) = complaints(err)
    checkpoint = run / "checkpoints" / "step-000001"
    assert line.endswith(f"; {checkpoint} is intact, run the same command to go on")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000001"]
    rescued = shutil.copytree(run, "rescued")  # to a disk with room
    status, out, err = rlkit("train", "run.yaml", "-o", rescued)
    assert status == 0, err
    assert re.search(r"^resuming .*step-000001$", out, re.MULTILINE)


def test_a_full_disk_loses_no_checkpoint(rlkit: Command, folder: Path) -> None:
    run = folder / "disk" / "run"
    with full_disk(folder / "disk"):
        status, _, err = rlkit("train", "run.yaml", "-o", run)
        assert status == 1
        assert "No space left on device" in err
        check_intact(rlkit, err, run)


def test_a_write_that_fails_loses_no_checkpoint(rlkit: Command, folder: Path) -> None:
    run = folder / "runs" / "run"
    assert rlkit("train", "run.yaml", "--steps", 1)[0] == 0
    with small_files():
        status, _, err = rlkit("train", "run.yaml", "-o", run)
    assert status == 1
    assert "too large" in err
    check_intact(rlkit, err, run)


@pytest.mark.slow
def test_ctrl_c_says_what_is_kept(folder: Path) -> None:
    command = [RLKIT, "train", "run.yaml", "--steps", "100000"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(Path("runs/run/checkpoints").glob("step-*")):
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    (line,) = complaints(err)
    found = re.fullmatch(
        r"rlkit: interrupted; (runs/run/checkpoints/step-\d{6}) is intact, run the same command to go on", line
    )
    assert found
    assert (Path(found[1]) / "optimizer.safetensors").exists()


# --- from logs to tasks, and whether the environment can be trusted ---------------------------------------------------


def test_mine_tells_why_sessions_failed_and_writes_tasks_that_share_nothing(rlkit: Command, folder: Path) -> None:
    code, out, err = rlkit("mine", "logs.jsonl", "--by", "order", "--heldout", "0.3")
    assert code == 0, err
    assert re.search(r"failures +\d+ in \d+ clusters", out)
    assert "get_order > " in out
    sides = {name: read_tasks(folder / "tasks" / f"{name}.jsonl") for name in ("train", "heldout", "aside")}
    assert {name: f"{len(side)} tasks" in out for name, side in sides.items()} == dict.fromkeys(sides, True)
    keys = [{key for task in sides[name] for key in task.keys} for name in ("train", "heldout")]
    assert keys[0]
    assert keys[1]
    assert not keys[0] & keys[1]


def test_mine_warns_where_one_side_is_empty(rlkit: Command, folder: Path) -> None:
    code, out, err = rlkit("mine", "logs.jsonl", "--heldout", "0.001", "--failures-only", "--out", "t")
    assert code == 0
    assert any("one side of the split is empty" in line for line in complaints(err))
    assert "0 tasks in t/heldout.jsonl" in out


def test_env_check_passes_the_course_and_fails_a_reward_that_pays_cheats(rlkit: Command, folder: Path) -> None:
    code, out, err = rlkit("env", "check", "--tasks", "20")
    assert code == 0, err
    assert "nothing wrong found" in out
    (folder / "gullible.py").write_text(
        "from rlkit.examples.support import *\n"
        "from rlkit.envs.grading import Check, Rubric\n"
        "rubric = Rubric('gullible', [Check('polite', 1, lambda task, trace, state: bool(trace.final_reply))])\n"
    )
    code, out, err = rlkit("env", "check", "gullible", "--tasks", "5")
    assert code == 1
    assert "problem: doing nothing succeeds: agent 'echo' on 5 of 5 tasks" in out
    assert "problem: a cheat succeeds: agent 'says it did'" in out


def test_a_grader_that_is_down_is_one_line(rlkit: Command, folder: Path) -> None:
    (folder / "down.py").write_text(
        "from rlkit.examples.support import *\n"
        "from rlkit.envs.grading import Check, GraderDown, Rubric\n"
        "def judged(task, trace, state):\n"
        "    raise GraderDown('judge: 5 errors in a row, the last timeout')\n"
        "rubric = Rubric('judged', [Check('judge', 1, judged)])\n"
    )
    code, _, err = rlkit("env", "check", "down", "--tasks", "2")
    assert code == 1
    assert complaints(err) == ["rlkit: judge: 5 errors in a row, the last timeout"]


def test_env_check_takes_its_tasks_from_logs_where_the_module_makes_none(rlkit: Command, folder: Path) -> None:
    (folder / "bare.py").write_text(
        "from rlkit.examples.support import environment, final_state, rubric, task_from_trace\n"
    )
    code, _, err = rlkit("env", "check", "bare")
    assert code == 1
    assert complaints(err) == ["rlkit: environment 'bare' has no `sample_task`: say where tasks come from with --logs"]
    code, out, err = rlkit("env", "check", "bare", "--logs", "logs.jsonl")
    assert code == 0, err
    assert "no reference" in out
    code, out, err = rlkit("mine", "logs.jsonl", "--environment", "bare", "--by", "order")
    assert code == 0
    assert "failures " not in out


def test_env_fidelity_names_a_drift_and_gates_on_it(rlkit: Command, folder: Path) -> None:
    code, out, err = rlkit("env", "fidelity", "logs.jsonl", "--at-least", "1")
    assert code == 0, err
    assert "100.0% come back" in out
    assert "luck" in out
    (folder / "drifted.py").write_text(
        "from rlkit.examples.support import *\n"
        "from dataclasses import replace\n"
        "from rlkit.envs.environment import Environment\n"
        "def renamed(episode, id):\n"
        "    order = dict(get_order.run(episode, id=id))\n"
        "    return {('late' if key == 'minutes_late' else key): value for key, value in order.items()}\n"
        "get_order = environment.by_name['get_order']\n"
        "tools = [replace(tool, run=renamed) if tool is get_order else tool for tool in environment.tools]\n"
        "environment = Environment('drifted', tools)\n"
    )
    code, out, err = rlkit("env", "fidelity", "logs.jsonl", "--environment", "drifted", "--at-least", "0.99")
    assert code == 1
    assert "renamed minutes_late → late in get_order" in out
    code, out, err = rlkit("env", "fidelity", "logs.jsonl", "--replayed", "--at-least", "1")
    assert code == 0, err
