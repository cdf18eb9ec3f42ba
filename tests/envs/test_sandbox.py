"""Code under test cannot pass without being right, and cannot hang, flood or outlive the sandbox."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rlkit.envs.checks import code_block, passes_tests, reply_is_json, reply_matches, state_equals
from rlkit.envs.grading import Check, Grade, Rubric
from rlkit.envs.sandbox import Case, SandboxError, _apart, isolated, run_cases
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, Trace

SQUARE = [Case("square", [2], 4), Case("square", [-3], 9)]


def passed(code: str, cases: list[Case] = SQUARE, **limits: Any) -> list[bool]:
    return [result.passed for result in run_cases(code, cases, **limits)]


def test_right_code_passes_and_wrong_code_fails_case_by_case() -> None:
    assert passed("def square(x): return x * x") == [True, True]
    assert passed("def square(x): return 4") == [True, False]
    results = run_cases("def square(x): return 5 if x > 0 else 1 / 0", SQUARE)
    assert [r.detail for r in results] == ["returned 5", "ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "def square(x): import os; os._exit(0)",
        "def square(x): raise SystemExit(0)",
        "print('2 passed')\ndef square(x): return None",
        "class Equal:\n    def __eq__(self, other): return True\ndef square(x): return Equal()",
        "import json\njson.dumps = lambda *a, **k: '{\"value\": 4}'\ndef square(x): return 0",
        "import builtins\nbuiltins.all = lambda *a: True\ndef square(x): return 0",
        "import os\ndef square(x):\n    for n in range(3, 30):\n        try: os.write(n, b'{\"value\":9}\\n' * 3)\n"
        "        except OSError: pass\n    return 0",
        "def square(x): return float('nan')",
        "def square(x)",
        "",
    ],
)
def test_no_trick_passes_every_case(code: str) -> None:
    assert not all(passed(code))


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ("(1, 2)", [1, 2], True), ("1.0", 1, True), ("True", 1, False), ("1", True, False), ("'1'", 1, False),
        ("{'a': [None]}", {"a": [None]}, True), ("{'a': 1, 'b': 2}", {"a": 1}, False), ("[]", {}, False),
        ("None", False, False), ("'é\\u2028'", "é\u2028", True),
    ],
)  # fmt: skip
def test_values_are_compared_as_json(value: str, expected: Any, same: bool) -> None:
    assert passed(f"def f(): return {value}", [Case("f", [], expected)]) == [same]


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)",
                                  "import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)"])  # fmt: skip
def test_what_hangs_is_out_of_time_and_nothing_of_it_lives_on(code: str) -> None:
    begun = time.monotonic()
    results = run_cases(f"MARK = 'rlkit-test-{begun}'\n{code}", SQUARE, timeout_s=0.7)
    assert time.monotonic() - begun < 5
    assert [r.detail for r in results] == ["out of time", "out of time"]
    time.sleep(0.1)
    alive = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "resource.RLIMIT_AS" not in alive


def test_floods_memory_and_files_are_bounded() -> None:
    assert passed("def square(x): return 'a' * (1 << 22)") == [False, False]
    assert passed("print('a' * (1 << 26))\ndef square(x): return x * x") == [True, True]
    hungry = run_cases("def square(x): return len([0] * (1 << 28)) and x * x", SQUARE, memory_mb=256)
    assert hungry[0].detail.startswith("MemoryError")
    assert passed("open('big', 'wb').write(bytes(1 << 25))\ndef square(x): return x * x", disk_mb=8) == [False, False]
    with pytest.raises(ValueError, match="at least 64"):
        run_cases("", SQUARE, memory_mb=8)


@pytest.mark.skipif(not isolated(), reason="no namespaces for this user on this machine")
def test_there_is_no_network_and_no_sight_of_secrets_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert passed("import os\ndef f(): return sorted(set(os.environ) - {'LC_CTYPE'})", [Case("f", [], [])]) == [True]
    reach = "import socket\ndef f():\n    socket.create_connection(('127.0.0.1', 9), 1)"
    (result,) = run_cases(reach, [Case("f", [], None)])
    assert "unreachable" in result.detail


def test_a_sandbox_that_cannot_start_is_not_the_agents_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    for apart in (lambda size: (), _apart):  # refused at once, and behind `unshare`, which starts
        monkeypatch.setattr("rlkit.envs.sandbox._apart", apart)
        with pytest.raises(SandboxError, match="no process"):
            run_cases("", SQUARE)
    check = passes_tests("tests", code_block, SQUARE)
    assert grade(check, "```python\ndef square(x): return x * x\n```").status == "grader_error"


def test_a_candidate_that_does_not_read_cannot_hold_us_up() -> None:
    code = (
        "import os, time\nfor n in range(3, 30):\n    try: os.write(n, b'{\"value\":null}\\n')\n"
        "    except OSError: pass\ntime.sleep(40)"
    )
    begun = time.monotonic()
    assert passed(code, [Case("f", ["x" * 200_000], 1)], timeout_s=0.7) == [False]
    assert time.monotonic() - begun < 5


def test_nested_folders_and_many_open_files_are_no_excuse() -> None:
    deep = "import os\nfor i in range(2000):\n    os.mkdir('d'); os.chdir('d')\ndef square(x): return 0"
    before = set(Path(tempfile.gettempdir()).glob("rlkit-sandbox-*"))
    assert passed(deep) == [False, False]
    assert set(Path(tempfile.gettempdir()).glob("rlkit-sandbox-*")) <= before
    files = [open(os.devnull) for _ in range(1100)]  # noqa: SIM115
    try:
        assert passed("def square(x): return x * x") == [True, True]
    finally:
        for file in files:
            file.close()


@pytest.mark.skipif(not isolated(), reason="no namespaces for this user on this machine")
def test_nothing_outlives_the_sandbox_writes_outside_it_or_sees_others(tmp_path: Path) -> None:
    survivor = f"""import ctypes, os, time
