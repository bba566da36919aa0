"""The endpoint /completion, as llama.cpp has it, for clients and tests of that server."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import msgspec

import specrs

from ..arguments import checked_token_ids
from ..serving.request import Request
from .choices import check_end, failed, note
from .completions import MAX_TOKENS, answer
from .engine import Engine, updates
from .errors import invalid
from .exchange import Exchange, while_connected
from .logprobs import Aligner, of_chat
from .options import options_of, samplings_of
from .parameters import Common, Text, check, decode
from .replies import Usage
from .settings import TOP_LOGPROBS
from .structured import grammar_of


class Native(Common, kw_only=True):
    """The body of a request, by llama.cpp's names where they are others."""

    prompt: Any = None
    n_predict: int | None = None
    n_probs: int | None = None
    repeat_penalty: float | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    logit_bias: Any = None


class Named(msgspec.Struct):
    """What tells one API from the other."""

    model: str | None = None


async def completions_of_either(engine: Engine, exchange: Exchange) -> None:
    """Answer at /completions: in OpenAI's form where a body names a model, as OpenAI demands.

    llama.cpp has its own form there, and its clients name none.
    """
    body = await exchange.body()
    if decode(body, Named).model is not None:
        await while_connected(exchange, answer(engine, exchange, decode(body, Text)))
    else:
        await while_connected(exchange, _answer(engine, exchange, decode(body, Native)))


async def completion(engine: Engine, exchange: Exchange) -> None:
    """Answer in llama.cpp's form."""
    body = decode(await exchange.body(), Native)
    await while_connected(exchange, _answer(engine, exchange, body))


async def _answer(engine: Engine, exchange: Exchange, body: Native) -> None:
    check(body, 1)
    if body.n_probs is not None and not 0 <= body.n_probs <= TOP_LOGPROBS:
        raise invalid(f"n_probs must be from 0 to {TOP_LOGPROBS}", "n_probs")
    given = _prompts(body.prompt)
    with engine.places(len(given)) as take:
        llm = engine.model
        await engine.prepare(partial(_translate, llm, body), "logit_bias")
        most = body.n_predict if body.n_predict is not None else body.max_tokens
        if most is None:
            most = engine.settings.max_tokens or MAX_TOKENS
        options = options_of(
            engine,
            body,
            max_tokens=None if most < 0 else most,
            logprobs=body.n_probs or None,
            key=exchange.key,
        )
        options["grammar"] = await engine.prepare(partial(grammar_of, body), "json_schema")
        (sampling,) = samplings_of(engine, body, 1)
        engine.check_length(*(one for one in given if isinstance(one, str)))
        prompts = await engine.prepare(lambda: [_ids(llm, one) for one in given], "prompt")
        take(sum(map(len, prompts)))
        requests = await engine.add([(ids, {**options, "sampling": sampling}) for ids in prompts])
        results = [
            Result(engine, body, ids, request, index, sampling)
            for index, (ids, request) in enumerate(zip(prompts, requests, strict=True))
        ]
        try:
            if body.stream:
                await _stream(exchange, results)
                return
            replies = [await result.whole(exchange) for result in results]
            await exchange.reply(replies if len(replies) > 1 else replies[0])
        finally:
            for request in requests:
                engine.leave(request)


async def _stream(exchange: Exchange, results: list[Result]) -> None:
    with exchange.kept_alive():
        try:
            async for index, chunks, over in updates([result.request for result in results]):
                result = results[index]
                if over:
                    check_end(result.request.finish_reason)
                event = result.take(chunks)
                if event["tokens"]:
                    await exchange.event(event)
                if over:
                    await exchange.event(result.last(exchange, ""))
        except Exception as error:
            raise failed(error) from error
        await exchange.end(done=False)


