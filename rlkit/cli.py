"""`rlkit …`, one verb a station: ingest, mine, env, train, eval, report, doctor.

What can go wrong with files, configs and checkpoints is one line on stderr and exit status 1 (2 for a wrong command
line, 130 after Ctrl-C). A programming error keeps its traceback, as does everything under `--debug`.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlkit import cli_envs

if TYPE_CHECKING:
    import pandas as pd

    from rlkit.loop import Run
    from rlkit.workbench import RunConfig

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

FORMATS = """auto, openai, responses, anthropic, claude-code, otel, openinference, langfuse, langsmith, tau-bench, tau2,
swe-agent, openhands, atif"""  # as in rlkit.logs.READERS, which takes too long to import for --help
Format = Annotated[str, typer.Option(help=f"Format of the logs: {' '.join(FORMATS.split())}.")]
SUPPORT = "rlkit.examples.support"  # as in rlkit.workbench, which is too heavy to import for --help


def main(arguments: Sequence[str] | None = None) -> None:
    """The command `rlkit`; always ends in `SystemExit`, or in the traceback of a programming error."""
    sys.path.append(os.getcwd())  # where a user's own environment module lies
    try:
        app(arguments, prog_name="rlkit")
    except SystemExit:  # done, or a wrong command line
        raise
    except _expected() as error:  # evaluated only now, so that --help imports none of them
        if os.environ.get("RLKIT_DEBUG"):
            raise
        _complain(_sentence(error))
        sys.exit(1)


@app.callback()
def _everything(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of every error.")] = False,
) -> None:
    """From production logs to a better agent.

    RLKIT_DEBUG=1 in the environment does what --debug does.
    """
    if debug:
        os.environ["RLKIT_DEBUG"] = "1"


@app.command()
def report(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Part of the name of a notebook of the course, or a path.")
    ],
    parameters: Annotated[Path | None, typer.Option("-p", "--parameters", help="YAML mapping of parameters.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder; default reports/NAME.")] = None,
) -> None:
    """Run a notebook and keep it as a report.

    Leaves the executed notebook, a page of HTML and metrics.json. The notebook runs in that folder.

    Example: rlkit report quickstart -p my.yaml -o reports/mine
    """
    from rlkit.config import read_yaml
    from rlkit.show import terminal
    from rlkit.show.report import find_notebook, make_report

    notebook = find_notebook(name)
    given = read_yaml(parameters) if parameters else {}
    folder = output or Path("reports") / notebook.stem
    with _kept(lambda: f"what ran is in {folder}"):
        done = make_report(notebook, given, folder)
    typer.echo(f"report    {done.html}\nnotebook  {done.notebook}")
    if done.metrics is None:
        _complain(f"{notebook.name} wrote no metrics.json")
    else:
        typer.echo(f"metrics   {folder / 'metrics.json'}\n{terminal.headlines(done.metrics)}")


@app.command()
def ingest(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders, globs or URLs; gzip, zstd.")],
    format: Format = "auto",
    out: Annotated[Path, typer.Option(help="Where they go; gzipped as traces.jsonl.gz.")] = Path("traces.jsonl"),
    names: Annotated[Path | None, typer.Option(help="Names to replace as well: a text file, one a line.")] = None,
    keep_personal_data: Annotated[
        bool, typer.Option("--keep-personal-data", help="Write everything as it was logged.")
    ] = False,
) -> None:
    """Read logs of any format and write them in one.

    That one is ATIF, a trajectory a line, with nothing lost but personal data: e-mail addresses, phone, card and
    account numbers, keys and tokens, and the names you list become pseudonyms, the same throughout a session. Says
    what was odd and what was replaced. Where it is stopped, what was read so far is in OUT.part, whole and readable.

    Example: rlkit ingest logs/*.jsonl.gz --out traces.jsonl
    """
    from rlkit.files import partial_path
    from rlkit.logs.privacy import Redactor
    from rlkit.logs.readers import LogFormatError, read_traces
    from rlkit.logs.readers.source import find_files
    from rlkit.logs.report import ReadReport
    from rlkit.logs.writers import to_atif, write_jsonl

    if out.resolve() in [Path(file).resolve() for file in find_files(paths)]:
        raise LogFormatError(f"{out}: is one of the logs to read; choose another file with --out")
    known = names.read_text().splitlines() if names else []
    report, redactor = ReadReport(), None if keep_personal_data else Redactor(known)

    def so_far() -> str:
        partial = partial_path(out)
        return f"the traces so far are in {partial}" if partial.exists() else "nothing was written"

    with _kept(so_far), closing(read_traces(paths, format, report, progress=True)) as traces:
        kept = traces if redactor is None else map(redactor.redact, traces)
        write_jsonl(map(to_atif, kept), out)
    privacy = "kept, as you asked" if redactor is None else str(redactor.report)
    typer.echo(f"{report}\n\npersonal data\n{privacy}\n\n{report.traces} traces written to {out}")


app.command()(cli_envs.mine)
app.add_typer(cli_envs.app, name="env")


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML of a run; data/configs/support.yaml is one.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder; default runs/CONFIG.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of the config's.")] = None,
) -> None:
    """Improve a model with GRPO on production logs.

    Failed sessions are what there is to learn, passed ones keep what works. An interrupted run goes on where its last
    checkpoint stands. Paths in CONFIG are taken from the current directory.

    Example: rlkit train data/configs/support.yaml -o runs/first --steps 40
    """
    from rlkit.show import terminal
    from rlkit.workbench import RunConfig

    settings = RunConfig.from_yaml(config, **({} if steps is None else {"steps": steps}))
    folder = output or Path(settings.output or Path("runs") / config.stem)
    with _kept(lambda: _checkpoint_kept(folder)):
        run = _train(settings, folder)
    typer.echo(terminal.run_summary(run))
    typer.echo(f"checkpoint  {_checkpoints(folder)[-1]}\nmetrics     {folder / 'metrics.jsonl'}")


def _train(settings: RunConfig, folder: Path) -> Run:
    from rlkit.loop import train
    from rlkit.models import load_model
    from rlkit.show import terminal
    from rlkit.workbench import Workbench

    workbench = Workbench.load(settings.environment)
    model, tokenizer = load_model(settings.model)
    harness = workbench.harness(tokenizer)
    mining, read = workbench.mine(settings.logs)
    typer.echo(terminal.mining_summary(mining, read))
    saved = _checkpoints(folder)
    typer.echo(f"resuming    {saved[-1]}" if saved else f"training    {settings.steps} steps, in {folder}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `Run.stopped` is in the summary
        return train(model, tokenizer, harness, mining.tasks, settings, folder)


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A checkpoint folder.")],
    logs: Annotated[
        str, typer.Option(help="Where the tasks come from; for a fair answer, not what it was trained on.")
    ],
    environment: Annotated[str, typer.Option(help="Import path of the environment module.")] = SUPPORT,
    format: Format = "auto",
    temperature: Annotated[float, typer.Option(min=0, help="Of the sampled policy; greedy is shown beside it.")] = 1.0,
    trials: Annotated[int, typer.Option(min=1, help="Episodes a task.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many sessions, drawn with a fixed seed.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a turn.")] = 48,
    capacity: Annotated[int, typer.Option(min=2, help="Tokens a conversation.")] = 256,
    out: Annotated[Path | None, typer.Option(help="CSV with a row an episode.")] = None,
) -> None:
    """How often a model succeeds where production did or did not.

    Example: rlkit eval runs/support/checkpoints/step-000150 --logs june.jsonl
    """
    from rlkit.evaluate import evaluate_policy, evaluate_traces
    from rlkit.models import load_model
    from rlkit.sampling.sampler import SamplingParams
    from rlkit.sampling.torch_sampler import TorchSampler
    from rlkit.show import terminal
    from rlkit.workbench import Workbench

    workbench = Workbench.load(environment)
    policy, tokenizer = load_model(model)
    harness = workbench.harness(tokenizer)
    mining, read = workbench.mine(logs, format)
    typer.echo(terminal.mining_summary(mining, read))
    if limit is not None and limit < len(mining.sessions):
        mining.sessions = random.Random(0).sample(mining.sessions, limit)
        typer.echo(f"drawn       {limit} of the tasks")
    sampler = TorchSampler(policy, capacity=capacity)
    results = {"production": evaluate_traces(mining)}
    for heat in dict.fromkeys((temperature, 0.0)):
        label = f"T={heat:g}" if heat else "greedy"
        params = SamplingParams(temperature=heat, max_tokens=max_tokens, stop_token_ids=(harness.chat.end_id,))
        results[label], _ = evaluate_policy(sampler, harness, mining.tasks, params, trials, progress=label)
    terminal.print_results(results)
    if out is not None:
        _write_csv(results, out)


@app.command()
def doctor() -> None:
    """What this machine can do, and what is missing.

    Example: rlkit doctor
    """
    from rich.console import Console

    from rlkit.doctor import as_table, as_text, diagnose

    findings = diagnose()
    console = Console()
    console.print(as_table(findings) if console.is_terminal else as_text(findings), markup=False, soft_wrap=True)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


# --- errors ---------------------------------------------------------------------------------------------------------


def _expected() -> tuple[type[Exception], ...]:
    """What is nobody's programming error, and reads well as one line."""
    from rlkit.config import ConfigError
    from rlkit.envs.grading import GraderDown
    from rlkit.envs.mining import NotATask
    from rlkit.logs.readers import LogFormatError
    from rlkit.models import CheckpointError
    from rlkit.show.report import ReportError

    return ConfigError, GraderDown, NotATask, LogFormatError, CheckpointError, ReportError, FloatingPointError, OSError


def _sentence(error: Exception) -> str:
    """An error's message; an `OSError` without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _complain(message: str) -> None:
    for line in message.splitlines():
        typer.echo(f"rlkit: {line}", err=True)


@contextmanager
def _kept(describe: Callable[[], str]) -> Iterator[None]:
    """Says what is left after Ctrl-C, or where the disk failed."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(err=True)  # off the progress bar's line
        _complain(f"interrupted; {describe()}")
        raise typer.Exit(130) from None
    except OSError as error:
        typer.echo(err=True)
        raise OSError(f"{_sentence(error)}; {describe()}") from error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


def _checkpoint_kept(folder: Path) -> str:
    saved = _checkpoints(folder)
    return f"{saved[-1]} is intact, run the same command to go on" if saved else "there is no checkpoint yet"


def _write_csv(results: Mapping[str, pd.DataFrame], path: Path) -> None:
    import pandas as pd

    from rlkit.files import atomic_write

    together = pd.concat(results, names=["policy"]).reset_index(level="policy")
    atomic_write(path, together.to_csv(index=False))
    typer.echo(f"{len(together)} episodes written to {path}")