os.setsid()
def f():
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # not to be killed with its parent
    if os.fork() == 0:
        os.setsid()
    time.sleep(1.5)
    open({str(tmp_path / "survived")!r}, "w").write("yes")
"""
    assert passed(survivor, [Case("f", [], 1)], timeout_s=0.5) == [False]
    time.sleep(1.7)
    assert not (tmp_path / "survived").exists()
    outside = f"def f(): open({str(tmp_path / 'outside')!r}, 'w')"
    assert "Read-only" in run_cases(outside, [Case("f", [], None)])[0].detail
    seen = "import os\ndef f(): return [n for n in os.listdir('/proc') if n.isdigit() and int(n) > 9]"
    assert passed(seen, [Case("f", [], [])]) == [True]
    full = "def f():\n    for n in range(20):\n        open(str(n), 'wb').write(bytes(1 << 20))"
    assert "No space left" in run_cases(full, [Case("f", [], None)], disk_mb=8)[0].detail


# --- checks ---------------------------------------------------------------------------------------------------------

TASK = Task(id="t", messages=[], state={}, goal={"status": "cancelled", "total": 12})
STATE = {"order": {"status": "cancelled", "items": [{"n": 1}]}}


def grade(check: Check, reply: str | None) -> Grade:
    messages = [] if reply is None else [Message(role="assistant", content=reply)]
    return Rubric("r", [check]).grade(TASK, Trace(id="x", messages=messages), STATE)


@pytest.mark.parametrize(
    ("path", "expected", "score"),
    [
        ("order.status", lambda task: task.goal["status"], 1), ("order.status", "open", 0), ("order.items.0.n", 1, 1),
        ("order.items.1.n", 1, 0), ("order.items.-1.n", 1, 0), ("nothing.there", None, 0), ("", STATE, 1),
        ("order.items.0.n", True, 0), ("order.items.0.n", 1.0, 1),
    ],
)  # fmt: skip
def test_the_final_state_at_a_path(path: str, expected: Any, score: float) -> None:
    assert grade(state_equals("state", path, expected), "done").score == score


def test_words_and_json_of_the_reply() -> None:
    total = reply_matches("total", lambda task: rf"\b{task.goal['total']}\b")
    assert [grade(total, reply).score for reply in ("It is 12.", "It is 120.", None)] == [1, 0, 0]
    assert grade(reply_matches("exact", "done", whole=True), " Done ").score == 1
    assert grade(reply_matches("exact", "done", whole=True), "not done").score == 0
    assert grade(reply_matches("bad", "("), "x").status == "grader_error"
    schema = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
    json_reply = reply_is_json("json", schema)
    replies = ('{"total": 12}', '{"total": "12"}', "total: 12", "[" * 5000, None, '{"total": NaN}', '{"total": 1e999}')
    assert [grade(json_reply, reply).score for reply in replies] == [1, 0, 0, 0, 0, 0, 0]
    loose = reply_is_json("json", {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.01})
    assert [grade(loose, reply).score for reply in ("NaN", "1" * 401, "Infinity", "5")] == [0, 0, 0, 1]
    assert grade(reply_is_json("bad", {"type": "thing"}), "{}").status == "grader_error"


def test_unit_tests_as_a_check() -> None:
    check = passes_tests("tests", code_block, SQUARE, timeout_s=2)
    half = grade(check, "Here:\n```python\ndef square(x): return 4\n```\nDone.")
    assert (half.score, half.checks[0].parts) == (0.5, {"case 0": 1.0, "case 1": 0.0})
    assert grade(check, "no code").score == 0
    assert grade(check, "```\nwhile True: pass\n```").score == 0
    assert grade(passes_tests("tests", code_block, []), "```\n1\n```").status == "grader_error"
