"""JSON in and out: orjson's speed, with the standard library where orjson would refuse or lose something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

# Digits become "0", a minus stays and all else is NUL, so that long integers can be searched for at memory speed.
_DIGITS = bytes(48 if 48 <= byte < 58 else 45 if byte == 45 else 0 for byte in range(256))
_LONG, _LONG_NEGATIVE = b"0" * 20, b"-" + b"0" * 19  # the shortest that may not fit 64 bits (nanoseconds have 19)
# Of 20 bytes in a row five are every fourth of the text: a look at those rules nearly all of it out.
_DIGIT_OR_MINUS = bytes(48 if 48 <= byte < 58 or byte == 45 else 0 for byte in range(256))


def loads(data: bytes | str) -> Any:
    """Parse JSON of any age: lone surrogates, NaN and integers beyond 64 bits survive.

    Bytes that are not UTF-8 become lone surrogates (`surrogateescape`), so that no byte is lost.
    Raises `ValueError` where it is not JSON, `RecursionError` where it is nested too deep.
    """
    return parse(data)[0]


def parse(data: bytes | str, exact: bool = True) -> tuple[Any, bool]:
    """As `loads`; the second value is False where the text was not strict JSON but could be read all the same.

    Without `exact`, integers beyond 64 bits may come as floats, which is quicker.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    long_integers = exact and _has_long_integers(data)
    if not long_integers:  # orjson turns longer integers into floats
        try:
            return orjson.loads(data), True
        except orjson.JSONDecodeError:
            pass
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
    return json.loads(text), long_integers


def unpacked(value: Any) -> Any:
    """JSON text of an object or a list as what it says; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            return loads(value)
    return value


def _has_long_integers(data: bytes) -> bool:
    """Whether there may be an integer beyond 64 bits, which orjson would turn into a float."""
    sample = data[::4].translate(_DIGIT_OR_MINUS)
    at = sample.find(b"00000")
    while at >= 0:  # of a run of twenty, the first of its samples is among its first four
        digits = data[max(0, 4 * at - 4) : 4 * at + 24].translate(_DIGITS)
        if _LONG in digits or _LONG_NEGATIVE in digits:
            return True
        at = sample.find(b"00000", at + 1)
    return False


def _has_null(line: bytes) -> bool:
    """Whether compact JSON may hold a null."""
    at = line.find(b"null")
    while at > 0 and line[at - 1] not in b":,[":  # else it is a word in a text
        at = line.find(b"null", at + 1)
    return at >= 0


def is_finite(value: Any) -> bool:
    """Whether JSON can say it all, as it can't of NaN and infinity, which orjson makes null."""
    try:
        if not _has_null(orjson.dumps(value)):
            return True
    except TypeError:
        pass
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def dumps(value: Any) -> str:
    """Compact JSON in one line; what orjson can't write (lone surrogates, large integers) comes as ASCII escapes.

    NaN and infinity stay what they are, as Python's own `json` writes and reads them.
    """
    return dump_line(value)[:-1].decode()


def dump_line(value: Any) -> bytes:
    """`dumps(value)` with a newline, as a file takes it."""
    try:
        line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
        if not _has_null(line) or is_finite(value):
            return line
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"
    except RecursionError:
        return "".join(_pieces(value)).encode() + b"\n"


def _pieces(value: Any) -> Iterator[str]:
    """JSON of a value nested deeper than anyone's encoder follows."""
    waiting: list[tuple[bool, Any]] = [(True, value)]  # a value, or text as it is
    while waiting:
        is_value, item = waiting.pop()
        if not is_value:
            yield item
        elif isinstance(item, dict):
            waiting.append((False, "}"))
            for number, (key, inner) in reversed(list(enumerate(item.items()))):
                waiting += [(True, inner), (False, f"{',' if number else ''}{json.dumps(key)}:")]
            yield "{"
        elif isinstance(item, list):
            waiting.append((False, "]"))
            for number, inner in reversed(list(enumerate(item))):
                waiting += [(True, inner), (False, "," if number else "")]
            yield "["
        else:
            yield json.dumps(item)
