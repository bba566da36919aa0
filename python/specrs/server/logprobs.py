"""Log-probabilities of tokens, beside the text they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import specrs

from .._specrs import TextStream, Tokenizer

LEAST = -9999.0
"""What stands for minus infinity, which JSON does not have."""

Top = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Entry:
    """A token of the text.

    Attributes:
        token: Its id.
        offset: Where its text begins, in characters of the whole.
        logprob: Its log-probability; None where nothing stands before it.
        top: The most likely tokens at its place.
    """

    token: int
    offset: int
    logprob: float | None
    top: Top


class Aligner:
    """Keeps what is known of tokens until their text is out.

    Text is late where it is half a character or might become a stop string. Tokens whose text never
    comes, such as the one that ends a reply, are left out.

    Args:
        stream: Turns the ids into text, as that of the reply does.
        offset: Where the text begins.
    """

    def __init__(self, stream: TextStream, offset: int = 0) -> None:
        self._stream = stream
        self._known = self._out = offset  # ends of the text of all tokens, and of what is out
        self._held: list[tuple[Entry, int]] = []

    def take(self, logprobs: Iterable[specrs.TokenLogprob], text: str) -> list[Entry]:
        """Take tokens and the text that came out with them; return those whose text is out."""
        self._out += len(text)
        for one in logprobs:
            start = self._known
            self._known += len(self._stream.push(one.token))
            self._held.append((Entry(one.token, start, one.logprob, one.top), self._known))
        count = 0
        while count < len(self._held) and self._held[count][1] <= self._out:
            if self._held[count][0].offset == self._out:
                break  # it has no text of its own: it comes with what follows
            count += 1
        ready, self._held = self._held[:count], self._held[count:]
        return [entry for entry, _ in ready]

    def finish(self) -> list[Entry]:
        """Return those of the rest whose text has begun."""
        ready = [entry for entry, _ in self._held if entry.offset < self._out]
        self._held = []
        return ready


class Unaligned:
    """Does the same where a reply has parts that are no text: tokens come as they are made."""

    def take(self, logprobs: Iterable[specrs.TokenLogprob], _: str) -> list[Entry]:
        """Return all tokens."""
        return [Entry(one.token, 0, one.logprob, one.top) for one in logprobs]

    def finish(self) -> list[Entry]:
        """Return nothing more."""
        return []


def spelled(tokenizer: Tokenizer, token: int) -> tuple[str, list[int]]:
    """Return the text of a token, and its real bytes; a control token is spelled by its name."""
    raw = tokenizer.token_bytes(token)
    if not raw:
        name = tokenizer.token(token)
        return name, list(name.encode())
    return raw.decode("utf-8", "replace"), list(raw)


def of_chat(tokenizer: Tokenizer, entries: Iterable[Entry]) -> dict[str, Any]:
    """Return entries as chats have them."""
    content = []
    for entry in entries:
        one = _one(tokenizer, entry.token, entry.logprob)
        one["top_logprobs"] = [_one(tokenizer, token, logprob) for token, logprob in entry.top]
        content.append(one)
    return {"content": content, "refusal": None}


def _one(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    text, raw = spelled(tokenizer, token)
    return {"token": text, "logprob": _number(logprob), "bytes": raw}


def of_text(tokenizer: Tokenizer, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return entries as completions have them: lists, and of equal texts the likelier."""
    tops: list[dict[str, float] | None] = []
    for entry in entries:
        if entry.logprob is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for token, logprob in [*entry.top, (entry.token, entry.logprob)]:
            text, number = spelled(tokenizer, token)[0], _number(logprob)
            assert number is not None
            top[text] = max(number, top.get(text, number))
        tops.append(top)
    return {
        "tokens": [spelled(tokenizer, entry.token)[0] for entry in entries],
        "token_logprobs": [_number(entry.logprob) for entry in entries],
        "top_logprobs": tops,
        "text_offset": [entry.offset for entry in entries],
    }


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)


def of_prompt(
    tokenizer: Tokenizer, ids: list[int], hidden: int, score: specrs.Score
) -> list[Entry]:
    """Return what a score tells of a prompt.

    The first token stands after nothing. The first `hidden` ones are not in the text.
    """
    stream = tokenizer.stream(skip_special_tokens=False)
    entries, offset = [], 0
    tops = score.top_logprobs or [()] * len(ids)
    for i, (token, logprob, top) in enumerate(zip(ids, score.logprobs, tops, strict=True)):
        entries.append(Entry(token, offset, logprob, top or ()))
        offset += len(stream.push(token)) if i >= hidden else 0
    return entries
