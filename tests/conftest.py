"""What all tests share: where models come from and how many threads they run on."""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from models import write_model

# Longer searches on request; the deadline is off because shared machines stall.
hypothesis.settings.register_profile(
    "specrs",
    deadline=None,
    max_examples=int(os.environ.get("SPECRS_MAX_EXAMPLES", "50")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("specrs")


@pytest.fixture(scope="session")
def threads() -> int:
    """Threads of every model a test loads: SPECRS_TEST_THREADS, or 2 where there are as many."""
    return int(os.environ.get("SPECRS_TEST_THREADS", min(2, len(os.sched_getaffinity(0)))))


@pytest.fixture(scope="session")
def two_cpus() -> None:
    """Skip where this process may use one CPU only."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two threads need two CPUs")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give the path of a random model with these options of `write_model`; written once each."""
    folder = tmp_path_factory.mktemp("models")
    written: dict[str, Path] = {}

    def path(**options: Any) -> Path:
        key = repr(sorted(options.items()))
        if key not in written:
            written[key] = write_model(folder / f"{len(written)}.gguf", **options)
        return written[key]

    return path


def pulled(name: str) -> Path:
    """Give the path of a real model, fetched once; SPECRS_REQUIRE_MODEL=1 forbids its absence."""
    import specrs

    try:
        return Path(specrs.pull(name))
    except OSError as error:
        if os.environ.get("SPECRS_REQUIRE_MODEL") == "1":
            raise
        pytest.skip(f"{name} could not be fetched: {error}")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Give the path of SmolLM2-135M-Instruct in Q4_1."""
    return pulled("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Give the path of Gemma 3 270M, a base model, in Q4_K_M."""
    return pulled("gemma3-270m")


@dataclass
class Ran:
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Write a toy model that spells ASCII, and make `Llama` load it."""
    import fake_engine

    monkeypatch.setattr("specrs.llama.Model", fake_engine.Model)
    monkeypatch.setattr("specrs.llama.Session", fake_engine.Session)
    monkeypatch.setattr(sys.modules["specrs._specrs"], "GgufFile", fake_engine.GgufFile)
    return fake_engine.write_toy(
        tmp_path / "toy.gguf",
        vocab=["<end>", *string.printable],
        control=[0],
        eos=0,
        n_ctx=4000,
        order=1,
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""
    from specrs import cli

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["specrs", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many logits were compared bit by bit, if any were."""
    bits = sys.modules.get("bits")
    if bits is not None and bits.compared:
        terminalreporter.write_line(f"{bits.compared:,} logits compared bit by bit and found equal")
