"""What `rlkit ingest` takes for a large file: `python -m tests.benchmarks.bench_ingest [--megabytes 1000]`.

The file is made by repeating real records (the shared tau-bench file, else the course's logs) as OpenAI chat JSONL,
with ids of their own. Printed: MB/s of the log and peak memory, with pseudonyms and without, plain and gzipped; then a
run is stopped by Ctrl-C half-way, and what it left is read back.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rlkit.files import partial_path, write_lines
from rlkit.logs import read_traces, to_openai
from rlkit.logs.jsontext import dump_line
from tests.benchmarks.bench_readers import conversations

RLKIT = Path(sys.executable).with_name("rlkit")


def repeated(megabytes: float) -> Iterator[bytes]:
    """Lines of at least so many megabytes together."""
    records, size, copy = [to_openai(trace) for trace in conversations()], 0, 0
    while True:
        for record in records:
            line = dump_line(record | {"id": f"{record['id']}.{copy}"})
            yield line
            size += len(line)
            if size >= megabytes * 1e6:
                return
        copy += 1


MEASURED = """
import sys
from rlkit.cli import main
try:
    main(sys.argv[1:])
finally:
    print(open("/proc/self/status").read())
"""


def measured(arguments: list[str]) -> tuple[float, float]:
    """(seconds, peak memory in MB) of `rlkit …`, which must succeed."""
    started = time.perf_counter()
    command = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    peak = done.stdout.split("VmHWM:")[1].split()[0]  # what wait4 tells includes the parent that forked it
    return time.perf_counter() - started, int(peak) / 1000


def stopped(command: list[str], out: Path, megabytes: float) -> str:
    """Ctrl-C once so much was written: what is left."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    part = partial_path(out)
    while process.poll() is None and not (part.exists() and part.stat().st_size > megabytes * 1e6):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    traces = sum(1 for _ in read_traces(part))
    last = said.strip().splitlines()[-1]
    return f"status {process.returncode}, {traces} traces in {part.name}, all readable; it said {last!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder, "log.jsonl"), Path(folder, "traces.jsonl")
        write_lines(log, repeated(megabytes))
        packed = Path(folder, "log.jsonl.gz")
        with open(log, "rb") as plain, gzip.open(packed, "wb", compresslevel=1) as zipped:
            shutil.copyfileobj(plain, zipped)
        size = log.stat().st_size / 1e6
        print(f"{size:.0f} MB of OpenAI chat JSONL ({packed.stat().st_size / 1e6:.0f} MB gzipped)")
        runs = {
            "with pseudonyms": [log],
            "as it was logged": [log, "--keep-personal-data"],
            "gzipped, with pseudonyms": [packed],
        }
        for name, arguments in runs.items():
            seconds, peak = measured(["ingest", *map(str, arguments), "--out", str(out)])
            print(f"{name:<26} {seconds:6.1f} s  {size / seconds:6.0f} MB/s  peak {peak:5.0f} MB")
        out.unlink()
        print(f"Ctrl-C: {stopped([str(RLKIT), 'ingest', str(log), '--out', str(out)], out, size / 3)}")


if __name__ == "__main__":
    main()
