"""The command `score`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import specrs

from .options import Device, ModelOption, NCtx, Threads, given, text_of


def score(
    file: Annotated[
        Path, typer.Argument(help="A text to score, or what stands before --continuation.")
    ],
    model: ModelOption = "smollm2-135m",
    continuation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Score this after the text. Repeatable: several are compared."
        ),
    ] = None,
    top_logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: tell this many likeliest tokens at every place."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object of JSON a line, token by token.")
    ] = False,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Tell how likely a model holds a text, or each of several continuations of it."""
    if top_logprobs is not None and not as_json:
        raise ValueError("--top-logprobs needs --json")
    text = text_of(file)
    llm = specrs.Llama(specrs.pull(model), **given(n_ctx=n_ctx, threads=threads, device=device))
    options = given(top_logprobs=top_logprobs)
    if continuation:
        scores = llm.score(text, continuation, **options)
    else:
        scores = [llm.score(text, **options)]
    if as_json:
        for score in scores:
            print(json.dumps(score.as_dict()))
        return
    best = max(scores, key=lambda score: score.total)
    for i, score in enumerate(scores):
        name = f"{file}" if not continuation else repr(continuation[i])
        likeliest = ", the likeliest" if len(scores) > 1 and score is best else ""
        print(
            f"{name}: {len(score.tokens):,} tokens, log-probability {score.total:.4f}, "
            f"{score.bits_per_byte:.4f} bits per byte, perplexity {score.perplexity:.4f}"
            + (", greedy" if score.is_greedy else "")
            + likeliest
        )
