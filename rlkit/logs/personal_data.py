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
from collections.abc import Callable, Collection, Iterator
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
_DOMAIN = re.compile(r"(?:[\w-]{1,63}\.){1,8}(?:xn--[a-zA-Z0-9-]{2,59}|[^\W\d_]{2,24})(?![\w(])")  # no call a@b.sum()
_AT = re.compile(r"@|%40|\\u0040")


def _emails(text: str) -> Iterator[Hit]:
    if "@" not in text and "%40" not in text and "u0040" not in text:
        return
    for sign in _AT.finditer(text):
        at = sign.start()
        local, domain = _LOCAL.match(text[max(0, at - 64) : at][::-1]), _DOMAIN.match(text, sign.end())
        if local and domain:
            start = at - local.end()
            start += _escaped(text, start)
            start += len(text[start:at]) - len(text[start:at].lstrip("'.-"))
            value = f"{text[start:at]}@{domain[0]}".lower()
            ours = value.endswith(".invalid") or STAND_IN_SECRET.fullmatch(value[: at - start])
            if start < at and not ours and not value.startswith("git@"):  # nobody's address: git@host:path
                yield Hit(start, domain.end(), "email", value)


def _escaped(text: str, start: int) -> int:
    """How many of the first characters belong to an escape, as the n of `\\n` in JSON that was not decoded."""
    if start == 0 or text[start - 1] != "\\":
        return 0
    return 5 if re.match(r"u[0-9a-fA-F]{4}", text[start : start + 5]) else int(text[start] in "nrtbf")


# --- phone ------------------------------------------------------------------------------------------------------------

PHONE_WORDS = r"phone|mobile|cell|tel|telephone|telefon|fax|whatsapp|msisdn"
_RUN = re.compile(r"[0-9][0-9 ().\-/]{4,}[0-9]")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?: [0-9]{2})?")
_END = r"(?!(?!(?:x|ext)\.?\d)\w|-\w|\.\d)"  # an extension may follow
_PHONES = re.compile(
    rf"(?<![\w.])\+1[ .-]?\(?\d{{3}}\)?[ .-]{{0,2}}\d{{3}}[ .-]?\d{{4}}{_END}"  # North America
    rf"|(?<![\w.\-+])(?:1[ .-])?(?:\(\d{{3}}\) ?|\d{{3}}[ .-])\d{{3}}[ .-]\d{{4}}{_END}"
    rf"|(?<![\w.])(?:\+\d|(?<![\-+])(?<!\d )00[1-9]\d{{0,2}} )(?:[ ().\-/]{{0,2}}\d){{7,14}}{_END}"  # international
    rf"|(?<![\w.\-+])(?<!\d )0\d{{1,4}}[ /-]\d{{3,4}}[ /-]?\d{{3,5}}{_END}"  # with a trunk zero
    rf"|(?<![\w.\-+])\(0\d{{1,4}}\) ?\d{{3,4}}[ /-]?\d{{2,5}}{_END}"
    rf"|(?<![\w.\-+])(?<!\d )0[1-9](?P<gap>[ .-])\d\d(?:(?P=gap)\d\d){{3}}(?![ .-]\d){_END}"  # France
    rf"|(?<![\w.\-+])\(\d\d\) ?9?\d{{4}}-\d{{4}}{_END}"  # Brazil
)
_INTRODUCED = re.compile(
    rf"(?i:\b(?:{PHONE_WORDS})(?:[ _-]?(?:number|no|nr))?\b"
    r"[\"'\\]{0,4} {0,2}(?:is|at|:|=|\.|#)?[ \"'\\]{0,6})\Z"
)
_SAID = re.compile(r"\+?\(?\d(?:[ ().\-/]{0,2}\d){6,14}(?![\w-])")


def phone_value(text: str) -> str | None:
    """The same for a number with and without the country code of North America or a trunk zero; None for no number."""
    text = plain(text)
    digits = re.sub(r"\D", "", text.replace("(0)", ""))
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
    introduced = any(word in lower for word in PHONE_WORDS.split("|"))
    for start, end in runs:
        if introduced and _INTRODUCED.search(text, max(0, start - 40), start) and (said := _SAID.match(text, start)):
            hits = [said]
        else:
            hits = list(_PHONES.finditer(text, start, end + 3))
        for found in hits:
            if (value := phone_value(found[0])) is not None:
                yield Hit(found.start(), found.end(), "phone", value)


# --- cards and accounts -----------------------------------------------------------------------------------------------

_CARD = re.compile(r"(?<![^\W_])(?<![.+])(?:(?<=[a-zA-Z][-_])|(?<![-_]))(?=([2-6](?:[ -]?\d){12,18}))")
_CARD_END = re.compile(r"(?!\w|\.\d|-\d)(?P<last>(?! \d))?")
_CARD_GROUPS = re.compile(r"\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5}")
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
        if end - start >= 13:
            for found in _CARD.finditer(text, start, end):
                if (hit := _card(text, found.start(), found[1])) is not None:
                    yield hit


def _card(text: str, start: int, said: str) -> Hit | None:
    """The card that begins here, where its expiry or security code may follow."""
    places = [place for place, char in enumerate(said) if char.isdigit()]
    digits = "".join(said[place] for place in places)
    if not _ISSUERS.match(digits):
        return None
    for length in reversed(_LENGTHS[digits[0]]):
        if length > len(digits) or luhn(digits[: length - 1]) != int(digits[length - 1]):
            continue
        stop = places[length - 1] + 1
        end = _CARD_END.match(text, start + stop)
        if end and (end["last"] is not None or _CARD_GROUPS.fullmatch(said[:stop])):
            return Hit(start, start + stop, "card", digits[:length])
    return None


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

