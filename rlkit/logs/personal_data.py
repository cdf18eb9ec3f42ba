"""Where a text names a person or gives a secret away: patterns with checks, and stand-ins of the same shape.

Found are e-mail addresses, phone numbers, payment cards, IBANs, keys and tokens, and names from a list. Precision comes
before recall where a wrong hit would break a join: a bare run of digits is a phone number only after a word such as
`phone`, a card only with an issuer's prefix and a right Luhn sum, an IBAN only with its country's length and a right
mod-97 sum. Dates, times, order numbers, amounts, versions, IPs, UUIDs and hashes stay.

A stand-in is never found again, so replacing twice changes nothing: e-mails end in `.invalid` (RFC 2606), phones begin
with 999 000 (a country code not in use), cards with 9999 00 (no issuer), IBANs with XX (user-assigned, ISO 3166).
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

Kind = Literal["email", "phone", "card", "iban", "secret", "name"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Hit(NamedTuple):
    """A piece of a text to replace, and what makes it the same as another."""

    start: int
    end: int
    kind: Kind
    value: str
    """The same for all spellings: lower case, digits only, …"""


# --- e-mail -----------------------------------------------------------------------------------------------------------

_LOCAL = re.compile(r"[\w.+%'-]{1,64}")
_DOMAIN = re.compile(r"(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")


def _emails(text: str) -> Iterator[Hit]:
    at = text.find("@")
    while at >= 0:
        local, domain = _LOCAL.match(text[max(0, at - 64) : at][::-1]), _DOMAIN.match(text, at + 1)
        if local and domain:
            start = at - local.end()
            start += _escaped(text, start)
            start += len(text[start:at]) - len(text[start:at].lstrip("'.-"))
            if start < at and not domain[0].lower().endswith(".invalid"):
                yield Hit(start, domain.end(), "email", text[start : domain.end()].lower())
        at = text.find("@", at + 1)


def _escaped(text: str, start: int) -> int:
    """How many of the first characters belong to an escape, as the n of `\\n` in JSON that was not decoded."""
    if start == 0 or text[start - 1] != "\\":
        return 0
    return 5 if re.match(r"u[0-9a-fA-F]{4}", text[start : start + 5]) else int(text[start] in "nrtbf")


# --- phone ------------------------------------------------------------------------------------------------------------

_PHONE_WORDS = r"phone|mobile|cell|tel|telephone|telefon|fax|whatsapp|msisdn"
_RUN = re.compile(r"[0-9][0-9 ().\-/]{4,}[0-9]")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?: [0-9]{2})?")
_PHONES = re.compile(
    r"(?<![\w.])\+\d(?:[ ().\-/]{0,2}\d){7,14}(?![\w-])"  # international
    r"|(?<![\w.\-+])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-]|\.\d)"  # North America
    r"|(?<![\w.\-+])(?<!\d )0\d{1,4}[ /-]\d{3,4}[ /-]?\d{3,5}(?![\w-]|\.\d)"  # with a trunk zero
)
_INTRODUCED = re.compile(
    rf"(?i:\b(?:{_PHONE_WORDS})(?:[ _-]?(?:number|no|nr))?\b"
    r"[\"'\\]{0,4} {0,2}(?:is|at|:|=|\.|#)?[ \"'\\]{0,6})\Z"
)
_SAID = re.compile(r"\+?\(?\d(?:[ ().\-/]{0,2}\d){6,14}(?![\w-])")


def phone_value(text: str) -> str | None:
    """The same for a number with and without the country code of North America or a trunk zero; None for no number."""
    digits = re.sub(r"\D", "", text)
    if not 7 <= len(digits) <= 15 or digits.startswith("999000") or not re.fullmatch(r"\+?[\d ().\-/]+", text):
        return None
    if re.fullmatch(r"\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{4}", text):  # a date
        return None
    return digits[1:] if len(digits) == 11 and digits[0] == "1" else digits.lstrip("0")


def _runs(text: str) -> list[tuple[int, int]]:
    """Where there are at least seven digits with what may stand between those of one number; dates left out."""
    runs = []
    for found in _RUN.finditer(text):
        if _DATE.fullmatch(found[0]) or sum(map(str.isdigit, found[0])) < 7:
            continue
        start = found.start()
        while start and text[start - 1] in "+(":
            start -= 1
        runs.append((start, found.end()))
    return runs


def _phones(text: str, runs: list[tuple[int, int]]) -> Iterator[Hit]:
    if not runs:
        return
    lower = text.lower()
    introduced = any(word in lower for word in _PHONE_WORDS.split("|"))
    for start, end in runs:
        if introduced and _INTRODUCED.search(text, max(0, start - 40), start) and (said := _SAID.match(text, start)):
            hits = [said]
        else:
            hits = list(_PHONES.finditer(text, start, end + 3))
        for found in hits:
            if (value := phone_value(found[0])) is not None:
                yield Hit(found.start(), found.end(), "phone", value)


# --- cards and accounts -----------------------------------------------------------------------------------------------

_CARD = re.compile(r"(?<![\w.\-+])[2-6](?:[ -]?\d){12,18}(?![\w-]|\.\d)")
_ISSUERS = re.compile(
    r"4|5[1-5]|2(?:2[2-9]|[3-6]|7[01]|720)|3[47]|3(?:0[0-5]|[68])|35(?:2[89]|[3-8])|6(?:011|4[4-9]|5|2)"
)
_LENGTHS = {"4": (13, 16, 19), "5": (16,), "2": (16,), "3": (14, 15, 16, 19), "6": (16, 17, 18, 19)}
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,3})?")
_IBAN_START = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}")
_CLASSES = bytes(48 if chr(c).isdigit() else 65 if c < 128 and chr(c).isalpha() else 46 for c in range(256))
_IBAN_LENGTHS = dict(
    re.findall(
        r"([A-Z]{2})(\d\d)",
        "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BR29BY28CH21CR22CY28CZ24DE22DK18DO28EE20EG29ES24FI18FO18FR27GB22GE22GI23"
        "GL18GR27GT28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MR27MT31MU30"
        "NL18NO15PK24PL28PS29PT25QA29RO24RS22SA24SC31SE24SI19SK24SM27ST25SV28TL23TN24TR26UA29VA22VG24XK20",
    )
)


def luhn(digits: str) -> int:
    """The check digit that `digits` wants after it (ISO/IEC 7812-1, annex B)."""
    total = sum(sum(divmod(int(digit) * 2, 10)) if place % 2 == 0 else int(digit)
                for place, digit in enumerate(reversed(digits)))  # fmt: skip
    return -total % 10


def iban_check(country: str, account: str) -> int:
    """The two check digits of an IBAN (ISO 13616, mod 97-10)."""
    return 98 - int("".join(str(int(char, 36)) for char in f"{account}{country}00")) % 97


def _cards(text: str, runs: list[tuple[int, int]]) -> Iterator[Hit]:
    for start, end in runs:
        if end - start < 13:
            continue
        for found in _CARD.finditer(text, start, end + 3):
            digits = re.sub(r"\D", "", found[0])
            if len(digits) in _LENGTHS[digits[0]] and _ISSUERS.match(digits) and luhn(digits[:-1]) == int(digits[-1]):
                yield Hit(found.start(), found.end(), "card", digits)


def _iban_starts(text: str) -> Iterator[int]:
    """Where two letters are followed by two digits."""
    if not text.isascii():
        yield from (found.start() for found in _IBAN_START.finditer(text))
        return
    classes = text.encode().translate(_CLASSES)
    at = classes.find(b"AA00")
    while at >= 0:
        yield at
        at = classes.find(b"AA00", at + 1)


def _ibans(text: str) -> Iterator[Hit]:
    for start in _iban_starts(text):
        found = _IBAN.match(text, start)
        if found is None:
            continue
        length = int(_IBAN_LENGTHS.get(found[0][:2].upper(), 0))
        end, size = found.start(), 0
        while size < length and end < found.end():
            size += text[end] != " "
            end += 1
        value = found[0][: end - found.start()].replace(" ", "").upper()
        whole = len(value) == length and not text[end : end + 1].isalnum()
        if length and whole and int(value[2:4]) == iban_check(value[:2], value[4:]):
            yield Hit(found.start(), end, "iban", value)


# --- keys and tokens --------------------------------------------------------------------------------------------------

_SECRET_WORDS = (
    r"passw(?:or)?d|passwd|pwd|secret|api[_-]?key|(?:access|refresh|auth|bearer)[_-]?token|client[_-]?secret"
    r"|private[_-]?key"
)
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,24}PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])(?:sk-[\w-]{20,}|[spr]k_(?:live|test)_\w{16,}|gh[pousr]_\w{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|npm_\w{36}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})(?![\w-])"
    r"|(?i:\bbearer )(?P<bearer>[\w.~+/-]{16,}=*)"
    rf"|(?i:\b(?:{_SECRET_WORDS}))\\?[\"']?\s{{0,2}}[:=]\s{{0,2}}(?P<open>\\?[\"'])?"
    r"(?P<said>(?(open)[^\"'\\\n]{4,}|[^\s\"'\\,;&)}\]]{6,}))",
    re.DOTALL,
)
_SECRET_SIGNS = ("sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox",
                 "AKIA", "ASIA", "AIza", "hf_", "npm_", "eyJ", "PRIVATE KEY")  # fmt: skip
_SECRET_HINTS = (b"passw", b"pwd", b"secret", b"key", b"token", b"bearer")
_LONG = b"a" * 16
_WORD = bytes(97 if chr(c).isalnum() or chr(c) in "_-" else 0 for c in range(128)) + bytes(128)
STAND_IN_SECRET = re.compile(r"redacted-\d+")


def _secrets(text: str) -> Iterator[Hit]:
    if len(text) < 8:
        return
    data = text.encode("utf-8", "surrogatepass")
    lower = data.lower()
    hinted = any(hint in lower for hint in _SECRET_HINTS)
    if not hinted and (_LONG not in data.translate(_WORD) or not any(sign in text for sign in _SECRET_SIGNS)):
        return
    for found in _SECRET.finditer(text):
        group = next((name for name in ("bearer", "said") if found[name]), 0)
        if not STAND_IN_SECRET.fullmatch(found[group]) and found[group].lower() not in ("null", "none", "string"):
            yield Hit(found.start(group), found.end(group), "secret", found[group])


# --- names ------------------------------------------------------------------------------------------------------------


_FEW = 24  # first words that are quicker looked for one by one
_NAME_WORDS = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def name_finder(names: Iterable[str]) -> Callable[[str], Iterator[Hit]]:
    """Finds whole names in any case, the longest first; words may be joined by spaces, dots, hyphens or underscores."""
    known: dict[str, list[str]] = {}
    for name in sorted({" ".join(name.lower().split()) for name in names} - {""}, key=len, reverse=True):
        known.setdefault(name.split(" ")[0], []).append(name)
    firsts = frozenset(known)
    patterns: dict[tuple[str, ...], re.Pattern[str]] = {}

    def find(text: str) -> Iterator[Hit]:
        lower = text.lower()
        if len(firsts) <= _FEW:
            present = tuple(first for first in firsts if first in lower)
        else:
            present = tuple(firsts.intersection(_NAME_WORDS.findall(lower)))
        if not present:
            return
        if present not in patterns:
            spelled = sorted((name for first in present for name in known[first]), key=len, reverse=True)
            joined = "|".join(r"[\s_.\-]{1,3}".join(map(re.escape, name.split(" "))) for name in spelled)
            patterns[present] = re.compile(rf"(?<![^\W_])(?:{joined})(?![^\W_])", re.IGNORECASE)
        for found in patterns[present].finditer(text):
            yield Hit(found.start(), found.end(), "name", re.sub(r"[\s_.\-]+", " ", found[0].lower()))

    return find


@lru_cache(4096)
def kind_of_field(key: str) -> Kind | None:
    """What the name of a field promises: a phone number, a secret, or nothing."""
    if re.search(_SECRET_WORDS, key, re.IGNORECASE):
        return "secret"
    return "phone" if re.search(_PHONE_WORDS, key, re.IGNORECASE) else None


# --- all of them ------------------------------------------------------------------------------------------------------

_DIGITS = bytes(48 if 48 <= c < 58 else 0 for c in range(256))
_BETWEEN = b" ().-/"
_SHORTEST = 2  # a name


def find(text: str, kinds: Collection[Kind], names: Callable[[str], Iterator[Hit]]) -> list[Hit]:
    """What is to be replaced in a text, in order; of two that overlap, the one of the kind that stands first here."""
    hits: list[Hit] = []
    if len(text) < _SHORTEST:
        return hits
    if "secret" in kinds:
        hits += _secrets(text)
    if "email" in kinds:
        hits += _emails(text)
    if b"0000000" in text.encode("utf-8", "surrogatepass").translate(_DIGITS, _BETWEEN):
        runs = _runs(text)
        if "iban" in kinds:
            hits += _ibans(text)
        if "card" in kinds:
            hits += _cards(text, runs)
        if "phone" in kinds:
            hits += _phones(text, runs)
    if "name" in kinds:
        hits += names(text)
    taken: list[Hit] = []
    for hit in hits:
        place = bisect(taken, hit.start, key=lambda other: other.start)
        before, after = taken[place - 1 : place], taken[place : place + 1]
        if not (before and before[0].end > hit.start) and not (after and after[0].start < hit.end):
            taken.insert(place, hit)
    return taken


def stand_in(kind: Kind, number: int, original: str) -> str:
    """What is written instead of the `number`-th value of its kind: of the same shape, down to punctuation and case."""
    if kind == "email":
        return f"person{number}@redacted.invalid"
    if kind == "secret":
        return f"redacted-{number}"
    if kind == "name":
        made = f"Person{number}"
        return made.upper() if original.isupper() else made.lower() if original.islower() else made
    if kind == "iban":
        size = len(original.replace(" ", "")) - 4
        account = f"{number:0{size}d}"[-size:]
        return _shaped(original, f"XX{iban_check('XX', account):02d}{account}")
    size = sum(map(str.isdigit, original))
    if kind == "card":
        digits = f"999900{number:0{size - 7}d}"[: size - 1]
        return _shaped(original, f"{digits}{luhn(digits)}")
    return _shaped(original, f"999000{number:0{size - 6}d}"[:size] if size > 6 else "9" * size)


def _shaped(original: str, characters: str) -> str:
    """`characters` in place of the letters and digits of the original."""
    rest = iter(characters)
    return "".join(next(rest, "0") if char.isalnum() else char for char in original)
