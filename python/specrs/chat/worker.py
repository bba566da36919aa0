"""The process that renders templates: it reads requests and writes answers, a line of JSON each.

A template is a program that came with a model file. jinja2's sandbox keeps it off the system but
not from computing for ever, and no list of forbidden operations can be complete. So it runs here,
where the system bounds memory and `process` the time.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .rendering import render

MEMORY_LIMIT = 256 << 20
"""Bytes that a request may need."""

# The parent ends this process then: its memory may be in pieces.
_EXHAUSTED = {"failed": f"it needs more than {MEMORY_LIMIT >> 20} MiB of memory", "exhausted": True}

# Seconds of computing after which the system ends a worker that its parent cannot end any more.
ORPHAN_SECONDS = 10


def main() -> None:
    """Answer requests until the input ends."""
    print("ready", flush=True)
    _limit_memory()
    for line in sys.stdin.buffer:
        _limit_time()
        try:
            answer = json.dumps(render(json.loads(line)))
        except MemoryError:
            answer = json.dumps(_EXHAUSTED)
        except Exception as error:  # the request is at fault, not this process
            answer = json.dumps({"failed": f"{type(error).__name__}: {error}"})
        print(answer, flush=True)


def _resource() -> Any:
    """Return the module of limits; None where the system has none."""
    try:
        import resource
    except ImportError:
        return None
    return resource


def _limit_memory() -> None:
    """Let the process grow by `MEMORY_LIMIT`, on systems that can bound it."""
    resource = _resource()
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - pathlib is not loaded
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (AttributeError, OSError):
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + MEMORY_LIMIT
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time() -> None:
    resource = _resource()
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        limit = int(usage.ru_utime + usage.ru_stime) + ORPHAN_SECONDS
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
