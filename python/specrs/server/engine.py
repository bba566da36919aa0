"""The model and its batch, seen from an event loop: who may come in, and what comes out."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import specrs

from ..serving.request import Request
from ..text import Chunk
from .errors import ApiError, invalid, of_preparing, too_long, unavailable
from .metrics import Metrics
from .settings import Settings

T = TypeVar("T")

LONG = 1 << 18
"""Characters of a text that takes its time to tokenise."""

RETRY_MOST = 120
"""Seconds to wait that a client is told at most; longer, openai-python gives up."""


class Engine:
    """One model, one batch, and the requests that wait or run.

    Attributes:
        settings: How the server is set up.
        metrics: Counts and times.
        llm: The model; None while it is loaded.
        batch: Where requests run.
        draining: Whether no new work is taken.
        fingerprint: Names version and model, for "system_fingerprint".
        created: When the model was loaded, in seconds since 1970.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.llm: specrs.Llama | None = None
        self.batch: specrs.Batch | None = None
        self.draining = False
        self.fingerprint = ""
        self.created = int(time.time())
        self._draft_model: specrs.DraftModel | None = None
        self._requests: set[Request] = set()
        self._places = 0  # choices that wait or run
        self._tokens = 0  # of their prompts
        self._seconds = 1.0  # that a choice takes, of late
        self._longest = 1  # bytes of a token
        # Templates and tokenising; scores of prompts wait for each other.
        self._preparing = ThreadPoolExecutor(2, thread_name_prefix="specrs prepare")
        self._scoring = ThreadPoolExecutor(1, thread_name_prefix="specrs score")

    def load(self) -> None:
        """Load the model; in a thread, for it takes its time. Raises what `Llama` does."""
        settings = self.settings
        threads = settings.threads or _threads(settings)
        llm = specrs.Llama(
            settings.model, n_ctx=settings.n_ctx, threads=threads, device=settings.device
        )
        if settings.draft_model is not None:
            small = specrs.Llama(settings.draft_model, threads=threads, device=settings.device)
            self._draft_model = specrs.DraftModel(small)
            self._draft_model.check_target(llm)
        self.fingerprint = fingerprint(settings)
        self.batch = llm.batch(
            max_requests=settings.max_requests,
            cache_bytes=settings.cache_bytes,
            on_step=self.metrics.step,
        )
        self.metrics.watch(self.batch, lambda: llm.passes)
        tokenizer = llm.tokenizer
        self._longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.n_vocab))
        self.llm = llm

    @property
    def model(self) -> specrs.Llama:
        """The model; ApiError while it is loaded."""
        if self.llm is None:
            raise unavailable("the model is being loaded; try again soon")
        return self.llm

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread of the batch; None as long as it lives."""
        return None if self.batch is None else self.batch.failure

    @property
    def stalled(self) -> bool:
        """Whether a step takes longer than any should."""
        waited = time.monotonic() - max(self.metrics.last_step, self.metrics.last_arrival)
        return waited > self.settings.stall and any(not one.done for one in self._requests)

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self._places

    def check_model(self, name: str | None) -> None:
        """Raise ApiError for a model that is another one."""
        names = self.settings.names
        if name is not None and name not in names and not self.settings.any_model_name:
            raise ApiError(
                404,
                "not_found_error",
                f"the model {name!r} does not exist; this server has {', '.join(names)}",
                param="model",
                code="model_not_found",
            )

    def check_length(self, *texts: str) -> None:
        """Raise ApiError for long texts that cannot fit, without the time to tokenise them."""
        size = sum(map(len, texts))  # in characters, which are bytes at least
        least, n_ctx = size // self._longest, self.model.n_ctx
        if size > LONG and least >= n_ctx:
            raise too_long(least, n_ctx)

    @contextmanager
    def places(self, count: int) -> Iterator[Callable[[int], None]]:
        """Keep places for so many choices; ApiError if there are none left.

        Gives a function that takes room for tokens of prompts.
        """
        if self.draining:
            raise unavailable("the server is shutting down")
        self.model  # noqa: B018 - raises while it is loaded
        settings, taken = self.settings, 0
        most = settings.max_requests + settings.max_queue
        if count > most:
            raise invalid(f"prompts and n make {count} choices; at most {most} are allowed", "n")
        if self._places + count > most or self._tokens >= settings.max_queue_tokens:
            raise self._full()

        def take(tokens: int) -> None:
            nonlocal taken
            if self._tokens and self._tokens + tokens > settings.max_queue_tokens:
                raise self._full()
            self._tokens += tokens
            taken += tokens

        self._places += count
        try:
            yield take
        finally:
            self._places -= count
            self._tokens -= taken

    def _full(self) -> ApiError:
        self.metrics.rejections.inc()
        waiting = max(1, self._places - self.settings.max_requests)
        seconds = self._seconds * waiting / self.settings.max_requests
        return ApiError(
            429,
            "rate_limit_error",
            "too many requests wait; try again later",
            code="queue_full",
            headers={"Retry-After": str(max(1, min(RETRY_MOST, math.ceil(seconds))))},
        )

    async def prepare(self, function: Callable[[], T], param: str | None = None) -> T:
        """Return what a function gives that takes its time; its errors are the client's mistakes.

        Args:
            function: Called in another thread.
            param: The parameter at fault where it raises.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._preparing, function)
        except Exception as error:
            raise of_preparing(error, param) from error

    async def score(self, ids: list[int], top_logprobs: int) -> specrs.Score:
        """Return how likely a prompt is, as `Llama.score` does; one after the other."""
        score = partial(self.model.score, ids, top_logprobs=top_logprobs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._scoring, score)

    async def add(self, wanted: Sequence[tuple[list[int], dict[str, Any]]]) -> list[Request]:
        """Give requests to the batch: ids of prompts with the options of `Batch.add`."""
        batch = self.batch
        assert batch is not None

        def add() -> list[Request]:
            added: list[Request] = []
            try:
                for prompt, options in wanted:
                    added.append(batch.add(prompt, **options))
            except BaseException:
                for request in added:
                    request.cancel()
                raise
            return added

        if batch.failure is not None:
            raise RuntimeError("the engine has failed") from batch.failure
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._preparing, add)
        try:
            requests = await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_cancel_added)
            raise
        except Exception as error:
            raise of_preparing(error) from error
        if all(one.done for one in self._requests):  # nothing ran: the last step is long ago
            self.metrics.last_arrival = time.monotonic()
        self._requests.update(requests)
        return requests

    def leave(self, request: Request) -> None:
        """Forget a request; it is cancelled if it is not over."""
        request.cancel()
        self._requests.discard(request)
        stats = request.stats
        seconds = stats.prefill_seconds + stats.decode_seconds
        self._seconds += 0.1 * (seconds - self._seconds)

    def cancel(self) -> None:
        """Cancel everything that runs."""
        for request in self._requests:
            request.cancel()

    def close(self) -> None:
        """End all threads; whoever still runs is cancelled."""
        self._preparing.shutdown(wait=False, cancel_futures=True)
        self._scoring.shutdown(wait=False, cancel_futures=True)
        if self.batch is not None:
            self.batch.cancel()
            self.batch.close()

    def drafter(self, speculation: int | str | None, predicted: str | None) -> dict[str, Any]:
        """Return the options of `Batch.add` that say who guesses ahead, and how far.

        Args:
            speculation: "off", "auto" or a number of tokens; None is as the server is set up.
            predicted: A text that the reply may repeat.
        """
        if speculation is None:
            speculation = "auto" if self.settings.speculate else "off"
        is_number = isinstance(speculation, int) and not isinstance(speculation, bool)
        if not is_number and speculation not in ("off", "auto"):
            raise invalid('speculation must be "off", "auto" or a number', "speculation")
        if isinstance(speculation, int) and not 0 <= speculation <= 64:
            raise invalid("speculation must be from 0 to 64 tokens", "speculation")
        drafters: list[specrs.Drafter] = []
        if predicted:
            self.check_length(predicted)
            corpus = specrs.SuffixCorpus()
            corpus.add(self.model.tokenize(predicted, add_bos=False))
            drafters.append(specrs.SuffixDecoding(corpus=corpus))
        if speculation not in ("off", 0):
            if self._draft_model is not None:
                drafters.append(self._draft_model)
            elif not drafters:
                drafters.append(specrs.SuffixDecoding())
        if not drafters:
            return {}
        chosen = drafters[0] if len(drafters) == 1 else specrs.Chain(*drafters)
        fixed = isinstance(speculation, int) and speculation > 0
        length = {"draft_length": specrs.FixedLength(int(speculation))} if fixed else {}
        return {"drafter": chosen, **length}


