"""Texts through the model: several at once, what they begin with once, logits piece by piece."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .._specrs import Session, Tokenizer
from ..speculation.drafters import common_prefix
from .score import Score, TopLogprobs
from .texts import Text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Row = npt.NDArray[np.float32]

# Of logits held at a time.
PIECE_BYTES = 12 << 20
# Fewer rows are not worth a thread.
ROWS_PER_THREAD = 4
# Tokens without logits that a lane evaluates at a time: as many as a pass over the weights takes.
PASS = 256


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


class Model(Protocol):
    """The part of `Llama` that scores are made with."""

    tokenizer: Tokenizer
    n_ctx: int
    n_vocab: int
    threads: int

    def session(self) -> Session:
        """Return a new, empty session."""

    def forward_many(self, inputs: Any, *, choose: Literal[False] = False) -> list[Any]:
        """Append tokens to several sessions."""


def scores(model: Model, wanted: Sequence[Text], *, top_logprobs: int, lanes: int) -> list[Score]:
    """Score texts; those of equal contexts, and those that begin alike, share what is equal.

    They are taken in the order of their ids, all of one context together, so that a lane, which is
    a session that scores one text after the other, keeps what the next one begins with.

    Args:
        model: Who evaluates.
        wanted: What to score; each has tokens, and fits into the context.
        top_logprobs: How many of the most likely tokens to tell.
        lanes: How many texts to score at once; the logits of all of them together are bounded.
    """
    making = [_Score(text, top_logprobs, model.threads) for text in wanted]
    ordered = sorted(making, key=lambda score: (score.text.context, score.text.tokens))
    groups = [list(group) for _, group in groupby(ordered, key=lambda score: score.text.context)]
    rows = max(1, PIECE_BYTES // (4 * model.n_vocab))
    lanes = min(lanes, rows, len(groups))
    root = model.session()
    if lanes > 1:
        # In this order, what the first and the last begin with is what all begin with.
        first, last = groups[0][0].text.context, groups[-1][0].text.context
        if shared := common_prefix(first, last):
            root.prefill(first[:shared], positions=0)
    waiting = deque(groups)
    running = [_lane(root.fork(), waiting, rows // lanes) for _ in range(lanes)]
    pieces = [(lane, next(lane, None)) for lane in running]
    while left := [(lane, piece) for lane, piece in pieces if piece is not None]:
        answers = model.forward_many([piece for _, piece in left])
        pieces = [
            (lane, _next(lane, answer)) for (lane, _), answer in zip(left, answers, strict=True)
        ]
    return [score.result(model.tokenizer) for score in making]


Piece = tuple[Session, "list[int]", int]
"""Tokens to append to a session, and after how many of the last of them logits are wanted."""


def _next(lane: Generator[Piece, Any, None], answer: Any) -> Piece | None:
    try:
        return lane.send(answer)
    except StopIteration:
        return None


def _lane(
    session: Session, waiting: deque[list[_Score]], rows: int
) -> Generator[Piece, npt.NDArray[np.float32], None]:
    """Make scores on a session, group after group: yield what is to be evaluated, get its logits.

    Args:
        session: Holds what all contexts begin with, or nothing.
        waiting: Scores to make, those of one context in a group; several lanes take from it.
        rows: Most rows of logits at a time.
    """
    import numpy as np

    held = session.tokens
    while waiting:
        before: Distribution | None = None  # after the context
        for score in waiting.popleft():
            context = len(score.text.context)
            ids = score.text.context + score.text.tokens[:-1]
            start = max(context - 1, 0)  # of what has to have logits
            if before is not None:
                score.take(0, before)
                start = context
            at = min(common_prefix(held, ids), start)
            session.truncate(at)
            while at < len(ids):
                first = max(start, at)
                end = at + PASS if first - at > PASS else min(first + rows, len(ids))
                logits = yield session, ids[at:end], max(end - first, 0)
                if end > first:
                    score.add(first - context + 1, logits)
                    if context and before is None:
                        before = Distribution(logits[0].copy(), np.empty_like(logits[0]))
                at = end
            held = ids


class _Score:
    """A score that is being made."""

    def __init__(self, text: Text, top_logprobs: int, threads: int) -> None:
        self.text = text
        self._count = top_logprobs
        self._threads = threads
        length = len(text.tokens)
        self._logprobs: list[float | None] = [None] * length
        self._highest = [True] * length
        self._top: list[TopLogprobs | None] = [None] * length

    def add(self, start: int, logits: npt.NDArray[np.float32]) -> None:
        """Take the logits [rows, n_vocab] that precede the tokens from `start` on."""
        import numpy as np

        def take(part: range) -> None:
            scratch = np.empty_like(logits[0])
            for i in part:
                self.take(start + i, Distribution(logits[i], scratch))

        rows = len(logits)
        parts = min(self._threads, -(-rows // ROWS_PER_THREAD))
        if parts == 1:
            return take(range(rows))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(take, (range(i, rows, parts) for i in range(parts))))
        return None

    def take(self, i: int, distribution: Distribution) -> None:
        """Take what precedes token `i`."""
        token = self.text.tokens[i]
        self._logprobs[i] = distribution.logprob(token)
        self._highest[i] = distribution.is_highest(token)
        if self._count:
            self._top[i] = distribution.top(self._count)

    def result(self, tokenizer: Tokenizer) -> Score:
        """Return the score, once everything is taken."""
        tokens, num_bytes = self.text.tokens, self.text.num_bytes
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
