"""Text that knows where each of its characters comes from, through all that a template does to it.

What a message says may be anything, also the spelling of a mark that ends a turn. The template sees
it as it is written; afterwards its characters can be told from those that the template wrote.
Where that cannot be known exactly, a text counts as a message's: then a mark of the template may be
lost, but none is ever forged.
"""

# ruff: noqa: D102 - the methods of a text are those of `str`

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

# Who wrote a character: the template, a message, or the message that the reply continues.
TEMPLATE, MESSAGE, CONTINUED = b"\0", b"\1", b"\2"


class Text(str):
    """A text with the origin of each of its characters; a message's, if nothing is said."""

    _origin: bytes

    def __new__(cls, text: object, origin: bytes | None = None) -> Text:
        """Make it of `text`; `origin` has one of the letters above for every character."""
        self = super().__new__(cls, text)
        self._origin = MESSAGE * len(self) if origin is None else origin
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Text:
        return _concatenated(self, other) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Text:
        return _concatenated(other, self) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Text:
        return Text(super().__mul__(times), self._origin * times.__index__())

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> Text:
        return Text(super().__mod__(values))

    def __getitem__(self, key: SupportsIndex | slice) -> Text:
        text = super().__getitem__(key)
        if isinstance(key, slice):
            return Text(text, self._origin[key])
        return Text(text, bytes([self._origin[key]]))

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def lstrip(self, chars: str | None = None) -> Text:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> Text:
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> Text:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> Text:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str) -> Text:
        return self[: len(super().removesuffix(suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._found(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        with_ends = self._found(super().splitlines(True), 0)
        lengths = map(len, super().splitlines(keepends))
        return [line[:length] for line, length in zip(with_ends, lengths, strict=True)]

    def partition(self, sep: str) -> tuple[str, str, str]:
        return self._in_three(super().partition(sep))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        return self._in_three(super().rpartition(sep))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Text:
        if not old:
            return Text(super().replace(old, new, count))
        return of_template(new).join(self.split(old, count))

    def join(self, pieces: Iterable[str]) -> Text:
        pieces = list(pieces)
        text = super().join(pieces)
        return Text(text, self._origin.join(map(origin_of, pieces)))

    def _found(self, pieces: list[str], between: int) -> list[str]:
        """Give `pieces` of this text, in their order and so far apart, with their origins."""
        found, at = [], 0
        for piece in pieces:
            # Without a separator white space is skipped, with which no piece begins.
            at = at if between else self.find(piece, at)
            found.append(self[at : at + len(piece)])
            at += len(piece) + between
        return list(found)

    def _in_three(self, parts: tuple[str, str, str]) -> tuple[str, str, str]:
        first, second = len(parts[0]), len(parts[0]) + len(parts[1])
        return self[:first], self[first:second], self[second:]


def _same_letters(name: str) -> Callable[[Text], Text]:
    """Make a method that changes the case of letters."""

    def changed(self: Text) -> Text:
        text = getattr(str, name)(self)
        return Text(text, self._origin if len(text) == len(self) else None)

    return changed


def _new_text(name: str) -> Callable[..., Text]:
    """Make a method whose result counts as a message's."""

    def made(self: Text, *args: Any, **kwargs: Any) -> Text:
        return Text(getattr(str, name)(self, *args, **kwargs))

    made.__name__ = name  # by it jinja2's sandbox knows `format`, whose fields it checks
    return made


for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(Text, _name, _same_letters(_name))
for _name in ("center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate"):
    setattr(Text, _name, _new_text(_name))
setattr(Text, "zfill", _new_text("zfill"))  # noqa: B010 - as those above


def origin_of(text: str) -> bytes:
    """Return the origin of every character; what is no `Text` was written by the template."""
    return text._origin if isinstance(text, Text) else TEMPLATE * len(text)


def of_template(text: str) -> Text:
    """Return `text`, which is the template's if nothing else is known."""
    return text if isinstance(text, Text) else Text(text, origin_of(text))


def concatenated(pieces: Iterable[str]) -> str:
    """Join `pieces`."""
    pieces = list(pieces)
    if not any(isinstance(piece, Text) for piece in pieces):
        return "".join(pieces)
    return Text("".join(pieces), b"".join(map(origin_of, pieces)))


def _concatenated(first: str, second: str) -> Text:
    return of_template(concatenated((first, second)))


def is_plain(value: object) -> bool:
    """Whether nothing in `value` can come from the text of a message."""
    return value is None or type(value) in (str, int, float, bool)


class NotTextError(TypeError):
    """The template makes text of what it was given in parts or as an object."""


class Parts(list[Any]):
    """Content in parts, for templates that walk through them."""

    def __str__(self) -> str:
        raise NotTextError("content in parts is no text")


class Arguments(dict[str, Any]):
    """Arguments of a call as an object, for templates that want one."""

    def __str__(self) -> str:
        raise NotTextError("arguments as an object are no text")


def tracked(value: Any, origin: bytes = MESSAGE) -> Any:
    """Copy data as JSON has it with its texts, keys included, tracked as of `origin`."""
    if isinstance(value, str):
        return Text(value, origin * len(value))
    if isinstance(value, list):
        return type(value)(tracked(item, origin) for item in value)
    if isinstance(value, dict):
        return type(value)((tracked(k, origin), tracked(v, origin)) for k, v in value.items())
    return value