class Result:
    """A text on its way to the client.

    Args:
        engine: Where it is made.
        body: What was asked.
        ids: The prompt.
        request: That of the batch.
        index: The prompt's number.
        sampling: How it is drawn.
    """

    def __init__(
        self,
        engine: Engine,
        body: Native,
        ids: list[int],
        request: Request,
        index: int,
        sampling: specrs.Sampling,
    ) -> None:
        self.request = request
        self._engine = engine
        self._body = body
        self._ids = ids
        self._index = index
        self._sampling = sampling
        self._tokenizer = engine.model.tokenizer
        self._aligner = Aligner(self._tokenizer.stream(continuing=True))
        self._text = ""

    def take(self, chunks: list[Any]) -> dict[str, Any]:
        """Return the event for more of the text."""
        text = "".join(chunk.text for chunk in chunks)
        self._text += text
        event: dict[str, Any] = {
            "index": self._index,
            "content": text,
            "tokens": [token for chunk in chunks for token in chunk.tokens],
            "stop": False,
            "id_slot": 0,
            "tokens_predicted": self.request.stats.tokens_generated,
            "tokens_evaluated": len(self._ids),
        }
        self._add_probabilities(event, chunks, text)
        return event

    def _add_probabilities(self, event: dict[str, Any], chunks: Any, text: str) -> None:
        if self._body.n_probs:
            made = [one for chunk in chunks for one in chunk.logprobs or ()]
            entries = self._aligner.take(made, text)
            told = of_chat(self._tokenizer, entries)["content"]
            for one, entry in zip(told, entries, strict=True):
                one["id"] = entry.token
                for other, (token, _) in zip(one["top_logprobs"], entry.top, strict=True):
                    other["id"] = token
            event["completion_probabilities"] = told

    async def whole(self, exchange: Exchange) -> dict[str, Any]:
        """Wait for all of it."""
        try:
            done = await self.request
        except Exception as error:
            raise failed(error) from error
        check_end(done.finish_reason)
        event = self.take(self.request.chunks())
        reply = self.last(exchange, done.text)
        reply["tokens"] = done.tokens if self._body.return_tokens else []
        if "completion_probabilities" in event:
            reply["completion_probabilities"] = event["completion_probabilities"]
        fields = self._body.response_fields
        return {name: _member(reply, name) for name in fields} if fields else reply

    def last(self, exchange: Exchange, text: str) -> dict[str, Any]:
        """Return what is told at the end."""
        stats, usage = self.request.stats, Usage()
        usage.add(stats, first=True)
        reason = str(self.request.finish_reason)
        note(exchange, self._engine.metrics, stats, usage, reason)
        sampling, evaluated = self._sampling, stats.prompt_tokens - stats.cached_tokens
        most = self._body.n_predict if self._body.n_predict is not None else stats.tokens_generated
        full = stats.prompt_tokens + stats.tokens_generated >= self._engine.model.n_ctx
        ids = [token for chunk in self.request.chunks()[-2:] for token in chunk.tokens]
        by_token = ids[-1:] and ids[-1] in self._tokenizer.end_ids
        return {
            "index": self._index,
            "content": text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": self._engine.settings.names[0],
            "tokens_predicted": stats.tokens_generated,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                "n_predict": most,
                "seed": sampling.seed,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repetition_penalty,
                "presence_penalty": sampling.presence_penalty,
                "frequency_penalty": sampling.frequency_penalty,
            },
            "prompt": self._engine.model.detokenize(self._ids, skip_special_tokens=False),
            "has_new_line": "\n" in self._text,
            "truncated": full and reason == "length",
            "stop_type": "limit" if reason == "length" else "eos" if by_token else "word",
            "stopping_word": "",
            "tokens_cached": stats.cached_tokens,
            "timings": {
                "cache_n": stats.cached_tokens,
                "prompt_n": evaluated,
                "prompt_ms": 1000 * stats.prefill_seconds,
                "prompt_per_second": stats.prefill_tokens_per_second,
                "predicted_n": stats.tokens_generated,
                "predicted_ms": 1000 * stats.decode_seconds,
                "predicted_per_second": stats.tokens_per_second,
            },
        }


def _translate(llm: specrs.Llama, body: Native) -> None:
    """Take over what has another name here."""
    if body.repetition_penalty is None:
        body.repetition_penalty = body.repeat_penalty
    if body.seed == -1:
        body.seed = None
    if body.cache_prompt is False:
        body.cache_salt = uuid.uuid4().hex  # nobody else has it
    biases = body.logit_bias
    if isinstance(biases, list):
        pairs = [pair for pair in biases if isinstance(pair, list) and len(pair) == 2]
        if len(pairs) != len(biases):
            raise invalid("logit_bias must be an object, or a list of pairs", "logit_bias")
        if any(isinstance(token, bool) or not isinstance(token, (int, str)) for token, _ in pairs):
            raise invalid("logit_bias: a pair begins with a token id or a text", "logit_bias")
        biases = {str(token): bias for token, bias in pairs}
    if biases is None:
        return
    if not isinstance(biases, dict):
        raise invalid("logit_bias must be an object, or a list of pairs", "logit_bias")
    for token, bias in biases.items():
        if bias is not False and (isinstance(bias, bool) or not isinstance(bias, (int, float))):
            raise invalid(f"logit_bias: the bias of {token!r} must be a number", "logit_bias")
    body.logit_bias = {}
    for token, bias in biases.items():  # of all tokens of a text, where it is one
        ids = [token] if token.isdigit() else llm.tokenize(token, add_bos=False)
        body.logit_bias |= {str(one): -100 if bias is False else bias for one in ids}


def _prompts(prompt: Any) -> list[Any]:
    """Return prompts: texts, objects with one, or lists of ids that may have texts among them."""
    if prompt is None:
        raise invalid("prompt is required", "prompt")
    if not isinstance(prompt, list):
        return [prompt]
    if not prompt:
        raise invalid("prompt is an empty list", "prompt")
    is_one = any(isinstance(part, int) for part in prompt)
    return [prompt] if is_one else prompt


def _ids(llm: specrs.Llama, prompt: Any) -> list[int]:
    """Return the ids of a prompt."""
    if isinstance(prompt, dict):
        if "multimodal_data" in prompt:
            raise invalid("prompt: this model takes text only", "prompt")
        prompt = prompt.get("prompt_string")
    parts = prompt if isinstance(prompt, list) else [prompt]
    ids: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            ids += llm.tokenize(part, add_bos=None if i == 0 else False, parse_special=True)
        elif isinstance(part, int) and not isinstance(part, bool):
            ids += checked_token_ids("prompt", [part], llm.n_vocab)
        else:
            raise TypeError("prompt must be text, token ids or a mix of them")
    return ids


def _member(reply: dict[str, Any], path: str) -> Any:
    """Return a member by a path with slashes."""
    found: Any = reply
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found
