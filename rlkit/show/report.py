"""A notebook as a report: checked parameters in; the executed notebook, a page of HTML and `metrics.json` out.

papermill injects parameters and runs the cells. What it takes on trust is checked here first: a name that the notebook
does not have is refused, and so is a value of another type than the default.
"""

from __future__ import annotations

import ast
import difflib
import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlkit.paths import notebooks_dir

_ANYTHING = object()  # the default of a parameter that is worked out, such as `10 * 60`


class ReportError(ValueError):
    """A report that cannot be made or was cut short; the message says why, a line for each reason."""


@dataclass(frozen=True)
class Report:
    """What a report left in its folder, which is also where the notebook ran."""

    notebook: Path
    """As executed, without papermill's paths."""
    html: Path
    metrics: dict[str, Any] | None
    """The `metrics.json` that the notebook wrote this time; None where it wrote none."""


def find_notebook(name: str) -> Path:
    """A notebook by its path, or one of the course by any part of its name that no other has.

    Raises `ReportError` with the known names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = {found.stem: found for found in sorted(notebooks_dir().glob("*.ipynb"))}
    if not known:
        raise ReportError(f"{name}: no such notebook, and none in {notebooks_dir()}; set RLKIT_NOTEBOOKS to the course")
    matches = [name] if name in known else [stem for stem in known if name in stem]
    if len(matches) != 1:
        problem = f"may be {' or '.join(matches)}" if matches else f"no such notebook; known: {', '.join(known)}"
        raise ReportError(f"{name}: {problem}")
    return known[matches[0]]


def make_report(notebook: Path, parameters: Mapping[str, Any], folder: str | Path, progress: bool = True) -> Report:
    """Run `notebook` in `folder` and render it there.

    Raises `ReportError` for a file that is no notebook, for parameters it does not take, and where a cell fails or the
    kernel dies; what ran until then is in `folder`, rendered as well.
    """
    source, folder = _read(notebook), Path(folder)
    check_parameters(source, parameters, str(notebook))
    folder.mkdir(parents=True, exist_ok=True)
    executed, html, metrics = (folder / name for name in (notebook.name, f"{notebook.stem}.html", "metrics.json"))
    if executed.exists() and executed.samefile(notebook):
        raise ReportError(f"{folder}: holds the notebook itself, which is never written over; choose another folder")
    written = _written(metrics)
    try:
        _execute(notebook, executed, parameters, progress)
    finally:
        if executed.exists():
            _publish(executed, html, beside=notebook.parent)
    return Report(executed, html, _read_metrics(metrics) if _written(metrics) != written else None)


def check_parameters(source: Any, parameters: Mapping[str, Any], name: str) -> None:
    """Compare with the cell tagged `parameters`. Raises `ReportError`, a line for each that does not fit."""
    declared = _declared(source, name)
    problems = []
    for key, value in parameters.items():
        if key not in declared:
            close = difflib.get_close_matches(key, declared, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(declared) or 'none'}"
            problems.append(f"{name}: unknown parameter '{key}'; {hint}")
        elif not _is_plain(value) or not _fits(value, declared[key]):
            problems.append(f"{name}: {key}: expected {_wanted(declared[key])}, got {value!r}{_yaml_trap(value)}")
    if problems:
        raise ReportError("\n".join(problems))


def _read(path: Path) -> Any:
    import nbformat

    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("nbformat") != 4:  # nbformat takes that on trust
            raise ReportError(f"{path}: not a notebook of version 4")
        notebook = nbformat.from_dict(content)  # type: ignore[no-untyped-call]
        nbformat.validate(notebook)
    except (UnicodeDecodeError, json.JSONDecodeError, nbformat.ValidationError) as error:
        raise ReportError(f"{path}: not a notebook: {' '.join(str(error).split())[:200]}") from None
    for cell in notebook.cells:  # files may hold text as a list of lines
        cell.source = "".join(cell.source)
    return notebook


def _declared(source: Any, name: str) -> dict[str, Any]:
    """Names and defaults that the cell tagged `parameters` assigns."""
    found: dict[str, Any] = {}
    for cell in source.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            try:
                statements = ast.parse(cell.source).body
            except SyntaxError as error:
                raise ReportError(f"{name}: the cell tagged parameters: {error}") from None
            found |= dict(filter(None, map(_assigned, statements)))
    return found


def _assigned(statement: ast.stmt) -> tuple[str, Any] | None:
    """(name, default) of `name = default`, annotated or not; of `name: type` too, which has none."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            pass
        case _:
            return None
    try:
        return name, _ANYTHING if value is None else ast.literal_eval(value)
    except ValueError:
        return name, _ANYTHING


