"""What pseudonyms cost: `python -m tests.benchmarks.bench_privacy [--repeats 9]`.

Real conversations (the shared tau-bench file, else the course's logs) through `Redactor`, in MB of their text a second,
as they are and with an e-mail address, a phone number and a card in every user's message.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

from rlkit.logs import Trace
from rlkit.logs.privacy import Redactor
from tests.benchmarks.bench_readers import conversations

CONTACT = " Mail jane.doe@example.com or call +1 (415) 555-0132; I paid with 4111 1111 1111 1111."


def size(traces: list[Trace]) -> int:
    return sum(
        len(m.content or "") + sum(len(str(c.arguments)) for c in m.tool_calls) for t in traces for m in t.messages
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    plain = conversations()
    private = [
        trace.model_copy(update={"messages": [
            replace(m, content=(m.content or "") + CONTACT) if m.role == "user" else m for m in trace.messages
        ]})
        for trace in plain
    ]  # fmt: skip
    for name, traces in (("as they are", plain), ("with contacts", private)):
        speeds = []
        for _ in range(repeats):
            redactor, started = Redactor(["Jane Doe", "Mia Li", "Ada Okafor"]), time.perf_counter()
            for trace in traces:
                redactor.redact(trace)
            speeds.append(size(traces) / 1e6 / (time.perf_counter() - started))
        report = redactor.report
        print(f"{name:<14} {statistics.median(speeds):6.1f} MB/s; {report.touched} of {report.traces} traces touched")


if __name__ == "__main__":
    main()
