"""Write the support desk's production logs: `python data/make_support_logs.py`.

Synthetic: a scripted, flawed agent plays seeded customers (see rlkit/examples/support). May and June are written
twice, as OpenAI chat JSONL and as OTel GenAI spans in OTLP-JSON. July's sessions branch (replies asked for again,
complaints edited, a specialist asked); they are written in every format that rlkit writes, and once more as they might
be found in the wild, damaged and with customers' data. The bytes depend on the seed alone.
"""

import argparse
from pathlib import Path

from rlkit.examples.support.branching import branching_sessions
from rlkit.examples.support.messy import messy_lines
from rlkit.examples.support.production import production_sessions
from rlkit.files import write_lines
from rlkit.logs.writers import WRITERS, to_openai, to_otlp, write_jsonl

MONTHS = {"2026-05": ("train", 1600), "2026-06": ("heldout", 500)}
BRANCHING = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "logs", help="folder to write to")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for month, (pool, count) in MONTHS.items():
        traces = list(production_sessions(count, pool, arguments.seed, start=f"{month}-01"))
        for name, record in (("openai", to_openai), ("otel", to_otlp)):
            path = arguments.out / f"support-{month}.{name}.jsonl.gz"
            write_jsonl((record(trace) for trace in traces), path)
            print(f"{path}: {count} sessions, {path.stat().st_size / 1e6:.2f} MB")
    sessions = list(branching_sessions(BRANCHING, arguments.seed))
    for name, writer in WRITERS.items():
        path = arguments.out / f"support-2026-07.{name}.jsonl.gz"
        write_jsonl((record for session in sessions for record in writer.session_records(session)), path)
        print(f"{path}: {BRANCHING} sessions, {path.stat().st_size / 1e6:.2f} MB")
    path = arguments.out / "support-2026-07.messy.jsonl.gz"
    write_lines(path, messy_lines(sessions, arguments.seed))
    print(f"{path}: {BRANCHING} sessions, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
