"""The command `serve`."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

import specrs

from .options import Device, Model, NCtx, Threads, given


class Speculation(str, Enum):
    """Whether replies are guessed ahead."""

    auto = "auto"
    off = "off"


def serve(
    model: Model,
    host: Annotated[str | None, typer.Option(help="Address to listen at.")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option(help="What the model is called; the first is its id.")
    ] = None,
    any_model_name: Annotated[
        bool, typer.Option("--any-model-name", help="Answer requests for any model.")
    ] = False,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Who has one may ask. Also SPECRS_API_KEY.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With a key in each line.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name by which a loopback server may be called.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Whose pages may ask; * is any.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="Guess ahead with this model.")] = None,
    speculation: Annotated[
        Speculation | None, typer.Option(help="Where a request does not say.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Where a request is silent.")] = None,
    seed: Annotated[int | None, typer.Option(help="Where a request is silent.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Where a request is silent.")] = None,
    max_requests: Annotated[int | None, typer.Option(help="Most that run at once.")] = None,
    cache_mb: Annotated[int | None, typer.Option(help="Memory of caches, in MB.")] = None,
    max_queue: Annotated[int | None, typer.Option(help="Most that wait.")] = None,
    max_queue_tokens: Annotated[int | None, typer.Option(help="Most tokens of prompts.")] = None,
    max_n: Annotated[int | None, typer.Option(help="Most choices of a request.")] = None,
    drain: Annotated[float | None, typer.Option(help="Seconds to finish at the end.")] = None,
    n_ctx: NCtx = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Serve a model over HTTP, with OpenAI's API."""
    for name, value in given(
        max_requests=max_requests,
        cache_mb=cache_mb,
        max_n=max_n,
        max_tokens=max_tokens,
        max_queue_tokens=max_queue_tokens,
    ).items():
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    for name, value in given(max_queue=max_queue, drain=drain, port=port).items():
        if value < 0:
            raise ValueError(f"--{name.replace('_', '-')} must be 0 or more, not {value}")
    specrs.Sampling(**given(temperature=temperature))
    keys = keys_of(api_key, api_key_file)
    try:
        from ..server.process import serve as run
        from ..server.settings import Settings
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the server needs the package {error.name}; pip install 'specrs[server]'"
        ) from None
    path = specrs.pull(model)
    small = None if draft_model is None else specrs.pull(draft_model)
    settings = Settings(
        model=path,
        names=tuple(alias or [Path(model).stem if Path(model) == path else model]),
        any_model_name=any_model_name,
        api_keys=keys,
        allowed_hosts=tuple(allowed_host or ()),
        cors=tuple(cors or ()),
        speculate=speculation is not Speculation.off,
        **given(
            host=host,
            port=port,
            draft_model=small,
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            max_requests=max_requests,
            cache_bytes=None if cache_mb is None else cache_mb * 1_000_000,
            max_queue=max_queue,
            max_queue_tokens=max_queue_tokens,
            max_n=max_n,
            drain=drain,
            n_ctx=n_ctx,
            threads=threads,
            device=device,
        ),
    )
    raise typer.Exit(run(settings))


def keys_of(listed: list[str] | None, file: Path | None) -> tuple[str, ...]:
    """Return the API keys of options, file and environment."""
    keys = [key.strip() for key in listed or ()]
    if not all(keys):
        raise ValueError("--api-key is empty; leave it out to serve without a key")
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        if not any(lines):
            raise ValueError(f"{file} holds no key")
        keys += lines
    keys += [os.environ.get("SPECRS_API_KEY", "").strip()]
    return tuple(key for key in dict.fromkeys(keys) if key)
