"""The endpoint /v1/completions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import specrs

from ..arguments import checked_token_ids
from ..text import Piece
from .choices import Choice, Echo, respond
from .engine import Engine
from .exchange import Exchange, while_connected
from .logprobs import Aligner, Entry, of_prompt, of_text
from .options import options_of, samplings_of
from .parameters import Text, check_text, decode, prompts_of
from .replies import TextChoice
from .structured import grammar_of

MAX_TOKENS = 16
"""Tokens to make where neither the request nor the server says, as in OpenAI's API."""


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        ids: Its token ids.
        text: As it was given, or what its ids spell.
        hidden: How many ids at its beginning are not in the text.
    """

    ids: list[int]
    text: str
    hidden: int = 0


class TextForm:
    """Sends completions.

    Args:
        llm: The model, whose tokens are spelled.
    """

    name = event_name = "text_completion"

    def __init__(self, llm: specrs.Llama) -> None:
        self._llm = llm

    def _logprobs(self, entries: list[Entry] | None) -> dict[str, Any] | None:
        return None if entries is None else of_text(self._llm.tokenizer, entries)

    def begin(self, choice: Choice) -> list[TextChoice]:
        """Send the prompt, if it is wanted."""
        echo = choice.echo
        if echo is None:
            return []
        wanted = None if choice.aligner is None else echo.entries
        return [TextChoice(choice.index, echo.text, self._logprobs(wanted))]

    def piece(self, choice: Choice, piece: Piece, entries: list[Entry] | None) -> list[TextChoice]:
        """Send text, if there is any; log-probabilities never go alone."""
        choice.entries += entries or ()
        if not piece.text:
            return []
        logprobs = self._logprobs(None if entries is None else choice.entries)
        choice.entries = []
        return [TextChoice(choice.index, piece.text, logprobs)]

    def finish(self, choice: Choice, reason: str) -> list[TextChoice]:
        """Say why it ends."""
        return [TextChoice(choice.index, "", self._logprobs(choice.entries or None), reason)]

    def whole(
        self, choice: Choice, completion: specrs.Completion, entries: list[Entry] | None
    ) -> TextChoice:
        """Send all of it."""
        text, echo = completion.text, choice.echo
        if echo is not None:
            text = echo.text + text
            entries = None if entries is None else echo.entries + entries
        reason = str(completion.finish_reason)
        return TextChoice(choice.index, text, self._logprobs(entries), reason)


async def completions(engine: Engine, exchange: Exchange) -> None:
    """Answer a request for completions."""
    body = decode(await exchange.body(), Text)
    await while_connected(exchange, answer(engine, exchange, body))


async def answer(engine: Engine, exchange: Exchange, body: Text) -> None:
    """Check a request and answer it."""
    check_text(body, engine.settings.max_n)
    engine.check_model(body.model)
    n, given = body.n or 1, prompts_of(body)
    with engine.places(n * len(given)) as take:
        llm = engine.model
        most = engine.settings.max_tokens or MAX_TOKENS
        grammar = await engine.prepare(partial(grammar_of, body), "response_format")
        options = options_of(
            engine,
            body,
            max_tokens=most if body.max_tokens is None else body.max_tokens,
            logprobs=body.logprobs,
            key=exchange.key,
        )
        samplings = samplings_of(engine, body, n)
        engine.check_length(*(one for one in given if isinstance(one, str)))
        prompts = await engine.prepare(lambda: [prompt_of(llm, one) for one in given], "prompt")
        take(sum(len(prompt.ids) for prompt in prompts))
        requests = await engine.add(
            [
                (prompt.ids, {**options, "grammar": grammar, "sampling": sampling})
                for prompt in prompts
                for sampling in samplings
            ]
        )
        try:
            choices = [
                Choice(i, i % n == 0, request, _aligner(llm, prompts[i // n], body))
                for i, request in enumerate(requests)
            ]
            if body.echo:
                await _add_echoes(engine, choices, prompts, n, body.logprobs)
            await respond(exchange, engine, "cmpl", choices, TextForm(llm), body)
        finally:
            for request in requests:
                engine.leave(request)


def prompt_of(llm: specrs.Llama, given: str | list[int]) -> Prompt:
    """Return a prompt; marks in a text count, for clients with templates of their own."""
    if isinstance(given, str):
        ids = llm.tokenize(given, parse_special=True)
        bos = llm.tokenizer.bos
        added = (
            bos is not None and ids[:1] == [bos] and not given.startswith(llm.tokenizer.token(bos))
        )
        return Prompt(_not_empty(ids), given, int(added))
    ids = checked_token_ids("prompt", given, llm.n_vocab)
    return Prompt(_not_empty(ids), llm.detokenize(ids, skip_special_tokens=False))


def _not_empty(ids: list[int]) -> list[int]:
    if not ids:
        raise ValueError("prompt is empty; give at least one token")
    return ids


def _aligner(llm: specrs.Llama, prompt: Prompt, body: Text) -> Aligner | None:
    if body.logprobs is None:
        return None
    skip = body.skip_special_tokens is not False
    stream = llm.tokenizer.stream(continuing=True, skip_special_tokens=skip)
    return Aligner(stream, len(prompt.text))


async def _add_echoes(
    engine: Engine, choices: list[Choice], prompts: list[Prompt], n: int, logprobs: int | None
) -> None:
    """Let choices begin with their prompts, whose log-probabilities no cache has."""
    for number, prompt in enumerate(prompts):
        entries: list[Entry] = []
        if logprobs is not None:
            score = await engine.score(prompt.ids, logprobs)
            entries = of_prompt(engine.model.tokenizer, prompt.ids, prompt.hidden, score)
        for choice in choices[number * n : (number + 1) * n]:
            choice.echo = Echo(prompt.text, entries)
