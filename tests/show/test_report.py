from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from rlkit import paths
from rlkit.config import ConfigError, read_yaml
from rlkit.show.report import ReportError, check_parameters, find_notebook, make_report

RLKIT = Path(sys.executable).with_name("rlkit")
PARAMETERS = """\
steps = 3
rate: float = 0.5
flag = True
name = "x"
seeds = [1, 2]
nothing = None
worked = 10 * 60
bare: int
"""


def notebook(*code: str, title: str = "# A tiny notebook") -> Any:
    cells = [new_markdown_cell(title), new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})]
    return new_notebook(cells=[*cells, *map(new_code_cell, code)])


def write(path: Path, *code: str) -> Path:
    nbformat.write(notebook(*code), path)
    return path


def problems(**given: Any) -> str:
    with pytest.raises(ReportError) as caught:
        check_parameters(notebook(), given, "a.ipynb")
    return str(caught.value)


# --- finding a notebook ---------------------------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("00_quickstart", "05_sample_rollouts", "05_sample", "06_grpo"):
        (tmp_path / f"{name}.ipynb").touch()
    monkeypatch.setenv("RLKIT_NOTEBOOKS", str(tmp_path))
    return tmp_path


def test_a_notebook_is_found_by_part_of_its_name_or_by_path(course: Path) -> None:
    assert find_notebook("quickstart") == course / "00_quickstart.ipynb"
    assert find_notebook("06") == course / "06_grpo.ipynb"
    assert find_notebook("05_sample") == course / "05_sample.ipynb"  # the whole name, though another has it too
    assert find_notebook(str(course / "06_grpo.ipynb")) == course / "06_grpo.ipynb"


def test_a_missing_notebook_lists_the_known_ones(course: Path) -> None:
    with pytest.raises(ReportError, match=r"^slow: no such notebook; known: 00_quickstart, 05_sample, 05_.*, 06_grpo$"):
        find_notebook("slow")
    with pytest.raises(ReportError, match=r"^05: may be 05_sample or 05_sample_rollouts$"):
        find_notebook("05")


def test_a_missing_course_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLKIT_NOTEBOOKS", str(tmp_path))
    with pytest.raises(ReportError, match="set RLKIT_NOTEBOOKS"):
        find_notebook("quickstart")


def test_every_notebook_of_the_course_has_its_parameters() -> None:
    for path in paths.notebooks_dir().glob("*.ipynb"):
        with pytest.raises(ReportError, match="unknown parameter 'nonsense'"):
            check_parameters(nbformat.read(path, as_version=4), {"nonsense": 1}, path.name)


# --- parameters -----------------------------------------------------------------------------------------------------


def test_parameters_that_fit() -> None:
    given = {
        "steps": 5,
        "rate": 1,
        "flag": False,
        "name": "",
        "seeds": [],
        "nothing": [1, "a"],
        "worked": 2.5,
        "bare": 1,
    }
    check_parameters(notebook(), given, "a.ipynb")


def test_an_unknown_parameter_is_refused_by_name() -> None:
    assert problems(stepz=1) == "a.ipynb: unknown parameter 'stepz'; did you mean 'steps'?"
    assert problems(q=1).startswith("a.ipynb: unknown parameter 'q'; known: steps, rate, flag, name, ")


def test_a_value_of_another_type_is_refused() -> None:
    assert problems(flag="false") == "a.ipynb: flag: expected bool like the default True, got 'false'"
    assert problems(steps=True) == "a.ipynb: steps: expected int like the default 3, got True"
    assert problems(flag=1, steps=2.5).count("\n") == 1
    assert "expected list like the default [1, 2], got 1" in problems(seeds=1)
    assert problems(steps=None) == "a.ipynb: steps: expected int like the default 3, got None"


def test_the_yaml_trap_is_explained(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("rate: 1e-3\nnothing: 2026-01-01\n")
    found = problems(**read_yaml(tmp_path / "p.yaml")).splitlines()
    assert found[0].endswith("got '1e-3'; YAML takes 1e-3 for text, write 1.0e-3")
    assert found[1].endswith("expected a number, text, list or mapping, got datetime.date(2026, 1, 1)")


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "\xff\xfe"])
def test_parameters_that_are_no_mapping(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"p\.yaml: "):
        read_yaml(tmp_path / "p.yaml")