def _fits(value: Any, default: Any) -> bool:
    """Whether `value` is of the default's type; an int passes for a float, and True is no int."""
    if default is None or default is _ANYTHING:
        return True
    if isinstance(default, tuple):
        return isinstance(value, list)
    return type(value) is type(default) or (type(default) is float and type(value) is int)


def _wanted(default: Any) -> str:
    if default is None or default is _ANYTHING:
        return "a number, text, list or mapping"
    return f"{type(default).__name__} like the default {default!r}"


def _yaml_trap(value: Any) -> str:
    text = isinstance(value, str) and re.fullmatch(r"[-+]?\d+e[-+]?\d+", value, re.IGNORECASE)
    return "; YAML takes 1e-3 for text, write 1.0e-3" if text else ""


def _is_plain(value: Any) -> bool:
    """Whether Python code can spell it: YAML also knows dates, sets and bytes, which papermill would turn into text."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def _execute(source: Path, executed: Path, parameters: Mapping[str, Any], progress: bool) -> None:
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").addHandler(logging.NullHandler())  # what it logs is raised as well
    narrator, rest = _Narrator(progress), f"what ran is in {executed.parent}"
    try:
        papermill.execute_notebook(
            source.resolve(),
            executed.resolve(),
            parameters=dict(parameters),
            kernel_name="python3",
            language="python",
            cwd=executed.parent.resolve(),
            progress_bar={"desc": source.stem} if progress else False,
            kernel_manager_class=_kernel_of_this_python(),
            extra_arguments=["--Application.log_level=50"],  # the kernel's own log is nobody's business here
            on_cell_start=narrator,
        )
    except PapermillExecutionError as error:
        what = " ".join(f"{error.ename}: {error.evalue}".split())
        raise ReportError(f"{source}: cell [{error.exec_count}] failed: {what}; {rest}") from None
    except NoSuchKernel:
        raise ReportError("this Python has no Jupyter kernel: pip install -c constraints.txt ipykernel") from None
    except RuntimeError as error:  # nbclient's DeadKernelError, or a kernel that never answered
        where = f"{source}: cell [{narrator.number}]" if narrator.number else str(source)
        raise ReportError(f"{where}: {error} (killed for the memory it took?); {rest}") from None


def _kernel_of_this_python() -> type:
    """A kernel that runs `sys.executable`, whatever kernelspecs lie around and whether or not a venv is active."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(AsyncKernelManager):
        def _kernel_spec_manager_default(self) -> Any:
            return KernelSpecManager(kernel_dirs=[])  # only the native one is left

    return ThisPython


class _Narrator:
    """Called before each cell: counts as `In [n]` does, and says which section begins."""

    def __init__(self, aloud: bool) -> None:
        self.number = 0
        self._aloud = aloud

    def __call__(self, cell: Any, cell_index: int) -> None:
        from tqdm.auto import tqdm

        if cell.cell_type == "code":
            self.number += bool(cell.source.strip())
        elif self._aloud and (heading := _heading(cell)):
            tqdm.write(heading, file=sys.stderr)


def _heading(cell: Any) -> str | None:
    lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), None)


def _publish(executed: Path, html: Path, beside: Path) -> None:
    """Take papermill's paths out of the executed notebook, and render it; images of `beside` are embedded."""
    import nbformat
    from nbconvert import HTMLExporter

    from rlkit.files import atomic_write

    notebook = nbformat.read(executed, as_version=4)  # type: ignore[no-untyped-call]
    for key in ("input_path", "output_path", "environment_variables"):
        notebook.metadata.get("papermill", {}).pop(key, None)
    atomic_write(executed, nbformat.writes(notebook))  # type: ignore[no-untyped-call]
    title = next(filter(None, map(_heading, notebook.cells)), executed.stem)
    exporter = HTMLExporter(embed_images=True)  # type: ignore[no-untyped-call]
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title, "path": str(beside)}})
    atomic_write(html, body)


def _written(path: Path) -> tuple[int, int] | None:
    """Which writing of the file this is; None where there is no file."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def _read_metrics(path: Path) -> dict[str, Any]:
    try:
        metrics = json.loads(path.read_bytes())
    except ValueError as error:
        raise ReportError(f"{path}: the notebook wrote what is not JSON: {error}") from None
    if not isinstance(metrics, dict):
        raise ReportError(f"{path}: expected a mapping of metrics, found {type(metrics).__name__}")
    return metrics
