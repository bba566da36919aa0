"""Starts engines in processes of their own, with pinned threads, and asks them for times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

_MODULES = {"specrs": "specrs", "llama-cpp": "llama_cpp"}
# The ways to run an engine, the best first; the next is tried where one crashes.
_VARIANTS = {"specrs": ["specrs"], "llama-cpp": ["llama-cpp", "llama-cpp-plain"]}


def interpreter_of(engine: str) -> str | None:
    """Find a Python that has `engine`: this one, or the one SPECRS_PEER_PYTHON names."""
    candidates = [sys.executable, os.environ.get("SPECRS_PEER_PYTHON")]
    for python in filter(None, candidates):
        code = (
            f"import importlib.util as u, sys; sys.exit(u.find_spec('{_MODULES[engine]}') is None)"
        )
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def import_seconds(engine: str, python: str) -> float:
    """Time the import of `engine` in a new interpreter."""
    code = f"from time import perf_counter as t; a = t(); import {_MODULES[engine]}; print(t() - a)"
    finished = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return float(finished.stdout)


def start(engine: str, python: str, model: Path, threads: int) -> Peer:
    """Start the best variant of `engine` that survives a first prompt."""
    for variant in _VARIANTS[engine]:
        peer = Peer(engine, variant, python, model, threads)
        try:
            peer.ask("prompt", length=64)
        except EngineDied as error:
            died = error
        else:
            return peer
    raise died


class EngineDied(RuntimeError):
    """The process of an engine ended by itself."""


class Peer:
    """An engine in its own process; a context manager that ends it.

    OpenMP is told to bind its threads to cores: unbound, two of them can share one core of a small
    virtual machine, and llama.cpp loses most of its speed. specrs pins its own.
    """

    def __init__(self, engine: str, variant: str, python: str, model: Path, threads: int) -> None:
        pinned = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_PROC_BIND": "true",
            "OMP_PLACES": "cores",
        }
        script = Path(__file__).with_name("engines.py")
        self.engine, self.python = engine, python
        self._process = subprocess.Popen(
            [python, str(script), variant, str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | pinned,
        )
        self.description: str = self._answer()

    def ask(self, request: str, **arguments: Any) -> float:
        """Send one of `engines.REQUESTS` with its arguments; the number it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": request, **arguments}) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineDied(f"{self.engine} ended with code {self._process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
