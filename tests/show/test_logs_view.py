"""The read report as a picture and as a table."""

from __future__ import annotations

from rlkit.logs import Message, ReadReport, Trace
from rlkit.logs.report import CODES, diagnostic
from rlkit.show import diagnostics_table, plot_report


def report() -> ReadReport:
    found = ReadReport(files=1, records=5, skipped=1)
    for line, code in enumerate(["role_developer", "content_null", "content_null", "json_broken"], 1):
        found.note(diagnostic(code, "messages[0]", line), "/of/mine/a.jsonl")
    found.add(Trace(id="a", messages=[Message(role="user", content="hi")]))
    return found


def test_the_table_says_what_each_code_means_and_puts_the_worst_first():
    table = diagnostics_table(report())
    assert list(table.index) == ["json_broken", "content_null", "role_developer"]
    assert table.loc["content_null"].to_dict() == {
        "severity": "warning",
        "count": 2,
        "meaning": CODES["content_null"][1],
        "first": "a.jsonl:2 messages[0]",
    }
    empty = diagnostics_table(ReadReport())
    assert list(empty.columns) == list(table.columns)
    assert empty.empty


def test_the_picture_shows_the_counts_of_records_and_of_each_code():
    left, right = plot_report(report()).axes
    assert [bar.get_width() for bar in left.patches] == [5, 1, 1, 0]
    assert [label.get_text() for label in right.get_yticklabels()] == ["json_broken", "content_null", "role_developer"]
    assert [bar.get_width() for bar in right.patches] == [1, 2, 1]


def test_a_clean_log_has_a_picture_too():
    figure = plot_report(ReadReport(files=1, records=2, traces=2))
    assert figure.axes[1].get_title(loc="left") == "Nothing odd"
    figure.canvas.draw()
