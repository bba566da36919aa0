"""Checks of arguments: what is not meant becomes an error that names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from operator import index
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

# They can be iterated over, but never are a sequence of token ids: without an order, or of bytes.
NO_TOKEN_IDS = (str, bytes, bytearray, memoryview, Mapping, Set)

# What counts of positions and layers stay below.
MOST = 1 << 31


def check_kind(name: str, value: object, wanted: type) -> None:
    """Raise TypeError unless `value` is of a class of specrs."""
    if not isinstance(value, wanted):
        raise TypeError(f"{name} must be a specrs.{wanted.__name__}, not {value!r}")


def checked_int(name: str, value: Any, wanted: str = "an int") -> int:
    """Return `value` as an int; TypeError for anything but an integer, bool included."""
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be {wanted}, not {shortened(value)}")


def checked_positive(name: str, value: Any) -> int:
    """Return `value` as an int; TypeError as above, ValueError below 1."""
    number = checked_int(name, value)
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def checked_count(name: str, value: Any, least: int = 0, most: int = MOST - 1) -> int:
    """Return `value`, an int from `least` to `most`; TypeError or ValueError otherwise."""
    count = checked_int(name, value)
    if not least <= count <= most:
        raise ValueError(f"{name} must be between {least} and {most}, not {count}")
    return count


def checked_tokens(name: str, value: Any, n_vocab: int, wanted: str = "an int") -> int:
    """Return `value`, how many tokens of the vocabulary; TypeError or ValueError otherwise."""
    count = checked_int(name, value, wanted)
    if not 0 <= count <= n_vocab:
        raise ValueError(
            f"{name} must be from 0 to {n_vocab}, the size of the vocabulary, not {count}"
        )
    return count


def checked_number(name: str, value: Any) -> float:
    """Return `value` as a float; TypeError for anything but a real number, bool included."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {shortened(value)}")
    return float(value)


def checked_share(name: str, value: Any) -> float:
    """Return `value` as a float from 0 to 1, both included; TypeError or ValueError otherwise."""
    share = checked_number(name, value)
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be from 0 to 1, not {value}")
    return share


def checked_proper_share(name: str, value: Any) -> float:
    """Return `value` as a float between 0 and 1, which stays so in single precision."""
    share = checked_number(name, value)
    if not 1e-37 < share < 1 - 1e-7:
        raise ValueError(f"{name} must be a number between 0 and 1, not {value}")
    return share


def checked_bool(name: str, value: Any) -> bool:
    """Return `value`; TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {shortened(value)}")
    return value


def checked_text(name: str, text: Any) -> str:
    """Return `text`; ValueError if it holds half of a surrogate pair, which UTF-8 cannot say."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text, not {shortened(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} is no valid Unicode: character {error.start} is the lone surrogate "
            f"{text[error.start]!r}; replace it, or decode the bytes with errors='replace'"
        ) from None
    return text


def checked_stop(stop: Any) -> tuple[str, ...]:
    """Return one or several texts as a tuple; TypeError or ValueError for anything else."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(text, str) for text in stops):
        raise TypeError(f"stop must be text or a sequence of texts, not {stop!r}")
    if "" in stops:
        raise ValueError("stop must not contain an empty text: it would end everything at once")
    return tuple(checked_text("stop", text) for text in stops)


def checked_token_ids(name: str, ids: Any, n_vocab: int) -> list[int]:
    """Return token ids as a list; TypeError or ValueError unless all are in the vocabulary."""
    if isinstance(ids, NO_TOKEN_IDS) or not isinstance(ids, Iterable):
        raise TypeError(f"{name} must be token ids, not {shortened(ids)}")
    checked = [checked_int(f"{name}[{i}]", token, "a token id") for i, token in enumerate(ids)]
    for i, token in enumerate(checked):
        if not 0 <= token < n_vocab:
            raise ValueError(f"{name}[{i}] is {token}, outside the vocabulary of {n_vocab}")
    return checked


def checked_path(name: str, path: Any) -> Path:
    """Return `path`; TypeError unless it is text or a path, ValueError if no file can have it."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise TypeError(f"{name} must be text or a path, not {shortened(path)}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {os.fspath(path)!r}, which no file can be called") from None
    return Path(path)
