"""How fast logs are read: `python -m tests.benchmarks.bench_readers [--repeats 9] [--megabytes 20]`.

Real conversations (the shared tau-bench file, else the course's logs) written in every format we write. The baseline
is what a careful script does: `json.loads` a line, a pydantic model a message. Every round times all of them, one after
the other, in one process; the table shows MB/s (median) and the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rlkit.logs import ReadReport, Trace, read_traces, write_jsonl
from rlkit.logs.writers import WRITERS
from rlkit.paths import data_path

SHARED = Path(os.environ.get("RLKIT_SHARED", Path(__file__).parents[3] / "shared")) / "data"


class Function(BaseModel):
    name: str
    arguments: str


class Call(BaseModel):
    id: str
    type: str
    function: Function


class ChatMessage(BaseModel):
    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None


def baseline(path: Path) -> int:
    count = 0
    with open(path, "rb") as file:
        for line in file:
            count += len([ChatMessage.model_validate(message) for message in json.loads(line)["messages"]])
    return count


def ours(path: Path, format: str) -> int:
    report = ReadReport()
    for _ in read_traces(path, format, report):
        pass
    return report.messages


def conversations() -> list[Trace]:
    real = SHARED / "tau_bench_airline_gpt4o.json"
    return list(read_traces(real if real.is_file() else data_path("logs/support-2026-05.openai.jsonl.gz")))


def write(traces: list[Trace], folder: Path, megabytes: float) -> dict[str, Path]:
    paths = {}
    for name, writer in WRITERS.items():
        paths[name] = folder / f"{name}.jsonl"
        sessions = [list(writer.session_records([trace])) for trace in traces]
        size = sum(len(json.dumps(record)) for records in sessions for record in records)
        copies = max(1, round(megabytes * 1e6 / size))
        many = ([t.model_copy(update={"id": f"{t.id}.{n}"}) for t in traces] for n in range(copies))
        write_jsonl((r for some in many for t in some for r in writer.session_records([t])), paths[name])
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--formats", nargs="*", default=list(WRITERS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = write(conversations(), Path(folder), arguments.megabytes)
        runs: dict[str, Any] = {"json.loads + pydantic": (paths["openai"], lambda: baseline(paths["openai"]))}
        runs |= {name: (paths[name], lambda name=name: ours(paths[name], name)) for name in arguments.formats}
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(arguments.repeats + 1):
            for name, (path, run) in runs.items():
                start = time.perf_counter()
                run()
                speeds[name].append(path.stat().st_size / 1e6 / (time.perf_counter() - start))
    base, openai = (speeds[name][1:] for name in ("json.loads + pydantic", "openai"))
    header = f"{'':<22} {'MB/s':>6}  {'× baseline':>10}  {'× openai':>8}"
    print(f"{header}   median of {arguments.repeats} rounds")
    for name, measured in speeds.items():
        ratios = [
            statistics.median(m / o for m, o in zip(measured[1:], other, strict=True)) for other in (base, openai)
        ]
        print(f"{name:<22} {statistics.median(measured[1:]):6.0f}  {ratios[0]:10.2f}  {ratios[1]:8.2f}")


if __name__ == "__main__":
    main()
