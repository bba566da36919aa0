"""The endpoint /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from msgspec import UNSET

import specrs

from ..chat.tokens import ChatTokens
from ..text import Piece, ToolCallDelta
from .choices import Choice, respond
from .engine import Engine
from .errors import invalid
from .exchange import Exchange, while_connected
from .logprobs import Aligner, Entry, Unaligned, of_chat
from .options import options_of, samplings_of
from .parameters import Chat, check_chat, decode
from .replies import ChatChoice, ChatDelta, Delta, Message
from .structured import grammar_of


class ChatForm:
    """Sends the choices of a chat.

    Args:
        llm: The model, whose tokens are spelled.
        named: Whether the request names the tool that is to be called.
    """

    name = "chat.completion"
    event_name = "chat.completion.chunk"

    def __init__(self, llm: specrs.Llama, *, named: bool) -> None:
        self._llm = llm
        self._named = named

    def _logprobs(self, entries: list[Entry] | None) -> dict[str, Any] | None:
        return None if entries is None else of_chat(self._llm.tokenizer, entries)

    def begin(self, choice: Choice) -> list[ChatDelta]:
        """Say who speaks."""
        return [ChatDelta(choice.index, Delta(role="assistant", content=None))]

    def piece(self, choice: Choice, piece: Piece, entries: list[Entry] | None) -> list[ChatDelta]:
        """Send what became final; log-probabilities never go alone."""
        choice.entries += entries or ()
        deltas: list[Delta] = []
        if piece.reasoning:
            deltas.append(Delta(reasoning_content=piece.reasoning))
        if piece.text:
            deltas.append(Delta(content=piece.text))
        for call in piece.tool_calls:
            deltas += self._call(choice, call)
        if not deltas:
            return []
        logprobs = self._logprobs(None if entries is None else choice.entries)
        choice.entries = []
        first, *rest = deltas
        return [
            ChatDelta(choice.index, first, logprobs),
            *(
                ChatDelta(choice.index, delta, self._logprobs(None if entries is None else []))
                for delta in rest
            ),
        ]

    @staticmethod
    def _call(choice: Choice, call: ToolCallDelta) -> list[Delta]:
        """Send a piece of a call: first whose it is, and then its arguments alone."""
        found = []
        if call.index == choice.calls:  # calls come one after the other
            choice.calls += 1
            function = {"name": call.name, "arguments": ""}
            begin = {"index": call.index, "id": call.id, "type": "function", "function": function}
            found.append(Delta(tool_calls=[begin]))
        if call.arguments:
            function = {"arguments": call.arguments}
            found.append(Delta(tool_calls=[{"index": call.index, "function": function}]))
        return found

    def finish(self, choice: Choice, reason: str) -> list[ChatDelta]:
        """Say why it ends."""
        logprobs = self._logprobs(choice.entries or None)
        return [ChatDelta(choice.index, Delta(), logprobs, self._reason(reason, choice.calls))]

    def whole(
        self, choice: Choice, completion: specrs.Completion, entries: list[Entry] | None
    ) -> ChatChoice:
        """Send all of it."""
        calls = [call.as_dict() for call in completion.tool_calls]
        message = Message(
            "assistant",
            None if calls and not completion.text else completion.text,
            reasoning_content=completion.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        reason = self._reason(str(completion.finish_reason), len(calls))
        return ChatChoice(choice.index, message, self._logprobs(entries), reason)

    def _reason(self, reason: str, calls: int) -> str:
        """Say that it ends with calls, unless the request named the tool: then it just stops."""
        return "tool_calls" if calls and reason == "stop" and not self._named else reason


async def chat_completions(engine: Engine, exchange: Exchange) -> None:
    """Answer a request for a reply."""
    body = decode(await exchange.body(), Chat)
    check_chat(body, engine.settings.max_n)
    engine.check_model(body.model)
    await while_connected(exchange, _answer(engine, exchange, body))


async def _answer(engine: Engine, exchange: Exchange, body: Chat) -> None:
    n = body.n or 1
    with engine.places(n) as take:
        llm = engine.model
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        first = body.max_completion_tokens
        most = body.max_tokens if first is None else first
        grammar = await engine.prepare(partial(grammar_of, body), "response_format")
        options = await engine.prepare(
            partial(
                options_of,
                engine,
                body,
                max_tokens=engine.settings.max_tokens if most is None else most,
                logprobs=logprobs,
                key=exchange.key,
                predicted=predicted_of(body.prediction),
            )
        )
        samplings = samplings_of(engine, body, n)
        engine.check_length(*texts_of(body.messages or []))
        ids = await engine.prepare(lambda: prompt_of(llm, body), "messages")
        take(len(ids))
        requests = await engine.add(
            [(ids, {**options, "grammar": grammar, "sampling": one}) for one in samplings]
        )
        try:
            choices = [
                Choice(i, i == 0, request, _aligner(llm, ids, body))
                for i, request in enumerate(requests)
            ]
            form = ChatForm(llm, named=isinstance(body.tool_choice, dict))
            await respond(exchange, engine, "chatcmpl", choices, form, body)
        finally:
            for request in requests:
                engine.leave(request)


def _aligner(llm: specrs.Llama, ids: ChatTokens, body: Chat) -> Aligner | Unaligned | None:
    if not body.logprobs:
        return None
    skip = body.skip_special_tokens is not False
    if skip and not ids.rules.trivial:
        return Unaligned()
    return Aligner(llm.tokenizer.stream(continuing=ids.continued, skip_special_tokens=skip))


def prompt_of(llm: specrs.Llama, body: Any) -> ChatTokens:
    """Return the prompt that the template makes of a body with messages."""
    options = {
        "template_variables": body.chat_template_kwargs,
        "continue_final_message": bool(body.continue_final_message),
        "tools": body.tools or None,
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
    }
    if body.add_generation_prompt is not None and not body.continue_final_message:
        options["add_generation_prompt"] = body.add_generation_prompt
    ids = llm.chat_tokens([_renamed(message) for message in body.messages], **options)
    assert isinstance(ids, ChatTokens)
    return ids


def texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Give the texts of messages."""
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str):
                yield text


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    """Call the system by the name that templates know."""
    return {**message, "role": "system"} if message["role"] == "developer" else message


def predicted_of(prediction: dict[str, Any] | None) -> str | None:
    """Return the text of `prediction`."""
    if prediction is None:
        return None
    content = prediction.get("content")
    if prediction.get("type") != "content" or not isinstance(content, (str, list)):
        raise invalid('prediction must be {"type": "content", "content": …}', "prediction")
    if isinstance(content, str):
        return content
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise invalid("prediction: its content must be text, or parts of text", "prediction")
    return "".join(str(text) for text in texts)
