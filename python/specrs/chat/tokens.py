"""The prompt of a chat: its ids, and how its reply is to be read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..text import Decoder, TextWriter

if TYPE_CHECKING:
    from ..structured.grammar import Grammar
    from .reading import ReplyRules


class ChatTokens(list[int]):
    """The ids of a conversation.

    Attributes:
        continued: Whether what follows goes on with a text, or begins one.
        rules: What is looked for in the reply.
        grammar: What the reply must be where it is forced to call a tool; or None.
    """

    def __init__(
        self, ids: Sequence[int], continued: bool, rules: ReplyRules, grammar: Grammar | None
    ) -> None:
        super().__init__(ids)
        self.continued = continued
        self.rules = rules
        self.grammar = grammar

    def grammar_with(self, given: Grammar | None) -> Grammar | None:
        """Return the grammar of the reply; ValueError where there would be two."""
        if self.grammar is not None and given is not None:
            raise ValueError(
                "tool_choice forces a call, with a grammar of its own; leave grammar= out"
            )
        return self.grammar or given

    @property
    def end_ids(self) -> set[int]:
        """Tokens that end the reply, though the file does not say so."""
        end = self.rules.marks.end_id
        return {end} if end is not None and self.rules.tools else set()

    def writer(self, decoder: Decoder, stop: Sequence[str], end_ids: Collection[int]) -> TextWriter:
        """Return what tells text, reasoning and calls of a reply apart."""
        if self.rules.trivial:
            return TextWriter(decoder, stop, end_ids)
        from .formats import MarkedDecoder  # not needed before the first chat
        from .reading import ReplyReader

        tokens, written = self.rules.tokens, self.rules.marks.written
        return TextWriter(
            MarkedDecoder(decoder, tokens),
            {text: text for text in stop} | {written(text): text for text in stop},
            end_ids,
            ReplyReader(self.rules),
        )
