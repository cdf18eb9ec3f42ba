"""Each adapter against the real package, in an environment of its own: `python tests/adapters/matrix.py [FOLDER]`.

Makes a virtual environment for each package in FOLDER (a temporary one by default; one that is there is used again),
runs tests/adapters in it, and prints how many rewards were equal. Exit status 1 where anything failed, or where a
direction was not compared at all: a package that cannot be imported only skips its tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

PACKAGES = {"gymnasium": "gymnasium==1.4.0", "openenv": "openenv==0.10.0", "verifiers": "verifiers==0.4.0"}
"""They cannot share an environment: verifiers and openenv pin other versions of mcp, openai and anthropic."""
OURS = ["pytest", "pytest-timeout", "hypothesis", "pydantic", "orjson", "jsonschema", "tqdm", "numpy", "fsspec",
        "zstandard", "pyyaml", "httpx", "uvicorn"]  # fmt: skip
"""What rlkit.envs and the tests need; neither torch nor pandas."""
DIRECTIONS = {
    "gymnasium": {"test_rewards_are_equal": "to", "test_rewards_are_equal_there_and_back": "to and from"},
    "openenv": {
        "test_rewards_are_equal": "to",
        "test_rewards_are_equal_over_its_own_server": "to, over its server",
        "test_rewards_are_equal_there_and_back": "to and from",
        "test_openenv_s_client_pays_the_same_and_leaves_no_session_open": "to and from, over its server",
    },
    "verifiers": {
        "test_rewards_are_equal": "to, our traces",
        "test_verifiers_own_rollouts_pay_the_same": "to, its own rollouts",
        "test_rewards_are_equal_there_and_back": "to and from",
    },
}
"""Which tests compare rewards, and between what."""
WANTED = 30 * 4
"""Tasks times agents, a direction; as in tests/adapters/agents.py."""
ROOT = Path(__file__).parents[2]


def main(folder: Path) -> int:
    """Run all; the number of environments in which something failed."""
    failed = 0
    rows: list[tuple[str, ...]] = [("adapter", "version", "direction", "rewards equal", "seconds")]
    begun = time.monotonic()
    with ThreadPoolExecutor() as pool:
        pythons = list(pool.map(lambda name: _environment(folder / name, [PACKAGES[name], *OURS]), PACKAGES))
    print(f"environments ready after {time.monotonic() - begun:.0f} s", flush=True)
    for (name, pinned), python in zip(PACKAGES.items(), pythons, strict=True):
        report = folder / f"{name}.xml"
        told = ["-q", "--noconftest", "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        done = subprocess.run([python, "-m", "pytest", "tests/adapters", *told], cwd=ROOT, check=False)
        told_rows, complete = _rows(name, pinned.partition("==")[2], report)
        failed += done.returncode != 0 or not complete
        rows += told_rows
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return failed


def _environment(folder: Path, packages: list[str]) -> str:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *packages], check=True)
    return str(python)


def _rows(name: str, version: str, report: Path) -> tuple[list[tuple[str, ...]], bool]:
    """A row a direction, and whether every direction was compared in full."""
    compared: Counter[str] = Counter()
    seconds: dict[str, float] = dict.fromkeys(DIRECTIONS[name].values(), 0.0)
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        direction = DIRECTIONS[name].get(case.get("name", "").partition("[")[0])
        own = case.get("classname", "").rpartition(".")[2] in (f"test_{name}", "test_conformance")
        if direction is None or not own or any(case.find(bad) is not None for bad in ("failure", "error", "skipped")):
            continue
        seconds[direction] += float(case.get("time", 0))
        compared[direction] += sum(int(told.get("value", 0)) for told in case.iter("property"))
    rows = [(name, version, d, f"{compared[d]} of {WANTED}", f"{spent:.1f}") for d, spent in seconds.items()]
    return rows, all(compared[direction] == WANTED for direction in seconds)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else scratch).resolve()))
