"""From ids to text: whole characters, stop strings, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ._specrs import TextStream
from .decoding.step import Step
from .sampling import TokenLogprob


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream.

    Attributes:
        text: Text that became final; text that may turn into a stop string, or is half a character,
            comes with a later chunk. Empty if there is none.
        tokens: The new ids.
        from_draft: Whether these ids were drafted and accepted, or made by the target alone.
        logprobs: One for each of these ids; None unless asked for.
    """

    text: str
    tokens: list[int]
    from_draft: bool
    logprobs: list[TokenLogprob] | None = None


class TextWriter:
    """Turns the ids of a generation into text and tells where it ends.

    Text is held back while it may be the beginning of a stop string, so no part of one is ever
    handed out; it is released as soon as it cannot be one, at the latest at the end.

    Args:
        decoder: The tokenizer's stream of whole characters.
        stop: Strings that end the generation; the text ends before the first of them.
        end_ids: Ids that end it; they have no text.
    """

    def __init__(
        self, decoder: TextStream, stop: Sequence[str] = (), end_ids: Collection[int] = ()
    ) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._end_ids = end_ids
        self._held = ""
        self._pieces: list[str] = []
        self._stopped = False

    def ends(self, token: int) -> bool:
        """Take the next id; whether the generation ends with it."""
        if token in self._end_ids:
            self._pieces.append("")
            return True
        self._pieces.append(self._release(self._decoder.push(token)))
        return self._stopped

    def chunks(self, step: Step) -> Iterator[Chunk]:
        """Give a taken step as chunks: what was drafted, then the target's own token."""
        pieces, self._pieces = self._pieces, []
        if step.finish_reason is not None:
            pieces[-1] += self.finish()
        drafted = step.accepted
        for part, from_draft in ((slice(drafted), True), (slice(drafted, None), False)):
            tokens = step.tokens[part]
            if tokens:
                logprobs = None if step.logprobs is None else step.logprobs[part]
                yield Chunk("".join(pieces[part]), tokens, from_draft, logprobs)

    def _release(self, text: str) -> str:
        """Add `text` to what is held and return what is final of it."""
        if not self._stop:
            return text
        held = self._held + text
        found = [at for at in map(held.find, self._stop) if at >= 0]
        if found:
            self._held, self._stopped = "", True
            return held[: min(found)]
        keep = max((_overlap(held, stop) for stop in self._stop), default=0)
        final = len(held) - keep
        self._held = held[final:]
        return held[:final]

    def finish(self) -> str:
        """Return what is held back: no later id can change it any more."""
        if self._stopped:
            return ""
        return self._release(self._decoder.finish()) + self._held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop` but is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
