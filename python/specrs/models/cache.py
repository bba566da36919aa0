"""The folder of downloaded models, and whether a file in it is what it should be."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def cache_folder() -> Path:
    """Return the folder of downloaded models: SPECRS_CACHE, or the platform's cache folder."""
    chosen = os.environ.get("SPECRS_CACHE")
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("specrs", appauthor=False)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time into the block; the system frees the lock of one that is killed.

    Raises OSError that names the variable SPECRS_CACHE if the folder cannot be written to.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "pull.lock").open("w")
    except OSError as error:
        raise OSError(
            f"the folder of downloaded models, {folder}, cannot be written to ({error.strerror}); "
            f"set the environment variable SPECRS_CACHE to one that can"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Give a folder in `folder` that is gone after the block; what killed pulls left goes first.

    The lock must be held, so that no other pull is running.
    """
    import shutil
    import tempfile

    for leftover in folder.glob("pull-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="pull-", dir=folder) as scratch:
        yield Path(scratch)


def is_intact(path: Path, size: int, sha256: str) -> bool:
    """Whether `path` holds the file of this size and digest.

    The digest takes a second, so a file that passed gets a mark beside it, and is not read again
    until its size, times or inode change.
    """
    try:
        if not path.is_file() or path.stat().st_size != size:
            return False
        expected = _mark(path, sha256)
        with suppress(OSError, UnicodeDecodeError):
            if mark_path(path).read_text() == expected:
                return True
        with path.open("rb") as file:
            if copy(file) != sha256:
                return False
    except PermissionError:  # locking its folder tells
        return False
    _write_mark(path, expected)
    return True


def keep(part: Path, target: Path, sha256: str) -> None:
    """Give a file that was found to have the digest its place, at once and whole."""
    part.replace(target)
    _write_mark(target, _mark(target, sha256))


def copy(source: IO[bytes], sink: IO[bytes] | None = None) -> str:
    """Read `source` to its end, into `sink` if there is one; return the sha256 of what passed."""
    import hashlib

    digest = hashlib.sha256()
    while block := source.read(1 << 20):
        digest.update(block)
        if sink is not None:
            sink.write(block)
    return digest.hexdigest()


def check_room(folder: Path, need: int) -> None:
    """Raise OSError unless the disk of `folder` has `need` bytes left."""
    import shutil

    if shutil.disk_usage(folder).free < need:
        raise disk_full(folder, need)


def is_disk_full(error: OSError) -> bool:
    """Whether the disk, or the user's share of it, was full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(folder: Path, need: int) -> OSError:
    """Return the error that says what is needed, what there is, and the way out."""
    import shutil

    free = shutil.disk_usage(folder).free
    return OSError(
        f"the disk of {folder} is full: the download takes {need / 1e6:,.0f} MB and "
        f"{free / 1e6:,.0f} MB are free; make room, or set the environment variable SPECRS_CACHE "
        f"to a folder on another disk"
    )


def mark_path(path: Path) -> Path:
    """Return where the mark of a file is that passed."""
    return path.with_name(f"{path.name}.verified")


def _mark(path: Path, sha256: str) -> str:
    status = path.stat()
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{sha256} {status.st_size} {times} {status.st_ino}\n"


def _write_mark(path: Path, mark: str) -> None:
    # A cache that cannot be written to, or half a mark: the digest is computed again, no more.
    with suppress(OSError):
        mark_path(path).write_text(mark)
