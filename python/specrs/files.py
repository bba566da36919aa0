"""Files: written whole or not at all, and read line by line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def replace_file(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file at once: whoever opens `path` finds what was there before, or all of the new.

    What is written lies beside it under a short name of its own until then, so several may write to
    one path, and its own name may be as long as the system allows. Raises OSError; what was there
    stays as it was.
    """
    path = Path(path)
    partial = path.with_name(f".specrs-{os.urandom(8).hex()}.partial")
    try:
        with partial.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            # Of the file that was meant, not of the other name.
            raise type(error)(error.errno, error.strerror, os.fspath(path)) from None
        raise


def json_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Give number and bytes of every line that is not empty, without a byte-order mark.

    Only line feeds end a line: JSON has other separators, such as U+2028, within its texts.
    """
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, line
