"""Reading of text that is still coming: what is not there yet is waited for."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Waiting = Generator[None, None, T]
"""What yields whenever it needs more text, and returns a T."""

SPACE = " \t\n\r"

MOST_DEPTH = 100
"""Objects and lists within each other that a call may have."""

_SPACES = re.compile(r"[ \t\n\r]*")
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


class NoCallError(Exception):
    """What began like a call is none."""


class Cursor:
    """A place in a text that grows. Methods that wait are generators, for `yield from`.

    Attributes:
        text: What has come of the text and was not dropped.
        at: The place: all before it was read.
        ended: Whether no more comes.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False

    def drop(self, length: int) -> str:
        """Cut the beginning off and return it; the place is then the beginning of the rest."""
        text, self.text, self.at = self.text[:length], self.text[length:], 0
        return text

    def peek(self) -> Waiting[str]:
        """Skip white space; return the next character, "" at the end."""
        while True:
            found = _SPACES.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            yield

    def take(self, word: str) -> Waiting[bool]:
        """Go past `word` if it comes next; return whether it does."""
        while True:
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return True
            if self.ended or not word.startswith(self.text[self.at : self.at + len(word)]):
                return False
            yield

    def expect(self, word: str) -> Waiting[None]:
        """Go past `word`; NoCallError if something else comes next."""
        if not (yield from self.take(word)):
            raise NoCallError

    def until(self, word: str) -> Waiting[str]:
        """Return the text before the next `word`, and go past that; NoCallError if none comes."""
        start = seen = self.at
        while (found := self.text.find(word, seen)) < 0:
            if self.ended:
                raise NoCallError
            seen = max(start, len(self.text) - len(word) + 1)
            yield
        self.at = found + len(word)
        return self.text[start:found]

    def run(self, characters: re.Pattern[str]) -> Waiting[str]:
        """Go past the longest run of `characters`, and return it."""
        start = self.at
        while True:
            found = characters.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.text) or self.ended:
                return self.text[start : self.at]
            yield

    def value(self, depth: int = 0) -> Waiting[None]:
        """Go past a value of JSON; NoCallError at the first character that none has there."""
        first = yield from self.peek()
        if first == '"':
            yield from self.string()
        elif first in {"{", "["}:
            if depth == MOST_DEPTH:
                raise NoCallError
            close = "}" if first == "{" else "]"
            self.at += 1
            more = (yield from self.peek()) != close
            if not more:
                self.at += 1
            while more:
                if first == "{":
                    yield from self.key()
                yield from self.value(depth + 1)
                more = yield from self.has_more(close)
        elif not _SCALAR.fullmatch((yield from self.run(_WORD))):
            raise NoCallError

    def string(self) -> Waiting[str]:
        """Go past a string of JSON and return what it says."""
        if (yield from self.peek()) != '"':
            raise NoCallError
        start = self.at
        self.at += 1
        while True:
            found = _CHARACTERS.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            rest = self.text[self.at : self.at + 6]
            if rest.startswith('"'):
                self.at += 1
                return str(json.loads(self.text[start : self.at]))
            if self.ended or (rest and not _BEGUN_ESCAPE.fullmatch(rest)):
                raise NoCallError
            yield

    def key(self) -> Waiting[str]:
        """Go past a key of an object and its colon; return the key."""
        key = yield from self.string()
        if (yield from self.peek()) != ":":
            raise NoCallError
        self.at += 1
        return key

    def has_more(self, close: str) -> Waiting[bool]:
        """Go past what stands after an item: whether another comes, or else `close`."""
        after = yield from self.peek()
        if after not in {",", close}:
            raise NoCallError
        self.at += 1
        return after == ","
