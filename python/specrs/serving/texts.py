"""What a model does with many texts at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

from ..arguments import checked_bool, checked_positive
from ..completion import Completion
from ..options import OptionsOfChat, OptionsOfText, check_options
from ..speculation.costs import ASSUMED_OF_PASSES, MeasuredCost
from ..text import Chunk
from .batch import Batch
from .many import WINDOW, BatchError, Many, Progress
from .step import Event

if TYPE_CHECKING:
    Prompt = str | Sequence[int]


class ManyTexts:
    """The methods of `Llama` for many texts; every result is that of `generate`, to the bit."""

    @cached_property
    def _pass_cost(self) -> MeasuredCost:
        """What passes cost that texts share, learned by all batches together."""
        return MeasuredCost(ASSUMED_OF_PASSES)

    def batch(
        self,
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        prefix_cache: bool = True,
        on_step: Callable[[Collection[Event]], object] | None = None,
    ) -> Batch:
        """Return a batch: requests from any thread that share every pass over the weights.

        >>> with llm.batch() as batch:
        ...     requests = [batch.add(prompt, max_tokens=64) for prompt in prompts]
        ...     texts = [request.result().text for request in requests]

        Args:
            max_requests: Most requests that run at once; the others wait.
            cache_bytes: Memory for the caches of requests, their draft models, and what is kept of
                earlier ones; None is half of what is available now.
            prefix_cache: Keep prompts and replies as long as there is room, so that what later
                requests begin with is not evaluated again.
            on_step: Called in the thread of the batch after every step, with what it brought to
                each request; it must be quick, and what it raises ends the batch.

        Raises TypeError or ValueError for arguments out of range.
        """
        llm: Any = self
        return Batch(
            llm,
            self._pass_cost,
            max_requests=max_requests,
            cache_bytes=cache_bytes,
            prefix_cache=prefix_cache,
            on_step=on_step,
        )

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: Literal[False] = False,
        **options: Any,
    ) -> list[Completion]: ...

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: bool,
        **options: Any,
    ) -> list[Completion | Exception]: ...

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: bool = False,
        **options: Any,
    ) -> Any:
        """Generate after each of many prompts; return the completions in the order of the prompts.

        Every completion is that of `generate(prompt, **options)`: the same tokens, text and
        log-probabilities, to the bit.

        Args:
            prompts: Texts or lists of ids, in any iterable; it is read as they are needed.
            max_requests: Most prompts that run at once.
            cache_bytes: As for `batch`.
            show_progress: Tell on stderr how far it is, if that is a terminal.
            return_errors: Return what goes wrong with a prompt in its place.
            **options: As for `generate`, but without `session`. `sampling`, `drafter`,
                `max_tokens` and `grammar` may be a list with a value for each prompt.

        Raises BatchError once all others are done if some failed, unless `return_errors`;
        BatchInterrupted, a KeyboardInterrupt with what is done, on Ctrl-C; TypeError or ValueError
        at once for arguments that are wrong for all.
        """
        check_options("generate_many", options, OptionsOfText)
        return self._collected(
            "add", prompts, max_requests, cache_bytes, show_progress, return_errors, options
        )

    @overload
    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: Literal[False] = False,
        **options: Any,
    ) -> list[Completion]: ...

    @overload
    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: bool,
        **options: Any,
    ) -> list[Completion | Exception]: ...

    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        show_progress: bool = False,
        return_errors: bool = False,
        **options: Any,
    ) -> Any:
        """Reply to each of many conversations, as `chat` does; otherwise as `generate_many`."""
        check_options("chat_many", options, OptionsOfChat)
        return self._collected(
            "add_chat",
            conversations,
            max_requests,
            cache_bytes,
            show_progress,
            return_errors,
            options,
        )

    def stream_many(
        self,
        prompts: Iterable[Prompt],
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        **options: Any,
    ) -> Iterator[tuple[int, Chunk]]:
        """Generate after each of many prompts; give (index of the prompt, chunk) as they come.

        Arguments and errors are those of `generate_many`. Closing the iterator cancels the rest.
        """
        check_options("stream_many", options, OptionsOfText)
        many = self._many("add", prompts, max_requests, cache_bytes, options)
        return _chunks(many)

    def _collected(
        self,
        method: str,
        prompts: Iterable[Any],
        max_requests: int,
        cache_bytes: int | None,
        show_progress: bool,
        return_errors: bool,
        options: dict[str, Any],
    ) -> list[Any]:
        shown = checked_bool("show_progress", show_progress)
        in_place = checked_bool("return_errors", return_errors)
        many = self._many(method, prompts, max_requests, cache_bytes, options)
        progress = Progress(len(prompts) if isinstance(prompts, Sized) else None, shown=shown)
        try:
            for number, _ in many.run():
                progress.update(many.results[number])
        finally:
            progress.close()
        if many.errors and not in_place:
            raise BatchError(many.results, many.errors)
        return [many.errors.get(i, result) for i, result in enumerate(many.results)]

    def _many(
        self,
        method: str,
        prompts: Iterable[Any],
        max_requests: int,
        cache_bytes: int | None,
        options: dict[str, Any],
    ) -> Many:
        batch = self.batch(max_requests=max_requests, cache_bytes=cache_bytes)
        window = WINDOW * checked_positive("max_requests", max_requests)
        many = Many(batch, getattr(batch, method), prompts, window, options)
        many.check()
        return many


def _chunks(many: Many) -> Iterator[tuple[int, Chunk]]:
    """Give what `stream_many` gives."""
    for number, chunk in many.run(chunks=True):
        if chunk is not None:
            yield number, chunk
    if many.errors:
        raise BatchError(many.results, many.errors)
