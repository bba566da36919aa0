"""Opens files in a child process with little memory and time: a crash is a result, not the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MEMORY_BYTES = 512 << 20
SECONDS_EACH = 2.0

# Argument: the memory allowed on top of what the interpreter has mapped. Paths come on stdin.
_CHILD = """
import json, resource, sys, time
from specrs._specrs import Model
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + int(sys.argv[1]),) * 2)
for path in sys.stdin.read().splitlines():
    start, error, message = time.perf_counter(), None, ""
    try:
        Model(path, threads=1).session().forward([1, 2, 3])
    except Exception as raised:
        error, message = type(raised).__name__, str(raised)
    print(json.dumps([path, error, message, time.perf_counter() - start]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """What became of opening a file and running three tokens."""

    error: str | None  # name of the exception, or None
    message: str
    seconds: float


def open_all(paths: Iterable[Path]) -> dict[Path, Outcome]:
    """Open each of `paths`; AssertionError names the file that killed or stalled the child."""
    paths = list(paths)
    outcomes: dict[Path, Outcome] = {}
    finished = subprocess.run(
        [sys.executable, "-c", _CHILD, str(MEMORY_BYTES)],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        timeout=30 + SECONDS_EACH * len(paths),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "RUST_BACKTRACE": "0"},
    )
    for line in finished.stdout.splitlines():
        path, error, message, seconds = json.loads(line)
        outcomes[Path(path)] = Outcome(error, message, seconds)
    missing = [path for path in paths if path not in outcomes]
    assert not missing, f"{missing[0]} ended the process: {finished.returncode} {finished.stderr}"
    assert "panicked" not in finished.stderr
    slow = {
        path: outcome.seconds
        for path, outcome in outcomes.items()
        if outcome.seconds > SECONDS_EACH
    }
    assert not slow
    return outcomes


def assert_refused(files: dict[str, Path], mentions: dict[str, str] | None = None) -> None:
    """Fail unless every file gives a GgufError that has the words of its case in `mentions`."""
    outcomes = open_all(files.values())
    for case, path in files.items():
        outcome = outcomes[path]
        assert outcome.error == "GgufError", f"{case}: {outcome}"
        assert outcome.message, case
        wanted = (mentions or {}).get(case, "")
        assert wanted.lower() in outcome.message.lower(), f"{case}: {outcome.message}"
