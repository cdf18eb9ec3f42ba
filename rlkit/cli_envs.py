"""`rlkit mine` and `rlkit env …`: from logs to tasks, and whether the environment and its reward can be trusted."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

SUPPORT = "rlkit.examples.support"  # as in rlkit.workbench, which is too heavy to import for --help
Module = Annotated[str, typer.Option(help="Import path of the environment module.")]
Logs = Annotated[list[str], typer.Argument(metavar="LOGS...", help="Files, folders, globs or URLs, of any format.")]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def _env() -> None:
    """Can the environment and its reward be trusted?

    Example: rlkit env check my_package.my_agent
    """


def mine(
    logs: Logs,
    environment: Module = SUPPORT,
    out: Annotated[Path, typer.Option(help="Folder for train.jsonl, heldout.jsonl and aside.jsonl.")] = Path("tasks"),
    heldout: Annotated[float, typer.Option(min=0, max=1, help="Share that is held out.")] = 0.2,
    by: Annotated[
        str | None, typer.Option(help="Kind of key that must be unseen in held-out tasks, as in phrase.")
    ] = None,
    failures_only: Annotated[bool, typer.Option("--failures-only", help="Leave out what production did well.")] = False,
    seed: int = 0,
) -> None:
    """Find out why sessions failed, and make tasks of them.

    Tasks that share a key (a customer, an order, a phrase) are never on different sides. Where keys join nearly all
    tasks, name with --by the kind that must be unseen; training tasks that share anything else are then set aside.

    Example: rlkit mine logs/*.jsonl.gz --by phrase --out tasks
    """
    from rlkit.envs.leaks import find_leaks
    from rlkit.envs.similar import cluster_failures
    from rlkit.envs.task import split_tasks, write_tasks
    from rlkit.show import terminal
    from rlkit.workbench import Workbench

    workbench = Workbench.load(environment)
    mining, read = workbench.mine(logs)
    typer.echo(terminal.mining_summary(mining, read))
    if workbench.rules is not None:
        failed = workbench.failures(mining)
        clusters = cluster_failures(failed)
        typer.echo(f"failures    {len(failed)} in {len(clusters)} clusters; the largest:")
        for cluster in clusters[:10]:
            typer.echo(f"  {len(cluster):>5}  {cluster.fault:<11} {cluster.label}")
    tasks = mining.failures if failures_only else mining.tasks
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        split = split_tasks(tasks, heldout, seed, by)
    for warning in warned:
        typer.echo(f"rlkit: {warning.message}", err=True)
    out.mkdir(parents=True, exist_ok=True)
    for name, side in (("train", split.train), ("heldout", split.heldout), ("aside", split.aside)):
        write_tasks(side, out / f"{name}.jsonl")
        typer.echo(f"{name:<11} {len(side)} tasks in {out / f'{name}.jsonl'}")
    leaks = Counter(leak.kind for leak in find_leaks(split.train, split.heldout))
    told = ", ".join(f"{count} × {kind}" for kind, count in leaks.most_common()) or "none found"
    typer.echo(f"leaks       {told}")


@app.command()
def check(
    environment: Annotated[
        str, typer.Argument(metavar="MODULE", help="Import path of the environment module.")
    ] = SUPPORT,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks are played.")] = 50,
    logs: Annotated[str | None, typer.Option(help="Where the tasks come from, if the module makes none.")] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns the reference may take.")] = 8,
    seed: int = 0,
) -> None:
    """Let agents that deserve nothing, and one that deserves all, play for the reward.

    The null agents must earn nothing, the module's `oracle` exactly 1, and no cheating agent may succeed: one that only
    says it did, does everything at once, does it twice, edits the grader's inputs, and the module's own `cheats`. Also
    whether the environment keeps its promises. Exit status 1 where something is wrong.

    Example: rlkit env check my_package.my_agent --logs traces.jsonl
    """
    from rlkit.config import ConfigError
    from rlkit.envs.env_check import check_environment
    from rlkit.show import terminal
    from rlkit.workbench import Workbench

    workbench, rng = Workbench.load(environment), random.Random(seed)
    if logs is not None:
        mined = workbench.mine(logs)[0].tasks
        chosen = rng.sample(mined, min(tasks, len(mined)))
    elif workbench.sample_task is not None:
        chosen = [workbench.sample_task(rng) for _ in range(tasks)]
    else:
        raise ConfigError(f"environment {environment!r} has no `sample_task`: say where tasks come from with --logs")
    found = check_environment(
        workbench.environment, workbench.rubric, chosen, workbench.oracle, workbench.cheats, seed, max_turns
    )
    terminal.print_frame(found.table().drop(columns="wanted"), f"{len(chosen)} tasks, {found.step_ms:.2f} ms a call")
    if workbench.oracle is None:
        typer.echo("no reference: the module has no `oracle`, so only null agents and its own cheats were examined")
    for problem in found.problems:
        typer.echo(f"problem: {problem}")
    if found.problems:
        raise typer.Exit(1)
    typer.echo("nothing wrong found")


@app.command()
def fidelity(
    logs: Logs,
    environment: Module = SUPPORT,
    equal: Annotated[list[str] | None, typer.Option(help="A field that may differ; can be given again.")] = None,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Check an environment replayed from these logs.")
    ] = False,
    at_least: Annotated[float, typer.Option(min=0, max=1, help="Exit status 1 below this share.")] = 0.0,
) -> None:
    """Replay every recorded tool call and compare: does the environment answer as production did?

    Names what drifted: a field renamed, a type changed, a tool that answers otherwise, fails or is slower.

    Example: rlkit env fidelity logs/*.jsonl.gz --environment my_package.my_agent --equal updated_at --at-least 0.99
    """
    from rlkit.envs.fidelity import fidelity
    from rlkit.envs.replay import ReplayEnvironment
    from rlkit.logs.readers import read_traces
    from rlkit.show import terminal
    from rlkit.workbench import Workbench

    traces = read_traces(logs, progress=True)
    if replayed:
        kept = list(traces)
        replay = ReplayEnvironment(kept)
        found = fidelity(replay, kept, replay.task, equal or (), progress=True)
    else:
        bench = Workbench.load(environment)
        task_of = bench.replay_task or bench.task_from_trace
        found = fidelity(bench.environment, traces, task_of, equal or (), bench.luck)
    terminal.print_frame(found.table(), "recorded calls by tool")
    typer.echo(str(found))
    if not found.share >= at_least:
        raise typer.Exit(1)
