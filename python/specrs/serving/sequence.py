"""One text among many: what it has, what it wants, and what of that is done."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass, field

from .._specrs import Lease, Session
from ..attention.choice import Attention
from ..decoding.loop import Generation
from ..decoding.step import Answer, Evaluation, Proposal, Step
from .pages import Table


@dataclass(slots=True, eq=False)
class Sequence:
    """A generation on its way.

    What is to be evaluated next, be it a prompt, a token with its draft, or all of a text whose
    cache was given back, is the gap between the tokens known and those computed.

    Attributes:
        number: Its place in the order of arrival.
        generation: What to generate, and how.
        arrived: When it came, in seconds.
        salt: It shares what is kept with others of the same salt only.
        extra_pages: Pages that its drafter takes for as long as it runs.
        tokens: Ids so far, prompt included.
        loop: The generation as it runs; None before the first admission.
        asked: The draft that the loop waits for, if it does.
        wanted: The evaluation that it waits for, if it does.
        session: Its cache while it runs.
        lease: The right to change it.
        table: The cache's pages.
        extra: Pages of the drafter.
        computed: Positions in the cache.
        admitted: When it was admitted last.
        began: When it was admitted first.
        waits_for: One that is about to compute what this begins with.
        compared: The number of the last one that it was compared with for that.
        cancelled: Whether it is to end.
    """

    number: int
    generation: Generation
    arrived: float
    salt: Hashable = None
    extra_pages: int = 0
    tokens: list[int] = field(default_factory=list)
    loop: Generator[Proposal | Evaluation | Step, Answer] | None = None
    asked: Proposal | None = None
    wanted: Evaluation | None = None
    session: Session | None = None
    lease: Lease | None = None
    table: Table = field(default_factory=list)
    extra: Table = field(default_factory=list)
    computed: int = 0
    admitted: float = 0.0
    began: float | None = None
    waits_for: Sequence | None = None
    compared: int = -1
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.generation.prompt)

    @property
    def missing(self) -> int:
        """Tokens that are known and not computed."""
        wanted = self.wanted
        if wanted is None:
            return len(self.tokens) - self.computed
        return wanted.start + len(wanted.tokens) - self.computed

    @property
    def reusable(self) -> int:
        """How many positions others may have computed for it: what it wants takes a row."""
        wanted = self.wanted
        if wanted is None:
            return len(self.tokens) - 1
        return wanted.start + len(wanted.tokens) - max(1, wanted.positions)

    @property
    def prefilling(self) -> bool:
        """Whether more is missing than a token and its draft."""
        drafted = 0 if self.wanted is None else max(0, self.wanted.positions - 1)
        return self.missing > 1 + drafted

    @property
    def shareable(self) -> bool:
        """Whether its cache is exact, as that of others is."""
        return self.generation.attention is None

    def most(self) -> int:
        """Return how many positions it may come to."""
        return most_positions(self.generation, len(self.tokens))

    def piece(self, rows: int) -> Piece:
        """Return what to evaluate next, `rows` of the missing tokens."""
        wanted = self.wanted
        assert wanted is not None
        at, end = self.computed, self.computed + rows
        if at >= wanted.start:
            tokens = wanted.tokens[at - wanted.start : end - wanted.start]
        else:  # what was computed once and given back
            tokens = (self.tokens[: wanted.start] + wanted.tokens)[at:end]
        last = rows == self.missing
        sparse = self.generation.attention
        exact = len(self.generation.prompt) - 1  # from here on, everything is looked at
        if sparse is not None and at < exact:
            tokens, last = tokens[: exact - at], last and end <= exact
            return Piece(self, tokens, 0, last, attention=sparse)
        return Piece(self, tokens, wanted.positions if last else 0, last)


GUESS = 256
"""Further tokens for which there is to be room where no limit is given."""


def most_positions(generation: Generation, known: int) -> int:
    """Return how many positions a text of `known` tokens may come to; without a limit, a guess."""
    limit = generation.max_tokens
    most = known + GUESS if limit is None else len(generation.prompt) + limit
    return min(generation.n_ctx, most)


@dataclass(slots=True, eq=False)
class Piece:
    """Tokens of a sequence to evaluate in the next pass.

    Attributes:
        sequence: Whose they are.
        tokens: The ids.
        positions: After how many of the last of them something is wanted.
        last: Whether nothing is missing after them.
        attention: What they look at; None is everything.
        prompt: Whether more than a token and its draft was missing before.
    """

    sequence: Sequence
    tokens: list[int]
    positions: int
    last: bool
    attention: Attention | None = None
    prompt: bool = False
