"""The client against a real server on loopback that misbehaves on cue."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rlkit import chat_client
from rlkit.aio import run_to_end
from rlkit.chat_client import ChatClient, ChatError, retry_after

HI = [{"role": "user", "content": "hi"}]
KEY = "sk-very-secret-1234"


def answer(content: Any = "hello", **more: Any) -> Response:
    body = {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}], **more}
    return PlainTextResponse(json.dumps(body))


class Server:
    """Answers with `script`, one response a request (a float is a pause before hello); hello when it is used up."""

    def __init__(self) -> None:
        self.script: list[Response | float] = []
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.now = self.most = 0
        app = Starlette(routes=[Route("/v1/chat/completions", self.handle, methods=["POST"])])
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)

    async def handle(self, request: Request) -> Response:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            self.seen.append((dict(request.headers), await request.json()))
            step = self.script.pop(0) if self.script else answer()
            if isinstance(step, Response):
                return step
            end = time.monotonic() + step
            while time.monotonic() < end and not await request.is_disconnected():
                await asyncio.sleep(0.01)
            return answer()
        finally:
            self.now -= 1


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    server = Server()
    server.thread.start()
    yield server
    server.server.should_exit = True
    server.thread.join(10)


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    running.script, running.seen, running.most = [], [], 0
    monkeypatch.setattr(chat_client, "FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("TEST_KEY", KEY)
    return running


def ask(server: Server, **options: Any) -> str:
    return run_to_end(ChatClient(server.url, "m", **options).complete(HI))


def test_an_answer(server: Server) -> None:
    assert ask(server, key_env="TEST_KEY") == "hello"
    headers, body = server.seen[0]
    assert body == {"model": "m", "messages": HI, "temperature": 0.0}
    assert headers["authorization"] == f"Bearer {KEY}"


def test_no_key_and_no_temperature_are_not_sent(server: Server) -> None:
    ask(server, temperature=None)
    headers, body = server.seen[0]
    assert "authorization" not in headers
    assert "temperature" not in body


def test_429_waits_as_long_as_the_server_asks(server: Server) -> None:
    server.script = [PlainTextResponse("slow down", 429, {"Retry-After": "0.3"})]
    begun = time.monotonic()
    assert ask(server) == "hello"
    assert time.monotonic() - begun >= 0.3


def test_a_wait_beyond_the_deadline_fails_at_once_and_says_why(server: Server) -> None:
    server.script = [PlainTextResponse("slow down", 429, {"Retry-After": "3600"})]
    begun = time.monotonic()
    with pytest.raises(ChatError, match="HTTP 429: slow down") as caught:
        ask(server, timeout_s=5)
    assert (caught.value.status, caught.value.wait_s) == (429, 3600.0)
    assert time.monotonic() - begun < 2


def test_the_longest_wait_is_capped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "MAX_WAIT_S", 0.05)
    server.script = [PlainTextResponse("slow down", 429, {"Retry-After": "3600"})]
    assert ask(server, timeout_s=5) == "hello"


def test_a_server_error_passes(server: Server) -> None:
    server.script = [PlainTextResponse("oops", 500), PlainTextResponse("", 503)]
    assert ask(server) == "hello"
    assert len(server.seen) == 3


def test_retries_end(server: Server) -> None:
    server.script = [PlainTextResponse("oops", 500)] * 9
    with pytest.raises(ChatError, match="HTTP 500: oops"):
        ask(server, retries=2)
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_what_does_not_pass_is_not_tried_again(server: Server, status: int) -> None:
    server.script = [PlainTextResponse("no\n  such <b>model</b> " + "x" * 1000, status)]
    with pytest.raises(ChatError) as caught:
        ask(server)
    assert (caught.value.status, len(server.seen)) == (status, 1)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_a_server_that_hangs_is_left_at_the_deadline(server: Server) -> None:
    server.script = [30.0]
    begun = time.monotonic()
    with pytest.raises(ChatError, match=r"no answer within 0\.4 s") as caught:
        ask(server, timeout_s=0.4)
    assert caught.value.status is None
    assert time.monotonic() - begun < 3


def test_one_deadline_covers_all_tries(server: Server) -> None:
    server.script = [PlainTextResponse("oops", 500), 30.0]
    with pytest.raises(ChatError, match=r"within 0\.5 s; last: HTTP 500: oops"):
        ask(server, timeout_s=0.5)


@pytest.mark.parametrize(
    "body", ["{not json", "[]", "{}", '{"choices": []}', '{"choices": [{}]}', '"x"', "<html>", "[" * 100_000, "\xff"]
)
def test_an_answer_that_is_no_completion(server: Server, body: str) -> None:
    server.script = [Response(body.encode("latin-1"))]
    with pytest.raises(ChatError, match="not a chat completion") as caught:
        ask(server)
    assert caught.value.status == 200


@pytest.mark.parametrize("content", [None, 7, [{"type": "text"}]])
def test_an_answer_without_text(server: Server, content: Any) -> None:
    server.script = [answer(content)]
    with pytest.raises(ChatError, match="no text in the answer"):
        ask(server)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ChatError, match="no response: ConnectError"):
        run_to_end(ChatClient(f"http://127.0.0.1:{port}/v1", "m", retries=0).complete(HI))


def test_the_key_is_in_no_error_no_log_and_no_repr(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = ChatClient(server.url, "m", "TEST_KEY")
    server.script = [PlainTextResponse(f"Incorrect API key provided: {KEY}", 401), PlainTextResponse(KEY)]
    for _ in range(2):
        with pytest.raises(ChatError) as caught:
            run_to_end(client.complete(HI))
        assert KEY not in "".join(traceback.format_exception(caught.value))
        assert "[key]" in str(caught.value)
    assert KEY not in repr(client)
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["", "sk-a\nb-secret", "sk-sécret"])
def test_a_key_that_is_none(server: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", key)
    with pytest.raises(ChatError, match="the environment variable TEST_KEY holds") as caught:
        ask(server, key_env="TEST_KEY")
    assert "cret" not in str(caught.value)
    assert not server.seen


def test_one_client_serves_many_loops_and_holds_its_concurrency(server: Server) -> None:
    client = ChatClient(server.url, "m", concurrency=3)

    async def many() -> list[str]:
        return await asyncio.gather(*(client.complete(HI) for _ in range(12)))

    server.script = [0.02] * 24
    assert run_to_end(many()) == ["hello"] * 12
    assert run_to_end(many()) == ["hello"] * 12
    assert server.most == 3
    threads = [threading.Thread(target=lambda: run_to_end(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.seen) == 24 + 36
    assert not client._open


def test_the_pool_is_closed_after_the_last_call(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[httpx.AsyncClient] = []

    class Recorded(httpx.AsyncClient):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    monkeypatch.setattr(httpx, "AsyncClient", Recorded)
    server.script = [PlainTextResponse("no", 400)]
    with pytest.raises(ChatError):
        ask(server)
    ask(server)
    assert [client.is_closed for client in made] == [True, True]


def test_waiting_for_a_turn_is_not_on_the_clock(server: Server) -> None:
    client = ChatClient(server.url, "m", concurrency=1, timeout_s=0.6)

    async def many() -> list[str]:
        return await asyncio.gather(*(client.complete(HI) for _ in range(5)))

    server.script = [0.2] * 5
    assert run_to_end(many()) == ["hello"] * 5


def test_text_that_is_no_unicode_is_sent_all_the_same(server: Server) -> None:
    run_to_end(ChatClient(server.url, "m").complete([{"role": "user", "content": "é \ud83d"}]))
    assert server.seen[0][1]["messages"][0]["content"] == "é ?"


@pytest.mark.parametrize(
    "values",
    [
        {"url": "host/v1"},
        {"url": "https://user:hunter2@host/v1"},
        {"url": "https://host/v1?key=hunter2"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"retries": -1},
        {"concurrency": 0},
    ],
)
def test_values_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"url|timeout_s|retries") as caught:
        ChatClient(**{"url": "https://host/v1", "model": "m", **values})
    assert "hunter2" not in str(caught.value)


def test_retry_after() -> None:
    assert [retry_after(v) for v in (None, "2", "-1", "nan", "inf", "soon")] == [None, 2.0, 0.0, None, None, None]
    soon = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert soon is not None
    assert 55 < soon <= 60
