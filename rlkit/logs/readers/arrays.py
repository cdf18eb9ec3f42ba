"""A JSON array of any size, one element at a time: only the element at hand is in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rlkit.logs.jsontext import parse

_BLOCK = 1 << 20
_DEPTH = 16  # nesting that the quick pattern sees through; what is deeper is counted bracket by bracket

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_NESTED = rb""
for _ in range(_DEPTH):
    _NESTED = rb"[{\[](?:[^\"{}\[\]]++|" + _STRING + (rb"|" + _NESTED if _NESTED else b"") + rb")*+[}\]]"
_ELEMENT = re.compile(rb"(?:[^\"{}\[\],]++|" + _STRING + rb"|" + _NESTED + rb")++(?=[,\]])", re.DOTALL)
_GAP = re.compile(rb"[\s,]*+")
_TOKEN = re.compile(rb"[{}\[\],]|" + _STRING, re.DOTALL)
_FIRST_KEY = re.compile(rb"\{\s*+" + _STRING, re.DOTALL)

Parsed = tuple[Any, bool] | ValueError | RecursionError
"""`(value, strict)` as `jsontext.parse` gives it, or what it raised."""


def elements(stream: BinaryIO) -> Iterator[tuple[int, Parsed]]:
    """(line on which it begins, what it parses to) of each element of the array that `stream` opens with.

    An array that is cut short ends with the `ValueError` of its last element; bytes after the array count as one.
    """
    data, line = stream.read(_BLOCK), 1
    at = data.index(b"[") + 1
    seam = b""  # between two elements: the separator and the first key of the next
    while True:
        start = _GAP.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        seam = seam or _seam(data, at, start)
        line += data.count(b"\n", at, start)
        at = start
        if data[at : at + 1] == b"]":
            break
        end, parsed = _guess(data, at, seam)
        if parsed is None:
            end = _end(data, at)
        if end < 0:  # not all of it is here yet
            more = stream.read(max(_BLOCK, len(data) - at))  # as much again: long elements stay linear
            if more:
                data, at = data[at:] + more, 0
                continue
            if data[at:]:
                yield line, ValueError("the array ends before its closing bracket")
            return
        yield line, parsed or _parse(data[at:end])
        line += data.count(b"\n", at, end)
        at = end
    if (data[at + 1 :] + stream.read(_BLOCK)).strip():
        yield line, ValueError("there is more after the array")


def _seam(data: bytes, at: int, start: int) -> bytes:
    """What stands between two elements that begin with the same key; empty before the first and where they don't."""
    key = _FIRST_KEY.match(data, start)
    return data[at : key.end()] if key and b"," in data[at:start] else b""


def _guess(data: bytes, at: int, seam: bytes) -> tuple[int, tuple[Any, bool] | None]:
    """The element that ends at the next seam, if it does: no proper part of a JSON object is one, so parsing tells."""
    end = data.find(seam, at) if seam else -1
    if end < 0:
        return end, None
    try:
        return end, parse(data[at:end])
    except (ValueError, RecursionError):
        return end, None


def _end(data: bytes, at: int) -> int:
    """Where the element that begins at `at` ends; -1 where that is not in `data`."""
    found = _ELEMENT.match(data, at)
    if found:
        return found.end()
    if len(data) - at < 4 * _BLOCK:
        return -1
    depth = 0
    for token in _TOKEN.finditer(data, at):
        mark = token[0]
        if depth == 0 and mark in b",]":
            return token.start()
        depth += (mark in b"{[") - (mark in b"}]")
    return -1


def _parse(data: bytes) -> Parsed:
    try:
        return parse(data)
    except (ValueError, RecursionError) as error:
        return error
