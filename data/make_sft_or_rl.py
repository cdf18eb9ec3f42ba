"""Imitate or reinforce, measured: `OMP_NUM_THREADS=1 python data/make_sft_or_rl.py` writes experiments/sft_or_rl.csv.

First each arm's learning rate (and, for SFT, how many of the conversations it may take) is chosen on validation tasks:
those of other branching sessions, of seen branches only, with a training seed of its own. Then every arm is trained at
its choice with three seeds, each with its own sessions, draws and held-out tasks, and examined at temperature 1 and
greedily. A row of the table is arm x seed x temperature x branch; rows of the choice have `split` = validation. Since
the choice cannot see what is forgotten, SFT on the good paths is then examined at two gentler settings too, `split` =
gentle. Runs that are in the table already are not run again. Notebook 07 reads it.

All of it took 2,240 s on one core of a shared machine (in two goes: the gentle runs were added, 237 s).
"""

import argparse
import time
from pathlib import Path

import pandas as pd
import torch

from rlkit.examples.support.branching import branching_sessions
from rlkit.examples.support.sft_or_rl import ARMS, Arm, Lessons, exam, examine, lessons, pooled, tally, train_arm
from rlkit.models import load_model
from rlkit.paths import data_path

TUNING_SEED, VALIDATION_SEED = 100, 101
CONVERSATIONS = 19_200  # what 150 steps of GRPO draw: 16 tasks, 8 rollouts each
Settings = tuple[int, float]  # (conversations, learning rate)
GRID: dict[Arm, list[Settings]] = {
    "nothing": [(0, 0.0)],
    "sft_all": [(n, rate) for n in (CONVERSATIONS // 4, CONVERSATIONS) for rate in (3e-4, 1e-3, 3e-3)],
    "sft_good": [(n, rate) for n in (CONVERSATIONS // 4, CONVERSATIONS) for rate in (3e-4, 1e-3, 3e-3)],
    "grpo": [(CONVERSATIONS, rate) for rate in (4e-4, 8e-4)],
}
GENTLE: list[Settings] = [(CONVERSATIONS // 4, 3e-4), (CONVERSATIONS // 4, 1e-3)]


class Experiment:
    """The rows so far, written after every arm; those of an interrupted run are kept."""

    def __init__(self, out: Path, sessions: int) -> None:
        self.out, self.sessions = out, sessions
        self.model, self.tokenizer = load_model(data_path("models/support-warm-start"))
        self.tables: list[pd.DataFrame] = [pd.read_csv(out)] if out.exists() else []

    def given(self, seed: int) -> Lessons:
        return lessons(branching_sessions(self.sessions, seed))

    def run(self, split: str, arm: Arm, settings: Settings, given: Lessons, tasks: list, seed: int) -> pd.DataFrame:
        """Train an arm and examine it; returns its rows, which are also kept and written."""
        if (rows := self._done(split, arm, settings, seed)) is not None:
            return rows
        trained = train_arm(arm, self.model, self.tokenizer, given, *settings, seed)
        parts = []
        for temperature in (1.0,) if split == "validation" else (1.0, 0.0):
            counts = tally(examine(trained.model, self.tokenizer, tasks, temperature, seed))
            parts.append(counts.assign(temperature=temperature))
        rows = pd.concat(parts).assign(split=split, arm=arm, seed=seed, learning_rate=settings[1])
        rows = rows.assign(conversations=trained.conversations, train_tokens=trained.tokens)
        rows = rows.assign(train_seconds=round(trained.seconds, 1))
        first = ["split", "arm", "seed", "conversations", "learning_rate", "temperature"]
        rows = rows[first + [name for name in rows.columns if name not in first]]
        self.tables.append(rows)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        pd.concat(self.tables).sort_values(["split", "seed"], kind="stable").to_csv(self.out, index=False)
        found = pooled(rows, ["temperature", "side"])["success"]
        told = ", ".join(f"T {t:g} {side} {interval}" for (t, side), interval in found.items())
        print(f"{split} {arm} seed {seed} {settings}: {told}; {trained.seconds:.0f} s", flush=True)
        return rows

    def _done(self, split: str, arm: Arm, settings: Settings, seed: int) -> pd.DataFrame | None:
        """The rows of a run, if it is in the table already."""
        wanted = {"split": split, "arm": arm, "seed": seed, "conversations": settings[0], "learning_rate": settings[1]}
        for table in self.tables:
            rows = table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]
            if len(rows):
                return rows
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "experiments" / "sft_or_rl.csv")
    parser.add_argument("--sessions", type=int, default=1200, help="branching sessions a seed")
    parser.add_argument("--per-branch", type=int, default=128, help="held-out tasks of each branch")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small gain nothing from more, and one thread repeats itself bit for bit
    started = time.perf_counter()
    experiment = Experiment(arguments.out, arguments.sessions)
    given, validation = experiment.given(TUNING_SEED), experiment.given(VALIDATION_SEED).tasks[:800]
    chosen: dict[Arm, Settings] = {}
    for arm in ARMS:
        tried = {s: experiment.run("validation", arm, s, given, validation, TUNING_SEED) for s in GRID[arm]}
        chosen[arm] = max(tried, key=lambda s: tried[s]["successes"].sum())
    print(f"chosen: {chosen}", flush=True)
    for seed in range(arguments.seeds):
        given, tasks = experiment.given(seed), exam(arguments.per_branch, seed)
        print(f"seed {seed}: {len(given.paths)} paths, {len(given.good)} good, {len(given.tasks)} tasks; left out:")
        print(f"  {dict(given.left_out)}", flush=True)
        for arm in ARMS:
            experiment.run("test", arm, chosen[arm], given, tasks, seed)
        for settings in GENTLE:
            experiment.run("gentle", "sft_good", settings, given, tasks, seed)
    print(f"written to {arguments.out}, after {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
