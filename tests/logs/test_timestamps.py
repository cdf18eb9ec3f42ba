"""Times of every kind that logs hold, in one form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlkit.logs.report import Notes
from rlkit.logs.timestamps import parse_timestamp

WHEN = 1_767_261_600  # 2026-01-01T10:00:00Z


def parse(value: Any) -> tuple[str | None, list[str]]:
    notes = Notes()
    return parse_timestamp(value, notes, "t"), [note.code for note in notes]


@pytest.mark.parametrize(
    ("logged", "read"),
    [
        ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
        ("2026-01-01T10:00:00.123456789Z", "2026-01-01T10:00:00.123456789Z"),  # nanoseconds: no digit is lost
        ("2026-01-01T10:00:00.5+00:00", "2026-01-01T10:00:00.5Z"),
        ("2026-01-01 12:00:00,25+0200", "2026-01-01T10:00:00.25Z"),
        ("2026-01-01T00:30-09:30", "2026-01-01T10:00:00Z"),
        ("2026-01-01 10:00:00 UTC", "2026-01-01T10:00:00Z"),
        (WHEN, "2026-01-01T10:00:00Z"),
        (str(WHEN), "2026-01-01T10:00:00Z"),
        (WHEN * 1000 + 7, "2026-01-01T10:00:00.007Z"),
        (WHEN * 10**6 + 70, "2026-01-01T10:00:00.00007Z"),
        (WHEN * 10**9 + 1, "2026-01-01T10:00:00.000000001Z"),
        (str(WHEN * 10**9 + 1), "2026-01-01T10:00:00.000000001Z"),
        (WHEN + 0.25, "2026-01-01T10:00:00.25Z"),
    ],
)
def test_known_forms(logged: Any, read: str) -> None:
    assert parse(logged) == (read, [])


def test_a_time_without_a_zone_is_utc_and_said_to_be_a_guess() -> None:
    assert parse("2026-01-01 10:00:00.5") == ("2026-01-01T10:00:00.5Z", ["timestamp_naive"])


@pytest.mark.parametrize(
    "logged", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T25:00:00Z", 0, 7, -1, True, [], {}, 10**30,
               float("nan"), float("inf"), "9999-12-31T23:59:59-23:59", "٢٠٢٦-01-01T10:00:00Z"],
)  # fmt: skip
def test_what_is_no_time_is_said_and_never_raised(logged: Any) -> None:
    assert parse(logged) == (None, ["timestamp_unreadable"])


@given(st.datetimes(datetime(1974, 1, 1), datetime(5000, 1, 1), timezones=st.just(UTC)))
def test_every_moment_reads_the_same_as_text_and_as_microseconds(moment: datetime) -> None:
    text, _ = parse(moment.isoformat())
    number = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 10**6 + moment.microsecond
    if moment.microsecond >= 500_000:
        number -= 10**6
    read, notes = parse(number)
    assert notes == []
    assert text is not None
    assert read is not None
    assert datetime.fromisoformat(text) == datetime.fromisoformat(read) == moment
    assert parse(text) == (text, [])


@given(st.text() | st.integers() | st.floats() | st.none() | st.lists(st.integers()))
def test_nothing_is_raised_for_anything(logged: Any) -> None:
    read, notes = parse(logged)
    assert (read is None) == (notes == ["timestamp_unreadable"])
