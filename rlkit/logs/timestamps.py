"""Times as logs write them (ISO 8601 with and without a zone, seconds to nanoseconds since 1970) into one form."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from rlkit.logs.report import Notes

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,12}))?\s*(Z|UTC|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)
_OURS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,12})?Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAST = 10**8  # 1973 in seconds; times before it are counters, not clocks


def is_canonical(value: Any) -> bool:
    """Whether it is a time in the very form that `parse_timestamp` gives; quick."""
    if value.__class__ is not str or not _OURS.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value[:19])
    except ValueError:
        return False
    return True


def parse_timestamp(value: Any, notes: Notes, path: str) -> str | None:
    """`2026-01-01T10:00:00.123456789Z` for any time a log holds, with as many digits as it has.

    A time without a zone is taken as UTC (`timestamp_naive`); what is no time gives None (`timestamp_unreadable`).
    """
    if is_canonical(value):
        return value
    if isinstance(value, str) and (found := _ISO.fullmatch(value.strip())):
        day, clock, digits, zone = found.groups()
        try:
            moment = datetime.fromisoformat(f"{day}T{clock}" + (zone if zone and zone[0] in "+-" else "+00:00"))
            moment = moment.astimezone(UTC)
        except (ValueError, OverflowError):
            notes.add("timestamp_unreadable", path, f"{value[:40]!r} is no time.")
            return None
        if zone is None:
            notes.add("timestamp_naive", path)
        return f"{moment:%Y-%m-%dT%H:%M:%S}{f'.{digits}' if digits else ''}Z"
    if isinstance(value, str) and re.fullmatch(r"\d{9,20}", value, re.ASCII):
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and _LEAST <= value < _LEAST * 10**13:
        return _from_epoch(value)
    notes.add("timestamp_unreadable", path, f"{str(value)[:40]!r} is no time.")
    return None


def _from_epoch(value: float) -> str:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their size (until the year 5138)."""
    scale = next(scale for scale in (0, 3, 6, 9) if value < 10 ** (11 + scale) or scale == 9)
    if isinstance(value, float):
        value, scale = round(value * 10**6), scale + 6
    seconds, rest = divmod(value, 10**scale)
    digits = f"{rest:0{scale}d}".rstrip("0") if scale else ""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{f'.{digits}' if digits else ''}Z"
