"""From ids to text: whole characters, stop strings, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from .decoding.step import Step
from .sampling import TokenLogprob


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call that a reply makes of a tool.

    Attributes:
        index: Which call of the reply it is, from 0.
        id: What the result of the call refers to; the same in all pieces of a call.
        name: The tool's; the same in all of them.
        arguments: What comes next of the arguments. All pieces together are JSON.
    """

    index: int
    id: str
    name: str
    arguments: str


class Piece(NamedTuple):
    """What became final of a text, by kinds.

    Attributes:
        text: What is meant for the reader.
        reasoning: What the model thought before.
        tool_calls: What it calls.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return pieces that follow each other as one; deltas of the same call become one."""
    deltas = (delta for piece in pieces for delta in piece.tool_calls)
    calls = [list(same) for _, same in groupby(deltas, key=lambda delta: delta.index)]
    return Piece(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(replace(same[0], arguments="".join(d.arguments for d in same)) for same in calls),
    )


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream.

    Attributes:
        text: Text that became final; text that may turn into a stop string, or is half a character,
            comes with a later chunk. Empty if there is none.
        tokens: The new ids.
        from_draft: Whether these ids were drafted and accepted, or made by the target alone.
        logprobs: One for each of these ids; None unless asked for.
        reasoning: In chats, the same of what the model thinks before it replies.
        tool_calls: In chats, pieces of the calls of tools, each of another call.
    """

    text: str
    tokens: list[int]
    from_draft: bool
    logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class Decoder(Protocol):
    """Makes text of ids, in whole characters."""

    def push(self, token: int, /) -> str:
        """Return the text that became complete with `token`."""

    def finish(self) -> str:
        """Return what was held back."""


class Reader(Protocol):
    """Tells apart what a reply consists of, as its text comes."""

    @property
    def over(self) -> bool:
        """Whether the reply ends here, whatever would follow."""

    def feed(self, text: str) -> Piece:
        """Take the next text; return what became final."""

    def finish(self) -> Piece:
        """Return what was held back: no more text comes."""


class TextWriter:
    """Turns the ids of a generation into text and tells where it ends.

    Text is held back while it may be the beginning of a stop string, so no part of one is ever
    handed out; it is released as soon as it cannot be one, at the latest at the end.

    Args:
        decoder: The tokenizer's stream of whole characters.
        stop: Strings that end the generation; the text ends before the first of them. A mapping
            tells of each what `matched_stop` calls it.
        end_ids: Ids that end it; they have no text.
        reader: Who tells reasoning and calls of tools from the text; None takes all as text.

    Attributes:
        matched_stop: The string or the id that ended it; None so far.
    """

    def __init__(
        self,
        decoder: Decoder,
        stop: Sequence[str] | Mapping[str, str] = (),
        end_ids: Collection[int] = (),
        reader: Reader | None = None,
    ) -> None:
        self._decoder = decoder
        self._stop = stop if isinstance(stop, Mapping) else {text: text for text in stop}
        self._end_ids = end_ids
        self._reader = reader
        self._held = ""
        self._pieces: list[Piece] = []
        self._found: str | None = None  # a stop string
        self.matched_stop: str | int | None = None

    def ends(self, token: int) -> bool:
        """Take the next id; whether the generation ends with it."""
        if token in self._end_ids:
            self._pieces.append(Piece())
            self.matched_stop = token
            return True
        text = self._release(self._decoder.push(token))
        self._pieces.append(Piece(text) if self._reader is None else self._reader.feed(text))
        if self._found is not None:
            self.matched_stop = self._stop[self._found]
        return self._found is not None or (self._reader is not None and self._reader.over)

    def chunks(self, step: Step) -> Iterator[Chunk]:
        """Give a taken step as chunks: what was drafted, then the target's own token."""
        pieces, self._pieces = self._pieces, []
        if step.finish_reason is not None:
            pieces[-1] = joined([pieces[-1], self.finish()])
        drafted = step.accepted
        for part, from_draft in ((slice(drafted), True), (slice(drafted, None), False)):
            tokens = step.tokens[part]
            if tokens:
                logprobs = None if step.logprobs is None else step.logprobs[part]
                yield chunk(joined(pieces[part]), tokens, from_draft, logprobs)

    def _release(self, text: str) -> str:
        """Add `text` to what is held and return what is final of it."""
        if not self._stop:
            return text
        held = self._held + text
        found = [(at, stop) for stop in self._stop if (at := held.find(stop)) >= 0]
        if found:
            at, self._found = min(found)
            self._held = ""
            return held[:at]
        keep = overlap(held, self._stop)
        final = len(held) - keep
        self._held = held[final:]
        return held[:final]

    def finish(self) -> Piece:
        """Return what is held back: no later id can change it any more."""
        over = self._found is not None
        text = "" if over else self._release(self._decoder.finish()) + self._held
        if self._reader is None:
            return Piece(text)
        return joined([self._reader.feed(text), self._reader.finish()])


def chunk(
    piece: Piece, tokens: list[int], from_draft: bool, logprobs: list[TokenLogprob] | None = None
) -> Chunk:
    """Return the chunk of what became final with `tokens`."""
    return Chunk(piece.text, tokens, from_draft, logprobs, piece.reasoning, piece.tool_calls)


def overlap(text: str, words: Iterable[str]) -> int:
    """Return the length of the longest end of `text` that begins one of `words`, not all of it."""
    return max((_overlap(text, word) for word in words), default=0)


def _overlap(text: str, word: str) -> int:
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
