"""One client for every OpenAI-compatible server: a judge, a model to compare with.

It retries what passes (429, 5xx, broken connections), waits as long as the server asks for, and gives up at one
deadline. The key stays in its environment variable and in the request's header.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

MAX_WAIT_S = 30.0
"""The longest wait between two tries, whatever `Retry-After` says."""
FIRST_WAIT_S = 0.25
_SHORT = 200  # characters of a server's answer that an error quotes
_PASSING = (408, 409, 429)  # besides 5xx


class ChatError(Exception):
    """A call that got no usable answer: `status` (None without a response) and what the server said, shortened."""

    def __init__(self, status: int | None, detail: str, passing: bool = False, wait_s: float | None = None) -> None:
        super().__init__(f"{'no response' if status is None else f'HTTP {status}'}: {detail}")
        self.status = status
        self.detail = detail
        self.passing = passing
        """Whether trying again may help."""
        self.wait_s = wait_s
        """What `Retry-After` asked for, in seconds."""


@dataclass
class _Open:
    client: httpx.AsyncClient
    turns: asyncio.Semaphore
    calls: int = 0


@dataclass(frozen=True)
class ChatClient:
    """`complete(messages) → text` from a server at `url` (`https://host/v1`; `/chat/completions` is added).

    Usable from any number of event loops, one after the other or at once: each loop's calls share a connection pool,
    which is open while one of them runs. Raises `ValueError` for a value out of range, and for a URL that is not
    http(s) or holds a password or a query.
    """

    url: str
    model: str
    key_env: str | None = None
    """The environment variable that holds the API key, read at each call; None sends no key."""
    timeout_s: float = 60.0
    """For one call with its retries and waits, from the moment it is its turn."""
    retries: int = 4
    concurrency: int = 8
    """Calls of one event loop at a time; the others wait for their turn."""
    temperature: float | None = 0.0
    """None leaves it out, for models that take none."""
    _open: dict[asyncio.AbstractEventLoop, _Open] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url: expected http(s)://host/…")
        if parts.username or parts.password or parts.query:  # not quoted: it may hold a secret
            raise ValueError("url: no user, password or query; a key belongs into an environment variable (key_env)")
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"timeout_s must be positive and finite, got {self.timeout_s}")
        if self.retries < 0 or self.concurrency < 1:
            raise ValueError(f"retries must be ≥ 0 and concurrency ≥ 1, got {self.retries} and {self.concurrency}")

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of the model's answer. Raises `ChatError`; one that is still refused at the end says how."""
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, stop_before_delay

        key = self._key()
        last: ChatError | None = None
        trying = AsyncRetrying(
            retry=retry_if_exception(lambda problem: isinstance(problem, ChatError) and problem.passing),
            stop=stop_after_attempt(self.retries + 1) | stop_before_delay(self.timeout_s),
            wait=_wait,
            reraise=True,
        )
        async with self._turn() as client:
            try:
                async with asyncio.timeout(self.timeout_s):
                    async for attempt in trying:
                        with attempt:
                            try:
                                return await self._once(client, messages, key)
                            except ChatError as problem:
                                last = problem
                                raise
            except TimeoutError:
                said = f"; last: {last}" if last else ""
                raise ChatError(None, f"no answer within {self.timeout_s:g} s{said}", passing=True) from None
        raise AssertionError("tenacity returns or raises")

    async def _once(self, client: httpx.AsyncClient, messages: Sequence[Mapping[str, str]], key: str | None) -> str:
        import httpx

        body: dict[str, Any] = {"model": self.model, "messages": [dict(message) for message in messages]}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = json.dumps(body, ensure_ascii=False).encode(errors="replace")  # lone surrogates, which logs have
        url = self.url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        try:
            response = await client.post(url, content=data, headers=headers)
        except httpx.TransportError as problem:
            raise ChatError(None, _short(f"{type(problem).__name__}: {problem}", key), passing=True) from None
        if response.status_code != 200:
            passing = response.status_code in _PASSING or response.status_code >= 500
            wait_s = retry_after(response.headers.get("Retry-After"))
            raise ChatError(response.status_code, _short(response.text, key), passing, wait_s)
        return _text(response, key)

    def _key(self) -> str | None:
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise ChatError(None, f"the environment variable {self.key_env} holds no API key")
        if not (key.isascii() and key.isprintable()):
            raise ChatError(None, f"the environment variable {self.key_env} holds characters that no API key has")
        return key

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[httpx.AsyncClient]:
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._open:
            limits = httpx.Limits(max_connections=self.concurrency)
            client = httpx.AsyncClient(timeout=None, limits=limits)  # `asyncio.timeout` is the one clock
            self._open[loop] = _Open(client, asyncio.Semaphore(self.concurrency))
        opened = self._open[loop]
        opened.calls += 1
        try:
            async with opened.turns:
                yield opened.client
        finally:
            opened.calls -= 1
            if not opened.calls:
                del self._open[loop]
                await opened.client.aclose()


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for, which is a number or a date; None where it says neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _wait(state: RetryCallState) -> float:
    """What the server asks for, else twice as long each time, spread so that not all come back at once."""
    from tenacity import wait_random_exponential

    problem = state.outcome.exception() if state.outcome else None
    if isinstance(problem, ChatError) and problem.wait_s is not None:
        return min(problem.wait_s, MAX_WAIT_S)
    return wait_random_exponential(multiplier=FIRST_WAIT_S, max=MAX_WAIT_S)(state)


def _text(response: httpx.Response, key: str | None) -> str:
    """The answer in a response. Raises `ChatError` where it has none."""
    try:
        choice = json.loads(response.content)["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise ChatError(200, f"not a chat completion: {_short(response.text, key)}") from None
    if not isinstance(text, str):
        raise ChatError(200, f"no text in the answer (finish_reason {_short(str(choice.get('finish_reason')), key)})")
    return text


def _short(text: str, key: str | None) -> str:
    """One line of what a server said, without the key, which some servers repeat."""
    line = " ".join((text.replace(key, "[key]") if key else text).split())
    return line if len(line) <= _SHORT else line[: _SHORT - 1] + "…"
