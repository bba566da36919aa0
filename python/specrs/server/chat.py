"""The endpoint /v1/chat/completions."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import specrs

from ..chat.format import ChatTokens
from .choices import Choice, Header, collect, stream
from .engine import Engine
from .errors import invalid
from .exchange import Exchange, while_connected
from .logprobs import Aligner, Entry, of_chat
from .options import options_of, samplings_of
from .parameters import Chat, check_chat, decode
from .replies import ChatChoice, ChatDelta, Delta, Message
from .structured import check_tools, grammar_of


class ChatForm:
    """Sends the choices of a chat.

    Args:
        llm: The model, whose tokens are spelled.
    """

    name = "chat.completion"
    event_name = "chat.completion.chunk"

    def __init__(self, llm: specrs.Llama) -> None:
        self._llm = llm

    def _logprobs(self, entries: list[Entry] | None) -> dict[str, Any] | None:
        return None if entries is None else of_chat(self._llm.tokenizer, entries)

    def begin(self, choice: Choice) -> list[ChatDelta]:
        """Say who speaks."""
        return [ChatDelta(choice.index, Delta(role="assistant", content=None))]

    def piece(self, choice: Choice, text: str, entries: list[Entry] | None) -> list[ChatDelta]:
        """Send text, if there is any; log-probabilities never go alone."""
        choice.entries += entries or ()
        if not text:
            return []
        logprobs = self._logprobs(None if entries is None else choice.entries)
        choice.entries = []
        return [ChatDelta(choice.index, Delta(content=text), logprobs)]

    def finish(self, choice: Choice, reason: str) -> list[ChatDelta]:
        """Say why it ends."""
        logprobs = self._logprobs(choice.entries or None)
        return [ChatDelta(choice.index, Delta(), logprobs, reason)]

    def whole(
        self, choice: Choice, text: str, entries: list[Entry] | None, reason: str
    ) -> ChatChoice:
        """Send all of it."""
        message = Message("assistant", text)
        return ChatChoice(choice.index, message, self._logprobs(entries), reason)


async def chat_completions(engine: Engine, exchange: Exchange) -> None:
    """Answer a request for a reply."""
    body = decode(await exchange.body(), Chat)
    check_chat(body, engine.settings.max_n)
    engine.check_model(body.model)
    check_tools(body)
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
        ids = await engine.prepare(lambda: prompt_of(llm, body), "messages")
        take(len(ids))
        requests = await engine.add(
            [(ids, {**options, **grammar, "sampling": one}) for one in samplings]
        )
        try:
            choices = [
                Choice(i, i == 0, request, _aligner(llm, ids, body))
                for i, request in enumerate(requests)
            ]
            model = engine.settings.names[0]
            header = Header(f"chatcmpl-{uuid.uuid4().hex}", model, engine.fingerprint)
            form = ChatForm(llm)
            if body.stream:
                usage = body.includes_usage
                await stream(exchange, engine, header, choices, form, includes_usage=usage)
            else:
                await collect(exchange, engine, header, choices, form)
        finally:
            for request in requests:
                engine.leave(request)


def _aligner(llm: specrs.Llama, ids: ChatTokens, body: Chat) -> Aligner | None:
    if not body.logprobs:
        return None
    skip = body.skip_special_tokens is not False
    return Aligner(llm.tokenizer.stream(continuing=ids.continued, skip_special_tokens=skip))


def prompt_of(llm: specrs.Llama, body: Any) -> ChatTokens:
    """Return the prompt that the template makes of a body with messages."""
    options = {
        "template_variables": body.chat_template_kwargs,
        "continue_final_message": bool(body.continue_final_message),
    }
    if body.add_generation_prompt is not None and not body.continue_final_message:
        options["add_generation_prompt"] = body.add_generation_prompt
    ids = llm.chat_tokens([_renamed(message) for message in body.messages], **options)
    assert isinstance(ids, ChatTokens)
    return ids


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