def _threads(settings: Settings) -> int | None:
    """Leave one of four or more cores to HTTP."""
    from .._specrs import GgufFile

    threads = GgufFile(settings.model).plan().threads
    return threads - 1 if threads >= 4 and settings.device == "cpu" else None


def fingerprint(settings: Settings) -> str:
    """Return a name of this version with this model."""
    with settings.model.open("rb") as file:
        head = file.read(1 << 20)
    size = settings.model.stat().st_size
    digest = hashlib.sha256(head + str(size).encode()).hexdigest()[:10]
    return f"b{specrs.__version__}-{digest}"


def _cancel_added(future: asyncio.Future[list[Request]]) -> None:
    """Cancel what was added for somebody who has left meanwhile."""
    if not future.cancelled() and future.exception() is None:
        for request in future.result():
            request.cancel()


async def updates(requests: Sequence[Request]) -> AsyncIterator[tuple[int, list[Chunk], bool]]:
    """Give what is new of several requests: which one, its new chunks, and whether it is over.

    A reader that comes late gets all that is there at once, so nothing piles up but text. Raises
    what goes wrong with a request.
    """
    if len(requests) == 1:
        request, taken, over = requests[0], 0, False
        while not over:
            await request.more(taken)
            chunks = request.chunks(taken)
            taken += len(chunks)
            over = request.over(taken)
            if over and (error := request.exception()) is not None:
                raise error
            yield 0, chunks, over
        return
    counts = [0] * len(requests)
    waits = {asyncio.ensure_future(r.more(0)): i for i, r in enumerate(requests)}
    try:
        while waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for index in sorted(waits.pop(task) for task in done):
                request = requests[index]
                chunks = request.chunks(counts[index])
                counts[index] += len(chunks)
                over = request.over(counts[index])
                if over and (error := request.exception()) is not None:
                    raise error
                if not over:
                    waits[asyncio.ensure_future(request.more(counts[index]))] = index
                yield index, chunks, over
    finally:
        for task in waits:
            task.cancel()
