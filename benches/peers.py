"""Starts engines in processes of their own, with pinned threads, and asks them for times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

from engines import MODULES, N_CTX

# The ways to run an engine, the best first; the next is tried where one crashes.
VARIANTS = {
    "specrs": ["specrs"],
    "llama-cpp": ["llama-cpp", "llama-cpp-plain"],
    "openvino": ["openvino"],
}
# Threads of the engine that was asked before may spin a while after they have answered.
QUIET_SECONDS = 0.05
LOAD_SECONDS = 240


def interpreter_of(engine: str) -> str | None:
    """Find a Python that has `engine`: this one, or one of those SPECRS_PEER_PYTHON names.

    The variable is a list with the separator of PATH.
    """
    named = os.environ.get("SPECRS_PEER_PYTHON", "").split(os.pathsep)
    module = MODULES[engine]
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    for python in filter(None, [sys.executable, *named]):
        if subprocess.run([python, "-c", code], check=False).returncode == 0:
            return python
    return None


def import_seconds(engine: str, python: str) -> float:
    """Time the import of `engine` in a new interpreter."""
    module = MODULES[engine]
    code = f"from time import perf_counter as t; a = t(); import {module}; print(t() - a)"
    finished = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return float(finished.stdout)


def start(engine: str, python: str, model: Path, threads: int, n_ctx: int = N_CTX) -> Peer:
    """Start the best variant of `engine` that survives a first prompt.

    Raises EngineDied with the reason if none does.
    """
    for variant in VARIANTS[engine]:
        try:
            peer = Peer(engine, variant, python, model, threads, n_ctx)
            peer.ask("prompt", length=64)
        except EngineDied as error:
            died = error
        else:
            return peer
    raise died


class EngineDied(RuntimeError):
    """An engine did not load the model, or its process ended by itself."""


class Peer:
    """An engine in its own process; a context manager that ends it.

    OpenMP is told to bind its threads to cores: unbound, two of them can share one core of a small
    virtual machine, and llama.cpp loses most of its speed. specrs and OpenVINO pin their own.
    """

    def __init__(
        self, engine: str, variant: str, python: str, model: Path, threads: int, n_ctx: int
    ) -> None:
        pinned = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_PROC_BIND": "true",
            "OMP_PLACES": "cores",
        }
        script = Path(__file__).with_name("engines.py")
        self.engine, self.python = engine, python
        self._process = subprocess.Popen(
            [python, str(script), variant, str(model), str(threads), str(n_ctx)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | pinned,
        )
        patience = Timer(LOAD_SECONDS, self._process.kill)
        patience.start()
        try:
            loaded = self._answer()
        except EngineDied as error:
            if patience.finished.is_set():
                raise EngineDied(f"it took more than {LOAD_SECONDS} s to load") from error
            raise
        finally:
            patience.cancel()
        if "error" in loaded:
            raise EngineDied(loaded["error"])
        self.description: str = loaded["description"]

    def ask(self, request: str, **arguments: Any) -> Any:
        """Send a request of `engines.main` with its arguments; what it answers."""
        time.sleep(QUIET_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": request, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise EngineDied(f"{self.engine} ended with code {code}")
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
