"""An array is read element by element, wherever the blocks fall."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlkit.logs.readers import arrays
from rlkit.logs.readers.arrays import elements

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('a"\\,[]{}: \n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\,]}', max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Slow(io.BytesIO):
    """A stream that gives at most `size` bytes at a time."""

    size = 1

    def read(self, count: int | None = -1) -> bytes:
        return super().read(min(self.size, count) if count and count > 0 else self.size)


def values(data: bytes, block: int) -> tuple[list[int], list[Any]]:
    stream = Slow(data)
    stream.size = block
    found = list(elements(stream))
    return [line for line, _ in found], [p[0] if isinstance(p, tuple) else p for _, p in found]


@given(st.lists(JSON, max_size=5), st.sampled_from([None, 1]), st.integers(2, 9))
@example([{"a": 1}, {"a": '},{"a"'}, {"a": 2}], None, 64)
@example([{"a": [{"a": 1}, {"a": 2}]}, {"a": 3}], None, 64)  # the seam stands inside an element too
def test_the_elements_are_those_of_json(items: list[Any], indent: int | None, block: int) -> None:
    assert values(json.dumps(items, indent=indent).encode(), block)[1] == items


@given(st.lists(JSON, min_size=1, max_size=4), st.data())
def test_a_cut_array_gives_whole_elements_and_says_it_ended_early(items: list[Any], data: st.DataObject) -> None:
    text = json.dumps(items).encode()
    cut = text[: data.draw(st.integers(2, len(text) - 1))]
    *whole, last = values(cut, 7)[1] or [None]
    assert whole == items[: len(whole)]
    if cut.strip(b"[, ") and last is not None:
        assert isinstance(last, ValueError) or last == items[len(whole)]


def test_a_broken_element_costs_only_itself_and_lines_are_counted() -> None:
    lines, found = values(b'[\n{"a": 1},\n\n{"a" 2},\n{"a": 3}\n]\n', 4)
    assert lines == [2, 4, 5]
    assert found[0] == {"a": 1}
    assert isinstance(found[1], ValueError)
    assert found[2] == {"a": 3}


def test_what_follows_the_array_counts_as_one_that_could_not_be_read() -> None:
    found = values(b'[1, 2] {"more": 3}', 5)[1]
    assert found[:2] == [1, 2]
    assert "after the array" in str(found[2])


@pytest.mark.parametrize("depth", [5, arrays._DEPTH + 3, 200])
def test_elements_of_any_depth_are_found_in_any_size_of_block(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BLOCK", 16)
    deep: Any = "end, ]}"
    for level in range(depth):
        deep = [deep] if level % 2 else {"k": deep}
    assert values(json.dumps([deep, 1, deep]).encode(), 16)[1] == [deep, 1, deep]
