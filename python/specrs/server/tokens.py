"""The endpoints that say what the tokenizer does, and those about the model."""

from __future__ import annotations

from typing import Any

import specrs

from ..arguments import checked_token_ids
from .chat import prompt_of as prompt_of_chat
from .chat import texts_of
from .engine import Engine
from .errors import ApiError, invalid
from .exchange import Exchange
from .parameters import Chat, Detokenize, Tokenize, decode


async def tokenize(engine: Engine, exchange: Exchange) -> None:
    """Answer with the ids of a text or of a conversation."""
    body = decode(await exchange.body(), Tokenize)
    engine.check_model(body.model)
    llm = engine.model
    engine.check_length(body.prompt or "", body.content or "", *texts_of(body.messages or []))
    ids = await engine.prepare(lambda: _ids(llm, body), "prompt")
    tokens: list[Any] = list(ids)
    if body.with_pieces:
        tokens = [{"id": token, "piece": _piece(llm, token)} for token in ids]
    reply: dict[str, Any] = {"count": len(ids), "max_model_len": llm.n_ctx, "tokens": tokens}
    if body.return_token_strs:
        reply["token_strs"] = [llm.tokenizer.token(token) for token in ids]
    await exchange.reply(reply)


def _ids(llm: specrs.Llama, body: Tokenize) -> list[int]:
    if body.messages is not None:
        chat = Chat(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return prompt_of_chat(llm, chat)
    parse = body.parse_special is not False
    if body.content is not None:  # llama.cpp adds no mark unless it is told to
        add_bos = None if body.add_special else False
        return llm.tokenize(body.content, add_bos=add_bos, parse_special=parse)
    if body.prompt is None:
        raise invalid("prompt, content or messages is required", "prompt")
    add_bos = None if body.add_special_tokens is not False else False
    return llm.tokenize(body.prompt, add_bos=add_bos, parse_special=parse)


def _piece(llm: specrs.Llama, token: int) -> Any:
    """Return the text of a token, or its bytes if they are no text; as llama.cpp does."""
    raw = llm.tokenizer.token_bytes(token) or llm.tokenizer.token(token).encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(engine: Engine, exchange: Exchange) -> None:
    """Answer with the text of ids, for both who call it prompt and who call it content."""
    body = decode(await exchange.body(), Detokenize)
    engine.check_model(body.model)
    llm = engine.model

    def text() -> str:
        ids = checked_token_ids("tokens", body.tokens, llm.n_vocab)
        return llm.detokenize(ids, skip_special_tokens=False)

    found = await engine.prepare(text, "tokens")
    await exchange.reply({"prompt": found, "content": found})


async def tokenizer_info(engine: Engine, exchange: Exchange) -> None:
    """Answer with what clients with a tokenizer of their own ask for."""
    llm = engine.model
    tokenizer = llm.tokenizer
    padding = llm.metadata.get("tokenizer.ggml.padding_token_id")

    def spelled(token: int | None) -> str | None:
        known = token is not None and 0 <= token < tokenizer.n_vocab
        return tokenizer.token(token) if known and token is not None else None

    await exchange.reply(
        {
            "tokenizer_class": "specrs",
            "eos_token": spelled(tokenizer.eos),
            "bos_token": spelled(tokenizer.bos),
            "pad_token": spelled(padding if isinstance(padding, int) else None),
            "chat_template": tokenizer.chat_template,
            "add_bos_token": tokenizer.add_bos,
            "model_max_length": llm.n_ctx,
        }
    )


async def models(engine: Engine, exchange: Exchange) -> None:
    """List the model."""
    await exchange.reply({"object": "list", "data": [_model(engine)]})


async def model(engine: Engine, exchange: Exchange) -> None:
    """Describe the model by one of its names."""
    name = exchange.scope["path_params"]["model"]
    if name not in engine.settings.names and not engine.settings.any_model_name:
        raise ApiError(
            404,
            "not_found_error",
            f"the model {name!r} does not exist",
            param="model",
            code="model_not_found",
        )
    await exchange.reply(_model(engine))


def _model(engine: Engine) -> dict[str, Any]:
    llm, names = engine.model, engine.settings.names
    return {
        "id": names[0],
        "object": "model",
        "created": engine.created,
        "owned_by": "specrs",
        "aliases": list(names[1:]),
        "meta": {
            "n_ctx": llm.n_ctx,
            "n_vocab": llm.n_vocab,
            "size": llm.weight_bytes,
            "architecture": llm.metadata.get("general.architecture"),
            "kernels": llm.kernels,
        },
    }
