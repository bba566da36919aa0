"""The choices of an answer: from requests of the batch to a whole reply, or to a stream of events.

Chats and completions differ in what they send, which their forms say; the rest is here, once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..completion import Completion
from ..decoding.stats import Stats
from ..serving.request import Request
from ..text import Chunk, Piece, joined
from .engine import Engine, updates
from .errors import ApiError, internal, invalid, unavailable
from .exchange import Exchange
from .logprobs import Aligner, Entry, Unaligned
from .metrics import Metrics
from .parameters import Common
from .replies import Reply, Usage

logger = logging.getLogger("specrs.server")


@dataclass(frozen=True)
class Echo:
    """A prompt that is returned before what follows it.

    Attributes:
        text: The prompt.
        entries: Its tokens with their log-probabilities, if they are wanted.
    """

    text: str
    entries: list[Entry]


@dataclass
class Choice:
    """One text of an answer.

    Attributes:
        index: Its number.
        first: Whether it is the first of its prompt.
        request: Where it comes from.
        aligner: Tells which log-probabilities belong to which text; None if none are wanted.
        echo: What stands before its text, if that is wanted.
        calls: How many calls of tools were begun.
        entries: Log-probabilities not sent yet.
    """

    index: int
    first: bool
    request: Request
    aligner: Aligner | Unaligned | None = None
    echo: Echo | None = None
    calls: int = 0
    entries: list[Entry] = field(default_factory=list)


class Form(Protocol):
    """What an endpoint sends."""

    name: str
    """Of the kind of answer, for "object"; events have their own."""

    event_name: str

    def begin(self, choice: Choice) -> list[Any]:
        """Return what a stream begins with."""

    def piece(self, choice: Choice, piece: Piece, entries: list[Entry] | None) -> list[Any]:
        """Return what is to be sent of what became final; nothing, if it says nothing yet."""

    def finish(self, choice: Choice, reason: str) -> list[Any]:
        """Return what a stream ends with."""

    def whole(self, choice: Choice, completion: Completion, entries: list[Entry] | None) -> Any:
        """Return a whole choice."""


@dataclass(frozen=True)
class Header:
    """What all objects of an answer say.

    Attributes:
        id: Names the answer.
        model: The model's name.
        fingerprint: Of version and model.
        created: Seconds since 1970.
    """

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def reply(self, name: str, choices: list[Any], **usage: Any) -> Reply:
        """Return an object with these choices."""
        return Reply(
            id=self.id,
            object=name,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            **usage,
        )


async def respond(
    exchange: Exchange,
    engine: Engine,
    prefix: str,
    choices: Sequence[Choice],
    form: Form,
    body: Common,
) -> None:
    """Send all choices as the body wants them, as they come or at once.

    Args:
        exchange: Where they go.
        engine: What makes them.
        prefix: What the id of the answer begins with.
        choices: They, in order.
        form: The form of their objects.
        body: The parameters.
    """
    model = engine.settings.names[0]
    header = Header(f"{prefix}-{uuid.uuid4().hex}", model, engine.fingerprint)
    if body.stream:
        usage = body.includes_usage
        await stream(exchange, engine, header, choices, form, includes_usage=usage)
    else:
        await collect(exchange, engine, header, choices, form)


async def collect(
    exchange: Exchange, engine: Engine, header: Header, choices: Sequence[Choice], form: Form
) -> None:
    """Wait for all choices and send them at once."""
    usage, whole = Usage(), []
    for choice in choices:
        try:
            completion = await choice.request
        except Exception as error:
            raise failed(error) from error
        check_end(completion.finish_reason)
        entries = None
        if choice.aligner is not None:
            entries = choice.aligner.take(completion.logprobs or (), completion.text)
            entries += choice.aligner.finish()
        whole.append(form.whole(choice, completion, entries))
        usage.add(completion.stats, first=choice.first)
        note(exchange, engine.metrics, completion.stats, usage, completion.finish_reason)
    await exchange.reply(header.reply(form.name, whole, usage=usage))


async def stream(
    exchange: Exchange,
    engine: Engine,
    header: Header,
    choices: Sequence[Choice],
    form: Form,
    *,
    includes_usage: bool,
) -> None:
    """Send the text of all choices as it comes."""
    usage = Usage()
    no_usage: dict[str, Any] = {"usage": None} if includes_usage else {}

    async def send(objects: Iterable[Any]) -> None:
        for one in objects:
            await exchange.event(header.reply(form.event_name, [one], **no_usage))

    begun = False
    with exchange.kept_alive():
        try:
            async for index, chunks, over in updates([choice.request for choice in choices]):
                choice = choices[index]
                reason = choice.request.finish_reason if over else None
                if not begun:  # only now is it known that nothing is wrong
                    begun = True
                    check_end(reason)
                    for one in choices:
                        await send(form.begin(one))
                piece = joined([Piece(one.text, one.reasoning, one.tool_calls) for one in chunks])
                entries = _entries(choice, chunks, piece.text, over=over)
                await send(form.piece(choice, piece, entries))
                if over:
                    check_end(reason)
                    await send(form.finish(choice, str(reason)))
                    stats = choice.request.stats
                    usage.add(stats, first=choice.first)
                    note(exchange, engine.metrics, stats, usage, str(reason))
        except (ApiError, GeneratorExit):
            raise
        except Exception as error:
            raise failed(error) from error
        if includes_usage:
            await exchange.event(header.reply(form.event_name, [], usage=usage))
        await exchange.end()


def _entries(
    choice: Choice, chunks: Sequence[Chunk], text: str, *, over: bool
) -> list[Entry] | None:
    """Return the log-probabilities whose text is out and that were not sent."""
    aligner = choice.aligner
    if aligner is None:
        return None
    entries = aligner.take((one for chunk in chunks for one in chunk.logprobs or ()), text)
    return entries + aligner.finish() if over else entries


def check_end(reason: str | None) -> None:
    """Raise ApiError for a text that was not ended by itself."""
    if reason == "cancelled":
        raise unavailable("the server is shutting down")


def failed(error: Exception) -> ApiError:
    """Return the answer to what went wrong while a text was made."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, MemoryError):
        return internal(str(error))
    if isinstance(error, ValueError):  # such as biases that forbid every token
        return invalid(str(error))
    logger.error("a request failed", exc_info=error)
    return internal()


def note(exchange: Exchange, metrics: Metrics, stats: Stats, usage: Usage, reason: str) -> None:
    """Take note of a text that is over, for the log and the metrics.

    Args:
        exchange: Whose log line it is.
        metrics: Those of the server.
        stats: What the text cost.
        usage: What the whole answer did, so far.
        reason: Why the text ended.
    """
    first = stats.queued_seconds + stats.prefill_seconds if stats.tokens_generated else None
    metrics.ended(reason, stats, time.monotonic() - exchange.arrived, first)
    details = usage.completion_tokens_details
    accepted = details.accepted_prediction_tokens
    exchange.notes |= {
        "prompt": usage.prompt_tokens,
        "cached": usage.prompt_tokens_details.cached_tokens,
        "out": usage.completion_tokens,
        "queue": stats.queued_seconds,
        "ttft": first or 0.0,
        "itl": 1 / stats.tokens_per_second if stats.tokens_per_second else 0.0,
        "drafted": accepted + details.rejected_prediction_tokens,
        "accepted": accepted,
        "finish": reason,
    }