def test_an_empty_file_has_no_parameters(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").touch()
    assert read_yaml(tmp_path / "p.yaml") == {}


# --- running --------------------------------------------------------------------------------------------------------

METRICS = "import json, pathlib\npathlib.Path('metrics.json').write_text(json.dumps({'flag': flag, 'rate': rate}))"


def text_of(path: Path) -> str:
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def test_a_tiny_notebook_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "tiny.ipynb", "import sys, os\nprint(sys.prefix, os.getcwd())", METRICS)
    before = source.read_bytes()
    report = make_report(source, {"flag": False, "rate": 1}, tmp_path / "out")
    assert report.metrics == {"flag": False, "rate": 1}  # a bool is still a bool
    assert text_of(report.notebook).split() == [sys.prefix, str((tmp_path / "out").resolve())]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.json", "tiny.html", "tiny.ipynb"]
    html = report.html.read_text(encoding="utf-8")
    assert "<title>A tiny notebook</title>" in html
    executed = nbformat.read(report.notebook, as_version=4)
    nbformat.validate(executed)
    metadata = [executed.metadata, *(cell.metadata for cell in executed.cells)]
    assert str(tmp_path) not in json.dumps(metadata)
    assert source.read_bytes() == before
    err = capfd.readouterr().err
    assert "A tiny notebook" in err
    assert "tiny: 100%" in err
    assert "WARNING" not in err


def test_metrics_of_an_earlier_run_are_not_this_one_s(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"old": 1}')
    report = make_report(write(tmp_path / "n.ipynb", "pass"), {}, tmp_path / "out", progress=False)
    assert report.metrics is None
    source = write(tmp_path / "n.ipynb", "open('metrics.json', 'w').write('[1]')")
    with pytest.raises(ReportError, match=r"metrics\.json: expected a mapping of metrics, found list"):
        make_report(source, {}, tmp_path / "out", progress=False)


def test_a_failing_cell_keeps_what_ran(tmp_path: Path) -> None:
    source = write(tmp_path / "bad.ipynb", "print('before')", "raise ValueError('no\\n  luck')", "print('after')")
    with pytest.raises(ReportError) as caught:
        make_report(source, {}, tmp_path / "out", progress=False)
    assert str(caught.value) == f"{source}: cell [3] failed: ValueError: no luck; what ran is in {tmp_path / 'out'}"
    assert "before" in text_of(tmp_path / "out" / "bad.ipynb")
    assert "after" not in text_of(tmp_path / "out" / "bad.ipynb")
    assert "ValueError" in (tmp_path / "out" / "bad.html").read_text(encoding="utf-8")


def test_a_dead_kernel_is_reported(tmp_path: Path) -> None:
    source = write(
        tmp_path / "dead.ipynb", "print('before')", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    with pytest.raises(ReportError, match=r"dead\.ipynb: cell \[3\]: Kernel died .*; what ran is in "):
        make_report(source, {}, tmp_path / "out", progress=False)
    assert "before" in text_of(tmp_path / "out" / "dead.ipynb")


def test_a_python_without_a_kernel_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel.kernelspec", None)
    with pytest.raises(ReportError, match=r"no Jupyter kernel: pip install .* ipykernel"):
        make_report(write(tmp_path / "n.ipynb", "pass"), {}, tmp_path / "out", progress=False)


def test_what_is_no_notebook_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for content in (b"", b"flag: false", b"[]", b'{"cells": 3}', b'{"nbformat": 4, "cells": 3}', b"\xff\xfe\x00"):
        (tmp_path / "n.ipynb").write_bytes(content)
        with pytest.raises(ReportError, match=r"n\.ipynb: not a notebook"):
            make_report(tmp_path / "n.ipynb", {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_notebook_is_never_written_over(tmp_path: Path) -> None:
    source = write(tmp_path / "n.ipynb", "pass")
    before = source.read_bytes()
    with pytest.raises(ReportError, match="holds the notebook itself"):
        make_report(source, {}, tmp_path)
    assert source.read_bytes() == before


def test_the_kernel_is_this_python_with_no_venv_active(tmp_path: Path) -> None:
    """Another environment's kernelspec lies first in the way, as a user's own does."""
    spec = tmp_path / ".local" / "share" / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text('{"argv": ["/nowhere/python", "{connection_file}"], "display_name": "other"}')
    write(tmp_path / "tiny.ipynb", "import sys\nprint(sys.prefix)", METRICS)
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "JUPYTER_PREFER_ENV_PATH": "0"}
    command = [RLKIT, "report", "tiny.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert text_of(tmp_path / "reports" / "tiny" / "tiny.ipynb").strip() == sys.prefix
    assert "rate  0.5" in done.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_what_ran_and_leaves_no_kernel(tmp_path: Path) -> None:
    write(
        tmp_path / "slow.ipynb",
        "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)",
    )
    running = subprocess.Popen([RLKIT, "report", "slow.ipynb"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "reports" / "slow"
    while not (folder / "pid").exists() or not (folder / "pid").read_text():
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.endswith("\nrlkit: interrupted; what ran is in reports/slow\n")
    assert {"slow.html", "slow.ipynb"} <= {path.name for path in folder.iterdir()}
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)
