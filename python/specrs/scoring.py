"""How likely a model holds given texts to be, without ever holding the logits of all positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._specrs import ContextOverflow, Session, Tokenizer
from .arguments import NO_TOKEN_IDS, checked_text, checked_token_ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Row = npt.NDArray[np.float32]

# Of logits held at a time.
PIECE_BYTES = 12 << 20
# Fewer rows are not worth a thread.
ROWS_PER_THREAD = 4

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Score:
    """How likely a text is to the model, token by token; logarithms are natural.

    Attributes:
        tokens: The ids of the text, without a beginning-of-sequence token.
        logprobs: The log-probability of each, given all before it; None for the first one if
            nothing stands before it.
        is_greedy: Whether each token that has a log-probability is a most likely one at its place.
        num_bytes: Bytes of the text of the tokens that have a log-probability.
        top_logprobs: For each token, the most likely ids at its place with their log-probabilities,
            the likeliest first, or None as above; None unless asked for.
    """

    tokens: list[int]
    logprobs: list[float | None]
    is_greedy: bool
    num_bytes: int
    top_logprobs: list[TopLogprobs | None] | None = None

    @property
    def total(self) -> float:
        """The log-probability of the text: the sum of those of its tokens."""
        return math.fsum(one for one in self.logprobs if one is not None)

    @property
    def bits_per_byte(self) -> float:
        """Bits that an ideal compressor needs for a byte; nan for an empty text."""
        return -self.total / math.log(2) / self.num_bytes if self.num_bytes else math.nan

    @property
    def perplexity(self) -> float:
        """The exponential of the mean surprise of a token; nan where no token has one."""
        count = sum(one is not None for one in self.logprobs)
        try:
            return math.exp(-self.total / count) if count else math.nan
        except OverflowError:
            return math.inf

    def as_dict(self) -> dict[str, Any]:
        """Give every figure by its name."""
        names = "tokens logprobs is_greedy num_bytes top_logprobs total bits_per_byte perplexity"
        return {name: getattr(self, name) for name in names.split()}


@dataclass(frozen=True)
class Text:
    """What is to be scored.

    Attributes:
        context: Ids before it; texts of one call have the same.
        tokens: Its ids.
        num_bytes: Length of its text; None if it is the sum of its tokens.
    """

    context: list[int]
    tokens: list[int]
    num_bytes: int | None


class Distribution:
    """The probabilities after one position; `logits` [n_vocab] are read when they are asked for."""

    def __init__(self, logits: Row, scratch: Row) -> None:
        import numpy as np

        self.logits = logits
        self.highest = float(logits.max())
        np.subtract(logits, np.float32(self.highest), out=scratch)
        np.exp(scratch, out=scratch)
        self.log_total = math.log(float(scratch.sum()))

    def logprob(self, token: int) -> float:
        """Return the log-probability of a token."""
        return float(self.logits[token]) - self.highest - self.log_total

    def is_highest(self, token: int) -> bool:
        """Whether no token is more likely."""
        return float(self.logits[token]) >= self.highest

    def top(self, count: int) -> TopLogprobs:
        """Return the most likely tokens, the first ids among equals."""
        import numpy as np

        least = np.partition(self.logits, -count)[-count]
        candidates = np.flatnonzero(self.logits >= least).tolist()
        candidates.sort(key=lambda token: (-self.logits[token], token))
        return tuple((token, self.logprob(token)) for token in candidates[:count])


def texts(
    tokenizer: Tokenizer, prompt: Any, continuations: Sequence[Any] | None
) -> tuple[list[Text], list[str]]:
    """Check what is to be scored and turn it into ids; and name each text for errors.

    Text is tokenised with what stands before it, and white space at the end of the prompt belongs
    to the continuation, as in EleutherAI's evaluation harness. Ids stay as they are.
    """
    if continuations is None:
        if isinstance(prompt, str):
            ids = tokenizer.encode(checked_text("prompt", prompt))
            at = int(tokenizer.bos is not None and ids[:1] == [tokenizer.bos])
            found = Text(ids[:at], ids[at:], len(prompt.encode()))
        else:
            found = Text([], checked_token_ids("prompt", prompt, tokenizer.n_vocab), None)
        return [found], ["the prompt"]
    names = [f"continuations[{i}]" for i in range(len(continuations))]
    if not isinstance(prompt, str):
        context = checked_token_ids("prompt", prompt, tokenizer.n_vocab)
        of_ids = [
            checked_token_ids(name, one, tokenizer.n_vocab)
            for name, one in zip(names, continuations, strict=True)
        ]
        return [Text(context, ids, None) for ids in of_ids], names
    stem = checked_text("prompt", prompt).rstrip()
    context = tokenizer.encode(stem)
    found_texts = []
    for name, one in zip(names, continuations, strict=True):
        text = prompt[len(stem) :] + checked_text(name, one)
        ids = tokenizer.encode(stem + text)
        if text and len(ids) <= len(context):
            raise ValueError(
                f"{name} becomes one token with the end of the prompt; give ids, or move the border"
            )
        found_texts.append(Text(context, ids[len(context) :], len(text.encode())))
    return found_texts, names


def several(continuations: Any) -> list[Any] | None:
    """Return continuations as a list; None for a single one, which is text or ids."""
    if isinstance(continuations, str) or continuations is None:
        return None
    if isinstance(continuations, NO_TOKEN_IDS) or not isinstance(continuations, Iterable):
        raise TypeError(f"continuations must be text, ids or a list of them, not {continuations!r}")
    listed = list(continuations)
    is_ids = bool(listed) and not isinstance(listed[0], str) and not isinstance(listed[0], Iterable)
    return None if is_ids else listed


def scores(
    new_session: Callable[[], Session],
    tokenizer: Tokenizer,
    wanted: Sequence[Text],
    names: Sequence[str],
    *,
    n_ctx: int,
    n_vocab: int,
    threads: int,
    top_logprobs: int,
) -> Iterator[Score]:
    """Score texts that have the same context, which is evaluated once.

    Raises ValueError for a text without tokens and ContextOverflow for one that is too long, before
    any work.
    """
    import numpy as np

    for text, name in zip(wanted, names, strict=True):
        if not text.tokens:
            raise ValueError(f"{name} has no tokens; there is nothing to score")
        needed = len(text.context) + len(text.tokens) - 1
        if needed > n_ctx:
            error = ContextOverflow(
                f"{name} needs {needed} positions, and the context has {n_ctx}; shorten it, or "
                "load the model with a larger n_ctx"
            )
            error.needed, error.n_ctx = needed, n_ctx
            raise error
    session = new_session()
    before: Distribution | None = None
    for text in wanted:
        if text.context and before is None:
            logits = session.forward(text.context)
            before = Distribution(logits, np.empty_like(logits))
        score = _Score(text, top_logprobs, before)
        if len(text.tokens) > 1:
            own = session.fork()
            rows = max(1, PIECE_BYTES // (4 * n_vocab))
            for start in range(0, len(text.tokens) - 1, rows):
                piece = text.tokens[start : min(start + rows, len(text.tokens) - 1)]
                score.add(start + 1, own.forward_all_positions(piece), threads)
        yield score.result(tokenizer)


class _Score:
    """A score that is being made."""

    def __init__(self, text: Text, top_logprobs: int, before: Distribution | None) -> None:
        self._text = text
        self._count = top_logprobs
        length = len(text.tokens)
        self._logprobs: list[float | None] = [None] * length
        self._highest = [True] * length
        self._top: list[TopLogprobs | None] = [None] * length
        if before is not None:
            self._take(0, before)

    def add(self, start: int, logits: npt.NDArray[np.float32], threads: int) -> None:
        """Take the logits [rows, n_vocab] that precede the tokens from `start` on."""
        import numpy as np

        def take(part: range) -> None:
            scratch = np.empty_like(logits[0])
            for i in part:
                self._take(start + i, Distribution(logits[i], scratch))

        rows = len(logits)
        parts = min(threads, -(-rows // ROWS_PER_THREAD))
        if parts == 1:
            return take(range(rows))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(take, (range(i, rows, parts) for i in range(parts))))
        return None

    def _take(self, i: int, distribution: Distribution) -> None:
        token = self._text.tokens[i]
        self._logprobs[i] = distribution.logprob(token)
        self._highest[i] = distribution.is_highest(token)
        if self._count:
            self._top[i] = distribution.top(self._count)

    def result(self, tokenizer: Tokenizer) -> Score:
        tokens, num_bytes = self._text.tokens, self._text.num_bytes
        first_is_scored = self._logprobs[0] is not None
        if num_bytes is None:
            num_bytes = sum(len(tokenizer.token_bytes(token)) for token in tokens)
        if not first_is_scored:
            num_bytes -= min(num_bytes, len(tokenizer.token_bytes(tokens[0])))
        return Score(
            tokens=list(tokens),
            logprobs=self._logprobs,
            is_greedy=all(self._highest),
            num_bytes=num_bytes,
            top_logprobs=self._top if self._count else None,
        )
