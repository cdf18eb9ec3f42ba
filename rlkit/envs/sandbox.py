"""Code of the agent's, run against cases it never sees, in a process of its own.

The verdict is not the code's to give: it answers calls with JSON values over a pipe, and what is right is known, and
compared, on this side only. Exit codes, printed words, files and patched test frameworks say nothing.

This is the weak sandbox. Where Linux namespaces can be used: no network, no other processes in sight, a root file
system that cannot be written, a scratch folder of bounded size, and nothing that outlives the run; but files can be
read, and so can what other mounts hold. Where they cannot (`isolated()` is False), only time, memory and the size of
each file are limited: such code may leave processes behind and look into this one, so its results can be forged.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SERVER = """
import json, os, resource, sys
os.environ.clear()
cpu_s, memory, size = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
answers, requests = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0), "r")
null = os.open(os.devnull, os.O_RDWR)
for descriptor in (0, 1, 2):
    os.dup2(null, descriptor)
space = {"__name__": "candidate"}
answers.write("{}\\n")
answers.flush()
for line in requests:
    name, arguments = json.loads(line)
    try:
        if name is None:
            exec(compile(arguments, "candidate.py", "exec"), space)
            said = {"value": None}
        else:
            said = {"value": space[name](*arguments)}
        text = json.dumps(said, allow_nan=False)
    except BaseException as error:
        text = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    answers.write(text + "\\n")
    answers.flush()
"""
_APART = ("--user", "--map-root-user", "--net", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child")
_FENCE = 'mount -t tmpfs -o size="$0" scratch . && cd "$PWD" && mount -o remount,bind,ro / && exec "$@"'
_MOST_OUTPUT = 1 << 20  # bytes of one answer
_START_S = 30.0  # a slow machine is not the agent's fault: its time begins when the process is there
_LEAST_MB = 64


@dataclass(frozen=True)
class Case:
    """One call of the candidate and what it should return; JSON values."""

    function: str
    arguments: Sequence[Any]
    expected: Any


@dataclass(frozen=True)
class CaseResult:
    """Whether a case passed, and if not why."""

    passed: bool
    detail: str = ""


class SandboxError(RuntimeError):
    """The sandbox itself failed: nobody's fault among the agents."""


def run_cases(
    code: str, cases: Sequence[Case], timeout_s: float = 10.0, memory_mb: int = 512, disk_mb: int = 64
) -> list[CaseResult]:
    """Run `code` once and call its functions, case by case; results in the order of the cases.

    The deadline is one for all. What the code does to itself (an endless loop, an exit, a crash, a flood of output)
    fails the case it happens in and those after it. Numbers are compared as JSON numbers, lists and tuples alike.
    `memory_mb` is for each process, `disk_mb` for the scratch folder. Raises `SandboxError` where no process can be
    started, and `ValueError` for less memory than Python needs.
    """
    if memory_mb < _LEAST_MB:
        raise ValueError(f"memory_mb must be at least {_LEAST_MB}, got {memory_mb}")
    folder = tempfile.mkdtemp(prefix="rlkit-sandbox-")
    try:
        process = _start(folder, timeout_s, memory_mb, disk_mb)
        try:
            deadline = time.monotonic() + timeout_s
            requests = [(None, code), *((case.function, list(case.arguments)) for case in cases)]
            loaded, *answers = _answers(process, requests, deadline)
        finally:
            _kill(process)
    finally:
        subprocess.run(["rm", "-rf", "--", folder], check=False)  # rmtree raises on what is nested too deep
    if "error" in loaded:
        return [CaseResult(False, loaded.get("lost") or f"does not run: {loaded['error']}")] * len(cases)
    return [_compare(said, case.expected) for said, case in zip(answers, cases, strict=True)]


def isolated() -> bool:
    """Whether the sandbox has namespaces of its own on this machine."""
    return bool(_apart("1m"))


def _start(folder: str, timeout_s: float, memory_mb: int, disk_mb: int) -> subprocess.Popen[bytes]:
    limits = [str(int(timeout_s) + 1), str(memory_mb << 20), str(disk_mb << 20)]
    command = [*_apart(f"{disk_mb}m"), sys.executable, "-I", "-S", "-c", _SERVER, *limits]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder,
            env={}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise SandboxError(f"no process for the code under test: {error}") from error
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    if _exchange(process, b"", time.monotonic() + _START_S) != {}:  # it says so before it has seen any code
        _kill(process)
        raise SandboxError("no process for the code under test: it did not come up")
    return process


def _answers(
    process: subprocess.Popen[bytes], requests: Sequence[tuple[str | None, Any]], deadline: float
) -> list[dict[str, Any]]:
    """What the candidate says to each request: `{"value"}` or `{"error"}`; once it is lost, the same error for the
    rest."""
    answers: list[dict[str, Any]] = []
    for request in requests:
        said = _exchange(process, json.dumps(request).encode() + b"\n", deadline)
        if isinstance(said, str) or not (
            isinstance(said, dict) and len(said) == 1 and said.keys() <= {"value", "error"}
        ):
            lost = said if isinstance(said, str) else "wrote into the pipe"
            return answers + [{"lost": lost, "error": lost}] * (len(requests) - len(answers))
        answers.append(said)
    return answers


def _exchange(process: subprocess.Popen[bytes], request: bytes, deadline: float) -> Any:
    """The JSON value that comes back on `request`, or in words what became of the process. Never waits beyond the
    deadline, even where the other side does not read."""
    assert process.stdin is not None
    assert process.stdout is not None
    to, back, text = process.stdin.fileno(), process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(back, select.POLLIN)
    if request:
        poll.register(to, select.POLLOUT)
    while not text.endswith(b"\n"):
        ready = dict(poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))))
        if not ready:
            return "out of time"
        if to in ready:
            try:
                request = request[os.write(to, request) :]
            except OSError:
                return "ended by itself"
            if not request:
                poll.unregister(to)
        if back in ready:
            piece = os.read(back, 1 << 16)
            text += piece
            if not piece:
                return "ended by itself"
            if len(text) > _MOST_OUTPUT:
                return "answered with more than a megabyte"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return "wrote into the pipe"


def _compare(said: dict[str, Any], expected: Any) -> CaseResult:
    if "error" in said:
        return CaseResult(False, str(said["error"]))
    value = said.get("value")
    if same_json(value, json.loads(json.dumps(expected))):
        return CaseResult(True)
    return CaseResult(False, f"returned {json.dumps(value)[:200]}")


def same_json(a: Any, b: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[key], b[key]) for key in a)
    return bool(a == b)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started: with the first process of a namespace, the kernel kills the others."""
    with suppress(OSError):
        for first in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(first), signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


@cache
def _apart(size: str) -> tuple[str, ...]:
    """The command that puts a process behind namespaces, with so much scratch space, where this machine allows it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, *_APART, "sh", "-c", _FENCE, size)
    with tempfile.TemporaryDirectory() as folder:
        works = subprocess.run([*command, "true"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return command if works.returncode == 0 else ()
