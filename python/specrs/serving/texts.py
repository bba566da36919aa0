"""What a model does with many texts at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

from ..arguments import checked_bool
from ..completion import Completion
from ..options import ManyOptionsOfChat, ManyOptionsOfText, Options
from ..text import Chunk
from .batch import Batch, check_request_options
from .cost import PassCost
from .many import WINDOW, BatchError, BatchInterrupted, Many, Progress, collected, lists_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Prompt = str | Sequence[int]


class ManyTexts:
    """The methods of `Llama` for many texts; every result is that of `generate`, to the bit."""

    @cached_property
    def _pass_cost(self) -> PassCost:
        """What passes cost that texts share, learned by all batches together."""
        return PassCost()

    def batch(
        self,
        *,
        max_requests: int = 16,
        cache_bytes: int | None = None,
        prefix_cache: bool = True,
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

        Raises TypeError or ValueError for arguments out of range.
        """
        llm: Any = self
        return Batch(
            llm,
            self._pass_cost,
            max_requests=max_requests,
            cache_bytes=cache_bytes,
            prefix_cache=prefix_cache,
        )

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        show_progress: bool = False,
        return_errors: Literal[False] = False,
        **options: Unpack[ManyOptionsOfText],
    ) -> list[Completion]: ...

    @overload
    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        show_progress: bool = False,
        return_errors: bool,
        **options: Unpack[ManyOptionsOfText],
    ) -> list[Completion | Exception]: ...

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        show_progress: bool = False,
        return_errors: bool = False,
        **options: Unpack[ManyOptionsOfText],
    ) -> Any:
        """Generate after each of many prompts; return the completions in the order of the prompts.

        Every completion is that of `generate(prompt, **options)`: the same tokens, text and
        log-probabilities, to the bit.

        Args:
            prompts: Texts or lists of ids, in any iterable; it is read as they are needed.
            show_progress: Tell on stderr how far it is, if that is a terminal.
            return_errors: Return what goes wrong with a prompt in its place.
            **options: `max_requests` and `cache_bytes`, as for `batch`; all others as for
                `generate`, but without `session`. `sampling`, `drafter`, `max_tokens` and
                `grammar` may be a list with a value for each prompt.

        Raises BatchError once all others are done if some failed, unless `return_errors`;
        BatchInterrupted, a KeyboardInterrupt with what is done, on Ctrl-C; TypeError or ValueError
        at once for arguments that are wrong for all.
        """
        many = self._many("generate_many", prompts, options)
        return _results(many, prompts, show_progress, return_errors)

    @overload
    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        show_progress: bool = False,
        return_errors: Literal[False] = False,
        **options: Unpack[ManyOptionsOfChat],
    ) -> list[Completion]: ...

    @overload
    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        show_progress: bool = False,
        return_errors: bool,
        **options: Unpack[ManyOptionsOfChat],
    ) -> list[Completion | Exception]: ...

    def chat_many(
        self,
        conversations: Iterable[Any],
        *,
        show_progress: bool = False,
        return_errors: bool = False,
        **options: Unpack[ManyOptionsOfChat],
    ) -> Any:
        """Reply to each of many conversations, as `chat` does; otherwise as `generate_many`."""
        many = self._many("chat_many", conversations, options)
        return _results(many, conversations, show_progress, return_errors)

    def stream_many(
        self, prompts: Iterable[Prompt], **options: Unpack[ManyOptionsOfText]
    ) -> Iterator[tuple[int, Chunk]]:
        """Generate after each of many prompts; give (index of the prompt, chunk) as they come.

        Arguments and errors are those of `generate_many`, but nothing is kept of what was given.
        Closing the iterator cancels the rest.
        """
        return _chunks(self._many("stream_many", prompts, options))

    def _many(self, method: str, prompts: Iterable[Any], options: Any) -> Many:
        """Check the options and prepare to run all prompts."""
        chats = method == "chat_many"
        check_request_options(method, options, ManyOptionsOfChat if chats else ManyOptionsOfText)
        own: dict[str, Any] = dict(options)
        of_batch = {name: own.pop(name) for name in ("max_requests", "cache_bytes") if name in own}
        batch = self.batch(**of_batch)
        kind, add = ("conversations", batch.add_chat) if chats else ("prompts", batch.add)
        many = Many(batch, add, prompts, WINDOW * batch.max_requests, own, kind=kind)
        # What is wrong for all is wrong at once, whatever the prompts.
        lists = lists_of(own)
        common = {n: v for n, v in own.items() if n in Options.__annotations__ and n not in lists}
        llm: Any = self
        llm.stream([0], **common)
        return many


def _results(many: Many, prompts: object, show_progress: bool, return_errors: bool) -> list[Any]:
    """Run all prompts and return what became of them."""
    in_place = checked_bool("return_errors", return_errors)
    shown = checked_bool("show_progress", show_progress)
    total = len(prompts) if isinstance(prompts, Sized) else None
    results, errors = collected(many, Progress(total, shown=shown))
    if errors and not in_place:
        raise BatchError(results, errors)
    return [errors.get(i, result) for i, result in enumerate(results)]


def _chunks(many: Many) -> Iterator[tuple[int, Chunk]]:
    """Give what `stream_many` gives."""
    errors: dict[int, Exception] = {}
    try:
        with closing(many.run(chunks=True)) as events:
            for number, chunks, outcome in events:
                for chunk in chunks:
                    yield number, chunk
                if isinstance(outcome, Exception):
                    errors[number] = outcome
    except KeyboardInterrupt:
        raise BatchInterrupted([], errors) from None
    if errors:
        raise BatchError([], errors)
