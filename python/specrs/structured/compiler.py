"""Grammars compiled for the tokens of one model."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._specrs import Tokenizer
from .constraint import Constraint
from .grammar import Grammar, library, limits

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


@dataclass(frozen=True)
class Compiled:
    """A compiled grammar. Texts that begin from it share a lexer, and what is too complex for that.

    Attributes:
        matcher: It at its beginning.
        n_vocab: Ids of the model are below.
        end_ids: Ids that end a generation.
    """

    matcher: LLMatcher
    n_vocab: int
    end_ids: Collection[int]

    def begin(self) -> Constraint:
        """Return what it allows in a new text."""
        return Constraint(self.matcher.deep_copy(), self.n_vocab, self.end_ids)


class Compiler:
    """Compiles grammars for one model, from any thread.

    Each generation has a compilation of its own, which takes a millisecond or two: copies of one
    share a lexer, and what is too complex for it in one text would then break it in all.

    Args:
        tokenizer: The model's.
        n_vocab: Rows of its logits.
    """

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._spelling = Spelling(tokenizer, n_vocab)
        self._made: LLTokenizer | None = None
        self._lock = threading.Lock()

    def compile(self, grammar: Any, end_ids: Collection[int]) -> Compiled:
        """Return a grammar for a generation that ends with `end_ids`.

        Raises TypeError for what is no grammar, ValueError if it names tokens that the model has
        not, or is too complex.
        """
        if not isinstance(grammar, Grammar):
            raise TypeError(
                f"grammar must be a specrs.Grammar, such as specrs.Grammar.json(), not {grammar!r}"
            )
        matcher: LLMatcher = library().LLMatcher(
            self._vocabulary(), grammar.definition(), log_level=0, limits=limits()
        )
        matcher.compute_bitmask()  # finds out what is too complex from the beginning
        if matcher.is_error():
            raise ValueError(f"the grammar cannot be compiled: {matcher.get_error()}")
        return Compiled(matcher, self._spelling.n_vocab, frozenset(end_ids))

    def _vocabulary(self) -> LLTokenizer:
        """Return the vocabulary as llguidance has it, which takes a second to make, once."""
        with self._lock:
            if self._made is None:
                self._made = library().LLTokenizer(library().TokenizerWrapper(self._spelling))
            return self._made


class Spelling:
    """The tokens of a model by their bytes, as llguidance wants them; one more stands for the end.

    Which tokens end a generation is not the vocabulary's to say: it may be told to go on after
    those, and to end with others.
    """

    MARK = b"\xff"
    """Before the name of a control token: no text has this byte."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self.n_vocab = self.eos_token_id = n_vocab
        self.bos_token_id = None
        self.special_token_ids: list[int] = []  # marked already
        self._tokenizer = tokenizer

    @property
    def tokens(self) -> list[bytes]:
        """The bytes of every token."""
        named = [self._bytes(id_) for id_ in range(self.n_vocab)]
        return [*named, self.MARK + b"<the end>"]

    def __call__(self, text: bytes) -> list[int]:
        """Return ids that spell `text`, those that a tokenizer would choose if it has some."""
        ids = self._tokenizer.encode(text.decode(), add_bos=False)
        if self._spelled(ids) == text:
            return ids
        # SentencePiece puts a space before a text, but none within one.
        opening = b"\n"
        ids = self._tokenizer.encode((opening + text).decode(), add_bos=False)
        for i in range(len(ids)):
            if self._spelled(ids[i:]) == text:
                return ids[i:]
        raise ValueError(f"no tokens spell {text!r}")

    def _spelled(self, ids: list[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, ids))

    def _bytes(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        if tokenizer.is_control(token):
            return self.MARK + tokenizer.token(token).encode()
        spelled = tokenizer.token_bytes(token)
        return b"" if spelled.startswith(self.MARK) else spelled
