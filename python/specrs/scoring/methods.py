"""What a model does to score texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from ..arguments import checked_tokens
from .evaluate import scores
from .score import Score
from .texts import pairs, several, texts

if TYPE_CHECKING:
    Prompt = str | Sequence[int]

LANES = 8
"""Texts that `score_many` scores at once."""


class ScoredTexts:
    """The methods of `Llama` that score texts."""

    # Text is a sequence of texts as well.
    @overload
    def score(  # type: ignore[overload-overlap]
        self,
        prompt: Prompt,
        continuations: Prompt | None = None,
        *,
        top_logprobs: int = 0,
    ) -> Score: ...

    @overload
    def score(
        self,
        prompt: Prompt,
        continuations: Sequence[str] | Sequence[Sequence[int]],
        *,
        top_logprobs: int = 0,
    ) -> list[Score]: ...

    def score(
        self, prompt: Any, continuations: Any = None, *, top_logprobs: int = 0
    ) -> Score | list[Score]:
        """Return how likely the model holds a text to be, or each of several continuations of it.

        The logits of all positions are never held at once, and a shared prompt is evaluated once.

        Args:
            prompt: Text, which begins with BOS if the file says so, or ids, which stay as they are.
            continuations: None scores the prompt itself. One or several texts, or ids where the
                prompt is ids, are scored as what follows it: tokenised together with it, and with
                the white space at its end, as EleutherAI's evaluation harness does.
            top_logprobs: Tell for every token this many most likely ones at its place.

        Raises TypeError, ValueError, or ContextOverflow for what is too long.
        """
        llm: Any = self
        count = checked_tokens("top_logprobs", top_logprobs, llm.n_vocab)
        listed = several(continuations)
        single = continuations is not None and listed is None
        wanted = texts(llm.tokenizer, prompt, [continuations] if single else listed, llm.n_ctx)
        found = scores(llm, wanted, top_logprobs=count, lanes=1)
        return found if listed is not None else found[0]

    def score_many(
        self,
        prompts: Iterable[Prompt],
        continuations: Iterable[Prompt] | None = None,
        *,
        top_logprobs: int = 0,
    ) -> list[Score]:
        """Score many texts, several at once; what they begin with is evaluated once.

        Every score is that of `score(prompt, continuation)`, to the bit, but on the candle devices.
        To choose among several continuations of a prompt, give the prompt as often.

        Args:
            prompts: Texts or lists of ids.
            continuations: One for each prompt; None scores the prompts themselves.
            top_logprobs: As for `score`.

        Returns the scores in the order of the prompts. Raises before any work what `score` does,
        and says of which prompt.
        """
        llm: Any = self
        count = checked_tokens("top_logprobs", top_logprobs, llm.n_vocab)
        wanted = [
            texts(llm.tokenizer, prompt, listed, llm.n_ctx, f"prompts[{i}]: ")[0]
            for i, (prompt, listed) in enumerate(pairs(prompts, continuations))
        ]
        return scores(llm, wanted, top_logprobs=count, lanes=LANES)
