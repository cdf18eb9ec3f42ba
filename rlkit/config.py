"""One config style: flat pydantic models, validated at construction, read from YAML by the CLI."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A config that cannot be used; the message names the file, the field and what is wrong, a line each."""


class Config(BaseModel):
    """Base of every config: flat, frozen, unknown keys refused, a docstring under each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Read a YAML mapping. Raises `ConfigError` naming the file, the field and the range."""
        values = read_yaml(path)
        try:
            return cls(**{**values, **overrides})
        except ValidationError as error:
            raise ConfigError(explain(error, str(path), list(cls.model_fields))) from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML mapping; an empty file is an empty one. Raises `ConfigError` naming the file."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict | None):
        raise ConfigError(f"{path}: expected a mapping of names to values, found {type(values).__name__}")
    return {str(name): value for name, value in (values or {}).items()}


def explain(error: ValidationError, source: str, known: list[str]) -> str:
    """A pydantic error as lines a person can act on: `run.yaml: top_p: Input should be … (got 1.5)`."""
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{source}: unknown field '{field}'{_nearest(field, known)}")
        elif item["type"] == "missing":
            lines.append(f"{source}: {field}: is required")
        else:
            lines.append(f"{source}: {field}: {item['msg']} (got {item['input']!r})")
    return "\n".join(lines)


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known fields: {', '.join(sorted(known))}"
