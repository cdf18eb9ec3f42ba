"""Code of the agent's, run against cases it never sees, in a process of its own.

The verdict cannot be forged from inside: the candidate answers calls with JSON values over a pipe, and what is right is
known, and compared, on this side only. Exit codes, printed words, files and patched test frameworks say nothing.

This is the weak sandbox: no network and no sight of other processes (where Linux namespaces can be used), limits on
time, memory, output and file size, a scratch folder, an empty environment. It does not keep the code from reading the
machine's files.
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
from typing import Any

_SERVER = """
import json, os, resource, sys
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
_MOST_OUTPUT = 1 << 20  # bytes of one answer


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
    code: str, cases: Sequence[Case], timeout_s: float = 10.0, memory_mb: int = 512, file_mb: int = 8
) -> list[CaseResult]:
    """Run `code` once and call its functions, case by case; results in the order of the cases.

    The deadline is one for all. What the code does to itself (an endless loop, an exit, a crash, a flood of output)
    fails the case it happens in and those after it. Numbers are compared as JSON numbers, lists and tuples alike.
    Raises `SandboxError` where no process can be started.
    """
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="rlkit-sandbox-") as folder:
        limits = [str(int(timeout_s) + 1), str(memory_mb << 20), str(file_mb << 20)]
        try:
            process = subprocess.Popen(
                [*_apart(), sys.executable, "-I", "-S", "-c", _SERVER, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"no process for the code under test: {error}") from error
        try:
            results: list[CaseResult] = []
            broken = ""
            for request in ((None, code), *((case.function, list(case.arguments)) for case in cases)):
                if not broken:
                    said = _ask(process, request, deadline)
                    if "lost" in said or (request[0] is None and "error" in said):
                        broken = said.get("lost") or f"does not run: {said['error']}"
                if request[0] is not None:
                    case = cases[len(results)]
                    results.append(CaseResult(False, broken) if broken else _compare(said, case.expected))
            return results
        finally:
            _kill(process)


def _ask(process: subprocess.Popen[bytes], request: tuple[str | None, Any], deadline: float) -> dict[str, Any]:
    """The candidate's answer: `{"value"}`, `{"error"}`, or `{"lost": why}` after which nothing more will come."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return {"lost": "ended by itself"}
    text = b""
    descriptor = process.stdout.fileno()
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return {"lost": "out of time"}
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return {"lost": "ended by itself"}
        text += piece
        if len(text) > _MOST_OUTPUT:
            return {"lost": "answered with more than a megabyte"}
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {"lost": "wrote into the pipe"}
    return said if isinstance(said, dict) and said.keys() <= {"value", "error"} else {"lost": "wrote into the pipe"}


def _compare(said: dict[str, Any], expected: Any) -> CaseResult:
    if "error" in said:
        return CaseResult(False, str(said["error"]))
    value = said.get("value")
    if _same(value, json.loads(json.dumps(expected))):
        return CaseResult(True)
    return CaseResult(False, f"returned {json.dumps(value)[:200]}")


def _same(a: Any, b: Any) -> bool:
    """Equal as JSON: 1 is 1.0, and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, type(b) | (int | float)):
        return type(a) is type(b) and a == b
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started (the namespace dies with its first process)."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    process.wait()


@cache
def _apart() -> tuple[str, ...]:
    """The command that puts a process into namespaces of its own, where this machine allows it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    command = (unshare, "--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child")
    works = subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return command if works.returncode == 0 else ()