SECRET_WORDS = (
    r"passw(?:or)?d|passwd|pwd|secret[_-]?access[_-]?key|secret|api[_-]?key|(?:access|refresh|auth|bearer)[_-]?token|client[_-]?secret"
    r"|private[_-]?key"
)
_SECRET = re.compile(
    r"-----BEGIN [A-Z ]{0,24}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,24}PRIVATE KEY-----|\Z)"
    r"|(?<![\w-])(?:sk-[\w-]{20,}|[spr]k_(?:live|test)_\w{16,}|gh[pousr]_\w{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,}|npm_\w{36}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})(?![\w-])"
    r"|(?i:\bbearer )(?P<bearer>[\w.~+/-]{16,}=*)"
    r"|(?i:\bauthorization)\\?[\"']?\s{0,2}[:=]\s{0,2}\\?[\"']?(?i:basic) (?P<basic>[\w+/=-]{8,})"
    r"|(?<=://)[^\s/:@\"'\\]{0,64}:(?P<url>[^\s/@\"'\\]{3,64})(?=@)"
    rf"|(?<![a-zA-Z0-9])(?i:{SECRET_WORDS}) is (?P<told>(?=[^\s\d]*\d)[^\s\"'\\,;&)}}\]]{{6,}}(?<!\.))"
    rf"|(?<![a-zA-Z0-9])(?i:{SECRET_WORDS})(?P<key>\\*[\"'])?\s{{0,2}}[:=]\s{{0,2}}(?P<open>\\*[\"'])?"
    r"(?P<said>(?(open)[^\"'\\\n]{4,}|[^\s\"'\\,;&)}\]]{6,}(?<!\.)))",
    re.DOTALL,
)
_SECRET_SIGNS = ("sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox",
                 "AKIA", "ASIA", "AIza", "hf_", "npm_", "eyJ", "PRIVATE KEY")  # fmt: skip
_SECRET_HINTS = (b"passw", b"pwd", b"secret", b"key", b"token", b"bearer", b"authorization")
_NO_SECRET = re.compile(r"redacted-\d+|null|none|string|required|optional|[$<{*].*", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LONG = b"a" * 16
_WORD = bytes(97 if chr(c).isalnum() or chr(c) in "_-" else 0 for c in range(128)) + bytes(128)
STAND_IN_SECRET = re.compile(r"redacted-\d+")


def _secrets(text: str) -> Iterator[Hit]:
    if len(text) < 8:
        return
    data = text.encode("utf-8", "surrogatepass")
    lower = data.lower()
    hinted = (b"://" in data and b"@" in data) or any(map(lower.__contains__, _SECRET_HINTS))
    if not hinted and (_LONG not in data.translate(_WORD) or not any(map(text.__contains__, _SECRET_SIGNS))):
        return
    for found in _SECRET.finditer(text):
        group = next((name for name in ("bearer", "basic", "url", "told", "said") if found[name]), 0)
        if not _NO_SECRET.fullmatch(found[group]) and not (group == "said" and _is_prose(text, found)):
            yield Hit(found.start(group), found.end(group), "secret", found[group])


def _is_prose(text: str, found: re.Match[str]) -> bool:
    """Whether what follows `password:` is a number of JSON, or a word with more words after it."""
    if found["open"]:
        return False
    words = found["said"].isalpha() and re.match(r" +[a-z]", text[found.end() : found.end() + 4])
    return bool(words or (found["key"] and _NUMBER.fullmatch(found["said"])))


# --- all of them ------------------------------------------------------------------------------------------------------

_DIGITS = bytes(48 if 48 <= c < 58 else 0 for c in range(256))
_BETWEEN = b" ().-/"
_SHORTEST = 2  # a name
_ODD = re.compile(r"[\u00a0\u2007\u2010-\u2015\u202f\u2212\uff0b\uff10-\uff19\uff20]")
_PLAIN = dict.fromkeys(map(ord, "\u00a0\u2007\u202f"), " ")
_PLAIN |= dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-")
_PLAIN |= {0xFF0B: "+", 0xFF20: "@"} | {0xFF10 + digit: str(digit) for digit in range(10)}


def plain(text: str) -> str:
    """A text of the same length with the hyphens, spaces and digits of typographers as ASCII."""
    return text if text.isascii() or not _ODD.search(text) else text.translate(_PLAIN)


def find(text: str, kinds: Collection[Kind], names: Callable[[str], Iterator[Hit]]) -> list[Hit]:
    """What is to be replaced in a text, in order; of two that overlap, the one of the kind that stands first here."""
    hits: list[Hit] = []
    if len(text) < _SHORTEST:
        return hits
    text = plain(text)
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
        return f"person{number}{'%40' if '%40' in original else '@'}redacted.invalid"
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
    return _shaped(original, f"999000{number:0{size - 6}d}")


def _shaped(original: str, characters: str) -> str:
    """`characters` in place of the letters and digits of the original, and after it where there are more."""
    rest = iter(characters)
    return "".join(next(rest, "0") if char.isalnum() else char for char in original) + "".join(rest)
