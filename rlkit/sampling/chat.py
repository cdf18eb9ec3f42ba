"""Messages to tokens and back, exactly: the chat format of the course's own small models.

`<user> … <end><assistant><call> get_order{…}<end><tool>{…}<end><assistant> … <end>`: a role token, the content,
`<end>`. Everything after `<assistant>` up to and including `<end>` is the model's. The system prompt is left out:
a model this small does not read a policy, it learns one.

Two rules keep a small vocabulary learnable. Words carry the space before them, so text that begins with a letter
gets one; and so do strings inside JSON, so that an item's name is one and the same token in the complaint, in the
order and in the call. Both are undone when the model's tokens are read. Text from outside is encoded with special
tokens disabled: a customer who types `<end>` gets six characters, not the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlkit.logs.trace import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, CALL = "<pad>", "<end>", "<call>"
ROLES = {"user": "<user>", "assistant": "<assistant>", "tool": "<tool>"}
SPECIAL_TOKENS = [PAD, "<unk>", END, CALL, *ROLES.values()]

_STRING_START = re.compile(r'(?<=[{\[:,])"(?= *[A-Za-z])')  # inside JSON text a quote there always opens a string
_SPACED_START = re.compile(r'(?<=[{\[:,])" (?= *[A-Za-z])')  # takes one space away, so " x" comes back as " x"


class ChatFormat:
    """The format under one frozen tokenizer. Raises `ValueError` where the tokenizer lacks a special token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        ids = {token: self._tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
        missing = [token for token, id in ids.items() if id is None]
        if missing:
            raise ValueError(f"tokenizer lacks the special tokens {', '.join(missing)}")
        self.end_id: int = ids[END]
        self.pad_id: int = ids[PAD]
        self._call_id: int = ids[CALL]
        self._role_ids = {role: ids[token] for role, token in ROLES.items()}

    def prompt(self, messages: Iterable[Message]) -> list[int]:
        """Token ids of a conversation up to the model's turn: every message, then `<assistant>`."""
        ids = [id for message in messages for id in self._message(message)]
        return [*ids, self._role_ids["assistant"]]

    extension = prompt
    """What follows a finished turn of the model: the tools' results, then `<assistant>` again."""

    def conversation(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """(token ids, action mask) of a whole session: the mask is True where the model spoke, `<end>` included."""
        ids: list[int] = []
        mask: list[bool] = []
        for message in messages:
            new = self._message(message)
            spoken = message.role == "assistant"
            ids += new
            mask += [False] + [spoken] * (len(new) - 1) if new else []
        return ids, mask

    def parse(self, token_ids: Sequence[int], turn: int) -> Message:
        """The model's turn as a message. Never raises: a call that is not JSON has `arguments=None`.

        Call ids are `call_{turn}_{n}`, unique in a session.
        """
        ids = list(token_ids)
        if ids and ids[-1] == self.end_id:
            ids.pop()
        parts: list[list[int]] = [[]]
        for id in ids:
            if id == self._call_id:
                parts.append([])
            else:
                parts[-1].append(id)
        texts = [self._tokenizer.decode(part, skip_special_tokens=False) for part in parts]
        calls = [parse_call(text, f"call_{turn}_{number}") for number, text in enumerate(texts[1:])]
        return Message(role="assistant", content=_plain_text(texts[0].strip()) or None, tool_calls=calls)

    def text(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as a string, for looking at."""
        return [self._tokenizer.id_to_token(int(id)) for id in token_ids]

    def _message(self, message: Message) -> list[int]:
        if message.role == "system":
            return []
        ids = [self._role_ids[message.role], *self._encode(render_text(message.content or ""))]
        for call in message.tool_calls:
            ids += [self._call_id, *self._encode(render_call(call))]
        return [*ids, self.end_id]

    def _encode(self, text: str) -> list[int]:
        self._tokenizer.encode_special_tokens = True  # text is text, whatever it spells
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def render_texts(messages: Iterable[Message]) -> list[str]:
    """Every piece of text that `ChatFormat` would encode, for training a tokenizer on."""
    said = [message for message in messages if message.role != "system"]
    calls = [render_call(call) for message in said for call in message.tool_calls]
    return [render_text(message.content) for message in said if message.content] + calls


def render_text(text: str) -> str:
    """A message's content, with the space that a word or a JSON string starts with."""
    if text[:1].isalpha():
        return " " + text
    return _STRING_START.sub('" ', text) if text[:1] in ("{", "[") else text


def _plain_text(text: str) -> str:
    """The inverse of `render_text` but for spaces at either end."""
    return _SPACED_START.sub('"', text) if text[:1] in ("{", "[") else text


def render_call(call: ToolCall) -> str:
    """`name{"argument":"value"}`, compact; raw text where the arguments are not an object."""
    arguments: Any = call.raw_arguments or ""
    if call.arguments is not None:
        arguments = json.dumps(call.arguments, separators=(",", ":"), ensure_ascii=False)
    return f" {call.name}" + _STRING_START.sub('" ', arguments)


def parse_call(text: str, call_id: str) -> ToolCall:
    """The inverse of `render_call`; what is not a JSON object is kept in `raw_arguments`."""
    name, brace, rest = text.partition("{")
    raw = _SPACED_START.sub('"', brace + rest)
    try:
        arguments = json.loads(raw) if raw else None
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()  # refuses NaN and half a surrogate pair
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(id=call_id, name=name.strip(), arguments=None, raw_arguments=raw)
    return ToolCall(id=call_id, name=name.strip(), arguments=arguments)
