"""Personal data never reach the disk, what is none stays, and what joined still joins."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlkit.logs import Message, Outcome, ToolCall, Trace, to_openai, write_jsonl
from rlkit.logs.jsontext import dumps
from rlkit.logs.personal_data import KINDS, iban_check, luhn
from rlkit.logs.privacy import SESSIONS, Redactor
from rlkit.logs.privacy_patterns import kind_of_field
from rlkit.logs.trace import Diagnostic
from rlkit.logs.writers import WRITERS, to_atif

NAMES = ["Ada Okafor", "Ada", "Jane Doe"]


def redact(text: str, **more: Any) -> str:
    trace = Trace(id="t", messages=[Message("user", text)])
    return Redactor(**{"names": NAMES, **more}).redact(trace).messages[0].content or ""


# --- what is found, and what is not -----------------------------------------------------------------------------------

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"
FOUND = {
    "email": [
        "jane@x.com", "JANE.DOE+tag@mail.example.co.uk", "j_d%x@sub-domain.io", "müller@beispiel.de", "o'hara@x.org",
        "jane%40x.com", "jane@x.xn--p1ai",
    ],
    "phone": [
        "+1 (415) 555-0132", "+14155550132", "(415) 555-0132", "415-555-0132", "415.555.0132", "1-415-555-0132",
        "+44 20 7946 0958", "+49 (0)30 901820", "+33 1 23 45 67 89", "030 901 820 12", "0171 1234567",
        "+1 415\u2011555\u20110132", "415\u00a0555\u00a00132", "06 12 34 56 78", "06.12.34.56.78", "(11) 98765-4321",
        "0044 20 7946 0958", "(030) 901820", "+1 555-123 4567", "+44 (0) 20 7946 0958",
    ],
    "card": ["4111 1111 1111 1111", "4111111111111111", "5555-5555-5555-4444", "378282246310005", "6011111111111117"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "NL91 ABNA 0417 1643 00",
             "gb82west12345698765432"],
    "secret": [
        "sk-proj-abcdefghijklmnopqrstuvwx", "sk-ant-api03-abcdefghijklmnopqrst", "ghp_" + "a1" * 18,
        "xoxb-123456789012-abcdefABCDEF", "AKIAIOSFODNN7EXAMPLE", "hf_" + "aB" * 16, TOKEN, PEM, "sk_live_" + "x1" * 10,
    ],
    "name": ["Ada Okafor", "ada okafor", "ADA OKAFOR", "Jane  Doe", "jane_doe", "jane.doe"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in FOUND.items() for value in values])
@pytest.mark.parametrize("around", ["{}", "It is {}.", "<{}>", "({})", '"{}"', "a {}, b", "{}\nb", "x={}&y=1"])
def test_it_is_found_whatever_stands_around_it(kind: str, value: str, around: str) -> None:
    text = around.format(value)
    new = redact(text)
    assert value not in new
    before, after = around.split("{}")
    assert new.startswith(before)
    assert new.endswith(after)
    assert redact(text, kinds=[kind]) == new
    others = [one for one in KINDS if one != kind]
    if kind != "email":  # the local part of an address may well be a name
        assert redact(text, kinds=others) == text


NOT_FOUND = [
    "2026-01-01T10:00:00.123456+00:00", "2024-05-20 10:00:00", "20.05.2024", "05/20/2024",
    "Mon, 20 May 2024 10:00:00 +0200",
    "order 4821", "#12345678", "1764547200000000000", "9780306406157", "4111 1111 1111 1112", "1234 5678 9012 3456",
    "$1,234,567.89", "1234567.89012", "-122.4194155550132", "3.14159265358979", "v1.2.3.4567", "192.168.100.100",
    "550e8400-e29b-41d4-a716-446655440000", "d41d8cd98f00b204e9800998ecf8427e", "HAT001 to HAT287", "mia_li_3668",
    "credit_card_4421486", "DE89 3704 0044 0532 0130 01", "XX12 3456 7890 1234", "@handle", "a@b", "user@localhost",
    "sk-short", "task-force-abcdefghijklmnopqrstuvw", "ghp_short", "the secret is out", "password required",
    "Adam", "Madada", "Bearer of bad news", "tokens: 14155550132", "id 14155550132", "10:00-11:00", "1-2-3-4-5-6-7-8",
    "Password: required", "Reset password: customers must verify", "password is required", '{"password": 12345678}',
    "password=$DB_PASS", "git@github.com:a/b.git", "x = a@b.sum()", "http://a.b:8080/c@d", "00123456789",
    "4111 1111 1111 1112 12/27", "order 4111111111111111a", "basic responsibilities", "1 2 3 06 12 34 56 78 90",
    "call 2 of 3", "phone: none", "1 000 000 000", "555-0132", "12-34-56", "cell A1:B2",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_is_none_stays(text: str) -> None:
    assert redact(text) == text
    assert redact(f"({text}) and {text}.") == f"({text}) and {text}."


@pytest.mark.parametrize(
    "text", ["phone: 14155550132", "mobile number is 4155550132", '"phone": "14155550132"', "tel. 030901820"]
)
def test_bare_digits_are_a_phone_number_after_a_word_that_says_so(text: str) -> None:
    assert re.sub(r"\d", "", redact(text)) == re.sub(r"\d", "", text)
    assert redact(text) != text


@pytest.mark.parametrize(
    "text", ["password: hunter22", '{"password": "hunter2"}', "api_key=abcdef123", "{\\\"secret\\\": \\\"hunter2\\\"}",
             "Authorization: Bearer abcdefghijklmnop12", "client_secret = 'hunter2'"],
)  # fmt: skip
def test_what_follows_a_word_for_a_secret_is_one(text: str) -> None:
    assert "hunter2" not in redact(text)
    assert "abcdef" not in redact(text)


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("4111 1111 1111 1111 12/27 123", "9999 0000 0000 0012 12/27 123"),
        ("12/27 4111 1111 1111 1111", "12/27 9999 0000 0000 0012"),
        ("card-4111111111111111, credit_card_4111111111111111", "card-9999000000000012, credit_card_9999000000000012"),
        ("+14155550132x12", "+99900000001x12"),
        ("415-555-0132 ext. 5", "999-000-0001 ext. 5"),
        ("+1-415-555-0132 2 nights", "+9-990-000-0001 2 nights"),
        ("?to=jane%40x.com&n=1", "?to=person1%40redacted.invalid&n=1"),
        ("jane@x.com-ok", "person1@redacted.invalid-ok"),
        (r'{"to": "jane\u0040x.com', '{"to": "person1@redacted.invalid'),
        ("DB_PASSWORD=hunter22", "DB_PASSWORD=redacted-1"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "AWS_SECRET_ACCESS_KEY=redacted-1"),
        ("my password is hunter22. Or password: hunter22.", "my password is redacted-1. Or password: redacted-1."),
        ('{"user_password": "hunter2"}', '{"user_password": "redacted-1"}'),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic redacted-1"),
        ("postgres://bob:hunter22@db.example.com:5432/x", "postgres://bob:redacted-1@db.example.com:5432/x"),
    ],
)
def test_it_is_cut_out_where_it_ends(text: str, new: str) -> None:
    assert redact(text) == new
    assert redact(new) == new


@pytest.mark.parametrize("text", ["Ada's order", "ADA’S order", "Jean-Luc Picard", "jean-luc_picard", "(O'Neil)"])
def test_many_names_are_found_like_few(text: str) -> None:
    few = ["Ada", "Jean-Luc Picard", "O'Neil"]
    many = [*few, *(f"Zed{number} Q" for number in range(100))]
    assert redact(text, names=many) == redact(text, names=few) != text


def test_what_a_field_promises_is_told_by_its_words() -> None:
    for key in ("phone", "phoneNumber", "homePhone", "phone_number_1", "MOBILE", "cell", "customer_tel", "Fax No"):
        assert kind_of_field(key) == "phone"
    for key in ("dbPassword", "api-key", "client_secret", "accessToken"):
        assert kind_of_field(key) == "secret"
    for key in ("hotel_id", "cancellation_number", "excellent", "phone_verified_at", "password_policy", "intel", "id"):
        assert kind_of_field(key) is None


def test_short_numbers_never_run_out_of_pseudonyms() -> None:
    numbers = [str(5550100 + number) for number in range(150)]
    new = redact(" ".join(f"phone: {number}" for number in numbers))
    assert len(set(re.findall(r"\d+", new))) == len(numbers)
    assert redact(new) == new


# --- one value, one pseudonym -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spellings",
    [
        ["jane@x.com", "JANE@x.com", "Jane@X.COM"],
        ["+1 (415) 555-0132", "415-555-0132", "(415) 555-0132", "1-415-555-0132"],
        ["4111 1111 1111 1111", "4111111111111111", "4111-1111-1111-1111"],
        ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "de89370400440532013000"],
        ["Jane Doe", "jane doe", "JANE_DOE"],
    ],
)
def test_spellings_of_one_value_get_one_number(spellings: list[str]) -> None:
    redactor = Redactor(NAMES)
    messages = [Message("user", f"<{spelling}>") for spelling in [*spellings, "other@x.com", "+49 30 901820"]]
    new = [m.content or "" for m in redactor.redact(Trace(id="t", messages=messages)).messages]
    plain = {re.sub(r"[\W_]", "", text.lower()) for text in new[: len(spellings)]}
    shortest = min(plain, key=len)
    assert all(text.startswith(("9990", "9999")) or text == shortest for text in plain)
    assert len({text[-4:] for text in plain}) == 1
    assert len(redactor._open.numbers) == 3


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ("+1 (415) 555-0132", r"\+\d \(\d{3}\) \d{3}-\d{4}"),
        ("415-555-0132", r"\d{3}-\d{3}-\d{4}"),
        ("4111 1111 1111 1111", r"(\d{4} ){3}\d{4}"),
        ("DE89 3704 0044 0532 0130 00", r"XX\d\d (\d{4} ){4}\d\d"),
        ("jane@x.com", r"[^@ ]+@[^@ ]+\.[a-z]+"),
    ],
)
def test_a_pseudonym_has_the_shape_that_tools_check(value: str, pattern: str) -> None:
    new = redact(value)
    assert re.fullmatch(pattern, new)
    digits = re.sub(r"\D", "", new)
    if value.startswith("4111"):
        assert luhn(digits[:-1]) == int(digits[-1])
    if value.startswith("DE"):
        compact = new.replace(" ", "")
        assert int(compact[2:4]) == iban_check("XX", compact[4:])


def canaries() -> Trace:
    """A trace with a canary of every kind in every place."""
    said = "; ".join([*(values[0] for values in FOUND.values()), "password: hunter2secret"])
    nested = dumps({"a": [said, {"b": dumps({"deep": said, "phone": "14155550199"})}], "phone": 14155550199})
    arguments = {"to": "jane@x.com", "more": [said, {"password": "hunter2secret"}], "jane@x.com": 1}
    call = ToolCall("c1", "mail", arguments, None, {"sig": said})
    broken = ToolCall("c2", "mail", None, f'{{"to": "jane@x.com", "text": "a\\njane@x.com {said}')
    return Trace(
        id="s jane@x.com", parent_id="s jane@x.com", parent_call_id="c1", relation="fork",
        messages=[
            Message("system", said), Message("user", said, name="Ada Okafor", extra={"content": [{"text": said}]}),
            Message("assistant", None, [call, broken], reasoning=said),
            Message("tool", nested, [], "c1", "mail"), Message("tool", f"error:\\n{said}", [], "c2", "mail"),
        ],
        tools=[{"name": "mail", "description": said}], outcome=Outcome(status="success", source=said),
        metadata={"user": said, "jane@x.com": [said], "api_key": "hunter2secret", "phone": 14155550199},
        source=f"{said}.jsonl:1", raw={"everything": said},
        diagnostics=[Diagnostic("role_unknown", "error", path=said, detail=said)],
    )  # fmt: skip


SECRETS = ["jane@x", "555-0132", "4111 1111", "3704 0044", "sk-proj", "okafor", "hunter2", "14155550199"]


@pytest.mark.parametrize("format", ["atif", "openai"])
def test_no_canary_reaches_the_disk_from_any_place(tmp_path: Path, format: str) -> None:
    trace = canaries()
    before = deepcopy(trace)
    redactor = Redactor(NAMES)
    new = redactor.redact(trace)
    assert trace == before
    write_jsonl(WRITERS[format].session_records([new]), tmp_path / "out.jsonl")
    written = (tmp_path / "out.jsonl").read_text() + str(redactor.report) + repr(new)
    assert [secret for secret in SECRETS if secret.lower() in written.lower()] == []
    assert redactor.report.touched == redactor.report.traces == 1
    assert new.id == new.parent_id


def test_what_joined_still_joins() -> None:
    new = Redactor(NAMES).redact(canaries())
    call = new.messages[2].tool_calls[0]
    mail = re.search(r"person\d+@redacted\.invalid", new.messages[1].content or "")
    assert call.arguments is not None
    assert mail is not None
    assert call.arguments["to"] == mail[0]
    inside = json.loads(new.messages[3].content or "")
    assert inside["a"][0] in (new.messages[1].content or "") or mail[0] in inside["a"][0]
    deep = json.loads(inside["a"][1]["b"])
    assert deep["phone"] == str(inside["phone"]) == str(new.metadata["phone"])
    assert (new.messages[3].tool_call_id, call.id, call.name) == ("c1", "c1", "mail")


def test_an_escape_before_a_value_is_not_taken_for_a_part_of_it() -> None:
    text = r'{"a": "foo\nbob@x.com", "b": "\u00fcber bob@x.com", "c": "tab\tbob@x.com \"bob@x.com\""}'
    new = redact(text)
    assert json.loads(new) == {
        "a": "foo\nperson1@redacted.invalid",
        "b": "über person1@redacted.invalid",
        "c": 'tab\tperson1@redacted.invalid "person1@redacted.invalid"',
    }
    assert redact(r"cut: foo\nbob@x.com") == r"cut: foo\nperson1@redacted.invalid"


def test_only_the_value_changes_in_json_inside_a_text_whatever_escapes_stand_around_it() -> None:
    for text in (
        r'{"u": "https:\/\/a.b\/c", "t": "caf\u00E9 https:\/\/x bob@x.com \uD83D\uDE00"}',
        r'"\ud83d\ude00\u00e9\tbob@x.com\\n\"bob@x.com\" \ud800 ü"',
        r'{"a": "{\"b\": \"x\\n\\u00E9 bob@x.com\\/\"}"}',
    ):
        assert redact(text) == text.replace("bob@x.com", "person1@redacted.invalid")


def test_a_number_under_phone_is_replaced_where_nothing_else_gives_it_away() -> None:
    call = ToolCall("c", "f", {"phone": "4155550132", "password": "hunter22x"}, '{"x": "4155550132"}')
    said = "4155550132 it is, or +14155550132; pw hunter22x, order 41555501320, 14155550133, hunter22xy"
    new = Redactor().redact(Trace(id="t", messages=[Message("user", said), Message("assistant", None, [call])]))
    assert new.messages[0].content == (
        "9990000001 it is, or +99900000001; pw redacted-1, order 41555501320, 14155550133, hunter22xy"
    )
    assert new.messages[1].tool_calls[0].arguments == {"phone": "9990000001", "password": "redacted-1"}
    assert new.messages[1].tool_calls[0].raw_arguments == '{"x": "9990000001"}'


def test_a_plain_word_or_number_under_password_is_not_looked_for_elsewhere() -> None:
    calls = [ToolCall("c", "f", {"password": "swordfish", "secret": "12345678"})]
    new = Redactor().redact(Trace(id="t", messages=[Message("assistant", "swordfish 12345678", calls)])).messages[0]
    assert new.content == "swordfish 12345678"
    assert new.tool_calls[0].arguments == {"password": "redacted-1", "secret": "redacted-2"}


def test_counts_are_those_of_one_reading_even_where_it_was_read_twice() -> None:
    redactor = Redactor()
    call = ToolCall("c", "f", {"phone": "4155550132"})
    messages = [Message("user", "4155550132 bob@x.com"), Message("assistant", None, [call])]
    redactor.redact(Trace(id="t", messages=messages))
    assert dict(redactor.report.counts) == {
        ("email", "user"): 1, ("phone", "user"): 1, ("phone", "arguments"): 1,
    }  # fmt: skip


def test_names_of_tools_and_of_their_parameters_stay_what_they_are() -> None:
    schema = {"type": "object", "properties": {"bill": {"type": "string", "enum": ["Bill"]}}, "required": ["bill"]}
    call = ToolCall("c", "bill_customer", {"bill": "Bill"}, '{"bill":  "Bill"}')
    trace = Trace(
        id="t", tools=[{"name": "bill_customer", "description": "For Bill", "parameters": schema}],
        messages=[Message("system", "Call bill_customer for bill and bill_other."), Message("assistant", None, [call]),
                  Message("tool", "ok", [], "c", "bill_customer"), Message("user", "hi", name="Bill")],
    )  # fmt: skip
    new = Redactor(["Bill"]).redact(trace)
    properties = {"bill": {"type": "string", "enum": ["Person1"]}}
    assert new.tools == [
        {"name": "bill_customer", "description": "For Person1", "parameters": {**schema, "properties": properties}}
    ]
    assert new.messages[0].content == "Call bill_customer for person1 and person1_other."
    assert new.messages[1].tool_calls == [ToolCall("c", "bill_customer", {"bill": "Person1"}, '{"bill":  "Person1"}')]
    assert [message.name for message in new.messages[2:]] == ["bill_customer", "Person1"]


@pytest.mark.parametrize("depth", [50, 99, 100, 101, 900])
def test_no_depth_is_too_deep(depth: int) -> None:
    value: Any = {"phone": "jane@x.com", "n": [1, None]}
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    new: Any = Redactor().redact(Trace(id="t", messages=[], metadata={"a": value})).metadata["a"]
    for level in reversed(range(depth)):
        new = new["a"] if level % 2 else new[0]
    assert new == {"phone": "person1@redacted.invalid", "n": [1, None]}


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_traces_of_a_session_agree_and_sessions_can_t_be_told_apart_by_their_numbers() -> None:
    redactor = Redactor()

    def said(id: str, text: str, parent: str | None = None) -> str:
        return (
            redactor.redact(Trace(id=id, messages=[Message("user", text)], parent_id=parent)).messages[0].content or ""
        )

    assert said("s1", "a@x.com b@x.com") == "person1@redacted.invalid person2@redacted.invalid"
    assert said("s1#1", "b@x.com", "s1") == "person2@redacted.invalid"
    assert said("s2", "b@x.com") == "person1@redacted.invalid"
    assert said("s1#2", "c@x.com a@x.com", "s1") == "person3@redacted.invalid person1@redacted.invalid"
    for number in range(SESSIONS + 5):
        said(f"n{number}", "x@x.com")
    assert len(redactor._sessions) == SESSIONS


def mails(redactor: Redactor, id: str, text: str, parent: str | None = None) -> list[str]:
    new = redactor.redact(Trace(id=id, messages=[Message("user", text)], parent_id=parent)).messages[0].content
    return re.findall(r"person(\d+)", new or "")


def test_what_a_subagent_started_belongs_to_the_session_too() -> None:
    redactor = Redactor()
    assert mails(redactor, "main", "a@x.com b@x.com") == ["1", "2"]
    assert mails(redactor, "sub", "b@x.com", "main") == ["2"]
    assert mails(redactor, "subsub", "c@x.com b@x.com", "sub") == ["3", "2"]
    assert mails(redactor, "main#1#4", "b@x.com", "main#1") == ["2"]
    assert mails(redactor, "main#2", "c@x.com", "main") == ["3"]


def test_ids_that_end_in_a_number_are_sessions_of_their_own() -> None:
    redactor = Redactor()
    assert [mails(redactor, f"ticket#{n}", f"u{n}@x.com") for n in range(3)] == [["1"]] * 3
    assert mails(redactor, "ticket#1#1", "new@x.com u1@x.com", "ticket#1") == ["2", "1"]


def test_ids_that_hold_personal_data_stay_apart_and_still_join() -> None:
    redactor = Redactor()

    def ids(id: str, parent: str | None = None) -> tuple[str, str | None]:
        new = redactor.redact(Trace(id=id, messages=[], parent_id=parent))
        return new.id, new.parent_id

    assert ids("jane@x.com") == ("person1@redacted.invalid~1", None)
    assert ids("jane@x.com#1", "jane@x.com") == ("person1@redacted.invalid~1#1", "person1@redacted.invalid~1")
    assert ids("bob@x.com") == ("person1@redacted.invalid~2", None)
    assert ids("plain#3") == ("plain#3", None)
    assert ids("person1@redacted.invalid~2") == ("person1@redacted.invalid~2", None)


def test_a_clean_trace_shares_its_messages_and_drops_its_record() -> None:
    trace = Trace(id="t", messages=[Message("user", "hi"), Message("assistant", "ho")], metadata={"a": 1}, raw={"x": 1})
    redactor = Redactor(NAMES)
    new = redactor.redact(trace)
    assert all(a is b for a, b in zip(new.messages, trace.messages, strict=True))
    assert new.raw is None
    assert new.model_copy(update={"raw": trace.raw}) == trace
    assert (redactor.report.traces, redactor.report.touched) == (1, 0)
    assert str(redactor.report) == "0 of 1 traces held personal data"


def test_the_report_counts_by_kind_and_place() -> None:
    redactor = Redactor(NAMES)
    call = ToolCall("c", "f", {"to": "jane@x.com"})
    messages = [Message("user", "Ada: jane@x.com, jane@x.com"), Message("assistant", None, [call])]
    redactor.redact(Trace(id="t", messages=messages))
    assert dict(redactor.report.counts) == {
        ("name", "user"): 1, ("email", "user"): 2, ("email", "arguments"): 1,
    }  # fmt: skip
    assert re.search(r"^email +2 +1$", str(redactor.report), re.MULTILINE)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="shoe size"):
        Redactor(kinds=["shoe size"])  # type: ignore[list-item]


# --- properties -------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from([*(value for values in FOUND.values() for value in values), *NOT_FOUND, "phone: 4155550132"])
FILLER = st.text("ab \\\"n'{}[]:,0157.-+@_\n\u00fc", max_size=8)
TEXTS = st.lists(PIECES | FILLER, max_size=5).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "phone"]), inner),
)


@given(TEXTS)
def test_twice_is_once(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@settings(max_examples=200)
@given(VALUES)
def test_json_inside_a_text_stays_the_same_json_but_for_what_is_replaced(value: Any) -> None:
    def shape(item: Any) -> Any:
        if isinstance(item, list):
            return list(map(shape, item))
        return {key: shape(inner) for key, inner in item.items()} if isinstance(item, dict) else type(item)

    for ascii in (True, False):
        new = json.loads(redact(json.dumps(value, ensure_ascii=ascii)))
        assert shape(new) == shape(value)


@given(st.text(max_size=12), st.text(max_size=12), st.booleans(), st.integers(0, 3))
def test_nothing_changes_but_the_value_whatever_json_it_stands_in(
    before: str, after: str, ascii: bool, levels: int
) -> None:
    text, expected = (f"{before} {value} {after}" for value in ("bob@x.com", "person1@redacted.invalid"))
    for _ in range(levels):
        text, expected = (json.dumps({"k": item}, ensure_ascii=ascii) for item in (text, expected))
    assert redact(text) == expected


def test_two_spellings_of_one_value_as_keys_lose_nothing() -> None:
    metadata = {"jane@x.com": 1, "JANE@x.com": 2, "a": 3}
    new = Redactor().redact(Trace(id="t", messages=[], metadata=metadata)).metadata
    assert new == {"person1@redacted.invalid": 1, "person1@redacted.invalid#2": 2, "a": 3}


@given(st.text())
def test_any_text_at_all_is_taken(text: str) -> None:
    assert isinstance(redact(text), str)


def test_atif_of_a_redacted_trace_holds_nothing_of_the_original() -> None:
    line = dumps(to_atif(Redactor(NAMES).redact(canaries()))) + dumps(to_openai(Redactor(NAMES).redact(canaries())))
    assert "everything" not in line


@pytest.mark.timeout(60)  # any of them took minutes where the time went with the square of the length
@pytest.mark.parametrize(
    "unit", ["@", "a@", "a.", "1", "1 ", "+1", "(", "4111 ", "GB82 ", "phone ", "eyJ", "sk-", '\\"', '"\\a',
             "password:", 'password":"', "-----BEGIN PRIVATE KEY-----\n", "Ada ", "bearer "],
)  # fmt: skip
def test_a_long_text_of_one_thing_takes_no_longer_than_any_other(unit: str) -> None:
    redact(unit * 100_000)
