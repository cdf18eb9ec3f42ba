"""verifiers plays the desk for real: its rollout, interception and scoring, around a model scripted on the loopback.

The program under test is a chat loop in this process that has our tools; its model calls go through verifiers, which
makes the trace. Needs neither uv nor a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf

from rlkit.envs.environment import Environment
from rlkit.envs.task import Task
from rlkit.logs.trace import Message, ToolCall
from tests.adapters.agents import AGENTS

KEY = "RLKIT_TEST_KEY"


@contextlib.contextmanager
def scripted_model() -> Iterator[str]:
    """An OpenAI-compatible server whose models are the scripted agents, as `oracle/3`; its address."""
    import uvicorn

    agents: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        asked = json.loads(body)
        name, _, n = asked["model"].rpartition("/")
        agent = agents.setdefault(asked["model"], AGENTS[name](int(n)))
        answer = _completion(asked["model"], agent([_heard(message) for message in asked["messages"]]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(5)


class Loop(vf.Harness[vf.HarnessConfig]):
    """Asks the model, runs its calls in our environment, until it calls nothing or verifiers refuses a turn."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, environment: Environment, tasks: dict[str, Task]) -> None:
        super().__init__(vf.HarnessConfig(id="null"))
        self.environment, self.tasks = environment, tasks

    async def launch(self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, *rest: Any) -> Any:
        task = self.tasks[trace.task.data.id]
        live = self.environment.reset(task, 0)
        messages: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in task.messages]
        tools = [{"type": "function", "function": schema} for schema in self.environment.schemas]
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {secret}"}, timeout=30) as http:
            while True:
                asked = {"model": ctx.model, "messages": messages, "tools": tools}
                reply = await http.post(f"{endpoint}/chat/completions", json=asked)
                if reply.status_code != 200:
                    return vf.ProgramResult(1, "", reply.text)
                said = reply.json()["choices"][0]["message"]
                messages.append(said)
                if not said.get("tool_calls"):
                    return vf.ProgramResult(0, "", "")
                for call in _heard(said).tool_calls:
                    seen = live.step(call)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": seen.content})


async def rollout(task: Any, model: str, url: str, harness: Loop, max_turns: int) -> Any:
    """The trace of one rollout that verifiers ran and scored."""
    os.environ[KEY] = "none"
    config = vf.AgentConfig(
        harness={"id": "null"},
        runtime=vf.SubprocessConfig(),
        model=model,
        client=vf.EvalClientConfig(base_url=url, api_key_var=KEY),
        max_turns=max_turns,
    )
    agent = vf.Agent(config)
    agent.harness = harness
    async with agent:
        return await agent.run(task)


def _heard(message: dict[str, Any]) -> Message:
    calls = [
        ToolCall(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in message.get("tool_calls") or []
    ]
    return Message(message["role"], message.get("content"), calls, message.get("tool_call_id"))


def _completion(model: str, said: Message) -> dict[str, Any]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
        for c in said.tool_calls
    ]
    message = {"role": "assistant", "content": said.content} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}
