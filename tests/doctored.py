"""Finds the fields of a GGUF file, so that tests can write lies into them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Sizes of the scalar value types; 8 is a string and 9 an array.
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9

VERSION_AT, TENSOR_COUNT_AT, KEY_COUNT_AT, FIRST_KEY_LENGTH_AT = 4, 8, 16, 24


@dataclass(frozen=True)
class TensorField:
    """Where the description of a tensor keeps its parts."""

    name_at: int  # first byte of the name
    rank_at: int  # u32
    dims_at: int  # u64 each, columns first
    type_at: int  # u32
    offset_at: int  # u64


@dataclass(frozen=True)
class Layout:
    """Byte positions in a GGUF file."""

    values: dict[str, int]  # of each key: the value itself, behind its type
    tensors: dict[str, TensorField]
    header_end: int


def layout(data: bytes) -> Layout:
    """Walk through the header of the valid file `data`."""
    at = FIRST_KEY_LENGTH_AT

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + kind, data, at)
        at += struct.calcsize(kind)
        return int(value)

    def string() -> str:
        nonlocal at
        length = number("Q")
        at += length
        return data[at - length : at].decode()

    def skip(value_type: int) -> None:
        nonlocal at
        if value_type == _STRING:
            string()
        elif value_type == _ARRAY:
            element_type, count = number("I"), number("Q")
            for _ in range(count):
                skip(element_type)
        else:
            at += _SCALAR_BYTES[value_type]

    tensor_count, key_count = struct.unpack_from("<QQ", data, TENSOR_COUNT_AT)
    values, tensors = {}, {}
    for _ in range(key_count):
        key = string()
        value_type = number("I")
        values[key] = at
        skip(value_type)
    for _ in range(tensor_count):
        name = string()
        name_at, rank_at = at - len(name), at
        rank = number("I")
        tensors[name] = TensorField(name_at, rank_at, at, at + 8 * rank, at + 8 * rank + 4)
        at += 8 * rank + 12
    return Layout(values, tensors, at)


class Doctor:
    """Writes damaged copies of one valid file into a folder."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.data = source.read_bytes()
        self.layout = layout(self.data)
        self.folder = folder
        self.files: dict[str, Path] = {}

    def write(self, case: str, data: bytes) -> Path:
        """Write `data` as the file of `case`."""
        path = self.folder / f"{len(self.files)}.gguf"
        path.write_bytes(data)
        self.files[case] = path
        return path

    def patch(self, case: str, *changes: tuple[int, str, Any]) -> Path:
        """Write a copy with the struct-packed value of each (position, format, value) put in."""
        data = bytearray(self.data)
        for position, kind, value in changes:
            struct.pack_into("<" + kind, data, position, value)
        return self.write(case, bytes(data))
