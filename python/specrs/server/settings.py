"""How a server is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

STOPS = 64
"""Most stop strings of a request."""

STOP_LENGTH = 1024
"""Most characters of one of them."""

SCHEMA_BYTES = 1 << 16
"""Most bytes of a JSON schema."""

SCHEMA_DEPTH = 64
"""How deep one may be nested."""

TOP_LOGPROBS = 20
"""Most alternatives of a token that are told."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `specrs serve` was told.

    Attributes:
        model: Path of the file.
        names: What the model is called; the first name is its id.
        any_model_name: Answer requests for any model.
        draft_model: Path of a smaller one that guesses ahead.
        speculate: Whether replies are guessed ahead where a request does not say.
        n_ctx: Positions of a context.
        threads: Of the model; None leaves one of four or more cores to HTTP.
        device: Of the model.
        max_requests: Most that run at once.
        cache_bytes: Memory of their caches.
        max_queue: Most requests that wait.
        max_queue_tokens: Most tokens of prompts of all requests that wait or run.
        max_n: Most choices of a request.
        max_body: Most bytes of a body.
        temperature: Where a request does not say.
        seed: The same.
        max_tokens: The same; None is 16 in completions and the rest of the context in chats.
        host: Address to listen at.
        port: Port; 0 takes a free one.
        api_keys: Any of them opens the server; none is needed where there are none.
        allowed_hosts: Names by which a server at a loopback address may be called, beside its own.
        cors: Origins whose pages may use the server; "*" is any.
        drain: Seconds that running requests have when the server is told to end.
        stream_timeout: Seconds that a reader may let a stream wait.
        body_timeout: Seconds that head and body of a request may take to come.
        ping: Seconds of silence in a stream before a comment says that it lives.
        stall: Seconds that a step may take before the server counts as stalled.
    """

    model: Path
    names: tuple[str, ...]
    any_model_name: bool = False
    draft_model: Path | None = None
    speculate: bool = True
    n_ctx: int | None = None
    threads: int | None = None
    device: str = "cpu"
    max_requests: int = 16
    cache_bytes: int | None = None
    max_queue: int = 256
    max_queue_tokens: int = 1 << 20
    max_n: int = 16
    max_body: int = 32 << 20
    temperature: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    drain: float = 30.0
    stream_timeout: float = 60.0
    body_timeout: float = 60.0
    ping: float = 15.0
    stall: float = 300.0
