"""From checked parameters to the options of a generation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import specrs

from .engine import Engine
from .errors import invalid
from .parameters import Common, stops_of

SEEDS = 1 << 64

OF_THE_DRAW = ("top_p", "top_k", "min_p")
"""What does nothing at temperature 0; clients send it all the same."""


def options_of(
    engine: Engine,
    body: Common,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    key: str,
    predicted: str | None = None,
) -> dict[str, Any]:
    """Return the options of `Batch.add` that all choices of a request share, without `sampling`.

    Args:
        engine: The model and how the server is set up.
        body: The parameters.
        max_tokens: Most tokens to make; None is the rest of the context.
        logprobs: How many alternatives of each token to tell; None tells nothing.
        key: Name of the API key; cached prompts are shared only within one.
        predicted: A text that the reply may repeat.
    """
    return {
        "max_tokens": max_tokens,
        "stop": stops_of(body.stop),
        "stop_token_ids": body.stop_token_ids or (),
        "ignore_eos": bool(body.ignore_eos),
        "skip_special_tokens": body.skip_special_tokens is not False,
        "logprobs": logprobs,
        "cache_salt": (key, body.cache_salt),
        "priority": body.priority or 0,
        **engine.drafter(body.speculation, predicted),
    }


def samplings_of(engine: Engine, body: Common, count: int) -> list[specrs.Sampling]:
    """Return how each of `count` choices is drawn: the seed of the i-th is `seed + i`."""
    settings = engine.settings
    seed = settings.seed if body.seed is None else body.seed
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little")
    if body.top_p is not None and not 0 <= body.top_p <= 1:
        raise invalid(f"top_p must be from 0 to 1, not {body.top_p}", "top_p")
    temperature = settings.temperature if body.temperature is None else body.temperature
    given: dict[str, Any] = {
        "temperature": temperature,
        # 0 leaves the likeliest token, as a probability that it reaches alone does.
        "top_p": max(body.top_p, 1e-9) if body.top_p is not None else None,
        "top_k": None if body.top_k == -1 else body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": biases_of(body.logit_bias),
    }
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if temperature == 0:  # checked, but nothing is drawn
            specrs.Sampling(**{**given, "temperature": 1.0})
            given = {name: value for name, value in given.items() if name not in OF_THE_DRAW}
            samplings = [specrs.Sampling(**given)] * count
        else:
            samplings = [specrs.Sampling(seed=(seed + i) % SEEDS, **given) for i in range(count)]
        samplings[0].check_vocabulary(engine.model.n_vocab)
    except (TypeError, ValueError) as error:
        param = next((name for name in given if str(error).startswith(name)), None)
        raise invalid(str(error), param) from None
    return samplings


def biases_of(biases: Mapping[str, float] | None) -> dict[int, float] | None:
    """Return biases by token ids, which JSON has as text."""
    if not biases:
        return None
    found: dict[int, float] = {}
    for token, bias in biases.items():
        if not token.isascii() or not token.isdigit() or len(token) > 10:
            raise invalid(f"logit_bias: {token!r} is not a token id", "logit_bias")
        if not -100 <= bias <= 100:
            raise invalid("logit_bias: a bias must be from -100 to 100", "logit_bias")
        found[int(token)] = bias
    return found
